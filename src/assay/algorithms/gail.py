"""Generative adversarial imitation learning (Ho and Ermon 2016, arXiv:1606.03476).

A discriminator learns to tell the expert's pairs of state and action from the policy's, and the
policy is rewarded for pairs that it takes for the expert's. The environment's reward is not read.

The label of the expert is 1, so that the reward -log(1 - D) is softplus(logit). It is never
negative: where episodes end early for bad behaviour, surviving alone is rewarded, and where they
end early for good behaviour, ending is punished (arXiv:1809.02925). `reward=logit` and
`reward=log_d` weigh that differently; a task of fixed length has no such bias.

Deviations: the policy learns with PPO in place of TRPO, and the discriminator has a gradient
penalty (arXiv:1809.02925): without it, it tells a policy that explores from an expert that does not
by the noise of the actions alone, and then rewards nothing that the policy does. It normalises
observations by statistics of its own, half of them the expert's, and sees Box actions scaled to
their bounds.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.shared.advantages import rollout_values
from assay.algorithms.shared.adversarial import (
    AdversarialSettings,
    DiscriminatorInputs,
    flat_rows,
    learn_from_rewards,
    train_discriminator,
)
from assay.algorithms.shared.proximal import clipped_loss, updates_per_rollout
from assay.buffers.rollout import Rollout
from assay.core.registry import register
from assay.core.types import Batch, Spaces, Tree, pack, tree_map, unpack
from assay.functional.distributions import policy_distribution
from assay.functional.imitation import RewardForm, discriminator_loss, imitation_reward
from assay.networks.actor_critic import ActorCritic
from assay.networks.discriminator import Discriminator, gradient_penalty
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import StochasticHead


@register(
    loop="on_policy",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    family="imitation",
    paper="arXiv:1606.03476",
    expert="episodes",
    traits=("first",),
)
class GAIL(Algorithm):
    """Imitate episodes by fooling a discriminator. For few demonstrations and cheap steps."""

    class Hyperparameters(AdversarialSettings):
        """Settings of GAIL."""

        reward: RewardForm = Field(
            "softplus", description="softplus: -log(1 - D); log_d: log D; logit: their sum."
        )

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        updates = updates_per_rollout(hp, context.num_envs)
        self.needs = hp.needs(updates=updates + hp.disc_updates)
        self.distribution = policy_distribution(spaces.action)
        net = ActorCritic(
            spaces.observation, self.distribution, **hp.encoder(), **hp.gaussian(spaces.action)
        )
        self.net = net.to(self.device)
        self.disc = Discriminator(spaces, hidden=hp.disc_hidden, cnn=hp.cnn, network=hp.network).to(
            self.device
        )
        self.disc_inputs = DiscriminatorInputs(self)
        rule = Adam(eps=1e-5, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("ppo", self.net, self._loss, rule)])
        self.disc_step = self.make_step([Objective("disc", self.disc, self._disc_loss)])
        self.policy = self.make_policy(self.net.actor(), StochasticHead(spaces.action))

    def update_reward_stats(self, reward: Any, done: Any, valid: Any = None) -> None:
        """See nothing: what is scaled is the learned reward, which `update` finds."""

    def update(self, data: Rollout) -> None:
        """Train the discriminator, then the policy on the rewards that it gives."""
        obs, *values = rollout_values(self.net, data, self.inputs)
        action = self.tensors(flat_rows(data.action))
        self.disc_inputs.see(data)
        seen = self.disc_inputs.arrays(flat_rows(data.obs))
        train_discriminator(
            self, self.disc_step, data, lambda rows, other: self._pairs(seen, action, rows, other)
        )
        reward = self.learned_reward(seen, action).reshape(data.length, data.num_envs)
        learn_from_rewards(self, self.step, data, reward, obs, (values[0], values[1]))

    @torch.no_grad()
    def learned_reward(self, obs: Tree, action: Tensor) -> Any:
        """Return the reward [B] of each pair, observations as `disc_inputs` gives them."""
        return imitation_reward(self.disc(obs, action), self.hp.reward).cpu().numpy()

    def _pairs(self, obs: Tree, action: Tensor, rows: Tensor, expert: Batch) -> dict[str, Tensor]:
        """Return a batch of the discriminator: chosen rows of a rollout, and the expert's."""
        batch = pack("obs", tree_map(lambda x: x[rows], obs))
        batch |= pack("expert_obs", self.disc_inputs.tensors(expert.obs))
        batch |= {"action": action[rows], "expert_action": expert.action}
        return batch

    # ------------------------------------------------------------------ the mathematics

    def _disc_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        disc, hp = self.disc, self.hp
        expert = disc.features(unpack("expert_obs", batch), batch["expert_action"])
        policy = disc.features(unpack("obs", batch), batch["action"])
        loss, metrics = discriminator_loss(disc.score(expert), disc.score(policy), hp.disc_entropy)
        if hp.gradient_penalty:
            penalty = gradient_penalty(disc.score, expert, policy, batch["mix"])
            loss, metrics["gradient_penalty"] = loss + hp.gradient_penalty * penalty, penalty
        return loss, metrics

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return clipped_loss(self.net, self.distribution, self.hp, batch)
