"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

The clipped surrogate of equation 7 with generalised advantage estimation (arXiv:1506.02438), and
the details that make it work in practice (Huang et al. 2022): orthogonal initialisation, Adam
with epsilon 1e-5, advantages normalised per minibatch, a global gradient clip.

Option: random network distillation (`rnd`, arXiv:1810.12894). States that a predictor does not know
yet are rewarded. This reward has a value head of its own and its return runs on over episode ends;
the policy follows A + rnd A_intrinsic.

Deviations: values of the whole rollout are computed in one batch when the update begins (the
parameters have not moved since acting, so they are the same numbers). Actor and critic share
their encoder only where observations contain images.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.advantages import rollout_values
from assay.algorithms.base import Algorithm, Context
from assay.algorithms.novelty import Curiosity, non_episodic_gae, successors
from assay.algorithms.settings import ProximalSettings, Unused
from assay.buffers.rollout import Rollout
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.types import Spaces, action_mask, pack, unpack
from assay.functional import losses, returns
from assay.functional.distributions import policy_distribution
from assay.networks.actor_critic import ActorCritic
from assay.networks.rnd import Distillation
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import StochasticHead


@register(
    loop="on_policy",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    family="policy-gradient",
    paper="arXiv:1707.06347",
)
class PPO(Algorithm):
    """Clipped policy gradient on fresh rollouts. First choice where steps are cheap."""

    class Hyperparameters(ProximalSettings):
        """Settings of PPO."""

        rnd: float = Field(0.0, ge=0, description="Weight of novelty (RND); 0 is none.")
        rnd_gamma: float = Field(0.99, ge=0, lt=1, description="Discount of novelty.")
        rnd_share: float = Field(
            1.0, gt=0, le=1, description="Share of the rollout that trains RND's predictor."
        )

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the settings of novelty where it has no weight."""
            if self.rnd == 0:
                for name in ("rnd_gamma", "rnd_share"):
                    yield name, "with rnd=0"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        size = hp.horizon * context.num_envs
        if size % hp.minibatch_size:
            raise ConfigError(
                f"minibatch_size={hp.minibatch_size} does not divide the rollout of "
                f"{size} = horizon {hp.horizon} x num_envs {context.num_envs} transitions.",
                "Choose a minibatch_size that divides horizon x num_envs.",
            )
        minibatches = size // hp.minibatch_size
        self.needs = hp.needs(updates=hp.epochs * minibatches)
        self.distribution = policy_distribution(spaces.action)
        net = ActorCritic(
            spaces.observation, self.distribution, **hp.encoder(), **hp.gaussian(spaces.action),
            value_heads=2 if hp.rnd else 1,
        )  # fmt: skip
        self.net = net.to(self.device)
        rule = Adam(eps=1e-5, max_grad_norm=hp.max_grad_norm)
        objectives = [Objective("ppo", self.net, self._loss, rule)]
        if hp.rnd:
            distillation = Distillation(spaces.observation, hidden=hp.hidden, cnn=hp.cnn)
            self.distillation = distillation.to(self.device)
            predictor = self.distillation.predictor
            objectives.append(Objective("rnd", predictor, self.distillation.loss))
        self.step = self.make_step(objectives)
        self.policy = self.make_policy(self.net.actor(), StochasticHead(spaces.action))
        self.curiosity = None
        if hp.rnd:
            self.curiosity = Curiosity(
                self.distillation, spaces.observation, context.num_envs, hp.rnd_gamma, self.device
            )

    def update(self, data: Rollout) -> None:
        """Run the epochs of clipped updates over one rollout."""
        hp = self.hp
        batch = self._prepare(data)
        size = data.length * data.num_envs
        progress = self.clock.progress
        batch["clip"] = torch.tensor(hp.clip(progress), device=self.device)
        batch["entropy_coef"] = torch.tensor(hp.entropy_coef(progress), device=self.device)
        lr = hp.lr(progress)
        for _ in range(hp.epochs):
            order = torch.from_numpy(self.rng.permutation(size)).to(self.device)
            kls = []
            for index in order.split(hp.minibatch_size):
                metrics = self.step(batch, lr, index)
                if hp.target_kl is not None:
                    kls.append(self.step.metrics(metrics)["approx_kl"])
            if hp.target_kl is not None and np.mean(kls) > hp.target_kl:
                break

    # ------------------------------------------------------------------ the mathematics

    def _prepare(self, data: Rollout) -> dict[str, Tensor]:
        """Compute values, advantages and returns; flatten [T, N] to [T * N]."""
        hp = self.hp
        reward = data.reward
        if self.reward_scale is not None:
            reward = self.reward_scale.scale(reward)
        obs, values, next_value = rollout_values(self.net, data, self.inputs)
        value = values
        if self.curiosity is not None:  # [T, N, 2]: of rewards, of novelty
            value, next_value = values[..., 0], next_value[..., 0]
        advantage, target = returns.gae_numpy(
            reward, value, next_value, data.terminated, data.truncated,
            hp.gamma, hp.gae_lambda, None if data.valid.all() else data.valid,
        )  # fmt: skip
        self.note(explained_variance=float(losses.explained_variance(value, target, data.valid)))
        novel: dict[str, Tensor] = {}
        if self.curiosity is not None:
            novel, more, novel_target = self._novelty(data, values[..., 1])
            advantage = advantage + hp.rnd * more
            value, target = values, np.stack([target, novel_target], -1)
        flat = {
            "action": data.extras.get("raw_action", data.action),
            "log_prob": data.extras["log_prob"],
            "value": value,
            "advantage": advantage,
            "target": target,
        }
        if not data.whole:  # plain means are cheaper than weighted ones
            flat["weight"] = data.valid.astype(np.float32)
            flat["policy_weight"] = data.policy_weight
        size = data.length * data.num_envs
        tensors = {k: torch.from_numpy(v.reshape(size, *v.shape[2:])) for k, v in flat.items()}
        return pack("obs", obs) | {k: v.to(self.device) for k, v in tensors.items()} | novel

    def _novelty(
        self, data: Rollout, value: np.ndarray
    ) -> tuple[dict[str, Tensor], np.ndarray, np.ndarray]:
        """Return what RND's predictor learns from, and advantages and returns of novelty."""
        hp = self.hp
        assert self.curiosity is not None
        novel, reward = self.curiosity.observe(successors(data.obs, data.last_obs), data.valid)
        with torch.no_grad():
            last = self.net.value(self.inputs(data.last_obs))
        advantage, target = non_episodic_gae(
            reward, value, last[:, 1].cpu().numpy(), hp.rnd_gamma, hp.gae_lambda, data.valid
        )
        self.note(intrinsic_reward=float(reward[data.valid].mean()))
        chosen = (self.rng.random(value.size) < hp.rnd_share) & data.valid.reshape(-1)
        weight = torch.from_numpy(chosen.astype(np.float32)).to(self.device)
        batch = pack("novel", self.tensors(novel)) | {"novel_weight": weight}
        return batch, advantage, target

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp, weight, policy_weight = self.hp, batch.get("weight"), batch.get("policy_weight")
        obs = unpack("obs", batch)
        mask = action_mask(obs)
        params, value = self.net(obs)
        log_prob, entropy = self.distribution.log_prob_entropy(params, batch["action"], mask)
        advantage, entropy = losses.policy_terms(
            batch["advantage"], entropy, weight, policy_weight, normalize=hp.normalize_advantage
        )
        # L^CLIP = E[min(r A, clip(r, 1 - eps, 1 + eps) A)]
        policy = losses.ppo_policy_loss(
            log_prob, batch["log_prob"], advantage, batch["clip"], weight
        )
        heads = 2 if hp.rnd else 1  # value: [B] or [B, 2]
        value_weight = weight
        if weight is not None and heads > 1:
            value_weight = weight[:, None].expand_as(value)
        value_loss = losses.value_loss(
            value, batch["target"], value_weight, old_value=batch["value"], clip=hp.value_clip
        )
        # value_loss carries the paper's one half; the customary coefficient 0.5 does not. It is a
        # mean over the heads, whose losses are to be added.
        loss = policy.loss + 2 * hp.value_coef * heads * value_loss
        return loss - batch["entropy_coef"] * entropy, {
            "policy_loss": policy.loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": policy.approx_kl,
            "clip_fraction": policy.clip_fraction,
        }
