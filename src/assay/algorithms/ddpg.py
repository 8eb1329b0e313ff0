"""Deep deterministic policy gradient (Lillicrap et al. 2015, arXiv:1509.02971).

A deterministic actor that climbs its critic, both with slowly following targets.

Deviations: exploration is uncorrelated Gaussian noise instead of an Ornstein-Uhlenbeck process (as
in later work, with no loss), actions live in the unit box (-1, 1), the critic sees the action at
its first layer, and batch normalisation is left out.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import (
    ActorCriticSettings,
    HindsightSettings,
    NormalizeSettings,
    PolyakSettings,
)
from assay.algorithms.shared.delayed import deterministic_networks
from assay.buffers.replay_protocol import Replay
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Batch, Spaces, unpack
from assay.functional import targets
from assay.networks.heads import ActionScale
from assay.optim.rules import Adam
from assay.optim.update import Objective, Polyak
from assay.policies.heads import DeterministicHead


@register(
    loop="off_policy",
    actions=("Box",),
    family="actor-critic",
    paper="arXiv:1509.02971",
    traits=("baseline", "hindsight"),
)
class DDPG(Algorithm):
    """Deterministic actor-critic with one critic. A baseline; TD3 is the better choice."""

    class Hyperparameters(
        HindsightSettings, NormalizeSettings, PolyakSettings, ActorCriticSettings
    ):
        """Settings of DDPG."""

        learning_starts: int = Field(1000, ge=0, description="Random steps before learning.")
        exploration_noise: Schedule = Field(
            constant(0.1), description="Noise of acting, in units of the action scale."
        )

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(her=hp.hindsight())
        size = int(np.prod(spaces.action.shape))
        self.actor, self.critic = deterministic_networks(
            spaces.observation, size, hp, self.device, members=1
        )
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.scale = ActionScale(spaces.action).to(self.device)
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        objectives = [
            Objective("critic", self.critic, self._critic_loss, rule),
            Objective("actor", self.actor, self._actor_loss, rule),
        ]
        soft = [
            Polyak(self.target_critic, self.critic, hp.tau),
            Polyak(self.target_actor, self.actor, hp.tau),
        ]
        self.step = self.make_step(objectives, polyak=soft)
        head = DeterministicHead(
            spaces.action, noise=lambda: hp.exploration_noise(self.clock.progress)
        )
        self.policy = self.make_policy(self.actor, head)

    def update(self, data: Replay[Batch]) -> None:
        """Move critic, actor and targets once, on one replay batch."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        self.step(batch, self.hp.rates(self.step, self.clock.progress))

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        with torch.no_grad():
            # y = r + gamma (1 - d) Q'(s', mu'(s'))
            next_q = self.target_critic(next_obs, self.target_actor(next_obs))[0]
            y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], next_q)
        q = self.critic(obs, self.scale.to_unit(batch["action"]))[0]  # q: [B]
        return (q - y).square().mean(), {"q_mean": q.mean()}

    def _actor_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        # J = -E[Q(s, mu(s))]
        return -self.critic(obs, self.actor(obs))[0].mean(), {}
