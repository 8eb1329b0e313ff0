"""Batch renormalisation (Ioffe 2017, arXiv:1702.03275), as CrossQ uses it.

A layer normalises by its running statistics unless it is inside `batch_statistics`, where it
normalises by those of the batch and moves the running ones. So acting, evaluation and export are
right without anybody switching modes, and a loss says in one place which pass learns statistics.

The running statistics are buffers that are updated in place. `Step` hands buffers to a compiled
step and to a CUDA graph as inputs, so the update is seen in every mode; it happens in the forward
pass, so the losses after the one that made it see the new statistics.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from assay.networks.mlp import make_activation, require_widths

R_MAX, D_MAX = 3.0, 5.0


class BatchRenorm(nn.Module):
    """Normalise the features of a batch [B, n], then scale and shift.

    In `batch_statistics`: y = r (x - mean) / std + d, where r and d, without gradient, turn the
    batch's statistics into the running ones as far as r in [1/3, 3] and d in [-5, 5] allow. For
    the first `warmup` batches r = 1 and d = 0, which is plain batch normalisation.

    Args:
        features: Width n.
        momentum: How much of the running statistics a batch leaves.
        warmup: Batches before the running statistics are trusted.
        eps: Added to the variance.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(
        self, features: int, *, momentum: float = 0.99, warmup: int = 100_000, eps: float = 1e-3
    ) -> None:
        super().__init__()
        self.momentum = momentum
        self.warmup = warmup
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("variance", torch.ones(features))
        self.register_buffer("count", torch.zeros(1))
        self.learns = False

    def forward(self, x: Tensor) -> Tensor:
        """Return an array of the same shape."""
        running = (self.variance + self.eps).sqrt()
        if not self.learns:
            return (x - self.mean) / running * self.weight + self.bias
        mean = x.mean(0)
        centred = x - mean
        variance = centred.square().mean(0)
        std = (variance + self.eps).sqrt()
        with torch.no_grad():
            warm = self.count >= self.warmup
            r = torch.where(warm, (std / running).clamp(1.0 / R_MAX, R_MAX), 1.0)
            d = torch.where(warm, ((mean - self.mean) / running).clamp(-D_MAX, D_MAX), 0.0)
            self.mean.lerp_(mean, 1.0 - self.momentum)
            self.variance.lerp_(variance, 1.0 - self.momentum)
            self.count.add_(1.0)
        return (centred / std * r + d) * self.weight + self.bias


@contextlib.contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Let a module's `BatchRenorm` layers use and learn the statistics of their batch."""
    layers = [layer for layer in module.modules() if isinstance(layer, BatchRenorm)]
    for layer in layers:
        layer.learns = True
    try:
        yield
    finally:
        for layer in layers:
            layer.learns = False


def batchnorm_mlp(
    in_features: int,
    hidden: Sequence[int],
    out_features: int | None = None,
    activation: str = "relu",
    *,
    momentum: float = 0.99,
    warmup: int = 100_000,
) -> nn.Sequential:
    """Build norm, then (linear, activation, norm) for each hidden layer, then a linear output.

    Without `out_features` it ends with the last normalisation.
    """
    sizes = (in_features, *hidden)
    require_widths(sizes)
    layers: list[nn.Module] = [BatchRenorm(in_features, momentum=momentum, warmup=warmup)]
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), make_activation(activation)]
        layers.append(BatchRenorm(n_out, momentum=momentum, warmup=warmup))
    if out_features is not None:
        layers.append(nn.Linear(sizes[-1], out_features))
    return nn.Sequential(*layers)
