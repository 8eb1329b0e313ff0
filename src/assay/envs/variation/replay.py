"""Prioritised level replay: play again where there is most to learn.

Jiang, Grefenstette and Rocktaeschel 2021 (arXiv:2010.03934), with the memory of a fixed size of
Jiang et al. 2021 (arXiv:2110.02439).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from assay.core.types import Metrics, State
from assay.envs.variation.base import Curriculum, Numbers, Sampler, Tags
from assay.envs.variation.ranges import Ranges, Units


class LevelReplay(Curriculum):
    """Levels with a large value loss are played again; on-policy algorithms only.

    The score of a level is the mean size of the advantages in its last episode. Its probability is
    (1 - staleness) rank(score)^(-1 / temperature) + staleness * episodes since it was played, each
    term normalised. The agent also learns from new levels, as in the first of the two papers.
    """

    replay: float = Field(0.5, ge=0, lt=1, description="Share of episodes in a known level.")
    levels: int = Field(256, gt=0, description="Levels that are remembered; the best scores stay.")
    temperature: float = Field(0.3, gt=0, description="Of the ranks: lower prefers high scores.")
    staleness: float = Field(0.3, ge=0, le=1, description="Weight of how long ago it was played.")

    def sampler(self, ranges: Ranges) -> Sampler:
        """Return what draws for it."""
        return ReplaySampler(self, ranges)


class ReplaySampler(Sampler):
    """Known levels, their scores, and at which episode each was played last."""

    scores: ClassVar[bool] = True

    def __init__(self, settings: LevelReplay, ranges: Ranges) -> None:
        super().__init__(ranges)
        self.settings = settings
        self.units: Units = np.zeros((0, len(ranges.names)))
        self.found: Numbers = np.zeros(0)
        self.played = np.zeros(0, np.int64)
        self.episodes = 0
        self._places: dict[tuple[float, ...], int] = {}  # of known levels, by their values

    def weights(self) -> Numbers:
        """Return the probability of every known level in a replay."""
        rank = np.empty(len(self.found))
        rank[np.argsort(-self.found, kind="stable")] = np.arange(1, len(rank) + 1)
        score = rank ** (-1.0 / self.settings.temperature)
        score /= score.sum()
        stale = (self.episodes - self.played).astype(np.float64)
        total = stale.sum()
        share = self.settings.staleness if total > 0 else 0.0
        return (1 - share) * score + share * stale / (total or 1.0)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Units, Tags]:
        """Draw known levels for some rows, once half of the memory is full, and new ones."""
        units, tags = super().draw(rng, count)
        again = rng.random(count) < self.settings.replay
        if 2 * len(self.found) < self.settings.levels or not again.any():
            return units, tags
        chosen = rng.choice(len(self.found), int(again.sum()), p=self.weights())
        units[again] = self.units[chosen]
        tags[again] = 0
        return units, tags

    def scored(self, units: Units, tags: Tags, scores: Numbers) -> None:
        """Remember what was played, in place of the lowest score if there is no room."""
        for point, key, score in zip(units, self._keys(units), scores.tolist(), strict=True):
            self.episodes += 1
            place = self._places.get(key)
            if place is None and len(self.found) < self.settings.levels:
                place = len(self.found)
                self.units = np.vstack([self.units, point])
                self.found = np.append(self.found, score)
                self.played = np.append(self.played, self.episodes)
            elif place is None and score > self.found.min():
                place = int(self.found.argmin())
                del self._places[self._keys(self.units[place, None])[0]]
                self.units[place] = point
            if place is not None:
                self._places[key] = place
                self.found[place], self.played[place] = score, self.episodes

    def _keys(self, units: Units) -> list[tuple[float, ...]]:
        """Return the values of points; levels with the same values are the same."""
        return list(zip(*(x.tolist() for x in self.ranges.values(units).values()), strict=True))

    def metrics(self) -> Metrics:
        """Return how many levels are known, and their mean score."""
        if not len(self.found):
            return {}
        return {
            "curriculum/levels": float(len(self.found)),
            "curriculum/score_mean": float(self.found.mean()),
        }

    def state(self) -> State:
        """Return what is known of levels."""
        return {
            "units": self.units.copy(),
            "found": self.found.copy(),
            "played": self.played.copy(),
            "episodes": self.episodes,
        }

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        self.episodes = int(state["episodes"])
        for name in ("units", "found", "played"):
            setattr(self, name, np.array(state[name]))
        self._places = {key: place for place, key in enumerate(self._keys(self.units))}
