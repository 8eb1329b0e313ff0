"""A backend whose copies get other parameters with every episode."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core import seeding
from assay.core.types import State, Tree
from assay.envs.sync import Step
from assay.envs.variation.base import Sampler
from assay.envs.wrappers.layers import RandomLayer


class VariedLayer(RandomLayer):
    """Draws parameters for the next episode of every copy, and tells how the last ones went.

    Attributes:
        curriculum: What draws.
    """

    stream = "variation"
    always_finite = False  # whatever the environment is with its usual parameters

    def __init__(self, inner: Any, curriculum: Sampler) -> None:
        super().__init__(inner)
        self.curriculum = curriculum
        count, width = inner.num_envs, len(curriculum.ranges.names)
        # Of the episodes that run, and of those after them.
        self._units, self._next_units = np.zeros((2, count, width))
        self._tags, self._next_tags = np.zeros((2, count), np.int64)
        self._returns = np.zeros(count)
        # Which points were played in the steps since the last scores, and the sums before that.
        self._played: list[tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], Any]] = []
        self._sums = np.zeros((2, count))

    def reset(self, seed: int) -> Tree:
        """Reset all environments, with parameters that are drawn for them."""
        self.rng = seeding.derive_rng(seed, self.stream, self.depth)
        count = self.inner.num_envs
        self.curriculum.begin(seed)
        self._units, self._tags = self.curriculum.draw(self.rng, count)
        self._returns = np.zeros(count)
        self._played, self._sums = [], np.zeros((2, count))
        self._set(self._units, later=False)
        obs = self.inner.reset(seed)
        self._plan(np.arange(count))
        return obs

    def step(self, actions: NDArray[Any]) -> Step:
        """Step all environments."""
        step = _, reward, terminated, truncated, valid, _ = self.inner.step(actions)
        over = terminated | truncated
        self._returns += reward if valid is None else np.where(valid, reward, 0.0)
        if self.curriculum.scores:
            self._played.append((self._units, self._tags, over, valid))
        ended = np.flatnonzero(over)
        if len(ended):
            success = self.inner.success
            told = np.full(len(ended), np.nan) if success is None else success[ended]
            units, tags = self._units[ended], self._tags[ended]
            self.curriculum.ended(units, tags, self._returns[ended], told)
            self._returns[ended] = 0.0
        fresh = np.flatnonzero(self._fresh(step))
        if len(fresh):
            self._units, self._tags = self._units.copy(), self._tags.copy()
            self._units[fresh], self._tags[fresh] = self._next_units[fresh], self._next_tags[fresh]
            self._plan(fresh)
        return step

    def score(self, advantage: NDArray[Any]) -> None:
        """Tell the curriculum the advantages [T, N] of the steps since the last time."""
        rows: list[tuple[Any, int, float]] = []
        for gained, (units, tags, over, valid) in zip(advantage, self._played, strict=True):
            real = np.ones(len(over), bool) if valid is None else valid
            self._sums[0] += np.where(real, np.abs(gained), 0.0)
            self._sums[1] += real
            for row in np.flatnonzero(over):
                mean = self._sums[0, row] / max(self._sums[1, row], 1.0)
                rows.append((units[row], int(tags[row]), float(mean)))
                self._sums[:, row] = 0.0
        self._played = []
        if rows:
            points, numbers, scores = map(np.array, zip(*rows, strict=True))
            self.curriculum.scored(points, numbers, scores)

    def own_state(self) -> State:
        """Return which episodes run and come next."""
        return super().own_state() | {
            "units": self._units,
            "tags": self._tags,
            "next_units": self._next_units,
            "next_tags": self._next_tags,
            "returns": self._returns,
            "sums": self._sums,
        }

    def set_state(self, state: State) -> None:
        """Restore a state: first the parameters, because restoring may reset a copy."""
        self.load_own(state["own"])
        self._set(self._units, later=False)
        self.inner.set_state(state["inner"])
        self._set(self._next_units, later=True)

    def load_own(self, state: State) -> None:
        """Restore which episodes ran and came next."""
        super().load_own(state)
        self._units, self._next_units = np.array(state["units"]), np.array(state["next_units"])
        self._tags, self._next_tags = np.array(state["tags"]), np.array(state["next_tags"])
        self._returns, self._sums = np.array(state["returns"]), np.array(state["sums"])
        self._played = []

    def _plan(self, rows: NDArray[np.intp]) -> None:
        units, tags = self.curriculum.draw(self.rng, len(rows))
        self._next_units, self._next_tags = self._next_units.copy(), self._next_tags.copy()
        self._next_units[rows], self._next_tags[rows] = units, tags
        self._set(self._next_units, later=True)

    def _set(self, units: NDArray[np.float64], later: bool) -> None:
        self.inner.set_parameters(self.curriculum.ranges.values(units), later)
