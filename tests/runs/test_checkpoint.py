import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from assay.core.errors import CheckpointError, RunError
from assay.core.seeding import rng_state, set_rng_state
from assay.runs import checkpoint as module
from assay.runs.checkpoint import (
    MANIFEST,
    Section,
    latest,
    list_checkpoints,
    previous_good,
    prune,
    read_checkpoint,
    read_manifest,
    verify_checkpoint,
    write_checkpoint,
)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def sections(value=1.0):
    return {
        "weights": Section({"actor": {"w": np.full((3, 4), value, np.float32)}}),
        "loop": Section({"env_steps": 5, "rng": [1, 2]}),
    }


def assert_same(left, right):
    """Compare states with types, dtypes and shapes."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    elif isinstance(left, np.ndarray | np.generic):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert left.tobytes() == right.tobytes()
    else:
        assert left == right or (left != left and right != right)


def round_trip(directory, state):
    return read_checkpoint(write_checkpoint(directory, 1, {"x": Section(state)}))["x"]


# What goes in comes out


@pytest.mark.parametrize(
    "array",
    [
        np.array([True, False]),
        np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.array([-(2**63), 2**63 - 1], dtype=np.int64),
        np.array([np.nan, np.inf, -0.0, 1e-45], dtype=np.float32),
        np.array([1.0 / 3.0]),
        np.zeros((0, 3), dtype=np.float32),
        np.array(2.5),
        np.array(7, dtype=np.int64),
        np.array([2**32 - 1], dtype=np.uint32),
        np.ones(3, dtype=np.float16),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(12.0).reshape(3, 4)[::2, ::-1],
        np.broadcast_to(np.float32(1.5), (2, 2)),
    ],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)
def test_arrays_come_back_bit_for_bit(directory, array):
    assert_same(round_trip(directory, {"a": array}), {"a": array})


def test_a_big_endian_array_keeps_its_values(directory):
    back = round_trip(directory, {"a": np.array([1.0, 2.0], dtype=">f4")})["a"]
    np.testing.assert_array_equal(back, [1.0, 2.0])


def test_plain_values_keep_their_types(directory):
    state = {
        "int": -3,
        "huge": 2**127 + 12345,
        "float": 0.1 + 0.2,
        "nan": float("nan"),
        "inf": [float("inf"), -float("inf")],
        "none": None,
        "bool": True,
        "text": "Grüße / ~ $",
        "list": [1, [2.5, "x", None], {"k": np.arange(3)}],
        "tuple": (1, (2,)),
        "empty": {"dict": {}, "list": [], "tuple": ()},
        "scalar": np.float32(0.1),
    }
    assert_same(round_trip(directory, state), state)


def test_keys_that_look_like_paths_or_tags_do_not_collide(directory):
    state = {
        "a/b": np.array([1]),
        "a": {"b": np.array([2]), "0": np.array([3])},
        "a~1b": np.array([4]),
        "$array": "a/b",
        "tag": {"$array": "x"},
        "double": {"$$tuple": [1]},
        "list": [np.array([5])],
    }
    assert_same(round_trip(directory, state), state)


def test_random_generators_continue_where_they_were(directory):
    rng = np.random.default_rng(3)
    legacy = np.random.Generator(np.random.MT19937(4))
    rng.random(10)
    back = round_trip(directory, {"a": rng_state(rng), "b": rng_state(legacy)})
    other, other_legacy = np.random.default_rng(0), np.random.Generator(np.random.MT19937(0))
    set_rng_state(other, back["a"])
    set_rng_state(other_legacy, back["b"])
    np.testing.assert_array_equal(other.random(5), rng.random(5))
    np.testing.assert_array_equal(other_legacy.random(5), legacy.random(5))


def test_array_keys_are_joined_paths_that_others_can_read(directory):
    path = write_checkpoint(directory, 1, sections())
    assert list(load_file(path / "weights.safetensors")) == ["actor/w"]
    assert not (path / "loop.safetensors").exists()


def test_what_was_loaded_can_be_changed_without_touching_the_file(directory):
    path = write_checkpoint(directory, 1, sections())
    state = read_checkpoint(path)["weights"]
    state["actor"]["w"] += 1.0
    verify_checkpoint(path)


def test_only_the_wanted_sections_are_loaded(directory):
    path = write_checkpoint(directory, 1, sections())
    (path / "loop.json").write_text("damaged")
    assert list(read_checkpoint(path, ["weights"])) == ["weights"]
    with pytest.raises(CheckpointError, match=r"loop\.json"):
        read_checkpoint(path)
    with pytest.raises(CheckpointError, match="no section 'buffer'"):
        read_checkpoint(path, ["buffer"])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": {"b": object()}}, "a/b: .*object"),
        ({"a": [np.array(["text"])]}, "a/0: .*array of <U4"),
        ({"a": np.array([object()])}, "a: .*array of object"),
        ({"a": {1: 2}}, "a: key 1 is not a string"),
        ({"a": b"bytes"}, "a: .*bytes"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_named_and_leaves_nothing(directory, state, words):
    with pytest.raises(TypeError, match=words):
        write_checkpoint(directory, 1, {"x": Section(state)})
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "MANIFEST", "manifest"])
def test_a_section_name_cannot_leave_the_directory(directory, name):
    with pytest.raises(ValueError, match="cannot be the name"):
        write_checkpoint(directory, 1, {name: Section({})})


# Names and order


def test_latest_goes_by_number_and_skips_what_is_unfinished(directory):
    assert latest(directory) is None
    for env_steps in (900, 1_000, 2_000_000_000_000):
        path = write_checkpoint(directory, env_steps, sections())
    assert path.name == "2000000000000"
    (directory / ".tmp-9000000000000-1-abc").mkdir()
    (directory / "notes").mkdir()
    assert [p.name for p in list_checkpoints(directory)] == [
        "000000000900",
        "000000001000",
        "2000000000000",
    ]
    assert latest(directory) == path
    assert read_manifest(path)["env_steps"] == 2_000_000_000_000


def test_the_next_write_removes_what_a_killed_writer_left(directory):
    stale = directory / ".tmp-000000000001-1-abc"
    stale.mkdir(parents=True)
    (stale / "weights.safetensors").write_bytes(b"x")
    write_checkpoint(directory, 1, sections())
    assert [p.name for p in directory.iterdir()] == ["000000000001"]


def test_a_checkpoint_at_the_same_count_is_replaced(directory):
    first = write_checkpoint(directory, 5, sections(1.0))
    second = write_checkpoint(directory, 5, sections(2.0), previous=first)
    assert second == first
    assert read_checkpoint(first)["weights"]["actor"]["w"][0, 0] == 2.0
    assert [p.name for p in directory.iterdir()] == ["000000000005"]


def test_a_crash_between_the_two_renames_of_a_replacement_loses_nothing(directory):
    path = write_checkpoint(directory, 5, sections(1.0))
    aside = path.rename(path.with_name(path.name + ".replaced"))
    assert latest(directory) == aside
    assert read_checkpoint(aside)["weights"]["actor"]["w"][0, 0] == 1.0
    assert latest(write_checkpoint(directory, 5, sections(2.0)).parent) == path
    assert not aside.exists()


def test_prune_keeps_the_newest(directory):
    paths = [write_checkpoint(directory, n, sections()) for n in (1, 2, 3)]
    assert prune(directory, 2) == paths[:1]
    assert sorted(directory.iterdir()) == paths[1:]
    assert prune(directory, 5) == []
    with pytest.raises(ValueError, match="keep=0"):
        prune(directory, 0)


# Damage


def test_a_changed_byte_in_any_file_is_found_and_named(directory):
    good = write_checkpoint(directory, 1, sections())
    path = write_checkpoint(directory, 2, sections())
    names = sorted(p.name for p in path.iterdir())
    assert names == [MANIFEST, "loop.json", "weights.json", "weights.safetensors"]
    for name in names:
        original = (path / name).read_bytes()
        for position in range(0, len(original), 7):
            data = bytearray(original)
            data[position] ^= 1
            (path / name).write_bytes(data)
            with pytest.raises(CheckpointError, match=name) as caught:
                read_checkpoint(path)
            assert str(good) in caught.value.fix
        (path / name).write_bytes(original)
    read_checkpoint(path)


@pytest.mark.parametrize("name", [MANIFEST, "loop.json", "weights.safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "longer", "missing", "foreign"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_suggested(directory, name, damage):
    oldest = write_checkpoint(directory, 1, sections())
    torn = write_checkpoint(directory, 2, sections())
    (torn / "loop.json").unlink()
    path = write_checkpoint(directory, 3, sections())
    file = path / name
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        other = {"truncated": data[:-3], "empty": b"", "longer": data + b"\n", "foreign": b"{}"}
        file.write_bytes(other[damage])
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert str(file) in caught.value.message
    if name != MANIFEST and damage in ("truncated", "longer"):
        assert f"{len(data)} were written" in caught.value.message
    # The one in between is torn too, so it is not what is offered.
    assert f"'{oldest}'" in caught.value.fix
    assert previous_good(path) == oldest


def test_damage_without_a_predecessor_says_so(directory):
    path = write_checkpoint(directory, 1, sections())
    write_checkpoint(directory, 2, sections())
    (path / "loop.json").unlink()
    with pytest.raises(CheckpointError, match="no intact checkpoint before it"):
        verify_checkpoint(path)


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_what_is_not_a_checkpoint_is_refused(tmp_path, kind):
    path = tmp_path / "thing"
    if kind == "file":
        path.write_bytes(b"PK")
    elif kind == "empty":
        path.mkdir()
    with pytest.raises(CheckpointError, match=r"thing.*MANIFEST\.json"):
        read_checkpoint(path)


def reseal(path, change):
    """Alter a manifest as a forger would, with a checksum that fits."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest.pop("sha256")
    change(manifest)
    (path / MANIFEST).write_bytes(module._render(manifest))


def test_a_newer_schema_is_refused_by_number(directory):
    path = write_checkpoint(directory, 1, sections())
    reseal(path, lambda manifest: manifest.update(schema=99))
    with pytest.raises(CheckpointError, match=r"newer Assay .*schema 99"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "files", [{"../../secret.json": {"sha256": "", "bytes": 1}}, {}, "text", {"loop.json": 3}]
)
def test_a_forged_manifest_cannot_name_other_files(directory, files):
    path = write_checkpoint(directory, 1, sections())
    reseal(path, lambda manifest: manifest["sections"]["loop"].update(files=files))
    with pytest.raises(CheckpointError, match=MANIFEST):
        read_checkpoint(path)


# Sharing


def test_unchanged_sections_are_linked_and_survive_the_older_checkpoint(directory):
    chunk = {"obs": np.arange(1000, dtype=np.uint8)}
    parts = {"replay-0": Section(chunk, version="v1"), "loop": Section({"n": 1})}
    first = write_checkpoint(directory, 1, parts)
    # The state is not even looked at where the version is the same.
    parts = {"replay-0": Section({}, version="v1"), "loop": Section({"n": 2})}
    second = write_checkpoint(directory, 2, parts, previous=first)
    for name in ("replay-0.safetensors", "replay-0.json"):
        assert (first / name).stat().st_ino == (second / name).stat().st_ino
    assert (first / "loop.json").stat().st_ino != (second / "loop.json").stat().st_ino
    prune(directory, 1)
    back = read_checkpoint(second)
    assert_same(back["replay-0"], chunk)
    assert back["loop"] == {"n": 2}


def test_a_new_version_or_none_is_written_again(directory):
    def parts(value, version):
        return {"x": Section({"a": np.array([value])}, version)}

    first = write_checkpoint(directory, 1, parts(1, "v1"))
    second = write_checkpoint(directory, 2, parts(2, "v2"), previous=first)
    third = write_checkpoint(directory, 3, parts(3, None), previous=second)
    fourth = write_checkpoint(directory, 4, parts(4, None), previous=third)
    values = [int(read_checkpoint(p)["x"]["a"][0]) for p in (first, second, third, fourth)]
    assert values == [1, 2, 3, 4]


def test_without_hard_links_the_files_are_copied(directory, monkeypatch):
    parts = {"x": Section({"a": np.arange(4)}, "v1")}
    first = write_checkpoint(directory, 1, parts)

    def no_links(*args, **kwargs):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    second = write_checkpoint(directory, 2, {"x": Section({}, "v1")}, previous=first)
    assert (first / "x.json").stat().st_ino != (second / "x.json").stat().st_ino
    assert_same(read_checkpoint(second)["x"], {"a": np.arange(4)})


@pytest.mark.parametrize("damage", ["manifest", "gone", "short", "directory"])
def test_a_damaged_predecessor_is_not_shared_with(directory, damage):
    parts = {"x": Section({"a": np.arange(4)}, "v1")}
    first = write_checkpoint(directory, 1, parts)
    if damage == "manifest":
        (first / MANIFEST).write_text("{}")
    elif damage == "gone":
        (first / "x.safetensors").unlink()
    elif damage == "short":
        (first / "x.safetensors").write_bytes(b"")
    else:
        shutil.rmtree(first)
    second = write_checkpoint(directory, 2, parts, previous=first)
    assert_same(read_checkpoint(second)["x"], {"a": np.arange(4)})


# Crashes and full disks


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "safetensors", "mkdir"])
def test_a_full_disk_leaves_the_older_checkpoints_and_no_other_files(directory, monkeypatch, call):
    good = write_checkpoint(directory, 1, sections())
    if call == "write":
        monkeypatch.setattr(module, "write_synced", full)
    elif call == "safetensors":

        def save(*args, **kwargs):
            raise module.SafetensorError("I/O error: No space left on device (os error 28)")

        monkeypatch.setattr(module, "save_file", save)
    else:
        monkeypatch.setattr(os, call, full)
    with pytest.raises(RunError, match=r"000000000002': the disk is full"):
        write_checkpoint(directory, 2, sections(), previous=good)
    monkeypatch.undo()
    assert [p.name for p in directory.iterdir()] == ["000000000001"]
    read_checkpoint(good)


FILL_THE_DISK = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import numpy as np
    from assay.core.errors import RunError
    from assay.runs.checkpoint import Section, read_checkpoint, write_checkpoint
    disk = Path(sys.argv[1])
    small = {"weights": Section({"w": np.ones(10)})}
    good = write_checkpoint(disk, 1, small)
    for big in ({"obs": np.ones(4_000_000, np.uint8)}, {"text": "x" * 4_000_000}):
        try:
            write_checkpoint(disk, 2, {"buffer": Section(big)})
        except RunError as error:
            print(error.message)
        print([path.name for path in disk.iterdir()])
        read_checkpoint(good)
    read_checkpoint(write_checkpoint(disk, 2, small, good))
    """
)


def test_a_disk_that_is_really_full(tmp_path):
    # A file system of one megabyte, in a mount namespace that ends with the process.
    mounted = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted, str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run([*namespace, "true"]).returncode:
        pytest.skip("cannot mount a small file system here")
    command = [*namespace, sys.executable, "-c", FILL_THE_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    message = f"Cannot write the checkpoint '{tmp_path}/000000000002': the disk is full."
    assert done.stdout.splitlines() == [message, "['000000000001']"] * 2


def test_everything_is_on_the_disk_before_the_checkpoint_gets_its_name(directory, monkeypatch):
    synced, real_fsync, real_rename = set(), os.fsync, os.rename

    def fsync(descriptor):
        synced.add(os.fstat(descriptor).st_ino)
        real_fsync(descriptor)

    def rename(source, target):
        for path in [source, *source.iterdir()]:
            assert path.stat().st_ino in synced, path
        synced.clear()
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    path = write_checkpoint(directory, 1, sections())
    assert directory.stat().st_ino in synced
    assert len(list(path.iterdir())) == 4


def test_a_file_where_the_directory_should_be_is_one_clear_message(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(RunError, match="Cannot write the checkpoint"):
        write_checkpoint(tmp_path / "checkpoints", 1, sections())


def test_an_interrupt_while_writing_leaves_no_files(directory, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(directory, 1, sections())
    assert list(directory.iterdir()) == []


WRITER = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    import numpy as np
    from assay.runs import checkpoint
    directory, stop_before = Path(sys.argv[1]), sys.argv[2]

    def part(n):
        state = {"w": np.full(50_000, n), "n": n}
        return {"weights": checkpoint.Section(state), "loop": checkpoint.Section({"n": n})}

    previous = checkpoint.write_checkpoint(directory, 1, part(1))
    if stop_before != "random":
        owner, name = {
            "arrays": (checkpoint, "save_file"),
            "manifest": (checkpoint, "write_synced"),
            "rename": (os, "rename"),
        }[stop_before]
        real = getattr(owner, name)
        def hang(*args):
            if stop_before == "manifest" and args[0].name != checkpoint.MANIFEST:
                return real(*args)
            print("ready", flush=True)
            time.sleep(60)
        setattr(owner, name, hang)
    print("go", flush=True)
    n = 2
    while True:
        previous = checkpoint.write_checkpoint(directory, n, part(n), previous)
        checkpoint.prune(directory, 2)
        n += 1
    """
)


def kill_writer(directory, moment, delay=0.0):
    command = [sys.executable, "-c", WRITER, str(directory), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "go\n"
            if moment != "random":
                assert process.stdout.readline() == "ready\n"
            time.sleep(delay)
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("moment", ["arrays", "manifest", "rename"])
def test_a_writer_killed_in_the_middle_leaves_the_older_checkpoint(directory, moment):
    kill_writer(directory, moment)
    assert any(p.name.startswith(".tmp-") for p in directory.iterdir())
    path = latest(directory)
    assert path.name == "000000000001"
    state = read_checkpoint(path)
    assert state["loop"] == {"n": 1}
    assert (state["weights"]["w"] == 1).all()


@pytest.mark.parametrize("delay", [0.011, 0.037])
def test_whenever_a_writer_is_killed_every_checkpoint_in_place_is_intact(directory, delay):
    kill_writer(directory, "random", delay)
    paths = list_checkpoints(directory)
    assert paths
    for path in paths:
        n = int(path.name)
        state = read_checkpoint(path)
        assert state["loop"] == {"n": n}
        assert (state["weights"]["w"] == n).all()
