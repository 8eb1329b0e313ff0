"""The actor-critic of the on-policy algorithms, and acting with it fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from assay.buffers.rollout import Rollout
from assay.core.types import Action, Tree, action_mask, tree_map
from assay.functional.distributions import Distribution
from assay.inference import distributions as numpy_distributions
from assay.networks.acting import Exported, Forward
from assay.networks.conv import has_images
from assay.networks.encoders import make_encoder
from assay.networks.heads import policy_head
from assay.networks.mlp import mlp
from assay.networks.normalize import RunningNormalizer


class ActorCritic(nn.Module):
    """A policy and a value function; they share the encoder where there are images.

    Args:
        space: Observation space.
        distribution: Of the actions.
        hidden: Widths of the hidden layers.
        activation: Nonlinearity of the hidden layers.
        cnn: Image encoder.
        log_std_init: Initial log standard deviation of continuous actions.
        value_heads: How many returns are predicted; of several, values are [B, value_heads].
    """

    def __init__(
        self,
        space: gym.Space[Any],
        distribution: Distribution,
        *,
        hidden: tuple[int, ...],
        activation: str,
        cnn: str,
        log_std_init: float = 0.0,
        value_heads: int = 1,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"hidden": hidden, "activation": activation, "cnn": cnn}
        self.encoder = make_encoder(space, **options)
        self.head = policy_head(
            distribution, self.encoder.out_features, gain=0.01, log_std_init=log_std_init
        )
        self.shared = has_images(space)
        self.value_encoder = nn.Identity() if self.shared else make_encoder(space, **options)
        self.value_head = mlp((self.encoder.out_features, value_heads), output_gain=1.0)

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        """Return policy parameters [B, P] and values [B]."""
        features = self.encoder(obs)
        other = features if self.shared else self.value_encoder(obs)
        return self.head(features), self.value_head(other).squeeze(-1)

    def value(self, obs: Tree) -> Tensor:
        """Return values [B] alone."""
        encoder = self.encoder if self.shared else self.value_encoder
        return self.value_head(encoder(obs)).squeeze(-1)


class Choice:
    """Choose actions by the parameters of a policy, in NumPy.

    Args:
        space: The action space.

    Attributes:
        bounds: Of a Box, to which actions are clipped; else None.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.distribution = numpy_distributions.policy_distribution(space)
        self.bounds = (space.low, space.high) if isinstance(space, gym.spaces.Box) else None

    def __call__(
        self,
        params: np.ndarray,
        mask: np.ndarray | None,
        rng: np.random.Generator | None,
        carry: Tree = None,
    ) -> Action:
        """Sample with `rng`, or take the mode without one.

        Args:
            params: Parameters of the distribution [N, P].
            mask: Valid actions, or None.
            rng: Source of randomness, or None.
            carry: What the policy remembers now; goes with the action.
        """
        if rng is None:
            action, extras = self.distribution.mode(params, mask), {}
        else:
            noise = self.distribution.draw_noise(rng, (len(params),))
            action, log_prob = self.distribution.sample_log_prob(params, noise, mask)
            extras = {"log_prob": log_prob}
        if self.bounds is None:
            return Action(action, carry, extras)
        if extras:  # the log-probability is that of the action before clipping
            extras["raw_action"] = action
        return Action(np.clip(action, *self.bounds), carry, extras)


class Policy:
    """Act with an `ActorCritic`, and value a rollout with it."""

    def __init__(self, net: ActorCritic, space: gym.Space[Any], device: torch.device) -> None:
        self.net = net
        self.choose = Choice(space)
        self.actor = nn.Sequential(net.encoder, net.head)
        self.forward = Forward(self.actor, device)

    def act(self, obs: Tree, rng: np.random.Generator | None) -> Action:
        """Sample with `rng`, or take the mode without one."""
        return self.choose(self.forward.call(obs), action_mask(obs), rng)

    def values(
        self, data: Rollout, normalize: Callable[[Tree], Tree]
    ) -> tuple[Tree, np.ndarray, np.ndarray]:
        """Return flat observations [T * N], and V of every state and of its true successor.

        The successor of a truncated transition is its final observation, not the reset one.
        """
        length, envs, finals = data.length, data.num_envs, data.finals
        obs = tree_map(lambda x: x.reshape(length * envs, *x.shape[2:]), data.obs)
        parts = [obs, data.last_obs] + ([] if finals is None else [finals.obs])
        tensors = [self.forward.tensors(normalize(part)) for part in parts]
        with torch.no_grad():
            values = [self.net.value(part).cpu().numpy() for part in tensors]
        value = values[0].reshape(length, envs, *values[0].shape[1:])
        next_value = np.concatenate([value[1:], values[1][None]])
        if finals is not None:
            next_value[finals.step, finals.env] = values[2]
        return tensors[0], value, next_value

    def export(self, normalizer: RunningNormalizer | None, distribution: Distribution) -> Exported:
        """Return `observation -> deterministic action` as one module."""
        if self.choose.bounds is None:
            return Exported(self.actor, normalizer, distribution.mode)
        low, high = (torch.as_tensor(bound) for bound in self.choose.bounds)
        return Exported(
            self.actor,
            normalizer,
            lambda params, mask: torch.clamp(
                distribution.mode(params, mask), low.to(params.device), high.to(params.device)
            ),
        )
