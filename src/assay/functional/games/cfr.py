"""Counterfactual regret minimisation, one iteration at a time.

Zinkevich et al. 2007, "Regret Minimization in Games with Incomplete Information". With alternating
updates, as in OpenSpiel's CFRSolver: a player's regrets are computed against what the players
before it have learned in the same iteration.
"""

from __future__ import annotations

import numpy as np

from assay.functional.games.tree import Floats, GameTree, normalized


def regret_matching(regret: Floats, tree: GameTree) -> Floats:
    """Return the strategy that plays actions in proportion to their positive regret [I, A]."""
    return normalized(np.maximum(regret, 0.0), tree.legal)


def cfr_iteration(
    tree: GameTree,
    regret: Floats,
    average: Floats,
    iteration: int,
    *,
    plus: bool = False,
    alternating: bool = True,
) -> None:
    """Do one iteration, in place.

    Args:
        tree: The game.
        regret: [I, A] cumulative regrets.
        average: [I, A] the sum of strategies so far, weighted by the own reach.
        iteration: Its number, from 1 on.
        plus: CFR+ (arXiv:1407.5042): regrets below 0 become 0, and later strategies weigh more.
        alternating: One player after the other; otherwise all against the same strategies.
    """
    shared = None if alternating else regret_matching(regret, tree)
    for player in range(tree.num_players):
        strategy = regret_matching(regret, tree) if shared is None else shared
        edges = tree.edges(strategy)
        value = tree.values(edges, player)
        moves = tree.moves[player]
        before = tree.parent[moves]
        # r(I, a) = sum over h in I of pi_-i(h) (v_i(ha) - v_i(h)). Added up history by history, as
        # OpenSpiel does, so that rounding is the same: ties decide, and small differences grow.
        gain = tree.others_reach(edges, player)[before] * (value[moves] - value[before])
        np.add.at(regret.reshape(-1), tree.slot[moves], gain)
        if plus:
            mine = tree.infoset_player == player
            regret[mine] = np.maximum(regret[mine], 0.0)
        # The average weighs a strategy by the player's own reach: pi_i(h) s(I, a).
        weight = float(iteration) if plus else 1.0
        reached = weight * tree.own_reach(edges, player)[before] * edges[moves]
        np.add.at(average.reshape(-1), tree.slot[moves], reached)
