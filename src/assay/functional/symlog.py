"""Numbers of any size as a distribution over bins (DreamerV3, arXiv:2301.04104).

symlog(x) = sign(x) ln(|x| + 1) compresses large numbers and leaves small ones as they are. A number
is encoded by its two nearest bins (two-hot), learned by cross-entropy and read back as a mean. The
bins are in the space of the number that is encoded, which gives both kinds of regression:

    symexp-spaced (DreamerV3)  two_hot_cross_entropy(logits, x, bins)   two_hot_mean(logits, bins)
    uniform (TD-MPC2)          ... of symlog(x)                         symexp(two_hot_mean(...))
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.functional.checks import check_rank


def symlog(x: Tensor) -> Tensor:
    """Return sign(x) ln(|x| + 1), elementwise.

    Example:
        >>> import torch
        >>> symlog(torch.tensor([-1.0, 0.0, 99.0])).tolist()
        [-0.6931471824645996, 0.0, 4.605170249938965]
    """
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """Return sign(x) (exp(|x|) - 1), the inverse of `symlog`, elementwise.

    Example:
        >>> import torch
        >>> symexp(torch.tensor([0.0, -0.5])).tolist()
        [0.0, -0.6487212777137756]
    """
    return x.sign() * x.abs().expm1()


def uniform_bins(count: int, limit: float) -> Tensor:
    """Return `count` equally spaced bins from -limit to limit, for numbers in symlog space."""
    # One half is computed and mirrored, so that a symmetric distribution has a mean of exactly 0.
    half = torch.linspace(limit, 0.0, (count + 1) // 2, dtype=torch.float64)
    if count % 2 == 0:
        spacing = 2.0 * limit / (count - 1)
        half = limit - spacing * torch.arange(count // 2, dtype=torch.float64)
    return torch.cat([-half, half.flip(0)[count % 2 :]]).float()


def symexp_bins(count: int, limit: float = 20.0) -> Tensor:
    """Return `count` bins symexp(-limit) to symexp(limit), dense near 0, for numbers as they are.

    Example:
        >>> symexp_bins(3, limit=1.0).tolist()
        [-1.718281865119934, 0.0, 1.718281865119934]
    """
    return symexp(uniform_bins(count, limit).double()).float()


def two_hot(x: Tensor, bins: Tensor) -> Tensor:
    """Return weights [..., K] on the two bins next to x [...], whose weighted mean is x.

    Numbers outside the bins count as the nearest one.

    Args:
        x: [...].
        bins: [K], increasing.
    """
    check_rank(1, bins=bins)
    x = x.clamp(bins[0], bins[-1]).unsqueeze(-1)
    width = bins.diff()  # [K - 1]
    # The weight of a bin falls linearly to 0 at its neighbours: rising from the left one, falling
    # to the right one. Nothing is gathered or scattered, so it is one kernel when compiled.
    rising = (x - bins[:-1]) / width
    one = torch.ones_like(rising[..., :1])
    up = torch.cat([one, rising], dim=-1)
    down = torch.cat([1.0 - rising, one], dim=-1)
    return torch.minimum(up, down).clamp(0.0, 1.0)


def two_hot_cross_entropy(logits: Tensor, x: Tensor, bins: Tensor) -> Tensor:
    """Return the cross-entropy [...] of the prediction `logits` [..., K] with two_hot(x) [...]."""
    if logits.shape != (*x.shape, len(bins)):
        raise ValueError(
            f"logits has shape {tuple(logits.shape)}; expected {(*x.shape, len(bins))}, "
            "that of x and the bins."
        )
    return -(two_hot(x, bins) * logits.log_softmax(dim=-1)).sum(dim=-1)


def two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """Return the mean [...] of the bins under softmax(logits) [..., K].

    Bins of opposite sign are added pairwise, from the outermost: their sizes differ by eight orders
    of magnitude, and equal logits have a mean of exactly 0.
    """
    weighted = logits.softmax(dim=-1) * bins
    half = len(bins) // 2
    pairs = weighted[..., :half] + weighted[..., -half:].flip(-1)
    middle = weighted[..., half : len(bins) - half].sum(dim=-1)
    return pairs.sum(dim=-1) + middle
