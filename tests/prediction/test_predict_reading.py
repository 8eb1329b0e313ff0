"""Files of observations are read as what they mean, and files of actions hold what was written."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from gymnasium import spaces
from pyarrow import parquet

from assay import data
from assay.core.errors import DataError
from assay.envs.spaces import ObservationMap
from assay.prediction.reading import Rows, read
from assay.prediction.writing import writing

VECTOR = ObservationMap(spaces.Box(-1.0, 1.0, (2,)))
ROWS = [[0.5, -0.25], [1.0, 0.125], [0.0, 3.0]]
ARM = ObservationMap(
    spaces.Dict(
        {
            "arm": spaces.Dict({"joints": spaces.Box(-9.0, 9.0, (2,))}),
            "mode": spaces.Discrete(3, start=5),
        }
    )
)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


def only(path: Path, observations: ObservationMap = VECTOR) -> Rows:
    [rows] = read(path, observations, 100)
    return rows


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize(
    "names", [("obs.0", "obs.1"), ("obs/0", "obs/1"), ("position", "speed")], ids=str
)
def test_a_vector_is_read_from_columns(ending: str, names: Any, tmp_path: Path) -> None:
    path = written(tmp_path / f"x{ending}", [dict(zip(names, row, strict=True)) for row in ROWS])
    np.testing.assert_array_equal(only(path).obs, np.array(ROWS, np.float32))
    assert only(path).obs.dtype == np.float32


def test_numbered_columns_are_taken_by_their_numbers_and_others_are_ignored(tmp_path: Path) -> None:
    rows = [{"reward": 9.0, "obs.1": b, "obs.0": a} for a, b in ROWS]
    found = only(written(tmp_path / "x.csv", rows))
    np.testing.assert_array_equal(found.obs, np.array(ROWS, np.float32))


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_vector_is_read_from_lists(ending: str, tmp_path: Path) -> None:
    path = written(tmp_path / f"x{ending}", [{"obs": row, "action": 1} for row in ROWS])
    np.testing.assert_array_equal(only(path).obs, np.array(ROWS, np.float32))


@pytest.mark.parametrize(
    "row",
    [
        {"obs": {"arm": {"joints": [1.0, 2.0]}, "mode": 6}},
        {"arm": {"joints": [1.0, 2.0]}, "mode": 6},
        {"arm.joints": [1.0, 2.0], "mode": 6},
        {"arm.joints.0": 1.0, "arm.joints.1": 2.0, "mode": 6},
        {"obs/arm/joints": [1.0, 2.0], "obs/mode": 6},
    ],
    ids=["nested", "bare", "dotted", "numbered", "as datasets name it"],
)
def test_a_dict_is_read_by_the_names_of_its_entries(row: Any, tmp_path: Path) -> None:
    found = only(written(tmp_path / "x.jsonl", [row]), ARM).obs
    np.testing.assert_array_equal(found["arm/joints"], [[1.0, 2.0]])
    assert found["mode"].tolist() == [1]  # counted from 0


def test_a_dict_is_read_from_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{"arm.joints": np.ones((3, 2)), "mode": [5, 6, 7]})
    found = only(tmp_path / "x.npz", ARM).obs
    np.testing.assert_array_equal(found["arm/joints"], np.ones((3, 2), np.float32))
    assert found["mode"].tolist() == [0, 1, 2]


def test_images_are_bytes(tmp_path: Path) -> None:
    images = ObservationMap(spaces.Box(0, 255, (8, 8, 3), np.uint8))
    given = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3))
    np.save(tmp_path / "x.npy", given)
    found = only(tmp_path / "x.npy", images).obs
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, given)


def test_masks_come_beside_the_observation(tmp_path: Path) -> None:
    masked = ObservationMap(spaces.Box(-1.0, 1.0, (2,)), mask_size=3)
    rows = [{"obs": [0.5, 0.5], "action_mask": [1, 0, 1]}]
    found = only(written(tmp_path / "x.jsonl", rows), masked).obs
    assert found["action_mask"].tolist() == [[1, 0, 1]]
    np.testing.assert_array_equal(found["obs"], [[0.5, 0.5]])


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("obs.0,obs.1\n1,2\n3,4\n5,6\n7,oops\n")
    found = read(path, VECTOR, 2)
    assert next(found).obs.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match=r"'obs.1' in line 5 of .*x.csv' has 'oops'"):
        next(found)


@pytest.mark.parametrize("batch", [1, 2, 100])
@pytest.mark.parametrize(
    ("mark", "values", "first"),
    [
        ("episode", ["a", "a", "b", "b", "a"], [1, 0, 1, 0, 1]),
        ("first", [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]),
    ],
)
def test_episodes_begin_where_the_file_says(
    batch: int, mark: str, values: Any, first: list[int], tmp_path: Path
) -> None:
    rows = [{"obs": [0.0, 0.0], mark: value} for value in values]
    np.savez(tmp_path / "x.npz", obs=np.zeros((5, 2)), **{mark: np.array(values)})
    for path in (written(tmp_path / "x.jsonl", rows), tmp_path / "x.npz"):
        found = np.concatenate([rows.first for rows in read(path, VECTOR, batch)])
        assert found.tolist() == [bool(one) for one in first]


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_a_dataset_says_where_its_episodes_begin(ending: str, tmp_path: Path) -> None:
    def episode(steps: int) -> data.Episode:
        ended = np.arange(steps) == steps - 1
        obs = np.full((steps + 1, 2), steps, np.float32)
        return data.Episode(obs, np.zeros(steps, int), np.ones(steps), ended, ended & False)

    space = spaces.Box(-9.0, 9.0, (2,))
    made = data.from_episodes([episode(2), episode(3)], space, spaces.Discrete(2))
    rows = only(data.save(made, tmp_path / f"set{ending}"), ObservationMap(space))
    assert rows.obs[:, 0].tolist() == [2, 2, 2, 3, 3, 3, 3]
    first = rows.first.copy()
    first[0] = True  # whatever a file says, its first row begins an episode
    assert first.tolist() == [True, False, False, True, False, False, False]


def refused(path: Path, observations: ObservationMap = VECTOR) -> str:
    with pytest.raises(DataError) as caught:
        list(read(path, observations, 2))
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(2), r"has the shape (2,); expected (N, 2)"),
        (np.zeros((3, 4)), r"has the shape (3, 4); expected (N, 2)"),
        (np.zeros((0, 2)), "holds no observations"),
        (np.array([["a", "b"]]), "expected Box"),
        (np.array([[0.0, 1.0], [1.0, 2.0], [3.0, np.nan]]), "Number 1 of 'obs' in row 2 of"),
        (np.array([[0.0, -np.inf]]), "is -inf; expected a finite number"),
        (np.array([[0.0, 1.0], [1e39, 2.0]]), "Number 0 of 'obs' in row 1 of"),
        (np.array([[None, 1]], object), "not a whole NPY file of numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(array: Any, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    assert message in refused(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("obs.0,obs.1\n", "holds no observations"),
        ("1,2\n3,4\n", "The first line"),
        ("obs.0\n1\n", "has 1 number of 'obs' (obs.0); expected 2, obs.0 to obs.1"),
        ("obs.0,obs.1,obs.2\n1,2,3\n", "has 3 numbers of 'obs'"),
        ("a,b,c\n1,2,3\n", "has 3 columns (a, b, c); expected 2"),
        ("obs.0,obs.1\n1,2\n1,\n", "The column 'obs.1' in line 3"),
        ("obs.0,obs.1\n1,2\n1,x\n", "has 'x'; expected a number"),
        ("obs.0,obs.1\n1,2\nNaN,2\n", "The column 'obs.0' in line 3"),
        ("obs.0,obs.1\n1,-1e39\n", "in line 2 of"),
        ("obs.0,obs.1\n1,-1e39\n", "is -1e+39; expected a number of float32's range"),
        ("obs.0,obs.1\n1,2,3\n", "Line 2"),
        ("obs.0,obs.1\n1\n", "Line 2 of"),
    ],
)
def test_tables_that_do_not_fit_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)
    assert message in refused(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"arm": {"joints": [1.0, 2.0]}}, "has no column 'mode'"),
        ({"arm": {"joints": [1.0]}, "mode": 5}, "'arm.joints' in line 1"),
        ({"arm": {"joints": [1.0, 2.0]}, "mode": 8}, "is 8; expected a value of Discrete"),
        ({"arm": {"joints": [1.0, 2.0]}, "mode": 5.5}, "is 5.5; expected a value of Discrete"),
    ],
)
def test_entries_that_do_not_fit_are_refused(row: Any, message: str, tmp_path: Path) -> None:
    assert message in refused(written(tmp_path / "x.jsonl", [row]), ARM)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_nested_lists_have_the_shape_of_the_observation(ending: str, tmp_path: Path) -> None:
    images = ObservationMap(spaces.Box(0, 255, (8, 6, 3), np.uint8))
    given = np.random.default_rng(0).integers(0, 256, (8, 6, 3))
    for row in (given.tolist(), given.flatten().tolist()):
        found = only(written(tmp_path / f"x{ending}", [{"obs": row}]), images).obs
        np.testing.assert_array_equal(found[0], given)
    turned = written(tmp_path / f"x{ending}", [{"obs": np.moveaxis(given, 2, 0).tolist()}])
    assert "1 of" in (text := refused(turned, images))
    assert "'obs' in" in text and "has the shape (3, 8, 6); expected (8, 6, 3)" in text


def test_other_mistakes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    assert "Line 1 of" in refused(tmp_path / "deep.jsonl")
    (tmp_path / "long.jsonl").write_text(f'{{"obs": [1, {"9" * 400}]}}')
    assert "The column 'obs' in line 1" in refused(tmp_path / "long.jsonl")
    (tmp_path / "text.npy").write_text("hello")
    assert "pickle" not in refused(tmp_path / "text.npy")
    np.savez(tmp_path / "marks.npz", obs=np.ones((3, 2)), episode=np.ones((3, 2)))
    assert "'episode' of" in (text := refused(tmp_path / "marks.npz"))
    assert "has the shape (3, 2); expected (N,)" in text
    assert "ends in .npy" in refused(tmp_path / "x.txt")
    assert "There is no file" in refused(tmp_path / "x.csv")
    (tmp_path / "torn.jsonl").write_text('{"obs": [1, 2]}\n{"obs": [1')
    assert "Line 2" in refused(tmp_path / "torn.jsonl")
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 torn")
    assert "not a whole NPZ file" in refused(tmp_path / "torn.npz")
    np.savez(tmp_path / "x.npz", **{"arm.joints": np.ones((3, 2)), "mode": [5, 6]})
    assert "different lengths: arm.joints 3, mode 2" in refused(tmp_path / "x.npz", ARM)
    np.save(tmp_path / "one.npy", np.ones((3, 2)))
    assert "arm.joints, mode" in refused(tmp_path / "one.npy", ARM)


@pytest.mark.parametrize(
    "actions",
    [
        np.array([0, 3, 1]),
        np.array([[0.1, -2.0], [0.3, 1e-9], [5.0, 0.0]], np.float32),
        np.arange(12, dtype=np.int8).reshape(3, 2, 2),
    ],
    ids=["Discrete", "Box", "two axes"],
)
def test_actions_are_read_back_as_they_were(actions: Any, tmp_path: Path) -> None:
    for ending in (".npy", ".csv", ".jsonl", ".parquet"):
        path = tmp_path / f"new/{ending[1:]}{ending}"
        with writing(path, actions.shape[1:], actions.dtype) as write:
            write(actions[:2])
            write(actions[2:])
        np.testing.assert_array_equal(reread(path, actions), actions)
        assert [one.name for one in path.parent.glob(".*")] == []


def reread(path: Path, like: Any) -> Any:
    if path.suffix == ".npy":
        assert np.load(path).dtype == like.dtype
        return np.load(path)
    if path.suffix == ".csv":
        names = path.read_text().splitlines()[0].split(",")
        assert names == (
            ["action"] if like.ndim == 1 else [f"action.{i}" for i in range(len(names))]
        )
        return np.loadtxt(path, like.dtype, delimiter=",", skiprows=1).reshape(like.shape)
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        return np.array([json.loads(line)["action"] for line in lines], like.dtype)
    return np.array(parquet.read_table(path)["action"].to_pylist(), like.dtype)


def test_nothing_is_left_of_a_file_that_was_not_finished(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("before")
    with pytest.raises(DataError), writing(tmp_path / "a.csv", (), np.dtype(int)) as write:
        write(np.arange(3))
        raise DataError("the observations end badly")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "before"
