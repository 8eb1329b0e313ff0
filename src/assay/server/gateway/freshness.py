"""Whether a learner gets steps that it can learn from.

On-policy learners leave out steps that are more than `max_lag` versions behind. Where clients are
held at an old version, that is all of them, and then no version comes that could change it.
"""

from __future__ import annotations

from collections.abc import Mapping

STEPS, TOO_OLD = "server/steps", "server/steps_too_old"
WINDOW = 256  # steps that are judged together
_STARVING = 0.9  # share of them that is left out


class Freshness:
    """Follows the counts that a learner reports.

    Attributes:
        starving: Whether nearly all steps are left out.
        left_out: So many of the last ones were,
        of: of so many.
    """

    def __init__(self) -> None:
        self.starving = False
        self.left_out = self.of = 0
        self._from: tuple[float, float] | None = None

    def look(self, metrics: Mapping[str, float]) -> bool:
        """Take in what a learner reports; return whether `starving` has changed."""
        if STEPS not in metrics or TOO_OLD not in metrics:
            return False
        steps, old = metrics[STEPS], metrics[TOO_OLD]
        if self._from is None or steps < self._from[0] or old < self._from[1]:
            self._from = (steps, old)  # it has just begun, or begun again
            return False
        came, left_out = steps - self._from[0], old - self._from[1]
        if came < WINDOW:
            return False
        self._from = (steps, old)
        before, self.starving = self.starving, left_out >= _STARVING * came
        self.left_out, self.of = int(left_out), int(came)
        return self.starving != before
