"""Curricula that choose tasks: by learning progress, and by growing from what can be solved."""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from assay.core import seeding
from assay.core.errors import ConfigError, nearest
from assay.core.types import Metrics
from assay.envs.variation.base import Judged, Numbers, Sampler, Tags, measured
from assay.envs.variation.ranges import Ranges, Units

_MOST_CELLS = 4096
_RIVALS = 4


class LearningProgress(Judged):
    """Tasks where the agent gets better or worse are drawn more often.

    Ranges are cut into cells. The progress of a cell is the distance between a fast and a slow
    running mean of how its episodes went (Kanitscheider et al. 2021, arXiv:2106.14876, without the
    reweighting of small success rates; the idea is of Matiisen et al. 2017, arXiv:1707.00183).
    """

    cells: int = Field(5, gt=1, description="Parts that each range without gaps is cut into.")
    rate: float = Field(0.3, gt=0, le=1, description="Weight of a new episode in the fast mean.")
    slow_rate: float = Field(0.05, gt=0, lt=1, description="Its weight in the slow mean.")
    uniform: float = Field(0.2, gt=0, le=1, description="Share of draws from all cells alike.")

    @model_validator(mode="after")
    def _in_order(self) -> LearningProgress:
        if not self.slow_rate < self.rate:
            raise ValueError(f"slow_rate={self.slow_rate:g} is not below rate={self.rate:g}")
        return self

    def sampler(self, ranges: Ranges) -> Sampler:
        """Return what draws for it."""
        shape = [one.count or self.cells for one in ranges.ranges]
        if np.prod(shape) > _MOST_CELLS:
            raise ConfigError(
                f"learning_progress would have {np.prod(shape):,} cells; {_MOST_CELLS:,} are the "
                "most.",
                "Set cells to less, or randomize fewer parameters.",
            )
        return ProgressSampler(self, ranges, shape)


class ProgressSampler(Sampler):
    """A fast and a slow mean of every cell; the slow one is NaN where nothing was played."""

    kept = ("means",)

    def __init__(self, settings: LearningProgress, ranges: Ranges, shape: list[int]) -> None:
        super().__init__(ranges)
        self.settings, self.shape = settings, tuple(shape)
        self.means = np.full((2, int(np.prod(shape))), np.nan)  # fast, slow

    def weights(self) -> Numbers:
        """Return the probability of every cell."""
        progress = np.abs(self.means[0] - self.means[1])
        known = ~np.isnan(progress)
        most = progress[known].max() if known.any() else 0.0
        progress = np.where(known, progress, most or 1.0)  # what was never tried may be learned
        total = progress.sum()
        share = self.settings.uniform if total > 0 else 1.0
        return share / len(progress) + (1 - share) * progress / (total or 1.0)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Units, Tags]:
        """Draw cells by their progress, and points in them uniformly."""
        cells = rng.choice(self.means.shape[1], count, p=self.weights())
        corners = np.stack(np.unravel_index(cells, self.shape), 1)
        units = (corners + rng.random(corners.shape)) / np.array(self.shape)
        return self.ranges.grown(units, self.progress()), cells

    def ended(self, units: Units, tags: Tags, returns: Numbers, success: Numbers) -> None:
        """Move the means of the cells that were played."""
        settings = self.settings
        found = measured(settings.measure, returns, success)
        for cell, value in zip(tags.tolist(), found.tolist(), strict=True):
            if np.isnan(self.means[0, cell]):
                self.means[:, cell] = value
            for mean, rate in enumerate((settings.rate, settings.slow_rate)):
                self.means[mean, cell] += rate * (value - self.means[mean, cell])

    def metrics(self) -> Metrics:
        """Return the largest probability of a cell and the share of cells that were played."""
        played = ~np.isnan(self.means[0])
        return {
            "curriculum/largest_weight": float(self.weights().max()),
            "curriculum/cells_played": float(played.mean()),
        }


class Generated(Judged):
    """Tasks of medium difficulty, and new ones near them.

    A few tasks are played until each was tried some times. One that went neither too badly nor too
    well is remembered, and replaced by one near a remembered one; any other is replaced as well.
    After goals of intermediate difficulty (Florensa et al. 2018, arXiv:1705.06366), with Gaussian
    neighbours in place of a generative network.
    """

    low: float = Field(examples=[100], description="Tasks whose mean is below are too hard.")
    high: float = Field(examples=[400], description="Tasks whose mean is above are too easy.")
    tries: int = Field(3, gt=0, description="Episodes after which a task is judged.")
    tasks: int = Field(32, gt=0, description="Tasks that are played at a time.")
    noise: float = Field(0.1, gt=0, le=1, description="How far neighbours are, of the ranges.")
    fresh: float = Field(
        0.3, ge=0, le=1, description="Share of new tasks that are drawn from the whole ranges."
    )
    memory: int = Field(200, gt=0, description="Tasks of medium difficulty that are remembered.")

    @model_validator(mode="after")
    def _in_order(self) -> Generated:
        if not self.low < self.high:
            raise ValueError(f"low={self.low:g} is not below high={self.high:g}")
        return self

    def sampler(self, ranges: Ranges) -> Sampler:
        """Return what draws for it."""
        return FrontierSampler(self, ranges, None)


class Reverse(Generated):
    """Tasks that grow outwards from one that is easy, such as a start next to the goal.

    As `generated`, but all new tasks are near remembered ones, the first near `begin`: the reverse
    curriculum of Florensa et al. 2017 (arXiv:1707.05300), with Gaussian neighbours in place of
    random actions. Tasks that go too well are remembered as well, and of a few remembered ones the
    one farthest from `begin` is gone on from.
    """

    fresh: float = Field(0.0, ge=0, le=1, description="Share of new tasks from the whole ranges.")
    begin: dict[str, float] = Field(
        examples=["{gravity: 9.8}"], description="The easy task: a value for every parameter."
    )

    def sampler(self, ranges: Ranges) -> Sampler:
        """Return what draws for it."""
        for name in self.begin:
            if name not in ranges.names:
                raise ConfigError(
                    f"begin has '{name}', which is not randomized.", nearest(name, ranges.names)
                )
        missing = [name for name in ranges.names if name not in self.begin]
        if missing:
            raise ConfigError(f"begin has no value of {missing[0]}.", "Give one for each.")
        pairs = [*zip(ranges.names, ranges.ranges, strict=True)]
        easy = np.array([one.unit(self.begin[name]) for name, one in pairs])
        for name, value in ranges.values(easy[None]).items():
            if not np.isclose(value[0], self.begin[name]):
                raise ConfigError(
                    f"begin has {name}={self.begin[name]:g}, which is not in its range; the "
                    f"nearest value there is {value[0]:g}.",
                    "Give one that is, or a wider range.",
                )
        return FrontierSampler(self, ranges, easy)


class FrontierSampler(Sampler):
    """Tasks that are played, how each went so far, and those of medium difficulty.

    Each new task is drawn by a generator of its own, so that only what episodes show changes the
    tasks.
    """

    kept = ("memory", "numbers", "units", "tried", "next_number", "seed", "judged")

    def __init__(self, settings: Generated, ranges: Ranges, easy: Units | None) -> None:
        super().__init__(ranges)
        self.settings, self.easy = settings, easy
        width = len(ranges.names)
        self.memory: Units = np.zeros((0, width)) if easy is None else easy[None].copy()
        self.seed = -1
        self.numbers = np.arange(settings.tasks)
        self.units = np.zeros((settings.tasks, width))
        self.tried = np.zeros((2, settings.tasks))  # how often, and the sum of what it brought
        self.next_number = settings.tasks
        self.judged = np.zeros(3)  # how many were too hard, medium, too easy

    def begin(self, seed: int) -> None:
        """Draw the first tasks."""
        if self.seed < 0:
            self.seed = seed
            self.units = np.stack([self._new(int(number)) for number in self.numbers])

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Units, Tags]:
        """Draw from the tasks that are played."""
        chosen = rng.integers(len(self.units), size=count)
        return self.units[chosen], self.numbers[chosen]

    def ended(self, units: Units, tags: Tags, returns: Numbers, success: Numbers) -> None:
        """Judge tasks that were tried often enough, and put others in their places."""
        settings = self.settings
        found = measured(settings.measure, returns, success)
        for number, value in zip(tags.tolist(), found.tolist(), strict=True):
            for place in np.flatnonzero(self.numbers == number):  # none if it was replaced
                self.tried[:, place] += 1.0, value
                if self.tried[0, place] >= settings.tries:
                    self._judge(int(place))

    def _judge(self, place: int) -> None:
        settings = self.settings
        mean = self.tried[1, place] / self.tried[0, place]
        verdict = 0 if mean < settings.low else 2 if mean > settings.high else 1
        self.judged[verdict] += 1
        if verdict == 1 or (verdict == 2 and self.easy is not None):
            self.memory = np.vstack([self.memory, self.units[place]])[-settings.memory :]
        self.numbers[place], self.next_number = self.next_number, self.next_number + 1
        self.units[place] = self._new(int(self.numbers[place]))
        self.tried[:, place] = 0.0

    def _new(self, number: int) -> Units:
        rng = seeding.derive_rng(self.seed, "task", number)
        fresh = rng.random() < self.settings.fresh
        if fresh or not len(self.memory):
            return rng.random(len(self.ranges.names))
        near = self.memory[rng.integers(len(self.memory), size=_RIVALS)]
        if self.easy is not None:  # outwards: of a few, the one that is farthest from the easy task
            near = near[np.linalg.norm(near - self.easy, axis=1).argsort()[::-1]]
        moved = near[0] + rng.normal(0.0, self.settings.noise, near.shape[1])
        return np.clip(moved, 0.0, 1.0)

    def metrics(self) -> Metrics:
        """Return the shares of the judged tasks, and where the played ones are."""
        total = max(self.judged.sum(), 1.0)
        names = ("too_hard", "medium", "too_easy")
        found = {
            f"curriculum/{n}": float(x / total) for n, x in zip(names, self.judged, strict=True)
        }
        centre = self.ranges.values(self.units)
        return found | {f"curriculum/{name}_mean": float(x.mean()) for name, x in centre.items()}
