"""Policy-space response oracles with exact best responses.

Lanctot et al. 2017, arXiv:1711.00832. Players have a few strategies each. A meta-solver mixes them
in the pay-off table that they span, each player answers the mixtures of the others with a best
response, and these answers are added. With the meta-solver "nash" it is the double oracle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from assay.core.errors import ConfigError
from assay.functional.games.best_response import best_response, exploitation
from assay.functional.games.fictitious_play import realization
from assay.functional.games.normal_form import is_zero_sum, replicator_path, spread, zero_sum_nash
from assay.functional.games.tree import Floats, GameTree, normalized

MetaSolver = Literal["nash", "uniform", "replicator"]
_SAME = 1e-9  # a response that gains less is not a new one


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """What PSRO found.

    Attributes:
        strategies: The strategies [I, A] of each player.
        table: [P, K_1, ..., K_P] what they get against each other.
        profile: The distribution of each player over its strategies.
        strategy: [I, A] the mixture as one strategy.
        nash_conv: NashConv of the mixture at the start and after each iteration.
        converged: Whether no player had a better response at the end.
    """

    strategies: list[list[Floats]]
    table: Floats
    profile: list[Floats]
    strategy: Floats
    nash_conv: list[float]
    converged: bool


def psro(tree: GameTree, iterations: int, *, meta: MetaSolver = "nash") -> Responses:
    """Grow a population of best responses, from the uniform strategy on.

    Args:
        tree: The game.
        iterations: At most so many rounds of responses.
        meta: How strategies are mixed: an equilibrium by linear programming (two players, zero
            sum), all alike, or where the replicator dynamics are on average.

    Raises:
        ConfigError: There is no such meta-solver, or it does not fit the game.
    """
    if meta not in get_args(MetaSolver):
        raise ConfigError(f"meta='{meta}': expected one of {', '.join(get_args(MetaSolver))}.")
    strategies = [[tree.uniform()] for _ in range(tree.num_players)]
    table = payoff_table(tree, strategies)
    profile = mixed(table, meta)
    strategy = mixture(tree, strategies, profile)
    history, converged = [exploitation(tree, strategy).nash_conv], False
    for _ in range(iterations):
        now, converged = tree.expected_returns(strategy), True
        for player, own in enumerate(strategies):
            answer, value = best_response(tree, strategy, player)
            if value > now[player] + _SAME:
                own.append(answer)
                converged = False
        if converged:
            break
        table = payoff_table(tree, strategies)
        profile = mixed(table, meta)
        strategy = mixture(tree, strategies, profile)
        history.append(exploitation(tree, strategy).nash_conv)
    return Responses(strategies, table, profile, strategy, history, converged)


def payoff_table(tree: GameTree, strategies: list[list[Floats]]) -> Floats:
    """Return what players get when each follows one of its strategies [P, K_1, ..., K_P]."""
    table = np.zeros((tree.num_players, *(len(own) for own in strategies)))
    for choice in np.ndindex(*table.shape[1:]):
        chosen = [own[k] for own, k in zip(strategies, choice, strict=True)]
        table[:, *choice] = tree.expected_returns(tree.combine(chosen))
    return table


def mixed(table: Floats, meta: MetaSolver) -> list[Floats]:
    """Return a distribution of each player over its strategies in a pay-off table.

    Raises:
        ConfigError: An equilibrium is asked for of a game that is not zero-sum for two.
    """
    uniform = [np.full(size, 1.0 / size) for size in table.shape[1:]]
    if meta == "uniform":
        return uniform
    if meta == "replicator":
        return [
            path.mean(axis=0)
            for path in replicator_path(table / spread(table), uniform, steps=500, dt=0.5)
        ]
    if not is_zero_sum(table):
        raise ConfigError(
            "meta='nash' solves zero-sum games of two players; this is another kind.",
            "Use meta='replicator' or meta='uniform'.",
        )
    x, y, _ = zero_sum_nash(table[0])
    return [x, y]


def mixture(tree: GameTree, strategies: list[list[Floats]], profile: list[Floats]) -> Floats:
    """Return one strategy that plays as one that was drawn at the start does, for each player."""
    weights = np.zeros(tree.legal.shape)
    for player, (own, shares) in enumerate(zip(strategies, profile, strict=True)):
        mine = tree.infoset_player == player
        for strategy, share in zip(own, shares, strict=True):
            weights[mine] += share * realization(tree, strategy)[mine]
    return normalized(weights, tree.legal)
