"""The entropy coefficient of the maximum-entropy algorithms (SAC and what is built on it)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """The entropy coefficient alpha, as the exponential of a parameter."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(initial)]))

    def forward(self) -> Tensor:
        """Return alpha as a scalar."""
        return self.log_alpha.exp().squeeze(0)

    def loss(self, entropy: Tensor, target: float | Tensor) -> Tensor:
        """Return the loss whose descent brings the policy's mean entropy to the target."""
        # J(alpha) = log alpha (H - target)
        return self.log_alpha.squeeze(0) * (entropy.detach() - target)
