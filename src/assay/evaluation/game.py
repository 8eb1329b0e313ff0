"""Evaluate a strategy of a game exactly: by what best responses to it would gain.

Nothing is played. Where other evaluations have episodes, this one has the seats, and the return of
a seat is minus what its player could gain by a best response. So the mean is minus the
exploitability, higher is better as everywhere, and an equilibrium has 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.evaluation.evaluate import EvaluationResult
from assay.functional.games.best_response import Exploitation, exploitation
from assay.functional.games.tree import Floats, GameTree


@dataclass(frozen=True, slots=True, eq=False)
class GameResult(EvaluationResult):
    """An exact evaluation; `found` says what every player gets, and could get."""

    found: Exploitation | None = None

    @property
    def figures(self) -> dict[str, float]:
        """Return NashConv and exploitability."""
        assert self.found is not None
        return {
            "nash_conv": self.found.nash_conv,
            "exploitability": self.found.exploitability,
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with what each player gets."""
        assert self.found is not None
        values = {"values": self.found.values.tolist()}
        return EvaluationResult.to_json(self) | self.figures | values


def evaluate_strategy(tree: GameTree, strategy: Floats, *, seed: int = 0) -> GameResult:
    """Return how far a strategy [I, A] is from an equilibrium."""
    found = exploitation(tree, strategy)
    seats = tree.num_players
    return GameResult(
        seed,
        -np.maximum(found.gains, 0.0),  # below 0 by rounding only
        np.zeros(seats, np.int64),
        np.ones(seats, np.bool_),
        np.zeros(seats, np.bool_),
        np.arange(seats),
        found=found,
    )
