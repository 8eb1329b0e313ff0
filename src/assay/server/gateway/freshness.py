"""Whether a learner gets steps that it can learn from.

On-policy learners leave out steps that are more than `max_lag` versions behind. Where clients are
held at an old version, that is all of them, and then no version comes that could change it. After
an outage it is all of them as well, but only until the clients have sent what they had kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

STEPS, TOO_OLD = "server/steps", "server/steps_too_old"
WINDOW = 256  # steps that are judged together
BACKLOG_SECONDS = 300.0  # for which old steps may be what clients had kept
_STARVING = 0.9  # share of them that is left out


class Freshness:
    """Follows the counts that a learner reports.

    Args:
        clock: Steady seconds.

    Attributes:
        starving: Whether nearly all steps are left out, and that will not pass by itself.
        catching_up: Whether they are, and it may: clients can have a version that is new enough.
        left_out: So many of the last ones were,
        of: of so many.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.starving = self.catching_up = False
        self.left_out = self.of = 0
        self._from: tuple[float, float] | None = None
        self._since: float | None = None  # when nearly all steps began to be left out

    def look(self, metrics: Mapping[str, float], *, reachable: bool = False) -> bool:
        """Take in what a learner reports; return whether `starving` or `catching_up` has changed.

        Args:
            metrics: Of the learner.
            reachable: Whether clients can have a version whose steps are not left out.
        """
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
        self.left_out, self.of = int(left_out), int(came)
        before, now = (self.starving, self.catching_up), self._clock()
        if left_out < _STARVING * came:
            self._since = None
            self.starving = self.catching_up = False
        else:
            self._since = now if self._since is None else self._since
            self.starving = not reachable or now - self._since >= BACKLOG_SECONDS
            self.catching_up = not self.starving
        return before != (self.starving, self.catching_up)
