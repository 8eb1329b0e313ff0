"""Tanh-Gaussian policies over a bounded Box: as a network, and as what acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.types import Array, Tree
from assay.functional.distributions import policy_distribution
from assay.inference import distributions as numpy_distributions
from assay.networks.acting import Forward
from assay.networks.heads import ActionScale, policy_head

if TYPE_CHECKING:
    import gymnasium as gym


class SquashedActor(nn.Module):
    """The policy a = tanh(mean + std * noise): observation -> (mean, log_std) [B, 2n].

    Log-probabilities are those of the unit action in (-1, 1); `scale` maps it to the environment.

    Args:
        trunk: Observation to features.
        out_features: Width of the features.
        space: A Box with finite bounds.

    Raises:
        SpaceError: A bound is infinite.
    """

    def __init__(self, trunk: nn.Module, out_features: int, space: gym.spaces.Box) -> None:
        super().__init__()
        self.distribution: Any = policy_distribution(space, squash=True)
        head = policy_head(self.distribution, out_features, gain=1.0, init="torch")
        self.net = nn.Sequential(trunk, head)
        self.scale = ActionScale(space)
        self.size = int(np.prod(space.shape))

    def forward(self, obs: Tree) -> Tensor:
        """Return the parameters of the distribution."""
        return self.net(obs)

    def sample(self, obs: Tree, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit actions [B, ...] and their log-probabilities [B], reparameterised."""
        return self.distribution.sample_log_prob(self.net(obs), noise)

    def best(self, params: Tensor, mask: Array | None = None) -> Tensor:
        """Return the mode in the environment's units."""
        return self.scale.to_env(self.distribution.mode(params))


class SquashedActing:
    """Act on NumPy observations with a `SquashedActor`.

    Build it after the parameters have been flattened (by `Step`), because it may hold views.

    Args:
        actor: The policy.
        space: Its action space.
        device: Where the actor lives.
    """

    def __init__(self, actor: SquashedActor, space: gym.spaces.Box, device: torch.device) -> None:
        self._forward = Forward(actor.net, device)
        self._numpy = numpy_distributions.policy_distribution(space, squash=True)
        self._scale = numpy_distributions.ActionScale(space)

    def __call__(self, obs: Tree, rng: np.random.Generator | None) -> np.ndarray:
        """Return actions in the environment's units: sampled with `rng`, or the best without."""
        params = self._forward.call(obs)
        if rng is None:
            return self._scale.to_env(self._numpy.mode(params))
        noise = self._numpy.draw_noise(rng, (len(params),))
        return self._scale.to_env(self._numpy.sample(params, noise))
