"""Datasets from the logs of a real system."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from typer.testing import CliRunner

from assay import data
from assay.cli.app import app
from assay.core.errors import ConfigError, DataError

LOG = """run,angle,speed,torque,gain,failed
1,0.1,1,0,1.0,0
1,0.2,2,1,2.0,0
1,0.3,3,0,3.0,1
2,0.4,4,1,4.0,false
2,0.5,5,1,5.0,False
"""
PUSH = Discrete(2)
COLUMNS = {
    "obs": ["angle", "speed"],
    "action": ["torque"],
    "reward": ["gain"],
    "terminated": ["failed"],
    "episode": ["run"],
}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


def build(*logs: Path, actions: Any = PUSH, **columns: list[str]) -> data.Dataset:
    return data.build(logs, COLUMNS | columns, "out.npz", actions=actions)


def assert_built(made: data.Dataset) -> None:
    """The first episode failed; of the second, the last row is where it was cut."""
    assert made.lengths.tolist() == [3, 1]
    first, second = made.episodes()
    assert first.obs[:, 1].tolist() == [1, 2, 3, 3] and first.reward.tolist() == [1, 2, 3]
    assert first.action.tolist() == [0, 1, 0]
    assert first.terminated.tolist() == [False, False, True] and not first.truncated.any()
    assert second.obs[:, 1].tolist() == [4, 5] and second.reward.tolist() == [4]
    assert second.truncated.tolist() == [True] and not second.terminated.any()


def test_csv(log: Path) -> None:
    made = build(log)
    assert_built(made)
    assert made.schema.action == Discrete(2)
    assert [one.level for one in data.validate(made)] == []


def test_json_lines(log: Path) -> None:
    names, *rows = (line.split(",") for line in LOG.lower().split())
    lines = []
    for row in rows:
        cells = dict(zip(names, map(json.loads, row), strict=True))
        lines.append(json.dumps(cells | {"state": [cells["angle"], [cells["speed"]]]}))
    path = log.with_suffix(".jsonl")
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8-sig")  # as Windows begins a file
    assert_built(build(path, obs=["state"]))


def test_objects_in_cells(log: Path) -> None:
    names, *rows = (line.split(",") for line in LOG.lower().split())
    cells = [dict(zip(names, map(json.loads, row), strict=True)) for row in rows]
    path = log.with_suffix(".jsonl")
    path.write_text("\n".join(json.dumps({"at": {"in": one}}) for one in cells))
    columns = {name: [f"at.in.{one}" for one in names] for name, names in COLUMNS.items()}
    assert_built(data.build([path], columns, "out.npz", actions=PUSH))
    with pytest.raises(DataError, match=r"no column 'at.in.sped'.*\n.*'at.in.speed'"):
        build(path, **{**columns, "obs": ["at.in.angle", "at.in.sped"]})


def test_parquet(log: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    parquet.write_table(csv.read_csv(log), log.with_suffix(".parquet"))
    assert_built(build(log.with_suffix(".parquet")))


def test_gzip(log: Path) -> None:
    names, *rows = (line.split(",") for line in LOG.lower().split())
    lines = (dict(zip(names, map(json.loads, row), strict=True)) for row in rows)
    texts = {"log.csv.gz": LOG, "log.jsonl.GZ": "\n".join(map(json.dumps, lines))}
    for name, text in texts.items():
        Path(name).write_bytes(gzip.compress(text.encode()))
        assert_built(build(log.with_name(name)))
    Path("log.csv.gz").write_bytes(gzip.compress(LOG.replace("0.3,3", "0.3,fast").encode()))
    with pytest.raises(DataError, match=r"'speed' in line 4 of '.*log.csv.gz' has 'fast'"):
        build(log.with_name("log.csv.gz"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(LOG.encode())[:-20], "is not a whole gzip file: .*ended before"),
        (gzip.compress(LOG.encode())[:-8] + bytes(8), "is not a whole gzip file: CRC check failed"),
        (gzip.compress(LOG.encode())[:12] + bytes(80), "is not a whole gzip file"),
        (LOG.encode(), "is not a whole gzip file: Not a gzipped file"),
        (gzip.compress(LOG.encode() + bytes(2 << 20)), "Line 7 of .* is longer than 1,048,576"),
        (gzip.compress((LOG + "3,0.1,1,0,1.0,0\n" * 20_000).encode()), "times its size"),
        (gzip.compress((LOG + "\n" * (1 << 19)).encode()), "times its size"),
    ],
    ids=["cut off", "checksum", "damaged", "not packed", "one long line", "rows", "empty lines"],
)
def test_gzip_that_cannot_be_read(
    log: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.setattr("assay.data.rows._LONGEST_LINE", 1 << 20)
    monkeypatch.setattr("assay.data.rows._SMALL", 1 << 18)
    packed = log.rename("log.csv.gz")
    packed.write_bytes(content)
    mapped = [f"--column={name}={','.join(names)}" for name, names in COLUMNS.items()]
    words = ["data", "build", packed.name, "--out", "set.npz", "--actions", "2", *mapped]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2, refused.output
    assert re.search(f"log.csv.gz.*{message}|{message}", " ".join(refused.stderr.split()))
    assert [path.name for path in log.parent.iterdir()] == ["log.csv.gz"]


@pytest.mark.parametrize("ending", [".npz", ".hdf5"])
def test_arrays_side_by_side(log: Path, ending: str) -> None:
    """As D4RL has them; what has another number of rows is no column."""
    table = np.array([[float(cell) for cell in row.split(",")] for row in LOG.split()[1:4]])
    held = {"observations": table[:, 1:3], "actions": table[:, 3:4], "rewards": table[:, 4]}
    held |= {"terminals": table[:, 5] > 0, "metadata/seed": np.array([1]), "name": np.array(7)}
    path = log.with_suffix(ending)
    if ending == ".npz":
        np.savez(path, **held)
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            for name, array in held.items():
                file[name] = array
    with pytest.raises(DataError, match=r"it holds .*actions.*\n.*assay data build"):
        data.load(path)
    columns = {"obs": ["observations"], "action": ["actions"], "reward": ["rewards"]}
    made = data.build([path], columns | {"terminated": ["terminals"]}, "out.npz", actions=PUSH)
    assert made.lengths.tolist() == [3] and made.episode(0).obs[:, 1].tolist() == [1, 2, 3, 3]
    assert made.episode(0).reward.tolist() == [1, 2, 3] and made.episode(0).terminated[-1]
    with pytest.raises(DataError, match=r"Row 1 of '.*' has no column 'terminal'"):
        data.build([path], columns | {"terminated": ["terminal"]}, "out.npz", actions=PUSH)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"log.* is not a whole"):
        data.build([path], columns | {"terminated": ["terminals"]}, "out.npz", actions=PUSH)


def test_several_logs(log: Path) -> None:
    other = log.with_name("other.csv")
    other.write_text(LOG)
    assert build(log, other).lengths.tolist() == [3, 1, 3, 1]


def test_the_next_observation_in_columns(log: Path) -> None:
    """Where a row does not go on from it, another episode begins: here line 4 is missing."""
    names, *rows = LOG.split()
    after = ["0.2,2", "0.3,3", "0.3,3", "0.5,5", "0.6,6"]
    lines = [f"{names},angle2,speed2", *map(",".join, zip(rows, after, strict=True))]
    columns = {"next_obs": ["angle2", "speed2"]}
    log.write_text("\n".join(lines))
    made = build(log, **columns)
    assert made.lengths.tolist() == [3, 2]
    assert made.episode(1).obs[:, 1].tolist() == [4, 5, 6]
    log.write_text("\n".join([*lines[:2], *lines[3:]]))
    made = build(log, **columns)
    assert made.lengths.tolist() == [1, 1, 2]
    assert made.episode(0).obs[:, 1].tolist() == [1, 2] and made.episode(0).truncated.all()
    assert made.episode(1).obs[:, 1].tolist() == [3, 3] and made.episode(1).terminated.all()


def test_the_last_observation_in_a_row_of_its_own(log: Path) -> None:
    log.write_text(LOG + "2,0.6,6,,,\n")
    made = build(log)
    assert made.lengths.tolist() == [3, 2]
    assert made.episode(1).obs[:, 1].tolist() == [4, 5, 6]
    assert made.episode(1).truncated.tolist() == [False, True]
    log.write_text(LOG.replace("3.0,1\n", "3.0,1\n1,0.7,7,,,\n"))  # after a terminal, too
    assert build(log).episode(0).obs[:, 1].tolist() == [1, 2, 3, 7]


def test_without_numbers_of_episodes(log: Path) -> None:
    columns = {name: names for name, names in COLUMNS.items() if name != "episode"}
    assert_built(data.build([log], columns, "out.npz", actions=Discrete(2)))


def test_spaces_of_an_environment(log: Path) -> None:
    columns = COLUMNS | {"obs": ["angle", "speed", "angle", "speed"]}
    made = data.build([log], columns, "out.npz", env="CartPole-v1")
    assert made.schema.action == Discrete(2) and made.schema.observation.shape == (4,)
    with pytest.raises(
        DataError, match=r"'obs' in line 2 of '.*log.csv' has 2 numbers; expected 4"
    ):
        data.build([log], COLUMNS, "out2.npz", env="CartPole-v1")
    assert not Path("out2.npz").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("angle,", "angel,", r"Line 2 of '.*log.csv' has no column 'angle'"),
        ("0.3,3", "0.3,fast", r"The column 'speed' in line 4 of '.*log.csv' has 'fast'"),
        ("0.5,5", "0.5,", r"The column 'speed' in line 6 of '.*' has an empty cell"),
        ("3.0,1\n", "3.0,7\n", r"'terminated' in line 4 of '.*' is 7; expected true or false"),
        ("2.0,0\n", "2.0\n", r"Line 3 of '.*' has 5 cells; expected 6"),
        ("2.0,0\n", "2.0,0,9\n", r"Line 3 of '.*' has 7 cells; expected 6"),
        ("run,angle", "speed,angle", r"has the column 'speed' more than once"),
        ("1,0.2", "2,0.2", r"The episode '1' goes on in line 4 of '.*', after rows of others"),
        ("2,0.4", ",0.4", r"The column 'run' in line 5 of '.*' is empty"),
        ("0.2,2,1", "0.2,2,", r"The action in line 3 of '.*' is empty, but its episode '1' goes"),
        ("2.0,0\n", "2.0,1\n", r"The step in line 3 of '.*' is terminated, but its episode '1' go"),
        ("0.2,2,1", "0.2,2,2", r"The action in line 3 of '.*' is 2; it is not in Discrete\(2\)"),
        ("0.3,3", "NaN,3", r"'obs' in line 4 of '.*' is \[nan, 3.0\]; expected finite numbers"),
        ("3.0,1\n", "3.0,maybe\n", r"'failed' in line 4 of '.*' has 'maybe'"),
    ],
)
def test_what_cannot_be_read(log: Path, before: str, after: str, message: str) -> None:
    log.write_text(LOG.replace(before, after))
    with pytest.raises(DataError, match=message):
        build(log)
    assert [path.name for path in log.parent.iterdir()] == ["log.csv"]


def test_advice_fits_the_field(log: Path) -> None:
    """Words are named for what may have words, and not for what is empty."""
    fixes = []
    for before, after in (("0.3,3", "0.3,fast"), ("0.5,5", "0.5,"), ("3.0,1\n", "3.0,maybe\n")):
        log.write_text(LOG.replace(before, after))
        with pytest.raises(DataError) as caught:
            build(log)
        fixes.append(caught.value.fix)
    assert ["--words" in str(fix) for fix in fixes] == [True, False, False]


def test_bounds_that_are_given_are_meant(log: Path) -> None:
    build(log, actions=Box(0.0, 1.0, (1,)))
    log.write_text(LOG.replace("0.2,2,1", "0.2,2,1.5"))
    with pytest.raises(DataError, match=r"The action in line 3 of '.*' is 1.5; it is not in Box"):
        build(log, actions=Box(0.0, 1.0, (1,)))


def test_bounds_of_lists(log: Path) -> None:
    """Bounds hold for as many numbers as an action has, also where these are in one column."""
    path = log.with_suffix(".jsonl")
    rows = ({"s": k, "a": [k / 4, -k / 4], "r": 0, "d": k == 3} for k in range(4))
    path.write_text("\n".join(map(json.dumps, rows)))
    mapped = [f"--column={name}={column}" for name, column in zip(COLUMNS, "sard", strict=False)]
    words = ["data", "build", "log.jsonl", "--out", "set.npz", *mapped]
    done = CliRunner().invoke(app, [*words, "--actions=-1:1"])
    assert done.exit_code == 0, done.output
    assert data.load("set.npz").schema.action == Box(-1, 1, (2,))
    refused = CliRunner().invoke(app, [*words, "--actions=-0.5:0.5"])
    assert refused.exit_code == 2 and "The action in line 4" in refused.stderr
    refused = CliRunner().invoke(app, [*words, "--actions=1:-1"])
    assert refused.exit_code == 2 and "expected a number of choices" in refused.stderr


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators(log: Path, separator: str) -> None:
    log.write_text(LOG.replace(",", separator))
    assert_built(build(log))


def test_files_that_cannot_be_read(log: Path) -> None:
    log.write_text("")
    with pytest.raises(DataError, match=r"'.*log.csv' is empty"):
        build(log)
    log.write_text(LOG.splitlines()[0])
    with pytest.raises(DataError, match=r"'.*log.csv' holds no rows"):
        build(log, actions=None)
    with pytest.raises(DataError, match=r"Cannot read '.*none.csv'"):
        build(log.with_name("none.csv"))
    lines = log.with_suffix(".jsonl")
    deep, long = "[" * 100_000 + "]" * 100_000, "9" * 400
    for cell, message in (
        ("", r"Line 2 of '.*log.jsonl' is not JSON"),
        (deep, r"Line 2 of '.*log.jsonl' is not JSON"),
        (long, r"The column 'a' in line 2 of '.*log.jsonl' has '9{40}'; expected a number"),
    ):
        lines.write_text(f'{{"a": 1}}\n{{"a": {cell}}}\n')
        with pytest.raises(DataError, match=message):
            data.build([lines], {k: ["a"] for k in COLUMNS if k != "episode"}, "out.npz")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"reward": []}, "lacks reward"),
        ({"rewrd": ["gain"]}, "unknown field 'rewrd'"),
        ({"my_extra/gain": ["gain"]}, "unknown field 'my_extra/gain'"),
        ({"extra/": ["gain"]}, "unknown field 'extra/'"),
        ({"next_obs/arm": ["speed"]}, "other parts than obs"),
        ({"reward": "gain"}, r"The columns of 'reward' are the text 'gain'.\nGive a list: \['"),
    ],
)
def test_a_wrong_map(log: Path, columns: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(log, **columns)
    with pytest.raises(ConfigError, match=r"The logs are the text '.*log.csv'.\nGive a list"):
        data.build(log, COLUMNS, "out.npz")


def test_steps_without_an_observation_after_them(log: Path) -> None:
    """Each is an episode of its own, which the log does not say to be over."""
    log.write_text("run,angle,speed,torque,gain,failed\n1,0.1,1,0,1.0,0\n2,0.2,2,1,2.0,0\n")
    with pytest.raises(DataError, match=r"No step in '.*log.csv' has an observation after it"):
        build(log)
    assert [path.name for path in log.parent.iterdir()] == ["log.csv"]


def test_a_damaged_parquet_file(log: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    path = log.with_suffix(".parquet")
    parquet.write_table(csv.read_csv(log), path)
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(200) + content[204:])
    with pytest.raises(DataError, match=r"log.parquet' is not a whole Parquet file: .*\.$"):
        build(path)


def test_a_log_is_not_written_over(log: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    path = log.with_suffix(".parquet")
    parquet.write_table(csv.read_csv(log), path)
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"'log.parquet' is given twice"):
        data.build([path], COLUMNS, "log.parquet", actions=PUSH)
    assert path.read_bytes() == before


def test_command(log: Path) -> None:
    mapped = [f"--column={name}={','.join(names)}" for name, names in COLUMNS.items()]
    words = ["data", "build", "log.csv", "--out", "set.npz", "--actions", "2", *mapped]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "set.npz: 2 episodes with 4 steps" in done.output
    assert_built(data.load("set.npz"))
    for wrong in ("--column=x", "--actions=many"):
        refused = CliRunner().invoke(app, [*words, wrong])
        assert refused.exit_code == 2 and "expected" in refused.stderr
    twice = CliRunner().invoke(app, [*words, "--column=obs=gain"])
    assert twice.exit_code == 2 and "Write --column obs=angle,speed,gain" in twice.stderr
