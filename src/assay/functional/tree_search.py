"""Monte-Carlo tree search by PUCT (AlphaZero, arXiv:1712.01815), over many trees at once, in NumPy.

Every simulation goes down each tree to one new position, values all of these in one call, and adds
the values to the edges on the way. A value is always that for the player to move: it changes its
sign from one position to the next. A position in which the game is over has its exact value, and
is not asked for. Trees share nothing but the call.

The edges of node `m` of tree `b` lie in row `b * nodes + m` of the arrays: visits N, summed values
W for who moves there, priors P (0 where illegal), and children (0 where there is none, since no
edge leads to a root).
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
        visits: [B, actions] how often each move of the root was tried; 0 where the game is over.
        priors: [B, actions] of the root, with its noise.
        value: [B] mean value of all simulations, for who is to move.
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
        simulations: New positions per tree; those in which the game is over count each time.
        c_puct: Weight of priors against values.
        noise: [B, actions] is mixed into the priors of legal moves at the roots, if given.
        noise_share: How much of it.
    """
    trees, actions, nodes = len(roots), game.actions, simulations + 1
    boards = np.zeros((trees, nodes, game.cells), np.int8)
    visits = np.zeros((trees * nodes, actions), np.float32)
    values = np.zeros((trees * nodes, actions), np.float32)
    priors = np.zeros((trees * nodes, actions), np.float32)
    children = np.zeros((trees * nodes, actions), np.int64)
    over = np.zeros(trees * nodes, np.bool_)
    exact = np.zeros(trees * nodes, np.float32)
    legal = np.zeros((trees * nodes, actions), np.bool_)
    first = np.arange(trees) * nodes  # the row of each root
    flat_boards = boards.reshape(-1, game.cells)

    def expand(rows: NDArray[np.int64]) -> Floats:
        """Set the priors of new positions, and return their values."""
        found = flat_boards[rows]
        logits, value = evaluate(found)
        allowed = game.legal(found)
        priors[rows] = masked_softmax(logits, allowed)
        legal[rows] = allowed
        return value

    flat_boards[first] = roots
    over[first], exact[first] = game.ended(roots)
    open_trees = np.flatnonzero(~over[first])
    root_value = exact[first].copy()
    if not len(open_trees):
        return Searched(np.zeros((trees, actions), np.int64), priors[first], root_value)
    root_value[open_trees] = expand(first[open_trees])
    if noise is not None:
        rows = first[open_trees]
        share = np.where(legal[rows], noise[open_trees], 0.0)
        share = share / np.maximum(share.sum(1, keepdims=True), 1e-12)
        priors[rows] = (1.0 - noise_share) * priors[rows] + noise_share * share
    penalty = np.float32(-np.inf)
    for simulation in range(1, simulations + 1):
        # Go down, all trees at once, until an edge has no child or leads to an end.
        path: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        reached = np.zeros(trees, np.int64)  # the row that each tree's descent ends in
        edge = np.zeros(trees, np.int64)
        at, rows = open_trees, first[open_trees]
        while len(at):
            n = visits.take(rows, 0)
            # U(s, a) = c P(s, a) sqrt(sum_b N(s, b) + 1) / (1 + N(s, a)); Q = 0 for what is untried
            score = priors.take(rows, 0) * (c_puct * np.sqrt(n.sum(1, keepdims=True) + 1.0))
            score /= n + 1.0
            score += values.take(rows, 0) / np.maximum(n, 1.0)
            score[~legal.take(rows, 0)] = penalty
            move = score.argmax(1)
            path.append((at, rows, move))
            child = children[rows, move]
            reached[at], edge[at] = child, move
            new = child == 0
            if new.any():
                reached[at[new]] = -rows[new] - 1  # the parent, marked
            on = ~new & ~over[child]
            at, rows = at[on], child[on]
        # Add one position to every tree whose descent ended at an edge without a child.
        value = np.zeros(trees, np.float32)
        grown = open_trees[reached[open_trees] < 0]
        parents = -reached[grown] - 1
        fresh = first[grown] + simulation
        result = game.play(flat_boards[parents], edge[grown])
        flat_boards[fresh], over[fresh] = result.boards, result.over
        exact[fresh] = np.where(result.won, -1.0, 0.0)  # who is to move has lost
        children[parents, edge[grown]] = fresh
        reached[grown] = fresh
        value[open_trees] = exact[reached[open_trees]]
        ask = ~result.over
        if ask.any():
            value[grown[ask]] = expand(fresh[ask])
        # Back: what a position is worth to who moves in it is a loss for who moved before.
        root_value[open_trees] += _back_up(path, value, visits, values)[open_trees]
    counts = visits[first].astype(np.int64)
    mean = np.where(over[first], root_value, root_value / nodes).astype(np.float32)
    return Searched(counts, priors[first], mean)


def _back_up(
    path: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]],
    value: Floats,
    visits: Floats,
    values: Floats,
) -> Floats:
    """Add values [B] of where descents ended to their edges; return them as seen at the roots."""
    seen = value.copy()
    for at, rows, move in reversed(path):
        seen[at] = -seen[at]
        visits[rows, move] += 1.0
        values[rows, move] += seen[at]
    return seen


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
