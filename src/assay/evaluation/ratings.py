"""Ratings of players by their games: shares with intervals, pay-offs, Elo, and whom to play next.

The Bradley-Terry model says that a player of rating r beats one of rating s with probability
1 / (1 + 10^((s - r) / 400)); a draw counts as half a win for each. Ratings are those of the maximum
likelihood, with one virtual draw of every player against one of rating 0, so that who has won all
games is not rated infinitely. Intervals come from the curvature of the likelihood. Since a draw
varies less than a win or a loss, they are rather too wide where draws are many.

References:
    Bradley and Terry 1952; Hunter 2004, "MM algorithms for generalized Bradley-Terry models".
    Vinyals et al. 2019 (AlphaStar), for prioritised fictitious self-play.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.core.errors import ConfigError, nearest
from assay.evaluation.statistics import Interval

Floats = NDArray[np.float64]
Sampling = Literal["uniform", "recent", "hard", "even"]
SAMPLINGS = ("uniform", "recent", "hard", "even")
ELO = 400.0 / math.log(10.0)  # Elo points of one unit of log-odds


def wilson(count: int, total: int, level: float = 0.95) -> Interval:
    """Return a share with its Wilson interval, which keeps to [0, 1] and is good for few games.

    Example:
        >>> found = wilson(9, 10)
        >>> found.point, round(found.low, 3), round(found.high, 3)
        (0.9, 0.596, 0.982)
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = count / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total**2)) / (1 + z * z / total)
    return Interval(p, max(0.0, middle - half), min(1.0, middle + half), level)


def payoff(scores: ArrayLike, games: ArrayLike) -> Floats:
    """Return the share of points [P, P] that each made against each; NaN where none were played.

    Args:
        scores: [P, P] points of the row's player against the column's: wins, and half the draws.
        games: [P, P] how many they played.
    """
    points, count = np.asarray(scores, np.float64), np.asarray(games, np.float64)
    return np.divide(points, count, out=np.full_like(points, np.nan), where=count > 0)


def elo(scores: ArrayLike, games: ArrayLike, level: float = 0.95) -> list[Interval]:
    """Return the rating of every player, with its interval; their mean is 0.

    Args:
        scores: As `payoff` takes them; `scores[i, j] + scores[j, i]` is `games[i, j]`.
        games: [P, P], symmetric.
        level: Of the intervals.

    Example:
        >>> [round(r.point) for r in elo([[0, 75], [25, 0]], [[0, 100], [100, 0]])]
        [94, -94]
    """
    s, n = np.asarray(scores, np.float64), np.asarray(games, np.float64)
    r = np.zeros(len(s))
    for _ in range(100):
        p = 1.0 / (1.0 + np.exp(r[None, :] - r[:, None]))
        prior = 1.0 / (1.0 + np.exp(-r))
        # The gradient and the curvature of the log-likelihood, with the virtual draws.
        gradient = (s - n * p).sum(1) + (0.5 - prior)
        w = n * p * (1 - p)
        hessian = np.diag(w.sum(1) + prior * (1 - prior)) - w
        step = np.linalg.solve(hessian, gradient)
        r = r + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-10:
            break
    r = r - r.mean()
    covariance = np.linalg.inv(hessian)
    centred = np.eye(len(r)) - 1.0 / len(r)
    error = np.sqrt(np.diag(centred @ covariance @ centred.T))
    z = NormalDist().inv_cdf((1 + level) / 2)
    return [
        Interval(float(x), float(x - z * e), float(x + z * e), level)
        for x, e in zip(r * ELO, error * ELO, strict=True)
    ]


def opponent_weights(win_rates: ArrayLike, how: Sampling, power: float = 2.0) -> Floats:
    """Return the probability with which to play each past version next.

    Args:
        win_rates: [P] how often the learner beats each, from the oldest to the newest.
        how: "uniform"; "recent": the newest most, each older one half as much; "hard": those that
            it loses to, (1 - x)^power; "even": those that it is level with, x (1 - x). The last two
            are prioritised fictitious self-play.
        power: Of "hard".

    Raises:
        ConfigError: There is nobody to play, or no such way to choose.

    Example:
        >>> opponent_weights([1.0, 0.5, 0.0], "hard").round(2).tolist()
        [0.0, 0.2, 0.8]
    """
    x = np.asarray(win_rates, np.float64)
    if not x.size:
        raise ConfigError("There is no past version to play against.", "Add one first.")
    if how not in SAMPLINGS:
        raise ConfigError(f"Opponents cannot be chosen by '{how}'.", nearest(how, SAMPLINGS))
    weights: dict[str, Any] = {
        "uniform": np.ones_like(x),
        "recent": 0.5 ** np.arange(len(x))[::-1],
        "hard": (1.0 - x) ** power,
        "even": x * (1.0 - x),
    }
    chosen = weights[how]
    if not chosen.sum() > 0:  # it beats everybody
        chosen = np.ones_like(x)
    return np.asarray(chosen / chosen.sum())
