"""Blocks of TD-MPC2 (Hansen et al. 2024, arXiv:2310.16828).

Linear layers are followed by layer norms and Mish; latent states are groups of probabilities
(simplicial normalisation, arXiv:2204.00616), so that no roll-out of a model can make them grow.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.networks.mlp import require_widths

_STD = 0.02  # of initial weights


class SimNorm(nn.Module):
    """A softmax over each group of `group` numbers: [..., n] -> [..., n].

    Group i holds the numbers i, i + n / group, ...: which ones belong together means nothing to the
    layers around, and a softmax over neighbours takes a CPU twenty times as long.

    Raises:
        ConfigError: The groups do not divide the width.
    """

    def __init__(self, width: int, group: int) -> None:
        super().__init__()
        if width % group:
            raise ConfigError(
                f"simplex={group} does not divide latent={width}.",
                f"Choose latent as a multiple of {group}.",
            )
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """Return numbers between 0 and 1, which sum to 1 in every group."""
        return x.unflatten(-1, (self.group, -1)).softmax(dim=-2).flatten(-2)


def normed_mlp(sizes: Sequence[int], output: nn.Module | None = None) -> nn.Sequential:
    """Build layers (linear, layer norm, Mish), then a linear one.

    With `output` the last layer is normalised too, and `output` takes the place of Mish.
    """
    require_widths(sizes)
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        linear = nn.Linear(n_in, n_out)
        nn.init.trunc_normal_(linear.weight, std=_STD)
        nn.init.zeros_(linear.bias)
        layers.append(linear)
        if i < last:
            layers += [nn.LayerNorm(n_out), nn.Mish()]
        elif output is not None:
            layers += [nn.LayerNorm(n_out), output]
    return nn.Sequential(*layers)


class NormedEnsemble(nn.Module):
    """Several `normed_mlp` of one shape, in batched products; the last layer's weights begin as 0.

    Args:
        members: How many.
        sizes: Widths from input to output, with at least one hidden layer.
        dropout: Share of the first hidden layer that `forward` drops where it is given noise.
    """

    def __init__(self, members: int, sizes: Sequence[int], *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.gains, self.shifts = nn.ParameterList(), nn.ParameterList()
        for n_in, n_out in itertools.pairwise(sizes):
            weight = nn.init.trunc_normal_(torch.empty(members, n_in, n_out), std=_STD)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, n_out)))
        for width in sizes[1:-1]:
            self.gains.append(nn.Parameter(torch.ones(members, 1, width)))
            self.shifts.append(nn.Parameter(torch.zeros(members, 1, width)))
        with torch.no_grad():
            self.weights[-1].zero_()

    def forward(
        self, x: Tensor, members: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Return [members, ..., out] for inputs [..., in].

        Args:
            x: What all members are given.
            members: [M] indices, if only those are asked.
            noise: [members, rows, width] of the first hidden layer, uniform on [0, 1): drop units.
        """
        groups = [self.weights, self.biases, self.gains, self.shifts]
        weights, biases, gains, shifts = (
            [p if members is None else p.index_select(0, members) for p in group]
            for group in groups
        )
        y = x.flatten(0, -2).unsqueeze(0).expand(len(weights[0]), -1, -1)
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            y = torch.baddbmm(bias, y, weight)
            if i < len(gains):
                if i == 0 and noise is not None:
                    y = y * ((noise >= self.dropout) / (1.0 - self.dropout))
                y = F.mish(F.layer_norm(y, y.shape[-1:]) * gains[i] + shifts[i])
        return y.unflatten(1, x.shape[:-1])
