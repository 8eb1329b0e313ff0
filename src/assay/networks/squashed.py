"""The network of a tanh-Gaussian policy over a bounded Box."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor, nn

from assay.core.types import Tree
from assay.functional.distributions import TanhGaussian
from assay.networks.heads import ActionScale, SquashedGaussianHead

if TYPE_CHECKING:
    import gymnasium as gym


class SquashedActor(nn.Module):
    """The policy a = tanh(mean + std * noise): observation -> (mean, log_std) [B, 2n].

    Log-probabilities are those of the unit action in (-1, 1); `scale` maps it to the environment.

    Raises:
        SpaceError: A bound is infinite.
    """

    def __init__(self, trunk: nn.Module, out_features: int, space: gym.spaces.Box) -> None:
        super().__init__()
        self.distribution = TanhGaussian.of_box(space)
        self.size = int(np.prod(space.shape))
        self.net = nn.Sequential(trunk, SquashedGaussianHead(out_features, self.size))
        self.scale = ActionScale(space)

    def forward(self, obs: Tree) -> Tensor:
        """Return the parameters of the distribution."""
        return self.net(obs)

    def sample(self, obs: Tree, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit actions [B, ...] and their log-probabilities [B], reparameterised."""
        return self.distribution.sample_log_prob(self.net(obs), noise)

    def sample_many(self, obs: Tree, *noise: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return what `sample` does for each noise [B, N, ...], of one pass of the network.

        Actions are [B, N, ...] and their log-probabilities [B, N].
        """
        params = self.net(obs).unsqueeze(1)
        return [self.distribution.sample_log_prob(params, one) for one in noise]
