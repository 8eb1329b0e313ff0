"""Normal-form games: equilibria of matrices, deviations, and evolution.

A pay-off table is an array [P, A_1, ..., A_P]: what each player gets for every joint action. A
profile is one distribution per player, a joint one a distribution [A_1, ..., A_P].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog

from assay.core.errors import AssayError
from assay.functional.games.tree import Floats


def is_zero_sum(table: Floats) -> bool:
    """Return whether there are two players, and what one wins the other loses."""
    scale = max(1.0, float(np.abs(table).max(initial=0.0)))
    return len(table) == 2 and bool(np.allclose(table.sum(axis=0), 0.0, atol=1e-9 * scale))


def is_symmetric(table: Floats) -> bool:
    """Return whether two players have the same actions, and only their names differ."""
    if len(table) != 2 or table.shape[1] != table.shape[2]:
        return False
    scale = max(1.0, float(np.abs(table).max(initial=0.0)))
    return bool(np.allclose(table[0], table[1].T, atol=1e-9 * scale))


def zero_sum_nash(payoff: Floats) -> tuple[Floats, Floats, float]:
    """Return an equilibrium (x, y, value) of the game in which the row player gets `payoff`.

    Each side by linear programming: x maximises v such that (x^T M)_j >= v for every column j.

    Raises:
        AssayError: The programme was not solved, as with numbers that are not finite.
    """
    x, value = _maximin(payoff)
    y, _ = _maximin(-payoff.T)
    return x, y, value


def _maximin(payoff: Floats) -> tuple[Floats, float]:
    rows, columns = payoff.shape
    # Variables: x and v; minimise -v subject to v - (x^T M)_j <= 0 and sum x = 1.
    cost = np.append(np.zeros(rows), -1.0)
    bound = np.column_stack([-payoff.T, np.ones(columns)])
    total = np.append(np.ones(rows), 0.0)[None]
    limits = [(0.0, 1.0)] * rows + [(None, None)]
    if not np.isfinite(payoff).all():
        raise AssayError("A pay-off is not a finite number, so that there is no equilibrium.")
    found = linprog(cost, bound, np.zeros(columns), total, [1.0], limits, method="highs")
    if not found.success:
        raise AssayError(f"The equilibrium was not found: {found.message}")
    x = np.maximum(found.x[:rows], 0.0)
    return x / x.sum(), float(found.x[-1])


def joint(profile: Sequence[Floats]) -> Floats:
    """Return the distribution over joint actions of players that do not see each other."""
    found = np.ones(())
    for own in profile:
        found = np.multiply.outer(found, own)
    return found


def expected_payoffs(table: Floats, weights: Floats) -> Floats:
    """Return what each player gets on average under a joint distribution [P]."""
    return (table * weights).reshape(len(table), -1).sum(axis=1)


def action_values(table: Floats, profile: Sequence[Floats], player: int) -> Floats:
    """Return what each action of a player is worth against the others' distributions [A_i]."""
    if len(profile) == 2:  # by far the most common, and called in every step of a path
        return table[0] @ profile[1] if player == 0 else profile[0] @ table[1]
    values = table[player]
    for other in reversed(range(len(profile))):
        if other != player:
            values = np.tensordot(values, profile[other], axes=(other, 0))
    return values


def deviation_gains(table: Floats, profile: Sequence[Floats]) -> Floats:
    """Return what each player gains by its best action, when the others keep theirs [P]."""
    values = [action_values(table, profile, player) for player in range(len(table))]
    gains = [v.max() - v @ own for v, own in zip(values, profile, strict=True)]
    return np.array(gains)


def coarse_correlated_gap(table: Floats, weights: Floats) -> float:
    """Return the distance of a joint distribution from a coarse correlated equilibrium.

    sum_i max_b E[u_i(b, a_-i) - u_i(a)]: what all could gain who leave before they are told.
    """
    now = expected_payoffs(table, weights)
    total = 0.0
    for player in range(len(table)):
        others = weights.sum(axis=player, keepdims=True)
        worth = np.moveaxis(table[player] * others, player, 0).reshape(table.shape[player + 1], -1)
        total += max(0.0, float(worth.sum(axis=1).max() - now[player]))
    return total


def correlated_gap(table: Floats, weights: Floats) -> float:
    """Return the distance of a joint distribution from a correlated equilibrium.

    sum_i sum_a max_b E[1{a_i = a} (u_i(b, a_-i) - u_i(a, a_-i))]: what all could gain who do
    something else after they are told.
    """
    total = 0.0
    for player in range(len(table)):
        count = table.shape[player + 1]
        told = np.moveaxis(weights, player, 0).reshape(count, -1)  # [told, others]
        worth = np.moveaxis(table[player], player, 0).reshape(count, -1)  # [done, others]
        values = told @ worth.T  # [told, done]
        total += float((values.max(axis=1) - np.diag(values)).sum())
    return total


def replicator(table: Floats, profile: Sequence[Floats]) -> list[Floats]:
    """Return the velocity of the replicator dynamics: dx_a = x_a (f_a - x . f), each player."""
    found = []
    for player, own in enumerate(profile):
        fitness = action_values(table, profile, player)
        found.append(own * (fitness - own @ fitness))
    return found


def spread(table: Floats) -> float:
    """Return the range of all pay-offs; 1 where they are all the same.

    Over it the replicator dynamics of a table take the same way at a speed that fits any step.
    """
    return float(table.max() - table.min()) or 1.0


def replicator_path(
    table: Floats, start: Sequence[Floats], *, steps: int, dt: float = 0.05
) -> list[Floats]:
    """Return where populations go under the replicator dynamics: an array [steps + 1, A] of each.

    By the classical method of Runge and Kutta of order 4.
    """
    state = [np.asarray(own, np.float64) for own in start]
    path = [[own] for own in state]
    for _ in range(steps):
        k1 = replicator(table, state)
        k2 = replicator(table, _moved(state, k1, dt / 2))
        k3 = replicator(table, _moved(state, k2, dt / 2))
        k4 = replicator(table, _moved(state, k3, dt))
        slopes = [(a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(k1, k2, k3, k4, strict=True)]
        state = [_simplex(own) for own in _moved(state, slopes, dt)]
        for kept, own in zip(path, state, strict=True):
            kept.append(own)
    return [np.stack(one) for one in path]


def _moved(state: Sequence[Floats], slopes: Sequence[Floats], by: float) -> list[Floats]:
    return [own + by * slope for own, slope in zip(state, slopes, strict=True)]


def _simplex(weights: Floats) -> Floats:
    kept = np.maximum(weights, 0.0)  # rounding must not make a share negative
    return kept / kept.sum()
