"""Counterfactual regret minimisation (Zinkevich et al. 2007, NeurIPS 20, pp. 1729-1736).

For games that can be written out. Each iteration computes for every information set by how much
each action would have been better, weighted with how likely the others make it (the counterfactual
regret), and the next strategy plays actions in proportion to what is positive of the sum. In
zero-sum games of two the average strategy converges to an equilibrium.

Deviations from the paper: players take turns within an iteration, as in all later work and in
OpenSpiel's CFRSolver, with which the numbers agree. CFR+ (arXiv:1407.5042) is the option `plus`.
There is no network and no torch in the update; the mathematics are in
`assay.functional.games.cfr`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from assay.algorithms.base import Algorithm, Context, GameNeeds
from assay.core.config import Settings
from assay.core.registry import register
from assay.core.types import Spaces
from assay.functional.games.cfr import cfr_iteration
from assay.functional.games.tree import Floats, GameTree
from assay.policies.strategy_table import StrategyTable, TablePolicy


@register(
    loop="game",
    actions=("Discrete",),
    family="game",
    paper="Zinkevich et al. 2007; arXiv:1407.5042 (CFR+)",
    traits=("rules",),
)
class CFR(Algorithm):
    """Solve a small game: both sides learn from regret until neither can be exploited."""

    auto_compiles = False

    class Hyperparameters(Settings):
        """Settings of CFR."""

        plus: bool = Field(
            False, description="CFR+: regrets never fall below 0, and later strategies weigh more."
        )
        alternating: bool = Field(
            True, description="Players take turns; otherwise all learn from the same strategies."
        )

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = GameNeeds()
        self.table = StrategyTable()
        policy: Any = TablePolicy(spaces, self.table, self.rng)
        self.policy = policy

    def update(self, data: GameTree) -> None:
        """Do one iteration over all histories of the game."""
        table = self.table
        table.begin(data)
        table.iterations += 1
        cfr_iteration(
            data,
            table.regret,
            table.average,
            table.iterations,
            plus=self.hp.plus,
            alternating=self.hp.alternating,
        )
        # R_i <= sum over I of max_a R+(I, a): what all could have gained so far, at most.
        bound = np.maximum(table.regret, 0.0).max(axis=1).sum() / table.iterations
        self.note(regret_bound=float(bound))

    @property
    def updates(self) -> int:
        """Return how many iterations there were."""
        return self.table.iterations

    def average_strategy(self) -> Floats:
        """Return what was learned: for every information set the probability of each action."""
        return self.table.strategy()
