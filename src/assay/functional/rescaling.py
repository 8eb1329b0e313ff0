"""Rescaling of values, so that one learning rate serves returns of any size (arXiv:1805.11593).

h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x is odd, increasing, and grows like a square root.
Both functions are written without the subtraction of nearly equal numbers that the textbook forms
have: in float32 those lose three digits near zero, where the values of sparse rewards are.
"""

from __future__ import annotations

from torch import Tensor

EPS = 1e-3


def rescale(x: Tensor, eps: float = EPS) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, elementwise.

    Example:
        >>> import torch
        >>> rescale(torch.tensor([-3.0, 0.0, 8.0]), eps=0.5).tolist()
        [-2.5, 0.0, 6.0]
    """
    # sqrt(|x| + 1) - 1 = |x| / (sqrt(|x| + 1) + 1)
    return x * (1.0 / ((x.abs() + 1.0).sqrt() + 1.0) + eps)


def unrescale(x: Tensor, eps: float = EPS) -> Tensor:
    """Return h^-1(x) = sign(x) (((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))^2 - 1).

    Example:
        >>> import torch
        >>> unrescale(torch.tensor([-2.5, 0.0, 6.0]), eps=0.5).tolist()
        [-3.0, 0.0, 8.0]
    """
    # With u = sqrt(|y| + 1), y the result: eps u^2 + u = |x| + 1 + eps, the positive root of which
    # is u; and eps (u^2 - 1) + (u - 1) = |x| gives |y| = u^2 - 1 = |x| (u + 1) / (1 + eps (u + 1)).
    c = x.abs() + 1.0 + eps
    u = 2.0 * c / (1.0 + (1.0 + 4.0 * eps * c).sqrt())
    return x * (u + 1.0) / (1.0 + eps * (u + 1.0))
