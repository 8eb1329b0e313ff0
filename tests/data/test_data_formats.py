"""One dataset in every format: the same content, the same hash, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import CHOICE, OBS, assert_same, parts, sample
from gymnasium.spaces import Dict, Discrete, Tuple

from assay import data
from assay.core.errors import AssayError, DataError, RunError
from assay.data.formats import npz

NEEDS = {".npz": "numpy", ".hdf5": "h5py", ".parquet": "pyarrow", "-v0": "h5py"}


@pytest.fixture(params=NEEDS)
def every_ending(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(NEEDS[request.param])
    return request.param


@pytest.fixture(params=[".npz", ".hdf5", ".parquet"])
def ending(request: pytest.FixtureRequest) -> str:
    """Return what the name of a format of one file ends with."""
    pytest.importorskip(NEEDS[request.param])
    return request.param


@pytest.fixture(params=[".npz", ".hdf5"])
def mapped(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(NEEDS[request.param])
    return request.param


def load_refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        data.load(path)
    assert path.name in caught.value.message and caught.value.fix
    return caught.value.message


class TestRoundTrip:
    @pytest.mark.parametrize("make", [sample, parts])
    def test_content_and_hash(self, tmp_path: Path, every_ending: str, make: Any) -> None:
        original = make()
        path = data.save(original, tmp_path / f"set{every_ending}")
        loaded = data.load(path)
        assert_same(original, loaded)
        assert loaded.content_hash == original.content_hash
        assert original.metadata.items() <= loaded.metadata.items()
        rows = loaded.transitions(np.arange(len(loaded)))
        np.testing.assert_array_equal(rows["reward"], original._flat()["reward"])
        assert data.validate(loaded) == data.validate(original)

    def test_a_few_episodes_at_a_time(self, tmp_path: Path, every_ending: str) -> None:
        """Whatever blocks a file was written in, any others can be read."""
        original = sample(20)
        blocks = original.blocks
        original.blocks = lambda names=None: blocks(names, rows=30)  # type: ignore[method-assign]
        loaded = data.load(data.save(original, tmp_path / f"set{every_ending}"))
        assert loaded.content_hash == sample(20).content_hash
        for first, last in ((0, 20), (3, 9), (19, 20), (7, 8)):
            ours, theirs = sample(20).block(first, last), loaded.block(first, last)
            for name, rows in ours.columns.items():
                np.testing.assert_array_equal(rows, theirs.columns[name])

    def test_large_rows_are_mapped(self, tmp_path: Path, mapped: str) -> None:
        rng = np.random.default_rng(0)
        steps = 200_000
        one = data.Episode(
            rng.normal(size=(steps + 1, 2)).astype(np.float32),
            rng.integers(2, 5, steps),
            rng.normal(size=steps),
            np.zeros(steps, bool),
            np.arange(steps) == steps - 1,
        )
        original = data.from_episodes([one], OBS, CHOICE)
        loaded = data.load(data.save(original, tmp_path / f"set{mapped}"))
        columns = loaded._source.columns()
        assert columns is not None and isinstance(columns["obs"], np.memmap)
        index = np.array([0, 7, steps - 1])
        rows = loaded.transitions(index)
        np.testing.assert_array_equal(rows["obs"], one.obs[index])
        np.testing.assert_array_equal(rows["next_obs"], one.obs[index + 1])
        assert loaded.content_hash == original.content_hash

    def test_by_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
        monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
        path = data.save(sample(), tmp_path / "hopper" / f"medium{ending}")
        assert data.load("hopper/medium").content_hash == sample().content_hash
        assert data.find() == [path]
        with pytest.raises(DataError, match=r"Did you mean 'hopper/medium'") as caught:
            data.load("hopper/medum")
        assert "There is no file 'hopper/medum'" in caught.value.message

    def test_an_ending_that_is_no_format(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"no ending that names a format[\s\S]*\.npz"):
            data.save(sample(), tmp_path / "set.xyz")


class TestHash:
    def test_depends_on_every_field(self) -> None:
        original = sample()
        episodes = list(original.episodes())
        hashes = {original.content_hash}
        for name in episodes[0].columns():
            changed = [_changed(episodes[0], name), *episodes[1:]]
            hashes.add(data.from_episodes(changed, OBS, CHOICE).content_hash)
        assert len(hashes) == 1 + len(episodes[0].columns())

    def test_depends_on_where_episodes_end_and_on_spaces(self) -> None:
        """Also where the rows of all fields are the same."""

        def zeros(steps: int) -> data.Episode:
            obs, off = np.zeros((steps + 1, 2), np.float32), np.zeros(steps, bool)
            return data.Episode(obs, np.full(steps, 2), np.zeros(steps), off, off)

        one, two = zeros(1), zeros(2)
        hashes = {
            data.from_episodes(episodes, OBS, space).content_hash
            for episodes, space in (
                ([one, two], CHOICE), ([two, one], CHOICE), ([one, two], Discrete(4, start=1)),
            )
        }  # fmt: skip
        assert len(hashes) == 3

    def test_does_not_depend_on_how_it_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = sample().content_hash
        again = sample()
        blocks = again.blocks
        monkeypatch.setattr(again, "blocks", lambda: blocks(rows=1))
        assert again.content_hash == expected


def _changed(episode: data.Episode, name: str) -> data.Episode:
    columns = episode.columns()
    rows = columns[name].copy()
    rows[0] = ~rows[0] if rows.dtype == bool else rows[0] + (1 if rows[0].max() < 4 else -1)
    columns[name] = rows
    names = ("obs", "action", "reward", "terminated", "truncated")
    return data.Episode(*(columns[n] for n in names), {"log_prob": columns["extra/log_prob"]})


@pytest.mark.parametrize("given", [123, None, [1.5], b"set.npz"])
def test_what_is_neither_a_path_nor_a_dataset(given: Any) -> None:
    with pytest.raises(DataError, match=r"A dataset is given as .*, of type \w+\.\nGive a path"):
        data.load(given)


class TestBrokenFiles:
    def test_missing(self, tmp_path: Path, ending: str) -> None:
        with pytest.raises(DataError, match="There is no file"):
            data.load(tmp_path / f"set{ending}")

    def test_of_no_bytes(self, tmp_path: Path, ending: str) -> None:
        path = tmp_path / f"set{ending}"
        path.touch()
        assert "is empty: it has 0 bytes" in load_refused(path)

    def test_cut_short_anywhere(self, tmp_path: Path, ending: str) -> None:
        path = data.save(sample(40), tmp_path / f"set{ending}")
        whole = path.read_bytes()
        for length in range(1, len(whole), len(whole) // 25):
            path.write_bytes(whole[:length])
            assert "is not a whole" in load_refused(path)

    @pytest.mark.parametrize("content", [b"obs,action\n1,2\n", b"\x80\x04K\x01.", b"PK\x03\x04"])
    def test_of_another_kind(self, tmp_path: Path, ending: str, content: bytes) -> None:
        path = tmp_path / f"set{ending}"
        path.write_bytes(content)
        assert "is not a whole" in load_refused(path)

    def test_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="it is a directory"):
            data.load(tmp_path)

    def test_nothing_half_written(
        self, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that fills up in the middle leaves the old file, and nothing else."""
        path = data.save(sample(), tmp_path / f"set{ending}")
        before = path.read_bytes()
        broken = sample(30)
        blocks = broken.blocks

        def full(names: Any = None) -> Any:
            yield from blocks(names, rows=4)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(broken, "blocks", full)
        with pytest.raises(RunError, match=r"Cannot write '.*set.*': the disk is full"):
            data.save(broken, path)
        assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("ending", [".parquet", "-v0"])
def test_damage_in_rows_that_are_read_later(tmp_path: Path, ending: str) -> None:
    pytest.importorskip(NEEDS[ending])
    path = data.save(sample(), tmp_path / f"set{ending}")
    loaded = data.load(path)
    file = path / "data" / "main_data.hdf5" if path.is_dir() else path
    content = file.read_bytes()
    file.write_bytes(content[:8] + bytes(len(content) // 2) + content[8 + len(content) // 2 :])
    with pytest.raises(DataError, match=r"set.* is not a whole") as caught:
        data.save(loaded, tmp_path / "copy.npz")
    assert "\n" not in caught.value.message and os.listdir(tmp_path) == [path.name]
    (found,) = data.validate(loaded)
    assert found.code == "unreadable"


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from data_samples import sample
from assay import data
from assay.core.errors import RunError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    data.save(sample(200), sys.argv[2])
except RunError as error:
    print(error.message)
"""


def test_a_write_that_fails_is_one_error(tmp_path: Path, every_ending: str) -> None:
    """In a process of its own: HDF5 ends one where it sees that a write fails."""
    path = tmp_path / f"set{every_ending}"
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, here, str(path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Cannot write '{path}': ")
    assert done.stdout.endswith("File too large.\n")
    assert os.listdir(tmp_path) == []


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from data_samples import sample
from assay import data
slow = sample(30)
blocks = slow.blocks
def pause(names=None):
    for number, block in enumerate(blocks(names, rows=4)):
        yield block
        if number == 3:
            print("writing", flush=True)
            time.sleep(600)
slow.blocks = pause
data.save(slow, sys.argv[2])
"""


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path, every_ending: str) -> None:
    path = tmp_path / f"set{every_ending}"
    if every_ending != "-v0":
        data.save(sample(), path)
    here = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, here, str(path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "writing\n"
        child.kill()
    if every_ending == "-v0":
        assert not path.exists() and data.find(tmp_path) == []
    else:
        assert data.load(path).content_hash == sample().content_hash
        assert data.find(tmp_path) == [path]


def rewrite(path: Path, change: Any) -> Path:
    """Write the arrays of an NPZ again, after a change of the dict that holds them."""
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **change(arrays))
    return path


class TestBadNpz:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return data.save(sample(), tmp_path / "set.npz")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda f: {k: v for k, v in f.items() if k != "reward"}, "lacks reward; it holds"),
            (lambda f: {k: v for k, v in f.items() if k != "lengths"}, "lacks lengths"),
            (lambda f: {k: v for k, v in f.items() if k != "header"}, "lacks header"),
            (lambda f: f | {"obs": f["obs"][:-5]}, r"'obs' .* 25 rows; expected 30.*T \+ 1"),
            (lambda f: f | {"reward": f["reward"][:9]}, "'reward' .* 9 rows; expected 25"),
            (lambda f: f | {"obs": f["obs"][:, :1]}, r"'obs' .* shape \(1,\); expected \(2,\)"),
            (lambda f: f | {"obs": f["obs"].astype(str)}, "'obs' .* type <U"),
            (lambda f: f | {"action": f["action"] * 0.5}, "type float64; expected int64"),
            (lambda f: f | {"lengths": f["lengths"] * 0}, "Episode 0 .* is empty"),
            (lambda f: f | {"lengths": f["lengths"][:0]}, "holds no episodes"),
            (lambda f: f | {"more": f["obs"]}, "unknown fields more"),
            (lambda f: f | {"header": f["header"][:-9]}, "header of .* cannot be read"),
        ],
    )  # fmt: skip
    def test_fields(self, path: Path, change: Any, message: str) -> None:
        import re

        assert re.search(message, load_refused(rewrite(path, change)))

    def test_a_table_of_transitions(self, path: Path) -> None:
        path = rewrite(path, lambda f: {"obs": f["obs"], "next_obs": f["obs"]})
        assert "is a table of transitions" in load_refused(path)

    def test_python_objects_are_not_loaded(self, path: Path, tmp_path: Path) -> None:
        class Trap:
            def __reduce__(self) -> Any:
                return (Path.touch, (tmp_path / "sprung",))

        objects = np.array([Trap()] * 25, dtype=object)
        message = load_refused(rewrite(path, lambda f: f | {"reward": objects}))
        assert "'reward.npy'" in message and "Python objects" in message
        assert not (tmp_path / "sprung").exists()

    def test_a_zip_bomb(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with np.load(path) as file:
            arrays = dict(file)
        np.savez_compressed(path, **arrays | {"extra/zeros": np.zeros((25, 1 << 15))})
        monkeypatch.setattr(npz, "MAX_UNPACKED", 1 << 20)
        assert "unpack to 6.3 MiB; at most 1.0 MiB" in load_refused(path)

    def test_a_forged_shape(self, path: Path) -> None:
        """What an array says of itself is compared with its bytes before anything is reserved."""
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        forged = files["reward.npy"].replace(b"(25,)", b"(99,)")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, forged if name == "reward.npy" else content)
        assert "says that it has the shape (99,)" in load_refused(path)

    def test_compressed_arrays_are_read(self, path: Path) -> None:
        with np.load(path) as file:
            np.savez_compressed(path, **dict(file))
        assert data.load(path).content_hash == sample().content_hash


class TestBadHdf5:
    @pytest.fixture
    def h5py(self) -> Any:
        return pytest.importorskip("h5py")

    @pytest.fixture
    def path(self, tmp_path: Path, h5py: Any) -> Path:
        return data.save(sample(), tmp_path / "set.hdf5")

    def test_external_links(self, path: Path, tmp_path: Path, h5py: Any) -> None:
        other = data.save(sample(), tmp_path / "other.hdf5")
        with h5py.File(path, "a") as file:
            del file["reward"]
            file["reward"] = h5py.ExternalLink(other, "/reward")
        assert "'reward'" in load_refused(path) and "external link" in load_refused(path)

    def test_soft_links(self, path: Path, h5py: Any) -> None:
        with h5py.File(path, "a") as file:
            file["extra/again"] = h5py.SoftLink("/reward")
        assert "'extra/again' of" in load_refused(path)

    def test_rows_in_another_file(self, path: Path, tmp_path: Path, h5py: Any) -> None:
        secret = tmp_path / "secret"
        secret.write_bytes(bytes(200))
        with h5py.File(path, "a") as file:
            del file["reward"]
            file.create_dataset("reward", (25,), "f8", external=[(str(secret), 0, 200)])
        assert "rows of 'reward'" in load_refused(path)

    def test_virtual_rows(self, path: Path, tmp_path: Path, h5py: Any) -> None:
        other = data.save(sample(), tmp_path / "other.hdf5")
        layout = h5py.VirtualLayout((25,), "f8")
        layout[:] = h5py.VirtualSource(str(other), "reward", (25,))
        with h5py.File(path, "a") as file:
            del file["reward"]
            file.create_virtual_dataset("reward", layout)
        assert "rows of 'reward'" in load_refused(path)

    def test_text(self, path: Path, h5py: Any) -> None:
        with h5py.File(path, "a") as file:
            del file["reward"]
            file["reward"] = np.array(["a"] * 25, object)
        assert "'reward' of" in load_refused(path) and "type object" in load_refused(path)

    def test_more_than_the_memory(
        self, path: Path, h5py: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A chunked dataset can say that it has any size, at no cost on the disk."""
        with h5py.File(path, "a") as file:
            file.create_dataset("extra/huge", (1 << 50,), "f8", chunks=(1 << 10,))
        with pytest.raises(AssayError, match=r"The data in '.*' needs 8,192.0 TiB of memory"):
            data.load(path)

    def test_chunked_rows_are_read(self, path: Path, h5py: Any) -> None:
        with h5py.File(path, "a") as file:
            rows = file["obs"][:]
            del file["obs"]
            file.create_dataset("obs", data=rows, chunks=(4, 2), compression="gzip")
        assert data.load(path).content_hash == sample().content_hash


class TestMinari:
    """Minari reads what we write, and we what Minari writes."""

    @pytest.fixture
    def minari(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
        pytest.importorskip("h5py")
        return pytest.importorskip("minari")

    @pytest.mark.parametrize("make", [sample, parts])
    def test_reads_what_we_write(self, minari: Any, make: Any) -> None:
        data.save(make(), "minari:robot/moves-v0")
        assert list(minari.list_local_datasets()) == ["robot/moves-v0"]
        theirs = minari.load_dataset("robot/moves-v0")
        assert (theirs.total_episodes, theirs.total_steps) == (make().num_episodes, len(make()))
        for one, other in zip(make().episodes(), theirs.iterate_episodes(), strict=True):
            np.testing.assert_array_equal(one.reward, other.rewards)
            np.testing.assert_array_equal(one.action, other.actions)
            np.testing.assert_array_equal(one.truncated, other.truncations)
            np.testing.assert_array_equal(one.extras["log_prob"], other.infos["log_prob"][1:])
            if make is parts:
                arm = other.observations["arm"]["joints"]
                np.testing.assert_array_equal(one.obs["arm/joints"], arm)
                assert theirs.observation_space["arm"]["joints"].contains(arm[0])
            else:
                np.testing.assert_array_equal(one.obs, other.observations)
        assert data.load("robot/moves-v0").content_hash == make().content_hash

    def test_is_read(self, minari: Any) -> None:
        from minari.data_collector import EpisodeBuffer

        space = Dict({"pair": Tuple((OBS, CHOICE))})
        wanted = sample(3)
        buffers = [
            EpisodeBuffer(
                id=number,
                observations={"pair": (one.obs, np.full(one.steps + 1, 2))},
                actions=one.action,
                rewards=one.reward,
                terminations=one.terminated,
                truncations=one.truncated,
                infos={"note": ["text"] * (one.steps + 1), "speed": np.arange(one.steps + 1.0)},
            )
            for number, one in enumerate(wanted.episodes())
        ]
        minari.create_dataset_from_buffers(
            dataset_id="their/own-v3", buffer=buffers, observation_space=space, action_space=CHOICE
        )
        loaded = data.load("minari:their/own-v3")
        assert sorted(loaded.schema.extras) == ["extra/speed"]
        for one, other in zip(wanted.episodes(), loaded.episodes(), strict=True):
            np.testing.assert_array_equal(one.obs, other.obs["pair/0"])
            np.testing.assert_array_equal(one.reward, other.reward)
            np.testing.assert_array_equal(other.extras["speed"], np.arange(1.0, one.steps + 1))

    def test_names(self, minari: Any) -> None:
        data.save(sample(), "minari:robot/moves-v0")
        with pytest.raises(DataError, match="There is a dataset"):
            data.save(sample(), "minari:robot/moves-v0")
        for name in ("minari:../../etc-v0", "minari:robot", "minari:a..b-v0"):
            with pytest.raises(DataError, match="cannot be the id"):
                data.save(sample(), name)

    def test_observations_that_are_too_few(self, minari: Any, tmp_path: Path) -> None:
        h5py = pytest.importorskip("h5py")
        path = data.save(sample(), "minari:robot/moves-v0")
        with h5py.File(path / "data/main_data.hdf5", "a") as file:
            rows = file["episode_2/observations"][:-1]
            del file["episode_2/observations"]
            file["episode_2/observations"] = rows
        message = r"'obs' of episode 2 of '.*moves-v0' has 5 rows; expected 6: .*T \+ 1"
        with pytest.raises(DataError, match=message):
            assert data.load(path).content_hash

    def test_a_missing_field(self, minari: Any) -> None:
        h5py = pytest.importorskip("h5py")
        path = data.save(sample(), "minari:robot/moves-v0")
        with h5py.File(path / "data/main_data.hdf5", "a") as file:
            del file["episode_1/actions"]
        (found,) = data.validate(path)
        assert found.code == "unreadable" and "episode 1 of" in found.message
        assert "lacks actions" in found.message

    def test_a_link(self, minari: Any) -> None:
        h5py = pytest.importorskip("h5py")
        path = data.save(sample(), "minari:robot/moves-v0")
        with h5py.File(path / "data/main_data.hdf5", "a") as file:
            del file["episode_1/actions"]
            file["episode_1/actions"] = h5py.ExternalLink("other.hdf5", "/a")
        assert "external link" in load_refused(path)


class TestParquet:
    def test_a_table_of_others(self, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "log.parquet"
        parquet.write_table(arrow.table({"speed": [1.0], "next": [2.0]}), path)
        assert "its columns are speed, next" in load_refused(path)

    def test_empty_cells(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        path = data.save(sample(), tmp_path / "set.parquet")
        table = parquet.read_table(path)
        at = table.column_names.index("reward")
        empty = table["reward"].combine_chunks().slice(0, 3).take([0, None] + [1] * 28)
        parquet.write_table(table.set_column(at, table.schema.field("reward"), empty), path)
        (found,) = data.validate(path)
        assert found.code == "unreadable" and "'reward' of" in found.message
