"""What is in a dataset: returns, lengths, ends, ranges, coverage, duplicates."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.data.dataset import Block, Dataset, bytes_of
from assay.data.files import load
from assay.data.schema import Array

BINS = 20  # into which each component of a bounded Box is divided, to say how much was tried


@dataclass(slots=True)
class Range:
    """The values of one field, component by component.

    Attributes:
        low: Least of each.
        high: Greatest of each.
        mean: Mean of each.
    """

    low: Array
    high: Array
    mean: Array

    def to_json(self) -> dict[str, Any]:
        """Return plain values; of a field with many components only the extremes of all."""
        few = self.low.size <= 32
        if not few:
            return {"low": self.low.min(), "high": self.high.max(), "mean": self.mean.mean()}
        return {"low": self.low, "high": self.high, "mean": self.mean}


@dataclass(slots=True)
class Summary:
    """Facts about a dataset.

    Attributes:
        name: The file.
        sha256: Hash of the content.
        returns: [E] undiscounted.
        lengths: [E] steps.
        terminated: Episodes that ended by themselves.
        truncated: Episodes that were cut.
        open_ends: Episodes whose last step is neither: their terminal is missing.
        early_ends: Episodes with a terminal before the last step: it is one too many.
        duplicates: Pairs of an episode and the earlier one that it repeats.
        ranges: Of each field but the flags.
        actions: [n] how often each choice of a Discrete was made; [components, BINS] how often
            each part of the range of a bounded Box was; else None.
        metadata: Where it came from.
    """

    name: str
    sha256: str
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: int
    truncated: int
    open_ends: list[int]
    early_ends: list[int]
    duplicates: list[tuple[int, int]]
    ranges: dict[str, Range]
    actions: NDArray[np.int64] | None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def coverage(self) -> NDArray[np.float64] | None:
        """Return the share of choices, or of each component's range, that occurs."""
        if self.actions is None:
            return None
        return np.atleast_1d((self.actions > 0).mean(axis=-1))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        coverage = self.coverage
        return {
            "name": self.name,
            "sha256": self.sha256,
            "episodes": len(self.lengths),
            "steps": int(self.lengths.sum()),
            "return": _spread(self.returns),
            "length": _spread(self.lengths),
            "terminated": self.terminated,
            "truncated": self.truncated,
            "missing_terminals": self.open_ends,
            "early_terminals": self.early_ends,
            "duplicates": [list(pair) for pair in self.duplicates],
            "ranges": {name: one.to_json() for name, one in self.ranges.items()},
            "action_coverage": None if coverage is None else coverage.tolist(),
            "metadata": self.metadata,
        }


def _spread(values: NDArray[Any]) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "median": float(np.median(values)),
        "max": float(values.max()),
    }


def summarise(source: str | Path | Dataset) -> Summary:
    """Look at every episode of a dataset, a few at a time.

    Raises:
        DataError: It cannot be read.
    """
    dataset = load(source)
    fields = dataset.schema.fields
    rewards = [(one.columns["reward"], one.lengths) for one in dataset.blocks(["reward"])]
    sums = [np.add.reduceat(rows, np.cumsum(steps) - steps) for rows, steps in rewards]
    ends = _Ends()
    moments = {name: _Moments() for name, one in fields.items() if one.dtype.kind != "b"}
    actions, copies = _Actions(dataset.schema.action), _Copies()
    for block in dataset.blocks():
        ends.add(block)
        actions.add(block.columns["action"])
        copies.add(block, dataset)
        for name, one in moments.items():
            one.add(block.columns[name])
    return Summary(
        name=dataset.name,
        sha256=dataset.content_hash,
        returns=np.concatenate(sums),
        lengths=dataset.lengths,
        terminated=ends.terminated,
        truncated=ends.truncated,
        open_ends=ends.missing,
        early_ends=ends.early,
        duplicates=copies.found,
        ranges={name: one.range() for name, one in moments.items()},
        actions=actions.counts,
        metadata=dataset.metadata,
    )


class _Ends:
    """How episodes end."""

    def __init__(self) -> None:
        self.terminated = self.truncated = 0
        self.missing: list[int] = []
        self.early: list[int] = []

    def add(self, block: Block) -> None:
        last = np.cumsum(block.lengths) - 1
        terminated, truncated = (block.columns[n] for n in ("terminated", "truncated"))
        self.terminated += int(terminated[last].sum())
        self.truncated += int((truncated[last] & ~terminated[last]).sum())
        over = terminated | truncated
        self.missing += (block.first + np.flatnonzero(~over[last])).tolist()
        before = over.copy()
        before[last] = False
        rows = np.flatnonzero(before)
        self.early += sorted({block.place(int(row), 0)[0] for row in rows})


class _Moments:
    """Least, greatest and mean of each component."""

    def __init__(self) -> None:
        self.low: Any = None
        self.high: Any = None
        self.total: Any = 0.0
        self.count = 0

    def add(self, rows: Array) -> None:
        low, high = rows.min(axis=0), rows.max(axis=0)
        self.low = low if self.low is None else np.minimum(self.low, low)
        self.high = high if self.high is None else np.maximum(self.high, high)
        self.total = self.total + rows.sum(axis=0, dtype=np.float64)
        self.count += len(rows)

    def range(self) -> Range:
        return Range(*(np.asarray(x) for x in (self.low, self.high, self.total / self.count)))


class _Actions:
    """How often each choice, or each part of a bounded range, was taken."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self.counts: NDArray[np.int64] | None = None
        if isinstance(space, gym.spaces.Discrete):
            self.counts = np.zeros(int(space.n), np.int64)
        elif isinstance(space, gym.spaces.Box) and space.is_bounded():
            self.counts = np.zeros((int(np.prod(space.shape)), BINS), np.int64)

    def add(self, actions: Array) -> None:
        if self.counts is None:
            return
        if isinstance(self.space, gym.spaces.Discrete):
            choice = actions - int(self.space.start)
            choice = choice[(choice >= 0) & (choice < len(self.counts))]
            self.counts += np.bincount(choice, minlength=len(self.counts))
            return
        assert isinstance(self.space, gym.spaces.Box)
        low, high = (bound.reshape(-1) for bound in (self.space.low, self.space.high))
        rows = actions.reshape(len(actions), -1)
        width = np.maximum(high - low, np.finfo(np.float32).tiny)
        unit = np.clip(np.nan_to_num((rows - low) / width), 0, 1)
        bins = np.minimum((unit * BINS).astype(np.int64), BINS - 1)
        for number, column in enumerate(bins.T):
            self.counts[number] += np.bincount(column, minlength=BINS)


class _Copies:
    """Episodes that repeat an earlier one in every field."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []
        self._seen: dict[bytes, int] = {}

    def add(self, block: Block, dataset: Dataset) -> None:
        fields = dataset.schema.fields
        step = 0
        for number, steps in enumerate(block.lengths.tolist()):
            digest = hashlib.blake2b(digest_size=16)
            for name, rows in block.columns.items():
                low = step + fields[name].more * number
                digest.update(bytes_of(rows[low : low + steps + fields[name].more]))
            step += steps
            episode = block.first + number
            first = self._seen.setdefault(digest.digest(), episode)
            if first != episode:
                self.found.append((episode, first))
