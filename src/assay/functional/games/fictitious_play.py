"""Extensive-form fictitious play (XFP), Heinrich, Lanctot and Silver 2015, ICML, algorithm 1."""

from __future__ import annotations

import numpy as np

from assay.functional.games.best_response import best_response
from assay.functional.games.tree import Floats, GameTree, normalized


def fictitious_play(tree: GameTree, iterations: int) -> Floats:
    """Return the average strategy after so many iterations of best responses to it.

    Iteration k mixes the average with the best responses to it, at the weight 1 / (k + 1), as plans
    for the whole game. So a behaviour strategy is mixed by the own reach of both (their lemma 6).
    """
    average = tree.uniform()
    totals = realization(tree, average)
    for iteration in range(iterations):
        best = [best_response(tree, average, player)[0] for player in range(tree.num_players)]
        plan = realization(tree, tree.combine(best))
        weight = 1.0 / (iteration + 2)
        totals += weight * (plan - totals)
        average = normalized(totals, tree.legal)
    return average


def realization(tree: GameTree, strategy: Floats) -> Floats:
    """Return how much a player's own choices lead to each of its actions [I, A]."""
    edges = tree.edges(strategy)
    found = np.zeros(strategy.size)
    for player in range(tree.num_players):
        moves = tree.moves[player]
        # The same for every history of an information set, by perfect recall.
        found[tree.slot[moves]] = tree.own_reach(edges, player)[moves]
    return found.reshape(strategy.shape)
