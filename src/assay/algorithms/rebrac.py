"""ReBRAC (Tarasov et al. 2023, arXiv:2305.09836): TD3+BC with two penalties and larger networks.

Both the actor and the critics pay for actions that the data does not show, each with a weight of
its own. Critics have layer norms, networks three hidden layers, and batches are large.

Deviations: layers are initialised as torch does. The last step of a truncated episode, after which
no action was recorded, bootstraps without the critics' penalty; the paper's code leaves it out.
Actions and target noise are in the unit box (-1, 1).
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import OfflineActorCriticSettings, SmoothingSettings
from assay.algorithms.shared.delayed import delayed_steps, deterministic_networks
from assay.algorithms.shared.mixed_settings import LayerNormSettings, NoiseSettings
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Spaces, unpack
from assay.functional import targets
from assay.networks.heads import ActionScale
from assay.policies.heads import DeterministicHead

_SMALLEST = 1e-8  # of mean |Q|, which is 0 only where nothing was learned


@register(
    loop="offline",
    actions=("Box",),
    family="actor-critic",
    paper="arXiv:2305.09836",
    traits=("recorded",),
)
class ReBRAC(Algorithm):
    """TD3+BC with a penalty in the critics too. Strong offline, with two weights to tune."""

    takes_both = True

    class Hyperparameters(
        LayerNormSettings, NoiseSettings, SmoothingSettings, OfflineActorCriticSettings
    ):
        """Settings of ReBRAC."""

        lr: Schedule = Field(constant(1e-3), description="Learning rate or schedule.")
        batch_size: int = Field(1024, gt=0, description="Transitions per gradient step.")
        hidden: tuple[int, ...] = Field((256, 256, 256), description="Widths of the hidden layers.")
        layer_norm: bool = Field(True, description="Normalise the hidden layers of the critics.")
        actor_beta: Schedule = Field(
            constant(0.05), description="Weight of imitation in the actor's loss; a schedule."
        )
        critic_beta: Schedule = Field(
            constant(0.01), description="Weight of imitation in the critics' target; a schedule."
        )

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(next_action=True)
        size = int(np.prod(spaces.action.shape))
        self.actor, self.critic = deterministic_networks(
            spaces.observation, size, hp, self.device, layer_norm=hp.layer_norm
        )
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
        hp, progress = self.hp, self.clock.progress
        drawn = data.sample(hp.batch_size)
        batch = self.replay_tensors(drawn)
        batch["action"] = self.scale.to_unit(drawn.action).flatten(1)
        batch["next_action"] = self.scale.to_unit(drawn.extras["next_action"]).flatten(1)
        batch["has_next"] = drawn.extras["has_next"]
        batch["noise"] = self.noise(*batch["action"].shape)
        for name in ("actor_beta", "critic_beta"):
            batch[name] = torch.tensor(getattr(hp, name)(progress), device=self.device)
        due = (self.updates + 1) % hp.policy_delay == 0
        step = self.full_step if due else self.critic_step
        step(batch, hp.rates(step, progress))

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp = self.hp
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        with torch.no_grad():
            # y = r + gamma (1 - d) (min_i Q'_i(s', a') - beta_2 |a' - a'_data|^2),
            # a' = mu'(s') with clipped noise
            next_action = targets.smoothed_action(
                self.target_actor(next_obs), batch["noise"], hp.target_noise, hp.target_noise_clip
            )
            apart = (next_action - batch["next_action"]).square().sum(1) * batch["has_next"]
            next_q = self.target_critic(next_obs, next_action).amin(0)
            next_q = next_q - batch["critic_beta"] * apart
            y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], next_q)
        q = self.critic(obs, batch["action"])  # q: [2, B]
        return (q - y).square().mean(1).sum(), {"q_mean": q.mean(), "next_bc": apart.mean()}

    def _actor_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        action = self.actor(obs)
        q = self.critic(obs, action).amin(0)  # q: [B]
        # lambda = 1 / mean|Q|, without gradient
        weight = 1.0 / q.detach().abs().mean().clamp(min=_SMALLEST)
        imitation = (action - batch["action"]).square().sum(1).mean()
        # J = E[beta_1 |mu(s) - a|^2 - lambda min_i Q_i(s, mu(s))]
        loss = batch["actor_beta"] * imitation - weight * q.mean()
        return loss, {"bc_loss": imitation.detach()}
