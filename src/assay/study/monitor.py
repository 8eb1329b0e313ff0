"""Watch a run from outside, by the files that it writes."""

from __future__ import annotations

import math
from pathlib import Path

from assay.study import extractors
from assay.study.layout import StudyError
from assay.study.models import Contract


class Watch:
    """Look at a run now and then, and say when a stop rule of the contract applies.

    Args:
        agreed: The contract.
        place: The run's directory.
    """

    def __init__(self, agreed: Contract, place: Path) -> None:
        self.agreed = agreed
        self.place = place
        self._size = -1
        self._moved: float | None = None

    def look(self, now: float) -> str | None:
        """Return why the run must be ended, or None if it may go on."""
        return self._frozen(now) or self._not_a_number()

    def _frozen(self, now: float) -> str | None:
        files = [self.place / "stdout.log", *(self.place / "out").rglob("*")]
        size = 0
        for path in files:
            try:
                size += path.stat().st_size
            except OSError:
                continue  # it was just renamed or removed
        if size != self._size or self._moved is None:
            self._size, self._moved = size, now
        minutes = (now - self._moved) / 60
        if minutes > self.agreed.experiment.stop.frozen_minutes:
            return f"it has written nothing for {minutes:.0f} minutes"
        return None

    def _not_a_number(self) -> str | None:
        if not self.agreed.experiment.stop.nan:
            return None
        metrics = self.agreed.metrics
        for metric in (metrics.primary, metrics.training_reward, *metrics.diagnostics):
            if metric is None:
                continue
            try:
                points = extractors.series(
                    metric.source, self.place / "out", self.place / "stdout.log"
                )
            except (StudyError, OSError):
                continue  # not written yet
            if points and not math.isfinite(points[-1][1]):
                return f"{metric.name} is {points[-1][1]}"
        return None
