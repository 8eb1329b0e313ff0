"""What BC and DAgger share: a policy that learns by examples what to do.

Discrete actions have a likelihood; a Box policy is deterministic and ends in a tanh that is scaled
to the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Box
from torch import Tensor, nn

from assay.algorithms.settings import NetworkSettings
from assay.core.types import Array, Spaces, Tree, action_mask
from assay.functional.distributions import Distribution
from assay.networks.encoders import make_encoder
from assay.networks.heads import ActionScale
from assay.networks.mlp import mlp
from assay.policies.heads import DeterministicHead, Head, StochasticHead


class Teacher(Protocol):
    """An expert that can be asked."""

    def label(self, obs: Tree, rng: np.random.Generator) -> Array:
        """Return what it would do, [N, ...], for N canonical observations.

        Args:
            obs: What is seen.
            rng: For one that acts by chance.
        """


def clone_network(spaces: Spaces, hp: NetworkSettings) -> nn.Sequential:
    """Return the layers of the policy: an encoder, a linear layer, and a tanh for a Box."""
    space: Any = spaces.action
    continuous = isinstance(space, Box)
    size = int(np.prod(space.shape) if continuous else space.n)
    encoder = make_encoder(spaces.observation, **hp.encoder(), init="torch")
    parts: list[nn.Module] = [encoder, mlp((encoder.out_features, size), init="torch")]
    return nn.Sequential(*parts, nn.Tanh()) if continuous else nn.Sequential(*parts)


def clone_head(space: Any, noise: Callable[[], float] = lambda: 0.0) -> Head:
    """Return what decides by the output of these layers; `noise` is that of Box actions."""
    if isinstance(space, Box):
        return DeterministicHead(space, noise)
    return StochasticHead(space, log_prob=False)


def box_loss(net: nn.Module, scale: ActionScale, obs: Tree, action: Tensor) -> Tensor:
    """Return the mean squared error of actions in the unit box."""
    # L = E[(mu(s) - a)^2], the mean over the parts of an action
    return (net(obs) - scale.to_unit(action).flatten(1)).square().mean()


def choice_loss(net: nn.Module, distribution: Distribution, obs: Tree, action: Tensor) -> Tensor:
    """Return the negative log-likelihood of choices."""
    # L = -E[log pi(a|s)]
    return -distribution.log_prob(net(obs), action, action_mask(obs)).mean()
