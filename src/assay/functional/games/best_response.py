"""Exact best responses, and by how much a strategy can be exploited.

NashConv(s) = sum_i max_b u_i(b, s_-i) - u_i(s); exploitability is NashConv / P. Both are 0 in an
equilibrium and nowhere else. These are the definitions of OpenSpiel (arXiv:1908.09453, sec. 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.functional.games.tree import Floats, GameTree


@dataclass(frozen=True, slots=True, eq=False)
class Exploitation:
    """What every player could gain by changing its strategy alone.

    Attributes:
        values: [P] what each gets when all follow the strategy.
        best: [P] what each gets by its best response, when the others follow it.
    """

    values: Floats
    best: Floats

    @property
    def gains(self) -> Floats:
        """Return what each player would gain [P]; never below 0 by more than rounding."""
        return self.best - self.values

    @property
    def nash_conv(self) -> float:
        """Return the sum of the gains."""
        return float(self.gains.sum())

    @property
    def exploitability(self) -> float:
        """Return the mean of the gains."""
        return float(self.gains.mean())


def best_response(tree: GameTree, strategy: Floats, player: int) -> tuple[Floats, float]:
    """Return a strategy that is pure and best for one player against the others, and its value.

    In information sets of the others it is `strategy`. Of equally good actions the first is taken.
    The game must have perfect recall.
    """
    answer = strategy.copy()
    mine = tree.infoset_player == player
    edges = tree.edges(strategy)
    weight = tree.others_reach(edges, player)
    moves = tree.moves[player]
    sets, before = tree.infoset[tree.parent[moves]], weight[tree.parent[moves]]
    # What comes last is decided first: those decisions do not depend on earlier ones, since all
    # histories of an information set have the same own decisions before them.
    for depth in range(int(tree.own_depth[mine].max(initial=-1)), -1, -1):
        value = tree.values(edges, player)
        worth = np.bincount(tree.slot[moves], before * value[moves], answer.size)
        worth = np.where(tree.legal, worth.reshape(answer.shape), -np.inf)
        now = mine & (tree.own_depth == depth)
        answer[now] = np.eye(tree.num_actions)[worth[now].argmax(axis=1)]
        rows = moves[now[sets]]
        edges[rows] = answer.reshape(-1)[tree.slot[rows]]
    return answer, float(tree.values(edges, player)[0])


def exploitation(tree: GameTree, strategy: Floats) -> Exploitation:
    """Return what every player could gain against a strategy."""
    best = [best_response(tree, strategy, player)[1] for player in range(tree.num_players)]
    return Exploitation(tree.expected_returns(strategy), np.array(best))
