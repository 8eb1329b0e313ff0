"""Implicit Q-learning (Kostrikov et al. 2021, arXiv:2110.06169), for Box and Discrete actions.

V is an expectile of Q over the recorded actions, Q bootstraps from V, and the policy imitates
recorded actions weighted by exp(beta A): no action outside the data is ever valued.

Deviations: the policy's weights are of V before its step (the paper's code: after it), so that V(s)
is computed once. The mean of a Box policy is linear and clipped to the bounds when it acts, where
the paper's code has a tanh. Its log-std, one per dimension, is held within the bounds of that code
by the loss. The learning rate of the policy is constant by default (the paper: a cosine to 0, here
`actor_lr=cosine:3e-4:0`); there is no dropout.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import OfflineActorCriticSettings
from assay.core.registry import register
from assay.core.schedules import Schedule
from assay.core.types import Spaces, Tree, action_mask, unpack
from assay.functional import losses, targets
from assay.functional.distributions import policy_distribution
from assay.functional.layout import gaussian_scale
from assay.networks.encoders import make_encoder
from assay.networks.heads import ActionScale, QEnsemble, ValueEnsemble, policy_head
from assay.optim.rules import Adam
from assay.optim.update import Objective, Polyak
from assay.policies.heads import StochasticHead

_LOG_STD = (-5.0, 2.0)  # in units of the action scale


@register(
    loop="offline",
    actions=("Box", "Discrete"),
    family="actor-critic",
    paper="arXiv:2110.06169",
    traits=("first", "recorded"),
)
class IQL(Algorithm):
    """Values within the data, then weighted imitation. First choice for data of mixed quality."""

    takes_both = True

    class Hyperparameters(OfflineActorCriticSettings):
        """Settings of IQL."""

        actor_lr: Schedule | None = Field(
            None, description="Learning rate of the policy; null: the same as lr."
        )
        expectile: float = Field(
            0.7, gt=0, lt=1, description="Of Q, that V is: 0.5 the mean, towards 1 the best."
        )
        beta: float = Field(
            3.0, ge=0, description="Inverse temperature of the weights; 0 is imitation."
        )
        max_weight: float = Field(100.0, gt=0, description="Largest weight of an action.")

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        self.continuous = isinstance(spaces.action, Box)
        self.distribution = policy_distribution(spaces.action)
        seen = spaces.observation
        encoder = make_encoder(seen, **hp.encoder(), init="torch")
        if self.continuous:
            self.scale = ActionScale(spaces.action).to(self.device)
            scale = gaussian_scale(spaces.action)
            critic: nn.Module = QEnsemble(seen, int(np.prod(spaces.action.shape)), **hp.encoder())
        else:
            scale = None
            critic = ValueEnsemble(seen, int(spaces.action.n), **hp.encoder())
        head = policy_head(self.distribution, encoder.out_features, scale=scale)
        self.actor = nn.Sequential(encoder, head).to(self.device)
        self.critic = critic.to(self.device)
        self.target = copy.deepcopy(self.critic)
        self.value = ValueEnsemble(seen, 1, members=1, **hp.encoder()).to(self.device)
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step(
            [
                Objective("value", self.value, self._value_loss, rule),
                Objective("actor", self.actor, self._actor_loss, rule),
                Objective("critic", self.critic, self._critic_loss, rule),
            ],
            polyak=[Polyak(self.target, self.critic, hp.tau)],
        )
        self.policy = self.make_policy(self.actor, StochasticHead(spaces.action, log_prob=False))

    def update(self, data: Any) -> None:
        """Move V, then the policy, then the critics and their targets, on one batch."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        self.step(batch, self.hp.rates(self.step, self.clock.progress))

    def _value_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        with torch.no_grad():
            q = self._q(self.target, obs, batch["action"]).amin(0)
        value = self._v(obs)
        advantage = q - value
        batch["advantage"] = advantage.detach()  # the loss of the policy reads it
        # L_V = E[|tau - 1{u < 0}| u^2], u = min_i Q'_i(s, a) - V(s)
        loss = losses.expectile(advantage, self.hp.expectile).mean()
        return loss, {"value_mean": value.mean()}

    def _actor_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        # w = min(exp(beta A), 100), A = min_i Q'_i(s, a) - V(s)
        advantage = batch["advantage"]
        weight = (self.hp.beta * advantage).exp().clamp(max=self.hp.max_weight)
        params = self.actor(obs)
        if self.continuous:
            params = self._bounded(params)
        log_pi = self.distribution.log_prob(params, batch["action"], action_mask(obs))
        # L_pi = -E[w log pi(a|s)]
        return -(weight * log_pi).mean(), {"advantage": advantage.mean(), "weight": weight.mean()}

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            # y = r + gamma (1 - d) V(s')
            next_v = self._v(unpack("next_obs", batch))
            y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], next_v)
        q = self._q(self.critic, unpack("obs", batch), batch["action"])  # q: [2, B]
        return (q - y).square().mean(1).sum(), {"q_mean": q.mean()}

    def _v(self, obs: Tree) -> Tensor:
        return self.value(obs).flatten()

    def _q(self, critic: nn.Module, obs: Tree, action: Tensor) -> Tensor:
        """Return Q [2, B] of the actions that were taken."""
        if self.continuous:
            return critic(obs, self.scale.to_unit(action))
        return critic(obs).gather(2, action.view(1, -1, 1).expand(2, -1, 1)).squeeze(2)

    def _bounded(self, params: Tensor) -> Tensor:
        """Return (mean, log_std) with the log-std held within its bounds."""
        mean, log_std = params.chunk(2, dim=-1)
        # A density has no upper bound: actions that never vary would shrink the std to 0.
        unit = self.scale.half_width.flatten().log()
        low, high = (unit + bound for bound in _LOG_STD)
        return torch.cat([mean, torch.minimum(torch.maximum(log_std, low), high)], dim=-1)
