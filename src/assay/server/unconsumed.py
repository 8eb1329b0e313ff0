"""What a learner has not consumed: how much that is, and which of it is passed over.

Batches that learners die of, or that cannot be read, are found one by one and passed over. A batch
that is poison kills every learner, for all of them get the same in the same order. One that a
learner is killed at by chance is not met by the next one's death.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from assay.server.errors import RejectionError
from assay.server.store.sql import Registry
from assay.server.store.store import Stored

_PAGE = 1000  # rows of the index at a time


class Backlog:
    """Counts the batches, and the steps in them, that a learner has not consumed."""

    def __init__(self, registry: Registry, policy: str) -> None:
        self._registry = registry
        self._policy = policy
        self._lock = threading.Lock()
        self._seen = 0  # up to here the index was read
        self._batches = 0
        self._steps = 0

    def reset(self, position: int) -> None:
        """Begin behind a position."""
        with self._lock:
            self._seen, self._batches, self._steps = position, 0, 0

    def consumed(self, batches: Sequence[Stored]) -> None:
        """Take off what was consumed."""
        with self._lock:
            for one in batches:
                if one.position <= self._seen:
                    self._batches -= 1
                    self._steps -= one.steps
            self._seen = max(self._seen, batches[-1].position)

    def count(self) -> tuple[int, int]:
        """Return how many batches and steps there are, those that have just come included."""
        with self._lock:
            with contextlib.suppress(RejectionError):
                while rows := self._registry.batches(self._policy, self._seen, _PAGE):
                    self._batches += len(rows)
                    self._steps += sum(row.steps for row in rows)
                    self._seen = rows[-1].place.position
            return self._batches, self._steps


class Poison:
    """Knows which batches of a policy to pass over. For one thread, but for `skipped`.

    Args:
        deaths: Learners in a row that must die of a batch alone.

    Attributes:
        skipped: Positions of the batches that are passed over.
    """

    def __init__(self, deaths: int) -> None:
        self._deaths = deaths
        self.skipped: frozenset[int] = frozenset()
        self._suspect = 0  # a batch up to here has killed a learner
        self._position = 0  # of the batch that the last learner died of alone
        self._in_a_row = 0  # learners that did
        self._since = -1  # the committed position that they began from
        self._passed = 0  # batches passed over since then

    def forgive(self) -> None:
        """Try everything again."""
        self.skipped = frozenset()
        self._position = self._in_a_row = self._passed = 0
        self._since = -1

    def alone(self, after: int, committed: int) -> bool:
        """Return whether what stands behind a position should be given to the learner one by one.

        So it should behind a crash, to learn which batch it was; and until something is committed,
        if one was passed over, which need not have been the right one.
        """
        return after < self._suspect or (self._passed > 0 and self._since == committed)

    def without(self, batches: Sequence[Stored]) -> list[Stored]:
        """Return the batches that are not passed over."""
        return [one for one in batches if one.position not in self.skipped]

    def damaged(self, batches: Sequence[Stored]) -> list[Stored]:
        """Pass over the batches that cannot be read; return those that are new among them."""
        new = [
            one for one in batches if one.damage is not None and one.position not in self.skipped
        ]
        self.skipped |= {one.position for one in new}
        return new

    def suspect(self, batches: Sequence[Stored]) -> None:
        """Note that a learner died at some batches."""
        self._suspect = max(self._suspect, batches[-1].position)

    def blame(self, position: int, committed: int) -> range:
        """Count that a learner, begun behind `committed`, died of a batch alone.

        Return what is passed over from now on.
        """
        passed = self._passed if self._since == committed else 0
        self._in_a_row = self._in_a_row + 1 if self._position == position else 1
        self._position, self._since, self._passed = position, committed, passed
        if self._in_a_row < self._deaths:
            return range(0)
        # A learner may die of a batch some time after it has taken it in.
        found = range(committed + 1 if passed else position, position + 1)
        self._passed += len(set(found) - self.skipped)
        self.skipped |= set(found)
        self._position = self._in_a_row = 0
        return found
