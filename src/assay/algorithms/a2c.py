"""Advantage actor-critic, the synchronous form of A3C (Mnih et al. 2016, arXiv:1602.01783).

One gradient step on each short rollout: policy gradient with advantages, squared value error,
entropy bonus. RMSprop has its epsilon inside the root, as in the reference implementation.

Option: importance weights (`importance_clip`) for data of a policy mu that is out of date. The
policy gradient of a step is then weighted by min(importance_clip, pi/mu).

Deviations: advantages may be generalised (gae_lambda below 1; the paper's n-step return is 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import PolicyGradientSettings
from assay.algorithms.shared.advantages import rollout_values
from assay.buffers.rollout import Rollout
from assay.core.registry import register
from assay.core.schedules import Schedule, constant, linear
from assay.core.types import Problem, Spaces, action_mask, pack, unpack
from assay.functional import losses, returns
from assay.functional.distributions import policy_distribution
from assay.networks.actor_critic import ActorCritic
from assay.optim.rules import Adam, RMSprop
from assay.optim.update import Objective
from assay.policies.heads import StochasticHead


@register(
    loop="on_policy",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    family="policy-gradient",
    paper="arXiv:1602.01783",
    traits=("baseline",),
)
class A2C(Algorithm):
    """Advantage actor-critic, one update per short rollout. The simplest baseline that learns."""

    class Hyperparameters(PolicyGradientSettings):
        """Settings of A2C."""

        lr: Schedule = Field(constant(7e-4), description="Learning rate or schedule.")
        horizon: int = Field(5, gt=0, description="Steps of each environment per rollout.")
        gae_lambda: float = Field(1.0, ge=0, le=1, description="1 is the n-step return.")
        importance_clip: float | None = Field(
            None, gt=0, description="Bound of weights pi/mu for data of older policies; null: none."
        )
        optimizer: Literal["rmsprop", "adam"] = Field("rmsprop", description="Optimizer.")

        @classmethod
        def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
            """Return small rollouts: each is one update, and a short run needs many of them.

            Where actions are a Box, more updates are worth more than their batches, and a rollout
            has one environment. Rewards are scaled and gradients small: RMSprop, whose mean square
            starts at one, hardly moves in the first thousand updates. Adam moves at once; its rate
            falls to 0, so that the last updates do not follow noise.
            """
            fit = super().fitted(problem, given)
            if not isinstance(problem.spaces.action, Box):
                return fit | {"num_envs": 2}
            adam = {"optimizer": "adam", "lr": linear(7e-4, 0.0)}
            return fit | {"num_envs": 1, "horizon": 8} | adam

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        self.distribution = policy_distribution(spaces.action)
        net = ActorCritic(
            spaces.observation, self.distribution, **hp.encoder(), **hp.gaussian(spaces.action)
        )
        self.net = net.to(self.device)
        kind = RMSprop if hp.optimizer == "rmsprop" else Adam
        rule = kind(eps=1e-5, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("a2c", self.net, self._loss, rule)])
        self.policy = self.make_policy(self.net.actor(), StochasticHead(spaces.action))

    def update(self, data: Rollout) -> None:
        """Take one gradient step on the whole rollout."""
        hp = self.hp
        reward = data.reward
        if self.reward_scale is not None:
            reward = self.reward_scale.scale(reward)
        obs, value, next_value = rollout_values(self.net, data, self.inputs)
        advantage, target = returns.gae_numpy(
            reward, value, next_value, data.terminated, data.truncated,
            hp.gamma, hp.gae_lambda, None if data.valid.all() else data.valid,
        )  # fmt: skip
        data.advantage = advantage
        flat = {
            "action": data.extras.get("raw_action", data.action),
            "advantage": advantage,
            "target": target,
            "weight": data.valid.astype(np.float32),
            "policy_weight": data.policy_weight,
        }
        if hp.importance_clip is not None:
            flat["log_prob"] = data.extras["log_prob"]
        size = data.length * data.num_envs
        tensors = {k: torch.from_numpy(v.reshape(size, *v.shape[2:])) for k, v in flat.items()}
        batch = pack("obs", obs) | {k: v.to(self.device) for k, v in tensors.items()}
        progress = self.clock.progress
        batch["entropy_coef"] = torch.tensor(hp.entropy_coef(progress), device=self.device)
        self.step(batch, hp.lr(progress))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp, weight, policy_weight = self.hp, batch["weight"], batch["policy_weight"]
        obs = unpack("obs", batch)
        mask = action_mask(obs)
        params, value = self.net(obs)
        log_prob = self.distribution.log_prob(params, batch["action"], mask)
        entropy = self.distribution.entropy(params, mask)
        advantage, entropy = losses.policy_terms(
            batch["advantage"], entropy, weight, policy_weight, normalize=hp.normalize_advantage
        )
        if hp.importance_clip is not None:
            # rho = min(rho_bar, pi/mu)
            ratio = (log_prob.detach() - batch["log_prob"]).exp()
            advantage = advantage * ratio.clamp(max=hp.importance_clip)
        # grad log pi(a|s) A(s, a)
        policy_loss = -losses.weighted_mean(log_prob * advantage, weight)
        value_loss = losses.value_loss(value, batch["target"], weight)
        loss = policy_loss + 2 * hp.value_coef * value_loss - batch["entropy_coef"] * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
