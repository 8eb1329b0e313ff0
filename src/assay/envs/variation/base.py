"""What curricula are built of, and the backend whose copies get other parameters each episode."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from assay.core import seeding
from assay.core.config import Model
from assay.core.errors import EnvError
from assay.core.types import Metrics, State, Tree
from assay.envs.sync import Step
from assay.envs.variation.ranges import Ranges, Units
from assay.envs.wrappers.layers import RandomLayer

Tags = NDArray[np.int64]
Numbers = NDArray[np.float64]


class Sampler:
    """Draws points of the unit cube of some ranges; without a curriculum, uniformly.

    Drawing changes nothing but the generator: what a sampler knows changes by what episodes show.
    So a reset that is repeated draws the same again, and a run is resumed exactly.

    Attributes:
        progress: Which share of the run is over; `follow` sets it.
        scores: Whether it learns from advantages (`scored`) in place of returns (`ended`).
        kept: The attributes in which it keeps what it knows: arrays and whole numbers.
    """

    scores = False
    kept: ClassVar[tuple[str, ...]] = ()

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.progress: Callable[[], float] = lambda: 0.0

    def begin(self, seed: int) -> None:
        """Take what is random in it from a seed, if it knows nothing yet."""

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Units, Tags]:
        """Return points [count, P], and a number for each by which it is known later."""
        units = rng.random((count, len(self.ranges.names)))
        return self.ranges.grown(units, self.progress()), np.full(count, -1)

    def ended(self, units: Units, tags: Tags, returns: Numbers, success: Numbers) -> None:
        """Learn from episodes that ended, one row each."""

    def scored(self, units: Units, tags: Tags, scores: Numbers) -> None:
        """Learn from the advantages in episodes that ended, one row each."""

    def metrics(self) -> Metrics:
        """Return what there is to log."""
        return {}

    def state(self) -> State:
        """Return what it knows."""
        return {name: copy.copy(getattr(self, name)) for name in self.kept}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        for name in self.kept:
            whole = isinstance(getattr(self, name), int)
            setattr(self, name, int(state[name]) if whole else np.array(state[name]))


class Fixed(Sampler):
    """Draws one point, and the usual values for all others."""

    def __init__(self, ranges: Ranges, point: Units) -> None:
        super().__init__(ranges)
        self.point = point

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Units, Tags]:
        """Return the point, and usual values [count - 1, P]."""
        usual = np.repeat(self.ranges.usual[None], count - 1, 0)
        return np.concatenate([self.point[None], usual]), np.full(count, -1)


class Curriculum(Model, ABC):
    """A curriculum and its settings; the class's name in snake case is how it is asked for."""

    @abstractmethod
    def sampler(self, ranges: Ranges) -> Sampler:
        """Return what draws for it.

        Raises:
            ConfigError: The ranges do not fit.
        """


class Judged(Curriculum):
    """A curriculum that looks at how well episodes went."""

    measure: Literal["return", "success"] = Field(
        "return", description="What counts: an episode's return, or its success (0 or 1)."
    )


def measured(measure: str, returns: Numbers, success: Numbers) -> Numbers:
    """Return how well episodes went.

    Raises:
        EnvError: It is to be their success, and the environment does not report it.
    """
    if measure == "return":
        return returns
    if np.isnan(success).any():
        raise EnvError(
            "The curriculum goes by success, which the environment does not report.",
            "Let its info have 'is_success' at the end of episodes, or set measure: return (of "
            "level_replay, score: value_loss).",
        )
    return success


class VariedLayer(RandomLayer):
    """Draws parameters for the next episode of every copy, and tells how the last ones went.

    Attributes:
        curriculum: What draws.
    """

    stream = "variation"
    kept = ("units", "tags", "next_units", "next_tags", "returns", "sums")
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

    def set_state(self, state: State) -> None:
        """Restore a state: first the parameters, because restoring may reset a copy."""
        self.load_own(state["own"])
        self._set(self._units, later=False)
        self.inner.set_state(state["inner"])
        self._set(self._next_units, later=True)

    def load_own(self, state: State) -> None:
        """Restore which episodes ran and came next."""
        super().load_own(state)
        self._played = []

    def _plan(self, rows: NDArray[np.intp]) -> None:
        units, tags = self.curriculum.draw(self.rng, len(rows))
        self._next_units, self._next_tags = self._next_units.copy(), self._next_tags.copy()
        self._next_units[rows], self._next_tags[rows] = units, tags
        self._set(self._next_units, later=True)

    def _set(self, units: NDArray[np.float64], later: bool) -> None:
        self.inner.set_parameters(self.curriculum.ranges.values(units), later)
