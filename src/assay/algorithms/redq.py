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

from assay.algorithms.base import Algorithm, Context, ReplayNeeds
from assay.core.config import Model, reject_unused_setting
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.schedules import Schedule
from assay.core.types import Spaces, unpack
from assay.functional import targets
from assay.networks.encoders import make_encoder
from assay.networks.heads import QEnsemble
from assay.networks.squashed import SquashedActor
from assay.networks.temperature import Alpha, Temperature
from assay.optim.update import Objective, Polyak, Step
from assay.policies.heads import SquashedHead


@register(loop="off_policy", actions=("Box",), family="actor-critic", paper="arXiv:2101.05982")
class REDQ(Algorithm):
    """Randomized ensembled double Q-learning: SAC that learns from few environment steps."""

    class Hyperparameters(Model):
        """Settings of REDQ."""

        lr: Schedule = Field(Schedule.parse(3e-4), description="Learning rate of all networks.")
        batch_size: int = Field(256, gt=0, description="Transitions per gradient step.")
        buffer_size: int = Field(1_000_000, gt=0, description="Transitions kept in the replay.")
        learning_starts: int = Field(5000, ge=0, description="Random steps before learning.")
        train_every: int = Field(1, gt=0, description="Environment steps per round of updates.")
        updates: int = Field(20, gt=0, description="Critic updates per round: G of the paper.")
        policy_delay: int | Literal["auto"] = Field(
            "auto", description="Critic updates per actor update; auto is one round."
        )
        gamma: float = Field(0.99, ge=0, le=1, description="Discount.")
        tau: float = Field(0.005, gt=0, le=1, description="Polyak rate of the target critics.")
        n_critics: int = Field(10, gt=0, description="Critics in the ensemble: N of the paper.")
        n_target_critics: int = Field(
            2, gt=0, description="Critics drawn for each target: M of the paper."
        )
        alpha: Alpha = Field("auto", description="Temperature; auto learns it.")
        alpha_init: float = Field(1.0, gt=0, description="Where a learned temperature starts.")
        target_entropy: float | Literal["auto"] = Field(
            "auto", description="Entropy to hold; auto is -dim(A)."
        )
        n_step: int = Field(1, gt=0, description="Steps before bootstrapping.")
        max_grad_norm: float | None = Field(None, gt=0, description="Global gradient clip.")
        normalize_obs: bool = Field(False, description="Standardise float observations.")
        normalize_reward: bool = Field(False, description="Divide by the std of returns.")
        hidden: tuple[int, ...] = Field((256, 256), description="Widths of the hidden layers.")
        activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = Field(
            "relu", description="Nonlinearity of the hidden layers."
        )
        cnn: Literal["nature", "impala"] = Field("nature", description="Image encoder.")

        @field_validator("policy_delay")
        @classmethod
        def _at_least_one(cls, delay: Any) -> Any:
            if delay != "auto" and delay < 1:
                raise ValueError("expected a number of at least 1, or auto")
            return delay

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        for name in ("alpha_init", "target_entropy"):
            reject_unused_setting(hp, name, active=hp.alpha == "auto", why=f"alpha={hp.alpha}")
        if hp.n_target_critics > hp.n_critics:
            raise ConfigError(
                f"n_target_critics={hp.n_target_critics} cannot be drawn from "
                f"n_critics={hp.n_critics}.",
                f"Set n_target_critics to {hp.n_critics} or less; 2 of 10 is the usual choice.",
            )
        self.needs = ReplayNeeds(
            capacity=hp.buffer_size, learning_starts=hp.learning_starts,
            train_every=hp.train_every, updates=hp.updates, n_step=hp.n_step, gamma=hp.gamma,
        )  # fmt: skip
        self.policy_delay = hp.updates if hp.policy_delay == "auto" else hp.policy_delay
        encoder = make_encoder(
            spaces.observation, hidden=hp.hidden, activation=hp.activation, cnn=hp.cnn,
            init="torch",
        )  # fmt: skip
        self.actor = SquashedActor(encoder, encoder.out_features, spaces.action).to(self.device)
        size = self.actor.size
        self.target_entropy = -float(size) if hp.target_entropy == "auto" else hp.target_entropy
        self.critic = QEnsemble(
            spaces.observation, size, members=hp.n_critics, hidden=hp.hidden,
            activation=hp.activation, cnn=hp.cnn,
        ).to(self.device)  # fmt: skip
        self.target = copy.deepcopy(self.critic)
        initial = hp.alpha_init if hp.alpha == "auto" else hp.alpha
        self.temperature = Temperature(initial).to(self.device)
        self._make_steps()
        self.policy = self.make_policy(self.actor.net, SquashedHead(spaces.action))

    def _make_steps(self) -> None:
        hp = self.hp
        critic = Objective("critic", self.critic, self._critic_loss, hp.max_grad_norm)
        slow = [Objective("actor", self.actor, self._actor_loss, hp.max_grad_norm)]
        if hp.alpha == "auto":
            slow.append(Objective("alpha", self.temperature, self._alpha_loss))
        shared: dict[str, Any] = {
            "reads": [self.actor, self.target, self.temperature],
            "polyak": [Polyak(self.target, self.critic, hp.tau)],
            "mode": self.mode(self.clock.total_env_steps / hp.train_every * hp.updates),
            "key": self.step_key,
        }
        self.critic_step = Step([critic], **shared)
        self.full_step = Step([critic, *slow], **shared, share=self.critic_step)

    def update(self, data: Any) -> None:
        """Move critics and targets; every `policy_delay` updates also actor and temperature."""
        hp = self.hp
        batch = self.replay_tensors(data.sample(hp.batch_size))
        shape = (hp.batch_size, *self.actor.distribution.noise_shape)
        batch["next_noise"] = self.noise(*shape)
        members = self.rng.choice(hp.n_critics, hp.n_target_critics, replace=False)
        batch["members"] = torch.from_numpy(members).to(self.device)
        due = (self.clock.updates + 1) % self.policy_delay == 0
        if due:
            batch["noise"] = self.noise(*shape)
        step = self.full_step if due else self.critic_step
        self.record(step, step(batch, hp.lr(self.clock.progress)))

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        with torch.no_grad():
            next_action, next_log_pi = self.actor.sample(next_obs, batch["next_noise"])
            next_q = self.target(next_obs, next_action, batch["members"]).amin(0)
            soft = next_q - self.temperature() * next_log_pi
            y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], soft)
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

    def _alpha_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.temperature.loss(batch["entropy"], self.target_entropy), {}
