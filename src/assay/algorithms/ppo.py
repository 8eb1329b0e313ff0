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

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import Unused
from assay.algorithms.shared.advantages import rollout_values
from assay.algorithms.shared.novelty import Curiosity, non_episodic_gae, successors
from assay.algorithms.shared.proximal import (
    clipped_loss,
    flat_batch,
    rollout_advantages,
    run_epochs,
    updates_per_rollout,
)
from assay.algorithms.shared.proximal_settings import ProximalSettings
from assay.buffers.rollout import Rollout
from assay.core.registry import register
from assay.core.types import Spaces, pack
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
    traits=("first", "novelty"),
)
class PPO(Algorithm):
    """Clipped policy gradient on fresh rollouts. First choice where steps are cheap."""

    takes_reward_model = True

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
        self.needs = hp.needs(updates=updates_per_rollout(hp, context.num_envs))
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
        run_epochs(self, self.step, self._prepare(data), data.length * data.num_envs)

    # ------------------------------------------------------------------ the mathematics

    def _prepare(self, data: Rollout) -> dict[str, Tensor]:
        """Compute values, advantages and returns; flatten [T, N] to [T * N]."""
        obs, values, next_value = rollout_values(self.net, data, self.inputs)
        value = values
        if self.curiosity is not None:  # [T, N, 2]: of rewards, of novelty
            value, next_value = values[..., 0], next_value[..., 0]
        advantage, target = rollout_advantages(self, data, data.reward, value, next_value)
        novel: dict[str, Tensor] = {}
        if self.curiosity is not None:
            novel, more, novel_target = self._novelty(data, values[..., 1])
            advantage = advantage + self.hp.rnd * more
            value, target = values, np.stack([target, novel_target], -1)
        return flat_batch(data, obs, value, advantage, target, self.device) | novel

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
        # Rewards and novelty have a value head each.
        return clipped_loss(self.net, self.distribution, self.hp, batch, 2 if self.hp.rnd else 1)
