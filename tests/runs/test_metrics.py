import errno
import math
import os

import numpy as np
import pytest

from assay.core.errors import RunError
from assay.runs.files import RunWarning
from assay.runs.metrics import MetricsWriter, Record, last_record, read_metrics, read_records


def record(env_steps, **metrics):
    metrics = {name.replace("_", "/", 1): value for name, value in metrics.items()}
    return Record(env_steps, env_steps // 10, env_steps // 100, 1000.0 + env_steps, metrics)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write(path, *records):
    writer = MetricsWriter(path)
    for item in records:
        writer.write(item)
    writer.close()


def test_what_is_written_is_read_back_exactly(path):
    third = 1.0 / 3.0
    records = [record(10, train_loss=third, rollout_return=5), record(20, train_loss=1e-300)]
    write(path, *records)
    assert list(read_records(path)) == records
    series = read_metrics(path)
    np.testing.assert_array_equal(series["train/loss"][0], [10, 20])
    np.testing.assert_array_equal(series["train/loss"][1], [third, 1e-300])
    np.testing.assert_array_equal(series["rollout/return"][0], [10])
    assert series["train/loss"][0].dtype == np.int64


def test_numpy_scalars_nan_and_infinities_survive(path):
    write(path, record(1, a=np.float32(0.1), b=math.nan, c=math.inf, d=-math.inf))
    assert b"NaN," not in path.read_bytes().replace(b'"NaN"', b"")
    values = next(read_records(path)).metrics
    assert values["a"] == float(np.float32(0.1))
    assert math.isnan(values["b"])
    assert (values["c"], values["d"]) == (math.inf, -math.inf)


def test_a_file_that_does_not_exist_has_no_records(path):
    assert list(read_records(path)) == []
    assert read_metrics(path) == {}
    assert last_record(path) is None


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_an_incomplete_last_line_is_ignored_and_dropped_by_the_next_writer(path, cut):
    write(path, record(1, a=1.0), record(2, a=2.0))
    path.write_bytes(path.read_bytes()[:-cut])
    assert [r.env_steps for r in read_records(path)] == [1]
    assert last_record(path).env_steps == 1
    write(path, record(3, a=3.0))
    assert [r.env_steps for r in read_records(path)] == [1, 3]


def test_a_file_of_one_incomplete_line_is_emptied(path):
    path.write_bytes(b"x" * 200_000)
    write(path, record(3, a=3.0))
    assert [r.env_steps for r in read_records(path)] == [3]


@pytest.mark.parametrize(
    "line",
    [
        b"{nonsense\n",
        b"\x00\x00\x00\n",
        b"[]\n",
        b'{"env_steps": 1}\n',
        b'{"env_steps": null, "updates": 0, "episodes": 0, "time": 0, "metrics": {}}\n',
    ],
)
def test_a_corrupt_line_is_reported_by_number_and_the_rest_is_read(path, line):
    write(path, record(1, a=1.0), record(2, a=2.0), record(3, a=3.0))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + line + lines[2])
    with pytest.warns(RunWarning, match=r"Line 2 of .*metrics\.jsonl"):
        assert [r.env_steps for r in read_records(path)] == [1, 3]


def test_records_wait_for_the_interval_and_then_reach_the_file(path):
    now = [0.0]
    writer = MetricsWriter(path, flush_seconds=2.0, clock=lambda: now[0])
    writer.write(record(1, a=1.0))
    assert path.read_bytes() == b""
    now[0] = 2.0
    writer.write(record(2, a=1.0))
    assert [r.env_steps for r in read_records(path)] == [1, 2]
    writer.write(record(3, a=1.0))
    writer.flush()
    assert [r.env_steps for r in read_records(path)] == [1, 2, 3]
    writer.close()
    writer.close()


def test_truncate_drops_what_was_logged_after_a_position(path):
    writer = MetricsWriter(path)
    writer.write(record(1, a=1.0))
    position = writer.position()
    assert position == path.stat().st_size > 0
    writer.write(record(2, a=2.0))
    writer.close()

    writer = MetricsWriter(path)
    writer.truncate(position)
    writer.write(record(2, a=20.0))
    writer.close()
    assert [r.metrics["a"] for r in read_records(path)] == [1.0, 20.0]


@pytest.mark.parametrize("wrong", [-1, 3, 10_000])
def test_truncate_refuses_an_offset_where_no_record_ends(path, wrong):
    write(path, record(1, a=1.0))
    before = path.read_bytes()
    writer = MetricsWriter(path)
    with pytest.raises(RunError, match=r"metrics\.jsonl' has no record that ends at byte"):
        writer.truncate(wrong)
    writer.close()
    assert path.read_bytes() == before


def test_a_full_disk_leaves_complete_records_and_says_so(path, monkeypatch):
    writer = MetricsWriter(path)
    writer.write(record(1, a=1.0))
    writer.flush()
    real = os.pwrite

    def nearly_full(descriptor, data, offset):
        # Half of the line fits, the rest does not.
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: len(data) - 10], offset)

    writer.write(record(2, a=2.0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", nearly_full)
        with pytest.raises(RunError, match="the disk is full"):
            writer.flush()
    assert path.read_bytes().endswith(b"\n")
    assert [r.env_steps for r in read_records(path)] == [1]
    # Once there is room, nothing is lost.
    writer.close()
    assert [r.env_steps for r in read_records(path)] == [1, 2]


def test_a_directory_that_is_not_there_is_a_run_error(tmp_path):
    with pytest.raises(RunError, match="Cannot write the metrics"):
        MetricsWriter(tmp_path / "nowhere" / "metrics.jsonl")


def test_the_last_record_is_found_however_long_the_lines_are(path):
    wide = {f"m{i}": float(i) for i in range(300)}
    write(path, Record(1, 0, 0, 0.0, {}), Record(2, 0, 0, 0.0, wide))
    assert last_record(path, tail_bytes=16).env_steps == 2
    assert last_record(path, tail_bytes=16).metrics == wide
