"""Residual networks for continuous control (SimBa, Lee et al. 2025, arXiv:2410.09754).

A linear layer, blocks x + W2 relu(W1 norm(x)) that widen fourfold inside, and a last layer norm.
Wider and deeper ones keep learning where plain MLPs stop. The paper standardises observations
first, which is the setting `normalize_obs`.

Deviation: the width and the number of blocks are those of `hidden`, alike for actor and critics.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.networks.mlp import require_widths

WIDENING = 4


class ResidualBlock(nn.Module):
    """x + W2 relu(W1 norm(x) + b1) + b2: [B, n] -> [B, n]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, WIDENING * width)
        self.down = nn.Linear(WIDENING * width, width)
        for layer in (self.up, self.down):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the block adds to its input, added."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


def residual_trunk(in_features: int, hidden: Sequence[int]) -> nn.Sequential:
    """Return a trunk [B, in] -> [B, width] with a block for each width.

    Raises:
        ConfigError: The widths differ, or there are none.
    """
    require_widths(hidden)
    if len(set(hidden)) > 1:
        raise ConfigError(
            f"hidden={list(hidden)} with network=simba: blocks add to their input, so all widths "
            "must be the same.",
            f"Write hidden=[{hidden[0]}] * blocks, such as {[hidden[0]] * 2}.",
        )
    first = nn.Linear(in_features, hidden[0])
    nn.init.orthogonal_(first.weight)
    nn.init.zeros_(first.bias)
    blocks = [ResidualBlock(width) for width in hidden]
    return nn.Sequential(first, *blocks, nn.LayerNorm(hidden[0]))


class ResidualEnsemble(nn.Module):
    """Several residual networks of one shape; what `EnsembleMLP` is for MLPs."""

    def __init__(self, members: int, sizes: Sequence[int]) -> None:
        super().__init__()
        *hidden, out = sizes[1:]
        self.nets = nn.ModuleList(
            nn.Sequential(residual_trunk(sizes[0], hidden), nn.Linear(hidden[0], out))
            for _ in range(members)
        )

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Return [members, B, out] for inputs [B, in]; of `members` [M] only those, if given."""
        out = torch.stack([net(x) for net in self.nets])
        return out if members is None else out.index_select(0, members)
