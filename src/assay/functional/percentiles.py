"""How far numbers spread, outliers left aside."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.functional.checks import check_rank


def percentile_range(x: Tensor, low: float = 0.05, high: float = 0.95) -> Tensor:
    """Return the distance between two percentiles of x [B], interpolated linearly.

    Example:
        >>> percentile_range(torch.arange(21.0), 0.05, 0.95).item()
        18.0
    """
    check_rank(1, x=x)
    ordered = x.sort().values
    return _percentile(ordered, high) - _percentile(ordered, low)


def _percentile(ordered: Tensor, share: float) -> Tensor:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return torch.lerp(ordered[below], ordered[above], place - below)
