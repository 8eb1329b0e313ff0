"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), for Box and Discrete actions.

Twin critics, tanh-squashed Gaussian policy, automatic temperature. With Discrete actions the
expectations over the policy are exact sums (Christodoulou 2019, arXiv:1910.07207).

Deviations: log-probabilities are those of the action in (-1, 1), without the Jacobian of the scale
to the environment's bounds; the target entropy -dim(A) belongs to that space. The temperature's
gradient is taken with respect to log alpha. For Discrete actions the target entropy is a share of
log |A| (`target_entropy_share`); with action masks, of the mean of log |A(s)| over the batch, A(s)
being the valid actions.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import torch
from gymnasium.spaces import Box
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import (
    ActorCriticSettings,
    EntropySettings,
    HindsightSettings,
    NormalizeSettings,
    PolyakSettings,
    Unused,
)
from assay.algorithms.shared import soft
from assay.algorithms.shared.mixed_settings import LayerNormSettings
from assay.buffers.replay_protocol import Replay
from assay.core.registry import register
from assay.core.types import Batch, Spaces, action_mask, unpack
from assay.functional import targets
from assay.functional.distributions import policy_distribution
from assay.networks.encoders import make_encoder
from assay.networks.heads import ValueEnsemble
from assay.networks.temperature import Temperature
from assay.policies.heads import Head, SquashedHead, StochasticHead


@register(
    loop="off_policy",
    actions=("Box", "Discrete"),
    family="actor-critic",
    paper="arXiv:1812.05905",
    traits=("first", "hindsight", "recorded"),
)
class SAC(Algorithm):
    """Maximum-entropy actor-critic. First choice for continuous actions; little to tune."""

    takes_both = True
    takes_reward_model = True

    class Hyperparameters(
        LayerNormSettings,
        EntropySettings,
        HindsightSettings,
        NormalizeSettings,
        PolyakSettings,
        ActorCriticSettings,
    ):
        """Settings of SAC."""

        target_entropy: float | Literal["auto"] = Field(
            "auto", description="Entropy to hold; auto is -dim(A), or a share of log |A|."
        )
        target_entropy_share: float = Field(
            0.5, gt=0, lt=1, description="Share of log |A| held with Discrete actions."
        )

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the share where the target entropy is not a share of log |A|."""
            share = "target_entropy_share"
            if self.alpha != "auto":
                yield share, f"with alpha={self.alpha}"
            if self.target_entropy != "auto":
                yield share, f"with target_entropy={self.target_entropy}"
            if isinstance(spaces.action, Box):
                yield share, "because the action space is a Box"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(her=hp.hindsight())
        self.continuous = isinstance(spaces.action, Box)
        self.actor: Any
        if self.continuous:
            self.actor, self.critic, self.target, self.temperature = soft.soft_networks(
                spaces, hp, self.device, layer_norm=hp.layer_norm
            )
            network, self.distribution = self.actor.net, self.actor.distribution
            head: Head = SquashedHead(spaces.action)
            default_entropy = -float(self.actor.size)
        else:
            network = self._make_discrete(int(spaces.action.n))
            head = StochasticHead(spaces.action, log_prob=False)
            default_entropy = hp.target_entropy_share * math.log(spaces.action.n)
        auto = hp.target_entropy == "auto"
        self.target_entropy = default_entropy if auto else float(hp.target_entropy)
        losses = self._critic_loss, self._actor_loss, self._alpha_loss
        if not self.continuous:
            losses = (
                self._discrete_critic_loss, self._discrete_actor_loss, self._discrete_alpha_loss,
            )  # fmt: skip
        self.step = soft.soft_step(self, hp, losses)
        self.policy = self.make_policy(network, head)

    def _make_discrete(self, size: int) -> nn.Module:
        """Make the networks for one of `size` actions, and return that of the policy."""
        hp, observation = self.hp, self.spaces.observation
        self.distribution = policy_distribution(self.spaces.action)
        encoder = make_encoder(observation, **hp.encoder(), init="torch")
        actor = nn.Sequential(encoder, nn.Linear(encoder.out_features, size))
        critic = ValueEnsemble(observation, size, **hp.encoder(layer_norm=hp.layer_norm))
        self.actor, self.critic = actor.to(self.device), critic.to(self.device)
        self.target = copy.deepcopy(self.critic)
        self.temperature = Temperature(hp.first_alpha).to(self.device)
        return actor

    def update(self, data: Replay[Batch]) -> None:
        """Move critics, actor, temperature and targets once, on one replay batch."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        if self.continuous:
            soft.soft_update(self, batch)
        else:
            self.step(batch, self.hp.rates(self.step, self.clock.progress))

    # ------------------------------------------------------------------ continuous actions

    _critic_loss = soft.critic_loss
    _actor_loss = soft.actor_loss
    _alpha_loss = soft.alpha_loss

    # ------------------------------------------------------------------ discrete actions

    def _discrete_critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        with torch.no_grad():
            mask = action_mask(next_obs)
            log_pi = self.distribution.log_probs(self.actor(next_obs), mask)  # [B, A]
            # V(s') = sum_a pi(a|s') (min_i Q'_i(s', a) - alpha log pi(a|s'))
            target = self.target(next_obs).amin(0) - self.temperature() * log_pi
            value = (log_pi.exp() * target).sum(1)
            y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], value)
        index = batch["action"].view(1, -1, 1).expand(2, -1, 1)
        q = self.critic(obs).gather(2, index).squeeze(2)  # q: [2, B]
        return 0.5 * (q - y).square().mean(1).sum(), {"q_mean": q.mean()}

    def _discrete_actor_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        log_pi = self.distribution.log_probs(self.actor(obs), action_mask(obs))
        alpha = self.temperature().detach()
        q = self.critic(obs).amin(0).detach()
        loss = (log_pi.exp() * (alpha * log_pi - q)).sum(1).mean()
        batch["entropy"] = -(log_pi.exp() * log_pi).sum(1).mean().detach()
        return loss, {"entropy": batch["entropy"], "alpha": alpha}

    def _discrete_alpha_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        mask, target = action_mask(unpack("obs", batch)), self.target_entropy
        if mask is not None and self.hp.target_entropy == "auto":
            # Log |A| is out of reach where actions are masked: E[log |A(s)|] is what is not.
            valid = (mask != 0).sum(1)
            valid = torch.where(valid == 0, mask.shape[1], valid).to(torch.float32)
            target = self.hp.target_entropy_share * valid.log().mean()
        return self.temperature.loss(batch["entropy"], target), {}
