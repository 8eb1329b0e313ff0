"""The value of one policy from episodes of another: importance weights and doubly robust sums.

With rho_t = pi(a_t|s_t) / mu(a_t|s_t) and w_t = rho_0 ... rho_t, per-decision importance sampling
(Precup et al. 2000) weighs reward t with w_t, and the doubly robust estimate (Jiang & Li 2016,
arXiv:1511.03722) corrects values Q of a model by what they did not foresee. Both are unbiased for
any Q; dividing by the mean weight of a step (Thomas & Brunskill 2016, arXiv:1604.00923) adds a bias
that vanishes with more episodes and takes off most of the variance.

Episodes lie one after the other in flat arrays; `lengths` [E] are their steps, N in all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Lengths = NDArray[np.int64]

_LARGEST = 300.0  # log of a weight, so that squares of weights stay finite
_AT_ONCE = 1 << 22  # numbers of a table of episodes by steps that are made together


def step_numbers(lengths: Lengths) -> Lengths:
    """Return t of each row [N]: 0, 1, ... within each episode."""
    return np.arange(lengths.sum()) - np.repeat(_starts(lengths), lengths)


def cumulative_weights(log_ratio: Floats, lengths: Lengths) -> Floats:
    """Return w_t [N] = rho_0 ... rho_t of log rho [N]; a ratio of 0 is -inf.

    Example:
        >>> logs = np.log([2.0, 0.5, 3.0])
        >>> cumulative_weights(logs, np.array([2, 1])).round(6).tolist()
        [2.0, 1.0, 3.0]
    """
    never = np.isneginf(log_ratio)
    total = _running_sum(np.where(never, 0.0, log_ratio), lengths)
    alive = _running_sum(never.astype(np.float64), lengths) == 0
    return np.where(alive, np.exp(np.minimum(total, _LARGEST)), 0.0)


def weights_before(weights: Floats, lengths: Lengths) -> Floats:
    """Return w_{t-1} [N + E] for t = 0 ... T of each episode, where w_{-1} is 1."""
    before = np.ones(len(weights) + len(lengths))
    before[_after_each(lengths)] = weights
    return before


def discounted_sums(rows: Floats, lengths: Lengths, gamma: float) -> Floats:
    """Return sum_t gamma^t x_t [E] of rows [N]."""
    return _sums(rows * gamma ** step_numbers(lengths), lengths)


def returns_to_go(reward: Floats, lengths: Lengths, gamma: float) -> Floats:
    """Return sum_k gamma^k r_{t+k} [N] up to the end of each episode."""
    found = np.empty(len(reward))
    for start, length in zip(_starts(lengths).tolist(), lengths.tolist(), strict=True):
        total = 0.0
        for row in range(start + length - 1, start - 1, -1):
            total = found[row] = reward[row] + gamma * total
    return found


def per_decision(reward: Floats, weights: Floats, lengths: Lengths, gamma: float) -> Floats:
    """Return sum_t gamma^t w_t r_t of each episode [E]; their mean is the estimate."""
    return discounted_sums(weights * reward, lengths, gamma)


def doubly_robust(
    reward: Floats,
    weights: Floats,
    q: Floats,
    v: Floats,
    lengths: Lengths,
    gamma: float,
) -> Floats:
    """Return sum_t gamma^t (w_t (r_t - Q_t) + w_{t-1} V_t) of each episode [E].

    Args:
        reward: [N].
        weights: [N].
        q: [N] values of the actions that were taken.
        v: [N + E] values of the policy at every observation, the last of each episode included: 0
            after an end, and what a truncated episode would have gone on to get.
        lengths: [E].
        gamma: Discount.
    """
    surprise = discounted_sums(weights * (reward - q), lengths, gamma)
    return surprise + discounted_sums(weights_before(weights, lengths) * v, lengths + 1, gamma)


def normalised_sums(
    rows: Floats, weights: Floats, lengths: Lengths, gamma: float, counts: Floats
) -> Floats:
    """Return sum_t gamma^t (sum_e w_et x_et) / (sum_e w_et) for each replicate [R].

    An episode that is over keeps its last weight, and gets 0. A step at which no episode has any
    weight counts as 0.

    Args:
        rows: [N] of x.
        weights: [N] of w.
        lengths: [E].
        gamma: Discount.
        counts: [R, E] how often each replicate holds each episode.
    """
    starts, longest = _starts(lengths), int(lengths.max())
    total = np.zeros(len(counts))
    wide = max(1, _AT_ONCE // len(lengths))
    for first in range(0, longest, wide):
        steps = np.arange(first, min(first + wide, longest))
        at = starts[:, None] + np.minimum(steps, lengths[:, None] - 1)  # [E, steps]
        held = weights[at]
        gained = held * np.where(steps < lengths[:, None], rows[at], 0.0)
        share = counts @ held
        sums = np.divide(counts @ gained, share, out=np.zeros_like(share), where=share > 0)
        total += sums @ gamma**steps
    return total


def effective_sample_size(weights: Floats) -> float:
    """Return (sum w)^2 / sum w^2: how many equally weighted episodes say as much (Kish 1965).

    Example:
        >>> effective_sample_size(np.array([1.0, 1.0, 0.0, 0.0]))
        2.0
    """
    square = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / square if square > 0 else 0.0


def last_of_each(rows: NDArray[Any], lengths: Lengths) -> NDArray[Any]:
    """Return the last row of each episode [E, ...]."""
    return rows[np.cumsum(lengths) - 1]


def _starts(lengths: Lengths) -> Lengths:
    return np.cumsum(lengths) - lengths


def _after_each(lengths: Lengths) -> Lengths:
    """Return the places 1 ... T of each episode among rows of T + 1."""
    return np.arange(lengths.sum()) + np.repeat(np.arange(len(lengths)), lengths) + 1


def _running_sum(rows: Floats, lengths: Lengths) -> Floats:
    total = np.cumsum(rows)
    starts = _starts(lengths)
    return total - np.repeat(total[starts] - rows[starts], lengths)


def _sums(rows: Floats, lengths: Lengths) -> Floats:
    return np.add.reduceat(rows, _starts(lengths))
