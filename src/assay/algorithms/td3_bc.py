"""TD3+BC (Fujimoto & Gu 2021, arXiv:2106.06860): TD3 on recorded data, held near its actions.

The actor maximises lambda Q(s, mu(s)) - (mu(s) - a)^2 with lambda = alpha / mean|Q|, so that alpha
weighs values of any scale against imitation. Observations are standardised with the statistics of
the dataset, which stay part of the policy.

Deviations: an observation is divided by its standard deviation, without the constant 1e-3, and
clipped at 10 deviations. Actions and target noise are in the unit box (-1, 1).
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import OfflineActorCriticSettings, SmoothingSettings
from assay.algorithms.shared.delayed import delayed_steps, deterministic_networks, twin_critic_loss
from assay.algorithms.shared.mixed_settings import NoiseSettings
from assay.core.registry import register
from assay.core.types import Spaces, unpack
from assay.networks.heads import ActionScale
from assay.policies.heads import DeterministicHead

_SMALLEST = 1e-8  # of mean |Q|, which is 0 only where nothing was learned


@register(
    loop="offline",
    actions=("Box",),
    family="actor-critic",
    paper="arXiv:2106.06860",
    traits=("recorded",),
)
class TD3BC(Algorithm):
    """TD3 that stays near recorded actions. Simple and fast; for data of decent quality."""

    takes_both = True

    class Hyperparameters(NoiseSettings, SmoothingSettings, OfflineActorCriticSettings):
        """Settings of TD3+BC."""

        normalize_obs: bool = Field(True, description="Standardise float observations.")
        alpha: float = Field(2.5, gt=0, description="Weight of values against imitation.")

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        size = int(np.prod(spaces.action.shape))
        self.actor, self.critic = deterministic_networks(spaces.observation, size, hp, self.device)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.scale = ActionScale(spaces.action).to(self.device)
        losses = self._critic_loss, self._actor_loss
        self.critic_step, self.full_step = delayed_steps(self, *losses)
        noise = hp.exploration_noise
        explorer = DeterministicHead(spaces.action, lambda: noise(self.clock.progress))
        self.policy = self.make_policy(self.actor, explorer)

    def update(self, data: Any) -> None:
        """Move the critics; every `policy_delay` updates also the actor and the targets."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        batch["action"] = self.scale.to_unit(batch["action"]).flatten(1)
        batch["noise"] = self.noise(*batch["action"].shape)
        due = (self.updates + 1) % self.hp.policy_delay == 0
        step = self.full_step if due else self.critic_step
        step(batch, self.hp.rates(step, self.clock.progress))

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        # y = r + gamma (1 - d) min_i Q'_i(s', a'), a' = mu'(s') with clipped noise
        return twin_critic_loss(self, batch, batch["action"])

    def _actor_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        action = self.actor(obs)
        q = self.critic(obs, action)[0]  # q: [B]
        # lambda = alpha / mean|Q|, without gradient
        weight = self.hp.alpha / q.detach().abs().mean().clamp(min=_SMALLEST)
        imitation = (action - batch["action"]).square().mean()
        # J = -lambda E[Q_1(s, mu(s))] + E[(mu(s) - a)^2]
        return -weight * q.mean() + imitation, {"bc_loss": imitation.detach()}
