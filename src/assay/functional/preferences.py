"""Preferences between stretches of behaviour, and what they say about a reward.

Bradley and Terry (1952), as Christiano et al. (2017, arXiv:1706.03741) use it: of two segments the
one with the larger sum of rewards is preferred, with P(left > right) = sigmoid(R_left - R_right).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry_loss(left: Tensor, right: Tensor, target: Tensor, error: float = 0.0) -> Tensor:
    """Return the mean cross-entropy of preferences.

    Args:
        left: [B] sums of rewards of the left segments.
        right: [B] those of the right ones.
        target: [B] 1 where the left one is preferred, 0 where the right one is, 0.5 for neither.
        error: Share of answers that are assumed to be given by chance: P' = (1 - e) P + e / 2.

    Example:
        >>> zero = torch.zeros(1)
        >>> round(float(bradley_terry_loss(zero, zero, zero + 1)), 4)
        0.6931
    """
    if not left.shape == right.shape == target.shape or left.ndim != 1:
        raise ValueError(f"expected three [B], got {left.shape}, {right.shape}, {target.shape}")
    difference = left - right
    log_left, log_right = logsigmoid(difference), logsigmoid(-difference)
    if error:
        keep, chance = math.log1p(-error), torch.full_like(difference, math.log(error / 2))
        log_left = torch.logaddexp(log_left + keep, chance)
        log_right = torch.logaddexp(log_right + keep, chance)
    return -(target * log_left + (1.0 - target) * log_right).mean()


def contrastive_preference_loss(left: Tensor, right: Tensor, target: Tensor, bias: float) -> Tensor:
    """Return the mean loss of contrastive preference learning (arXiv:2310.13639).

    Args:
        left: [B] sums of alpha log pi(a|s) over the left segments.
        right: [B] those of the right ones.
        target: [B] 1 where the left one is preferred, 0 where the right one is, 0.5 for neither.
        bias: Weight of the segment that was not preferred, lambda in (0, 1]. Below 1 it is not
            enough to make that one unlikely: the preferred one has to be likely as well.

    Example:
        >>> two, one = torch.tensor([-2.0]), torch.tensor([1.0])
        >>> round(float(contrastive_preference_loss(two, 2 * two, one, 0.5)), 4)  # -2 + 0.5 * 4
        0.6931
    """
    if not left.shape == right.shape == target.shape or left.ndim != 1:
        raise ValueError(f"expected three [B], got {left.shape}, {right.shape}, {target.shape}")
    log_left, log_right = logsigmoid(left - bias * right), logsigmoid(right - bias * left)
    return -(target * log_left + (1.0 - target) * log_right).mean()


class Calibration(NamedTuple):
    """How far predicted probabilities can be trusted.

    Attributes:
        error: The expected calibration error: mean over answers of |share right - confidence|.
        rows: `(confidence, share right, answers)` of each bin that has answers.
    """

    error: float
    rows: list[tuple[float, float, int]]


def calibration(
    left: NDArray[np.floating[Any]], answer: NDArray[np.bool_], bins: int = 5
) -> Calibration:
    """Compare probabilities with answers, in bins of equal width of the confidence, 0.5 to 1.

    Args:
        left: [B] predicted probability that the left segment is preferred.
        answer: [B] whether it was.
        bins: How many.

    Example:
        >>> calibration(np.array([0.9, 0.9, 0.1, 0.9]), np.array([True, True, True, True])).rows
        [(0.9, 0.75, 4)]
    """
    confidence = np.maximum(left, 1.0 - left)
    right = (left >= 0.5) == answer
    which = np.minimum(((confidence - 0.5) * 2 * bins).astype(np.int64), bins - 1)
    rows = [
        (float(confidence[rows].mean()), float(right[rows].mean()), int(rows.sum()))
        for rows in (which == number for number in range(bins))
        if rows.any()
    ]
    total = sum(count for *_, count in rows)
    error = sum(count * abs(share - mean) for mean, share, count in rows) / max(total, 1)
    return Calibration(error, rows)
