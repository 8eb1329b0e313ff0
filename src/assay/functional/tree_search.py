"""Monte-Carlo tree search by PUCT (AlphaZero, arXiv:1712.01815), over many trees at once, in NumPy.

Every simulation goes down each tree to one new position, values all of these in one call, and adds
the values to the edges on the way. A value is always that for the player to move: it changes its
sign from one position to the next. Trees share nothing but the call.

What the rules decide is not asked for. A new position is looked at two moves ahead: one in which
who is to move wins at once, or cannot stop the opponent from doing so, has its exact value, and
moves that let the opponent win are left out. Proofs go up the tree (MCTS-Solver, Winands et al.
2008): a move to a lost position wins, a move to a won one is left out, and who has no move left has
lost. Draws are exact at full boards, and not proven above them.

The edges of node `m` of tree `b` lie in row `b * nodes + m` of the arrays: visits N, summed values
W for who moves there, priors P, children (0 where there is none, since no edge leads to a root),
and which moves are not left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.functional.boards import BoardGame, Boards, Flags

Floats = NDArray[np.float32]
# Boards [K, cells] -> logits of moves [K, actions], and values [K] for who is to move.
Evaluate = Callable[[Boards], tuple[Floats, Floats]]


class Searched(NamedTuple):
    """What a search found.

    Attributes:
        visits: [B, actions] how often each move of the root was tried; 0 where the game is over,
            and for moves that were proven worse than others. Where nothing was searched since the
            rules decide, each of the moves that matter counts 1.
        priors: [B, actions] of the root, with its noise; 0 where nothing was searched.
        value: [B] for who is to move: exact where it was proven, else the mean of all simulations.
    """

    visits: NDArray[np.int64]
    priors: Floats
    value: Floats


def search(
    game: BoardGame,
    roots: Boards,
    evaluate: Evaluate,
    *,
    simulations: int,
    c_puct: float = 1.25,
    noise: Floats | None = None,
    noise_share: float = 0.25,
) -> Searched:
    """Search from every root.

    Args:
        game: The rules.
        roots: [B, cells].
        evaluate: Says what positions promise that are not over.
        simulations: New positions per tree; full boards count each time. A tree whose root is
            decided stops.
        c_puct: Weight of priors against values.
        noise: [B, actions] is mixed into the priors of moves at the roots, if given.
        noise_share: How much of it.
    """
    trees, actions, nodes = len(roots), game.actions, simulations + 1
    boards = np.zeros((trees * nodes, game.cells), np.int8)
    visits = np.zeros((trees * nodes, actions), np.float32)
    values = np.zeros((trees * nodes, actions), np.float32)
    priors = np.zeros((trees * nodes, actions), np.float32)
    children = np.zeros((trees * nodes, actions), np.int64)
    moves = np.zeros((trees * nodes, actions), np.bool_)
    decided = np.zeros(trees * nodes, np.bool_)
    exact = np.zeros(trees * nodes, np.float32)
    first = np.arange(trees) * nodes  # the row of each root

    def expand(rows: NDArray[np.int64]) -> Floats:
        """Look at positions that are not over, and return their values."""
        found = boards[rows]
        worth, moves[rows] = game.look_ahead(found)
        exact[rows], decided[rows] = worth, worth != 0
        ask = rows[worth == 0]
        if len(ask):
            logits, worth[worth == 0] = evaluate(boards[ask])
            priors[ask] = masked_softmax(logits, moves[ask])
        return worth

    def settle(rows: NDArray[np.int64], move: NDArray[np.int64]) -> None:
        """Draw conclusions from what edges lead to, where that is won or lost."""
        worth = exact[children[rows, move]]
        if not worth.any():
            return
        won, lost = worth < 0, worth > 0  # for who moves at these edges
        decided[rows[won]], exact[rows[won]] = True, 1.0
        moves[rows[won]] = False
        moves[rows[won], move[won]] = True
        moves[rows[lost], move[lost]] = False
        hopeless = rows[lost][~moves[rows[lost]].any(1)]
        decided[hopeless], exact[hopeless] = True, -1.0

    boards[first] = roots
    over, root_value = game.ended(roots)
    decided[first], exact[first] = over, root_value
    root_value[~over] = expand(first[~over])
    going = np.flatnonzero(~decided[first])
    if noise is not None:
        rows = first[going]
        share = np.where(moves[rows], noise[going], 0.0)
        share = share / np.maximum(share.sum(1, keepdims=True), 1e-12)
        priors[rows] = (1.0 - noise_share) * priors[rows] + noise_share * share
    for simulation in range(1, nodes):
        if not len(going):
            break
        # Go down, all trees at once, until an edge has no child or leads to an end.
        path: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        parent, edge, child = np.zeros((3, trees), np.int64)  # the last edge, where it leads
        at, rows = going, first[going]
        while len(at):
            n = visits.take(rows, 0)
            # U(s, a) = c P(s, a) sqrt(sum_b N(s, b) + 1) / (1 + N(s, a)); Q = 0 for what is untried
            score = priors.take(rows, 0) * (c_puct * np.sqrt(n.sum(1, keepdims=True) + 1.0))
            score /= n + 1.0
            score += values.take(rows, 0) / np.maximum(n, 1.0)
            score[~moves.take(rows, 0)] = -np.inf
            move = score.argmax(1)
            path.append((at, rows, move))
            below = children[rows, move]
            parent[at], edge[at], child[at] = rows, move, below
            on = (below > 0) & ~decided[below]
            at, rows = at[on], below[on]
        # Add one position to every tree whose descent ended at an edge without a child; the others
        # ended in a draw.
        value = np.zeros(trees, np.float32)
        grown = going[child[going] == 0]
        fresh = first[grown] + simulation
        boards[fresh] = game.place(boards[parent[grown]], edge[grown])[0]
        children[parent[grown], edge[grown]] = fresh
        full = ~game.legal(boards[fresh]).any(1)
        decided[fresh] = full
        value[grown[~full]] = expand(fresh[~full])
        # Back: what a position is worth to who moves in it is a loss for who moved before.
        for at, rows, move in reversed(path):
            value[at] = -value[at]
            visits[rows, move] += 1.0
            values[rows, move] += value[at]
            settle(rows, move)
        root_value[going] += value[going]
        going = going[~decided[first[going]]]
    counts = visits[first].astype(np.int64)
    done = counts.sum(1)
    # Moves that were found to lose do not count, unless all do; a root that was decided without a
    # search has its answers, and one whose moves are left untried takes any of them.
    counts *= moves[first] | ~moves[first].any(1, keepdims=True)
    counts[~counts.any(1)] = moves[first[~counts.any(1)]]
    mean = np.where(decided[first], exact[first], root_value / (done + 1)).astype(np.float32)
    return Searched(counts, priors[first], mean)


def masked_softmax(logits: Floats, allowed: Flags) -> Floats:
    """Return probabilities [N, actions] of what is allowed, 0 elsewhere; no row may be empty."""
    shifted = np.where(allowed, logits, -np.inf)
    shifted = np.exp(shifted - shifted.max(1, keepdims=True))
    return (shifted / shifted.sum(1, keepdims=True)).astype(np.float32)


def visit_policy(visits: NDArray[np.int64], allowed: Flags) -> Floats:
    """Return the shares of visits [N, actions], which a network learns from.

    Where nothing was visited, because the game is over or nothing was simulated, they are uniform
    over what is allowed, or over all if nothing is.
    """
    weights = np.where(visits.any(1, keepdims=True), visits, allowed).astype(np.float32)
    weights[~weights.any(1)] = 1.0
    return weights / weights.sum(1, keepdims=True)
