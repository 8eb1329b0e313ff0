"""Adversarial inverse reinforcement learning (Fu, Luo and Levine 2018, arXiv:1710.11248).

As in GAIL a discriminator tells the expert from the policy, but its logit has a form from which a
reward can be read: D = exp(f) / (exp(f) + pi(a|s)), so that the logit is f - log pi(a|s), with
f(s, a, s') = g(s) + gamma h(s') - h(s). The potential h takes up what the dynamics of this
environment add, and g is left: a reward that can be optimised again in a changed environment. The
policy is rewarded with log D - log(1 - D) = f - log pi. The environment's reward is not read.

Deviations: the policy learns with PPO in place of TRPO. With `disc_history`, half of what the
discriminator sees of the policy is drawn evenly from all former rollouts, where the paper mixes in
the last ones; by default it sees the last rollout alone. The log-probability is that of the policy
as it is now for the action as it was executed, within its bounds. Reward and potential normalise
observations by statistics of their own, half of them the expert's, and f has GAIL's gradient
penalty.
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
    true_successors,
)
from assay.algorithms.shared.proximal import clipped_loss, updates_per_rollout
from assay.buffers.reservoir import Reservoir
from assay.buffers.rollout import Rollout
from assay.core.registry import register
from assay.core.types import Batch, Spaces, Tree, action_mask, pack, unpack
from assay.functional.distributions import policy_distribution
from assay.functional.imitation import discriminator_loss
from assay.networks.actor_critic import ActorCritic
from assay.networks.discriminator import ShapedReward, gradient_penalty
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import StochasticHead


@register(
    loop="on_policy",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    family="imitation",
    paper="arXiv:1710.11248",
    expert="episodes",
    traits=("reward",),
)
class AIRL(Algorithm):
    """Learn the reward behind episodes, and imitate them. For a reward that is used elsewhere."""

    class Hyperparameters(AdversarialSettings):
        """Settings of AIRL."""

        state_only: bool = Field(
            True, description="Let the reward depend on the state alone, so that it transfers."
        )
        disc_history: int = Field(
            0, ge=0, description="Former steps that are kept; half of the policy's batch is theirs."
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
        self.reward = ShapedReward(
            spaces, gamma=hp.gamma, state_only=hp.state_only,
            hidden=hp.disc_hidden, cnn=hp.cnn, network=hp.network,
        ).to(self.device)  # fmt: skip
        self.disc_inputs = DiscriminatorInputs(self)
        self.history = Reservoir(hp.disc_history, self.rng)
        rule = Adam(eps=1e-5, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("ppo", self.net, self._loss, rule)])
        self.disc_step = self.make_step([Objective("disc", self.reward, self._disc_loss)])
        self.policy = self.make_policy(self.net.actor(), StochasticHead(spaces.action))

    def update_reward_stats(self, reward: Any, done: Any, valid: Any = None) -> None:
        """See nothing: what is scaled is the learned reward, which `update` finds."""

    def update(self, data: Rollout) -> None:
        """Train reward and potential, then the policy on what they say."""
        obs, *values = rollout_values(self.net, data, self.inputs)
        seen = self.disc_inputs
        seen.see(data)
        states = pack("obs", flat_rows(data.obs)) | pack("next_obs", true_successors(data))
        done = {"action": flat_rows(data.action), "terminated": flat_rows(data.terminated)}
        rows = self._rows(states | done)

        def draw(index: Tensor, expert: Batch) -> dict[str, Tensor]:
            shown = unpack("obs", self.replay_tensors(expert))
            theirs = self._steps(
                (seen.tensors(expert.obs), seen.tensors(expert.next_obs)), expert.action,
                expert.terminated, self._log_prob(shown, expert.action),
            )  # fmt: skip
            own = {name: part[index] for name, part in rows.items()}
            if self.history.size("steps"):
                half = len(index) // 2
                former = self._rows(self.history.sample("steps", half))
                own = {k: torch.cat([former[k], part[half:]]) for k, part in own.items()}
            return own | {f"expert_{name}": part for name, part in theirs.items()}

        train_discriminator(self, self.disc_step, data, draw)
        if self.hp.disc_history:
            valid = flat_rows(data.valid)
            self.history.add("steps", {k: part[valid] for k, part in (states | done).items()})
        with torch.no_grad():
            reward = self._logit(rows)[0].cpu().numpy().reshape(data.length, data.num_envs)
        learn_from_rewards(self, self.step, data, reward, obs, (values[0], values[1]))

    @torch.no_grad()
    def learned_reward(self, obs: Tree, action: Tensor) -> Any:
        """Return g [B], without its potential, observations as `disc_inputs` gives them."""
        return self.reward.g(obs, action).cpu().numpy()

    def _rows(self, raw: dict[str, Any]) -> dict[str, Tensor]:
        """Name the policy's steps, as they were collected, for the losses."""
        seen, obs, action = self.disc_inputs, unpack("obs", raw), self.tensors(raw["action"])
        return self._steps(
            (seen.arrays(obs), seen.arrays(unpack("next_obs", raw))), action,
            self.tensors(raw["terminated"]).to(torch.float32),
            self._log_prob(self.inputs(obs), action),
        )  # fmt: skip

    @torch.no_grad()
    def _log_prob(self, obs: Tree, action: Tensor) -> Tensor:
        """Return log pi(a|s) [B] of the policy as it is now, observations as it takes them."""
        params, _ = self.net(obs)
        return self.distribution.log_prob(params, action, action_mask(obs))

    @staticmethod
    def _steps(
        states: tuple[Tree, Tree], action: Tensor, terminated: Tensor, log_prob: Tensor
    ) -> dict[str, Tensor]:
        """Name steps for the losses; `states` are s and s', as `disc_inputs` gives them."""
        named = {"action": action, "terminated": terminated, "log_prob": log_prob}
        return pack("obs", states[0]) | pack("next_obs", states[1]) | named

    # ------------------------------------------------------------------ the mathematics

    def _logit(self, batch: dict[str, Tensor], prefix: str = "") -> tuple[Tensor, Tensor]:
        """Return logits [B], and the features that f was computed of."""
        features = self.reward.features(
            unpack(f"{prefix}obs", batch), batch[f"{prefix}action"],
            unpack(f"{prefix}next_obs", batch),
        )  # fmt: skip
        f = self.reward.score(features, batch[f"{prefix}terminated"])
        # log D - log(1 - D) = f(s, a, s') - log pi(a|s)
        return f - batch[f"{prefix}log_prob"], features

    def _disc_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp = self.hp
        (expert, theirs), (policy, own) = self._logit(batch, "expert_"), self._logit(batch)
        loss, metrics = discriminator_loss(expert, policy, hp.disc_entropy)
        if hp.gradient_penalty:
            mix = batch["mix"]
            ends = mix * batch["expert_terminated"] + (1.0 - mix) * batch["terminated"]
            penalty = gradient_penalty(lambda x: self.reward.score(x, ends), theirs, own, mix)
            loss, metrics["gradient_penalty"] = loss + hp.gradient_penalty * penalty, penalty
        return loss, metrics

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return clipped_loss(self.net, self.distribution, self.hp, batch)
