"""The contract of a metric sink, as tests that any implementation can run.

class TestMySink(SinkContract):
    def make(self, directory): return MySink(directory)
    def read(self, directory): return {"train/loss": [(100, 0.5), ...], ...}
"""

from __future__ import annotations

import math
from pathlib import Path

from assay.runs.metrics import Record
from assay.runs.sinks import Sink

Points = dict[str, list[tuple[int, float]]]


def record(env_steps: int, **metrics: float) -> Record:
    """Return a record of `train/...` metrics."""
    named = {f"train/{name}": value for name, value in metrics.items()}
    return Record(env_steps, env_steps // 10, env_steps // 100, 1.0 * env_steps, named)


class SinkContract:
    """What every sink must do for a run that logs, stops and resumes."""

    def make(self, directory: Path) -> Sink:
        """Open the sink in a directory, which may hold what an earlier one wrote."""
        raise NotImplementedError

    def read(self, directory: Path) -> Points:
        """Return what a reader of the closed sink's output sees: `{name: [(env_steps, value)]}`."""
        raise NotImplementedError

    def write(self, directory: Path, *records: Record, kept: list[Record] | None = None) -> None:
        """Open, rewind if asked, log, flush and close."""
        sink = self.make(directory)
        if kept is not None:
            sink.rewind(kept)
        for item in records:
            sink.log(item)
        sink.flush()
        sink.close()

    def test_what_is_logged_can_be_read(self, tmp_path: Path) -> None:
        """Values come back at the environment steps they were logged at."""
        self.write(tmp_path, record(100, loss=0.5), record(200, loss=0.25))
        assert self.read(tmp_path) == {"train/loss": [(100, 0.5), (200, 0.25)]}

    def test_a_metric_may_appear_later(self, tmp_path: Path) -> None:
        """Metrics are not known in advance: evaluations come after the first lines."""
        self.write(tmp_path, record(100, loss=0.5), record(200, loss=0.25, kl=0.125))
        assert self.read(tmp_path)["train/kl"] == [(200, 0.125)]

    def test_nan_does_not_drop_other_points(self, tmp_path: Path) -> None:
        """A NaN must not lose the other points."""
        self.write(tmp_path, record(100, loss=math.nan), record(200, loss=0.25))
        assert (200, 0.25) in self.read(tmp_path)["train/loss"]

    def test_a_resumed_run_appends(self, tmp_path: Path) -> None:
        """Opening again appends."""
        self.write(tmp_path, record(100, loss=0.5))
        self.write(tmp_path, record(200, loss=0.25))
        assert self.read(tmp_path)["train/loss"] == [(100, 0.5), (200, 0.25)]

    def test_rewinding_drops_records_after_the_checkpoint(self, tmp_path: Path) -> None:
        """Records after the checkpoint are logged again by the resumed run, once."""
        first, lost = record(100, loss=0.5), record(200, loss=9.0)
        self.write(tmp_path, first, lost)
        self.write(tmp_path, record(200, loss=0.25), kept=[first])
        assert self.read(tmp_path)["train/loss"] == [(100, 0.5), (200, 0.25)]
