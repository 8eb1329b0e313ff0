"""How far a learner is behind what was committed."""

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
