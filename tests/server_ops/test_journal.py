"""A policy's metrics on the disk: what is written when, and what a restart finds."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import MissingExtraError
from assay.runs.metrics import read_metrics, read_records
from assay.server.gateway import journal as module
from assay.server.gateway.journal import METRICS, TENSORBOARD, Journal


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> Iterator[Journal]:
    made = Journal(
        tmp_path / "queue",
        seconds=5.0,
        beside=lambda: {"server/version": 3.0},
        clock=clock,
        now=lambda: 1000.0 + clock.now,
    )
    yield made
    made.close()


def metrics(steps: float, value: float = 1.0) -> dict[str, float]:
    return {
        "server/env_steps": steps,
        "server/updates": steps / 10,
        "server/episodes": steps / 100,
        "rollout/return_mean": value,
    }


def written(journal_directory: Path) -> list[tuple[int, float]]:
    records = read_records(journal_directory / METRICS)
    return [(record.env_steps, record.metrics["rollout/return_mean"]) for record in records]


def test_nothing_is_made_before_the_first_record(tmp_path: Path, journal: Journal) -> None:
    assert not (tmp_path / "queue").exists()
    journal.close()
    assert not (tmp_path / "queue").exists()


def test_records_are_so_many_seconds_apart_and_the_last_one_is_kept(
    tmp_path: Path, journal: Journal, clock: Clock
) -> None:
    journal.report(metrics(100))
    clock.now = 1.0
    journal.report(metrics(200))
    journal.report(metrics(300, 2.0))
    assert not journal.due
    clock.now = 6.0
    assert journal.due
    journal.write_due()
    assert not journal.due
    journal.report(metrics(400, 3.0))
    assert journal.latest["server/env_steps"] == 400
    journal.close()
    assert written(tmp_path / "queue") == [(100, 1.0), (300, 2.0), (400, 3.0)]
    (first, *_) = read_records(tmp_path / "queue" / METRICS)
    assert (first.updates, first.episodes, first.time) == (10, 1, 1000.0)
    assert first.metrics["server/version"] == 3.0
    journal.report(metrics(500))  # after the end: for who still looks, and for no file
    assert journal.latest["server/env_steps"] == 500
    assert len(written(tmp_path / "queue")) == 3


def test_what_is_learned_again_after_a_crash_is_not_written_again(
    tmp_path: Path, journal: Journal, clock: Clock
) -> None:
    for steps, value in ((100, 1.0), (200, 2.0), (150, 1.5), (200, 2.0), (250, 2.5)):
        journal.report(metrics(steps, value))
        clock.now += 10.0
    journal.close()
    assert written(tmp_path / "queue") == [(100, 1.0), (200, 2.0), (250, 2.5)]


def test_a_restart_goes_on_where_it_was(tmp_path: Path, journal: Journal) -> None:
    journal.report(metrics(100, -7.0))
    journal.close()
    again = Journal(tmp_path / "queue", seconds=0.0)
    assert again.latest["rollout/return_mean"] == -7.0
    again.report(metrics(90))
    again.report(metrics(110, -6.0))
    again.close()
    again.close()
    assert written(tmp_path / "queue") == [(100, -7.0), (110, -6.0)]
    # One event file for each life of the server, in the order of their names.
    assert len(list((tmp_path / "queue" / TENSORBOARD).iterdir())) == 2


def test_tensorboard_reads_the_same(tmp_path: Path, journal: Journal) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    journal.report(metrics(100, -7.0))
    journal.close()
    events = accumulator.EventAccumulator(str(tmp_path / "queue" / TENSORBOARD))
    events.Reload()
    (point,) = events.Scalars("rollout/return_mean")
    assert (point.step, point.value) == (100, -7.0)
    assert events.Scalars("server/version")[0].value == 3.0
    steps, values = read_metrics(tmp_path / "queue" / METRICS)["rollout/return_mean"]
    assert (steps.tolist(), values.tolist()) == ([100], [-7.0])


@pytest.mark.parametrize("bad", [{}, {"train/loss": 1.0}, {"server/env_steps": float("nan")}])
def test_what_has_no_place_on_the_axis_waits_and_raises_nothing(
    tmp_path: Path, journal: Journal, bad: dict[str, float]
) -> None:
    journal.report(bad)
    assert not (tmp_path / "queue").exists()
    journal.report(metrics(10))
    assert written(tmp_path / "queue") in ([], [(10, 1.0)])  # the file may be behind
    journal.close()
    assert written(tmp_path / "queue") == [(10, 1.0)]


def test_a_disk_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "queue").write_text("a file where the directory should be")
    made = Journal(tmp_path / "queue", seconds=0.0)
    with caplog.at_level(logging.WARNING, "assay.server"):
        made.report(metrics(100))
    assert "is lost" in caplog.text
    assert made.latest["rollout/return_mean"] == 1.0
    made.close()


def test_without_tensorboard_there_is_still_the_truth(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: Path) -> Any:
        raise MissingExtraError("tensorboard", None, "Logging to TensorBoard")

    monkeypatch.setattr(module, "TensorBoardSink", missing)
    journal.report(metrics(100))
    journal.close()
    assert written(tmp_path / "queue") == [(100, 1.0)]
    assert not (tmp_path / "queue" / TENSORBOARD).exists()


def test_writing_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from assay.server.gateway.journal import Journal\n"
        "made = Journal(Path(sys.argv[1]), seconds=0.0)\n"
        "made.report({'server/env_steps': 5.0}); made.close()\n"
        "found = [name for name in ('torch', 'tensorflow') if name in sys.modules]\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "queue")], check=True)
    assert (tmp_path / "queue" / METRICS).read_bytes().count(b"\n") == 1
