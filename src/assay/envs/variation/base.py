"""What curricula are built of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from assay.core.config import Model
from assay.core.errors import EnvError
from assay.core.types import Metrics, State
from assay.envs.variation.ranges import Ranges, Units

Tags = NDArray[np.int64]
Numbers = NDArray[np.float64]


class Sampler:
    """Draws points of the unit cube of some ranges; without a curriculum, uniformly.

    Drawing changes nothing but the generator: what a sampler knows changes by what episodes show.
    So a reset that is repeated draws the same again, and a run is resumed exactly.

    Attributes:
        progress: Which share of the run is over; `follow` sets it.
        scores: Whether it learns from advantages (`scored`) in place of returns (`ended`).
    """

    scores = False

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
        return {}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""


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
