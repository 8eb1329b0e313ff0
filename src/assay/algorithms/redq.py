"""Randomized ensembled double Q-learning (Chen et al. 2021, arXiv:2101.05982).

Soft actor-critic at a high ratio G of updates to environment steps. What keeps that from
overestimating is a large ensemble of N critics, of which a random subset of M gives each target:

    y = r + gamma (1 - d) (min_{i in M} Q'_i(s', a') - alpha log pi(a'|s'))

All N critics learn from the same y. The actor and the temperature move once per G critic updates,
on the mean of all N critics; the targets follow after every update.

Deviations: as in our SAC, log-probabilities are those of the action in (-1, 1), the target
entropy -dim(A) belongs to that space (the paper sets it per task), and the temperature's gradient
is taken with respect to log alpha. The actor's loss sees the critics after their update.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import (
    ActorCriticSettings,
    EntropySettings,
    HindsightSettings,
    NormalizeSettings,
    PolyakSettings,
)
from assay.algorithms.shared import soft
from assay.algorithms.shared.mixed_settings import LayerNormSettings
from assay.buffers.replay_protocol import Replay
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.types import Batch, Spaces, unpack
from assay.functional import targets
from assay.networks.encoders import make_encoder
from assay.networks.heads import QEnsemble
from assay.networks.squashed import SquashedActor
from assay.networks.temperature import Temperature
from assay.optim.rules import Adam
from assay.optim.update import Objective, Polyak
from assay.policies.heads import SquashedHead


@register(
    loop="off_policy",
    actions=("Box",),
    family="actor-critic",
    paper="arXiv:2101.05982",
    traits=("frugal", "hindsight", "recorded"),
)
class REDQ(Algorithm):
    """SAC with ten critics and many updates per step. For expensive environment steps."""

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
        """Settings of REDQ."""

        learning_starts: int = Field(5000, ge=0, description="Random steps before learning.")
        updates: int = Field(20, gt=0, description="Critic updates per round: G of the paper.")
        policy_delay: int | Literal["auto"] = Field(
            "auto", description="Critic updates per actor update; auto is one round."
        )
        n_critics: int = Field(10, gt=0, description="Critics in the ensemble: N of the paper.")
        n_target_critics: int = Field(
            2, gt=0, description="Critics drawn for each target: M of the paper."
        )

        @field_validator("policy_delay")
        @classmethod
        def _at_least_one(cls, delay: Any) -> Any:
            if delay != "auto" and delay < 1:
                raise ValueError("expected a number of at least 1, or auto")
            return delay

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        if hp.n_target_critics > hp.n_critics:
            raise ConfigError(
                f"n_target_critics={hp.n_target_critics} cannot be drawn from "
                f"n_critics={hp.n_critics}.",
                f"Set n_target_critics to {hp.n_critics} or less; 2 of 10 is the usual choice.",
            )
        self.needs = hp.needs(her=hp.hindsight())
        self.policy_delay = hp.updates if hp.policy_delay == "auto" else hp.policy_delay
        encoder = make_encoder(spaces.observation, **hp.encoder(), init="torch")
        self.actor = SquashedActor(encoder, encoder.out_features, spaces.action).to(self.device)
        size, self.target_entropy = self.actor.size, soft.target_entropy(hp, self.actor)
        critics = hp.encoder(layer_norm=hp.layer_norm)
        critic = QEnsemble(spaces.observation, size, members=hp.n_critics, **critics)
        self.critic = critic.to(self.device)
        self.target = copy.deepcopy(self.critic)
        self.temperature = Temperature(hp.first_alpha).to(self.device)
        self._make_steps()
        self.policy = self.make_policy(self.actor.net, SquashedHead(spaces.action))

    def _make_steps(self) -> None:
        hp = self.hp
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        critic = Objective("critic", self.critic, self._critic_loss, rule)
        slow = [Objective("actor", self.actor, self._actor_loss, rule)]
        if hp.alpha == "auto":
            slow.append(Objective("alpha", self.temperature, self._alpha_loss))
        follow = [Polyak(self.target, self.critic, hp.tau)]
        self.critic_step = self.make_step([critic], polyak=follow)
        self.full_step = self.make_step([critic, *slow], polyak=follow, share=self.critic_step)

    def update(self, data: Replay[Batch]) -> None:
        """Move critics and targets; every `policy_delay` updates also actor and temperature."""
        hp = self.hp
        batch = self.replay_tensors(data.sample(hp.batch_size))
        shape = (hp.batch_size, *self.actor.distribution.noise_shape)
        batch["next_noise"] = self.noise(*shape)
        members = self.rng.choice(hp.n_critics, hp.n_target_critics, replace=False)
        batch["members"] = torch.from_numpy(members).to(self.device)
        due = (self.updates + 1) % self.policy_delay == 0
        if due:
            batch["noise"] = self.noise(*shape)
        step = self.full_step if due else self.critic_step
        step(batch, hp.rates(step, self.clock.progress))

    _alpha_loss = soft.alpha_loss

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        with torch.no_grad():
            next_action, next_log_pi = self.actor.sample(next_obs, batch["next_noise"])
            next_q = self.target(next_obs, next_action, batch["members"]).amin(0)
            soft_q = next_q - self.temperature() * next_log_pi
            y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], soft_q)
        q = self.critic(obs, self.actor.scale.to_unit(batch["action"]))  # q: [N, B]
        # How far the critics disagree is what the random subsets live on.
        spread = q.detach().std(0, correction=0).mean()
        loss = 0.5 * (q - y).square().mean(1).sum()
        return loss, {"q_mean": q.mean(), "q_spread": spread}

    def _actor_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        action, log_pi = self.actor.sample(obs, batch["noise"])
        alpha = self.temperature().detach()
        # J = E[alpha log pi(a|s) - 1/N sum_i Q_i(s, a)]
        loss = (alpha * log_pi - self.critic(obs, action).mean(0)).mean()
        batch["entropy"] = -log_pi.detach().mean()  # the temperature's loss reads it
        return loss, {"entropy": batch["entropy"], "alpha": alpha}
