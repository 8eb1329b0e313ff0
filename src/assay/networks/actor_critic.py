"""The actor-critic of the on-policy algorithms."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor, nn

from assay.core.images import has_images
from assay.core.types import Tree
from assay.functional.distributions import Distribution
from assay.networks.custom import DEFAULT
from assay.networks.encoders import make_encoder
from assay.networks.heads import policy_head
from assay.networks.mlp import mlp


class ActorCritic(nn.Module):
    """A policy and a value function; they share an encoder of images, and one of the user's own.

    Of several `value_heads`, values are [B, value_heads]. For the other arguments see
    `make_encoder` and `GaussianHead`.
    """

    def __init__(
        self,
        space: gym.Space[Any],
        distribution: Distribution,
        *,
        hidden: tuple[int, ...],
        activation: str,
        cnn: str,
        network: str = DEFAULT,
        log_std_init: float = 0.0,
        scale: tuple[np.ndarray, np.ndarray] | None = None,
        value_heads: int = 1,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {
            "hidden": hidden, "activation": activation, "cnn": cnn, "network": network,
        }  # fmt: skip
        self.encoder = make_encoder(space, **options)
        self.head = policy_head(
            distribution, self.encoder.out_features, log_std_init=log_std_init, scale=scale
        )
        self.shared = has_images(space) or network != DEFAULT
        self.value_encoder = nn.Identity() if self.shared else make_encoder(space, **options)
        self.value_head = mlp((self.encoder.out_features, value_heads), output_gain=1.0)

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        """Return policy parameters [B, P] and values [B]."""
        features = self.encoder(obs)
        other = features if self.shared else self.value_encoder(obs)
        return self.head(features), self.value_head(other).squeeze(-1)

    def actor(self) -> nn.Module:
        """Return the policy alone: observations to its parameters [B, P]."""
        return nn.Sequential(self.encoder, self.head)

    def critic(self) -> nn.Module:
        """Return the value function alone: observations to [B, value_heads]."""
        return nn.Sequential(self.encoder if self.shared else self.value_encoder, self.value_head)

    def value(self, obs: Tree) -> Tensor:
        """Return values [B] alone."""
        return self.critic()(obs).squeeze(-1)
