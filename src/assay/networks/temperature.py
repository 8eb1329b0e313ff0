"""The entropy coefficient of the maximum-entropy algorithms (SAC and what is built on it)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator
from torch import Tensor, nn


def _positive(alpha: float | Literal["auto"]) -> float | Literal["auto"]:
    # Its logarithm is what is kept.
    if alpha != "auto" and not alpha > 0:
        raise ValueError("expected a number above 0, or auto")
    return alpha


Alpha = Annotated[float | Literal["auto"], AfterValidator(_positive)]


class Temperature(nn.Module):
    """The entropy coefficient alpha, as the exponential of a parameter."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(initial)]))

    def forward(self) -> Tensor:
        """Return alpha as a scalar."""
        return self.log_alpha.exp().squeeze(0)

    def loss(self, entropy: Tensor, target: float | Tensor) -> Tensor:
        """Return the loss whose descent brings the policy's entropy to the target.

        Args:
            entropy: The policy's mean entropy, a scalar; no gradient goes through it.
            target: The entropy to hold.
        """
        # J(alpha) = log alpha (H - target)
        return self.log_alpha.squeeze(0) * (entropy.detach() - target)
