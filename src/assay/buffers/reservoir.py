"""A uniform sample of everything that was ever seen, in a fixed room."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from assay.buffers.storage import HEAD, Sectioned, Sections, section
from assay.core.types import State

Columns = dict[str, np.ndarray]


class Reservoir(Sectioned):
    """Rows of named groups, each kept by reservoir sampling (Vitter 1985, algorithm R).

    Every row of a group that was ever added is in it with the same probability.

    Args:
        capacity: Rows of each group.
        rng: Source of all draws; whoever owns it saves it.
    """

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self.capacity, self._rng = capacity, rng
        self._seen: dict[str, int] = {}
        self._columns: dict[str, Columns] = {}  # of each group, made when the first rows are added

    def size(self, group: str) -> int:
        """Return how many rows a group has."""
        return min(self._seen.get(group, 0), self.capacity)

    def add(self, group: str, columns: Mapping[str, np.ndarray]) -> None:
        """See rows [K, ...], in their order."""
        count = len(next(iter(columns.values())))
        if not count:
            return
        if group not in self._columns:
            self._columns[group] = {name: self._room(rows) for name, rows in columns.items()}
        # Row number k goes to a place below k + 1, and is dropped where there is none.
        number = self._seen.get(group, 0) + np.arange(count)
        drawn = (self._rng.random(count) * (number + 1)).astype(np.int64)
        place = np.where(number < self.capacity, number, drawn)
        kept = place < self.capacity
        for name, rows in columns.items():
            self._columns[group][name][place[kept]] = rows[kept]  # the last one of a place stays
        self._seen[group] = self._seen.get(group, 0) + count

    def sample(self, group: str, count: int) -> Columns:
        """Draw rows, with replacement, as new arrays [count, ...]."""
        index = self._rng.integers(self.size(group), size=count)
        return {name: column[index] for name, column in self._columns[group].items()}

    def _room(self, rows: np.ndarray) -> np.ndarray:
        return np.zeros((self.capacity, *rows.shape[1:]), rows.dtype)

    def _sections(self) -> Sections:
        rows = {
            group: {name: column[: self.size(group)] for name, column in columns.items()}
            for group, columns in self._columns.items()
        }
        return {HEAD: ({"seen": dict(self._seen), "rows": rows}, None)}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        head = section(state, HEAD)
        self._seen = {group: int(count) for group, count in head["seen"].items()}
        self._columns = {}
        for group, columns in head["rows"].items():
            self._columns[group] = {name: self._room(rows) for name, rows in columns.items()}
            for name, rows in columns.items():
                self._columns[group][name][: len(rows)] = rows
