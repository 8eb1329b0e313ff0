import errno
import json
import math
import os

import numpy as np
import pytest

from assay.core.errors import RunError
from assay.runs import files


def test_write_atomic_keeps_the_old_content_when_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    files.write_atomic(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_system_errors_become_one_clear_sentence(number, words):
    error = files.run_error(OSError(number, os.strerror(number)), "write 'x'")
    assert isinstance(error, RunError)
    assert error.message.startswith("Cannot write 'x': ")
    assert words in error.message


def test_json_is_standard_and_floats_come_back():
    value = {
        "a": [1.5, math.inf, -math.inf],
        "b": np.float32(np.nan),
        "c": np.arange(3),
        "d": (True, None, np.int64(7)),
    }
    data = files.dump_json(value)

    def refuse(token):
        raise AssertionError(f"{token} is not standard JSON")

    plain = json.loads(data, parse_constant=refuse)
    back = files.restore_floats(plain)
    assert back["a"] == [1.5, math.inf, -math.inf]
    assert math.isnan(back["b"])
    assert back["c"] == [0, 1, 2]
    assert back["d"] == [True, None, 7]


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe"])
def test_a_file_that_is_not_a_json_object_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"x\.json"):
        files.read_json_object(path)
