"""Prioritised level replay: play again where there is most to learn.

Jiang, Grefenstette and Rocktaeschel 2021 (arXiv:2010.03934), with the memory of a fixed size of
Jiang et al. 2021 (arXiv:2110.02439), and with the learnability of Rutherford et al. 2024
(arXiv:2408.15099) as another score. They measure it in rollouts of their own; here it comes from
the episodes that are played anyway, of which a level has few:

    p = (successes + r) / (episodes + 1), with r the success rate of new levels

where earlier episodes of the level count for less each time.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from assay.core.types import Metrics, State
from assay.envs.variation.base import Curriculum, Numbers, Sampler, Tags, measured
from assay.envs.variation.ranges import Ranges, Units

_FORGET = 0.8  # weight of what is known of a level when it is played again
_RATE = 0.01  # weight of an episode in the success rate of new levels


class LevelReplay(Curriculum):
    """Levels with a large value loss, or that are solved now and then, are played again.

    The score of a level is the mean size of the advantages in its last episode (on-policy
    algorithms only), or p (1 - p) with p its success rate. Its probability is (1 - staleness)
    rank(score)^(-1 / temperature) + staleness * episodes since it was played, each term normalised.
    The agent also learns from new levels, as in the first of the two papers.
    """

    score: Literal["value_loss", "learnability"] = Field(
        "value_loss", description="Mean size of advantages, or p (1 - p) with p the success rate."
    )
    replay: float = Field(0.5, ge=0, lt=1, description="Share of episodes in a known level.")
    levels: int = Field(256, gt=0, description="Levels that are remembered; the best scores stay.")
    temperature: float = Field(0.3, gt=0, description="Of the ranks: lower prefers high scores.")
    staleness: float = Field(0.3, ge=0, le=1, description="Weight of how long ago it was played.")

    def sampler(self, ranges: Ranges) -> Sampler:
        """Return what draws for it."""
        return ReplaySampler(self, ranges)


class ReplaySampler(Sampler):
    """Known levels, their scores, and at which episode each was played last."""

    kept = ("units", "found", "played", "episodes")

    def __init__(self, settings: LevelReplay, ranges: Ranges) -> None:
        super().__init__(ranges)
        self.settings = settings
        self.scores = settings.score == "value_loss"
        self.new_rate = 0.5  # of new levels, how many are solved
        self.tries: Numbers = np.zeros((0, 2))  # episodes and successes, forgotten by and by
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

    def ended(self, units: Units, tags: Tags, returns: Numbers, success: Numbers) -> None:
        """Score levels by how often they are solved."""
        if self.scores:
            return
        solved = measured("success", returns, success)
        for point, key, tag, won in zip(units, self._keys(units), tags, solved, strict=True):
            if tag < 0:
                self.new_rate += _RATE * (won - self.new_rate)
            tried = np.array([1.0, won])
            if key in self._places:
                tried += _FORGET * self.tries[self._places[key]]
            rate = (tried[1] + self.new_rate) / (tried[0] + 1.0)
            self._remember(point, key, rate * (1 - rate), tried)

    def scored(self, units: Units, tags: Tags, scores: Numbers) -> None:
        """Score levels by the advantages in them."""
        for point, key, score in zip(units, self._keys(units), scores.tolist(), strict=True):
            self._remember(point, key, score, np.zeros(2))

    def _remember(self, point: Units, key: tuple[float, ...], score: float, tried: Numbers) -> None:
        """Remember what was played, in place of the lowest score if there is no room."""
        self.episodes += 1
        place = self._places.get(key)
        if place is None and len(self.found) < self.settings.levels:
            place = len(self.found)
            self.units = np.vstack([self.units, point])
            self.tries = np.vstack([self.tries, tried])
            self.found = np.append(self.found, score)
            self.played = np.append(self.played, self.episodes)
        elif place is None and score > self.found.min():
            place = int(self.found.argmin())
            del self._places[self._keys(self.units[place, None])[0]]
            self.units[place] = point
        if place is not None:
            self._places[key] = place
            self.tries[place] = tried
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
        return super().state() | {"tries": self.tries.copy(), "new_rate": self.new_rate}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        super().load_state(state)
        # A run from before there was learnability has neither, and needs neither.
        self.new_rate = float(state.get("new_rate", self.new_rate))
        self.tries = np.array(state.get("tries", np.zeros((len(self.found), 2))))
        self._places = {key: place for place, key in enumerate(self._keys(self.units))}
