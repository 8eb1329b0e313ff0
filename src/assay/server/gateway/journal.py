"""What a policy's learner reports, on the disk: `metrics.jsonl` and TensorBoard's event files.

They lie beside the policy's experience, in `policies/<name>`. A learner that was killed and learns
the same steps again reports the same again, so what is not beyond the last record is left out.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from assay.core.errors import AssayError, MissingExtraError
from assay.runs.metrics import MetricsWriter, Record, last_record
from assay.runs.sinks import Sink, SinkSet, TensorBoardSink

log = logging.getLogger("assay.server")

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
# What a learner calls the counts that a record has beside its metrics.
_STEPS, _UPDATES, _EPISODES = "server/env_steps", "server/updates", "server/episodes"


class Journal:
    """Writes a policy's metrics now and then. Safe to use from any thread.

    Args:
        directory: Of the policy; nothing is made there before the first record.
        seconds: Shortest time between two records.
        beside: Asked for more metrics when a record is written.
        clock: Seconds that only grow.
        now: Seconds since the epoch.

    Attributes:
        latest: The newest value of each metric, from before a restart as well.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seconds: float = 5.0,
        beside: Callable[[], Mapping[str, float]] = dict,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._seconds = seconds
        self._beside = beside
        self._clock, self._now = clock, now
        self._lock = threading.Lock()
        self._sinks: SinkSet | None = None
        self._closed = False
        self._written = -1  # environment steps of the last record
        self._due = 0.0
        self._waiting: dict[str, float] | None = None
        self.latest: dict[str, float] = {}
        try:
            before = last_record(directory / METRICS)
        except AssayError as error:
            log.warning("%s", error.message)
            before = None
        if before is not None:
            self._written = before.env_steps
            self.latest = dict(before.metrics)

    def report(self, metrics: Mapping[str, float]) -> None:
        """Take what a learner reports. A disk that fails is logged, and stops nothing."""
        with self._lock:
            self.latest |= metrics
            self._waiting = {**(self._waiting or {}), **metrics}
        self.write_due()

    @property
    def due(self) -> bool:
        """Return whether something waits that may be written now."""
        return self._waiting is not None and not self._closed and self._clock() >= self._due

    def write_due(self) -> None:
        """Write what waits, if it is time; a learner may report nothing more for long."""
        with self._lock:
            if self.due:
                self._write()

    def close(self) -> None:
        """Write what still waits and let go of the files; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._write()
            if self._sinks is not None:
                try:
                    self._sinks.close()
                except AssayError as error:
                    log.warning("%s", error.message)

    def _write(self) -> None:
        metrics, self._waiting = self._waiting or {}, None
        steps = metrics.get(_STEPS, -1.0)
        if not math.isfinite(steps) or steps <= self._written:
            return
        # Whatever goes wrong here must not stop who learns.
        try:
            if self._sinks is None:
                self._sinks = _open(self._directory)
            record = Record(
                env_steps=int(steps),
                updates=int(metrics.get(_UPDATES, 0)),
                episodes=int(metrics.get(_EPISODES, 0)),
                time=self._now(),
                metrics={**metrics, **self._beside()},
            )
            self._sinks.log(record)
        except Exception as error:
            log.warning("A record of '%s' is lost: %s", self._directory.name, error)
            return
        self._written = record.env_steps
        self._due = self._clock() + self._seconds


def _open(directory: Path) -> SinkSet:
    directory.mkdir(parents=True, exist_ok=True)
    copies: list[Sink] = []
    try:
        copies.append(TensorBoardSink(directory / TENSORBOARD))
    except MissingExtraError as error:
        log.info("No TensorBoard files for '%s': %s", directory.name, error.fix)
    return SinkSet(MetricsWriter(directory / METRICS), copies)
