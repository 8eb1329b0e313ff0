"""Quantile regression DQN (Dabney et al. 2018, arXiv:1710.10044), with DQN's options.

The return of an action is a distribution of N equal masses at learned places theta_1..theta_N, the
quantiles at the levels tau_i = (2i - 1) / 2N. The loss is, with T_j = r + gamma theta'_j(s', a*),

    sum_i mean_j |tau_i - 1{T_j < theta_i}| huber_kappa(T_j - theta_i) / kappa

Options: double, dueling (a value and an advantage per quantile), noisy, n-step returns,
prioritised replay. A transition's priority is its loss, summed over predicted quantiles and
averaged over targets (the paper replays uniformly); so it is in IQN and FQF.

Deviations: the Huber loss is divided by kappa, as later papers do (the same at the paper's kappa
of 1); target copies are counted in updates, not in environment steps; gradients are clipped
unless max_grad_norm is null; invalid actions (masks) are excluded from the greedy choice.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from gymnasium.spaces import Discrete
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, ReplayNeeds
from assay.core.config import Model, reject_unused_setting
from assay.core.registry import register
from assay.core.schedules import Schedule, linear
from assay.core.types import Spaces, action_mask, unpack
from assay.functional import distributional, losses
from assay.networks.encoders import make_encoder, refuse_without_vectors
from assay.networks.heads import AtomHead, AtomMean
from assay.networks.value_update import draw_transitions, learn_values
from assay.optim.update import Objective, Polyak, Step
from assay.policies.exploration import ProbabilitySchedule
from assay.policies.heads import GreedyHead


@register(loop="off_policy", actions=("Discrete",), family="value", paper="arXiv:1710.10044")
class QRDQN(Algorithm):
    """Quantile regression DQN: learn the quantiles of the return."""

    class Hyperparameters(Model):
        """Settings of QR-DQN."""

        lr: Schedule = Field(Schedule.parse(5e-5), description="Learning rate or schedule.")
        adam_eps: float = Field(3.125e-4, gt=0, description="Adam's epsilon (paper: 0.01 / 32).")
        batch_size: int = Field(32, gt=0, description="Transitions per gradient step.")
        buffer_size: int = Field(1_000_000, gt=0, description="Transitions kept in the replay.")
        learning_starts: int = Field(100, ge=0, description="Random steps before learning.")
        train_every: int = Field(4, gt=0, description="Environment steps per round of updates.")
        updates: int = Field(1, gt=0, description="Gradient steps per round.")
        target_every: int = Field(2500, gt=0, description="Updates between target copies.")
        tau: float = Field(1.0, gt=0, le=1, description="Below 1: Polyak target every update.")
        gamma: float = Field(0.99, ge=0, le=1, description="Discount.")
        quantiles: int = Field(200, gt=0, description="Quantiles of the return per action.")
        kappa: float = Field(1.0, gt=0, description="Width of the loss's quadratic zone.")
        epsilon: ProbabilitySchedule = Field(
            linear(1.0, 0.05, 0.1), description="Share of random actions; a schedule."
        )
        double: bool = Field(False, description="Choose with the online network (double DQN).")
        dueling: bool = Field(False, description="Separate value and advantage streams.")
        noisy: bool = Field(False, description="Explore with noisy layers, not epsilon.")
        n_step: int = Field(1, gt=0, description="Steps before bootstrapping.")
        prioritized: bool = Field(False, description="Sample by the loss.")
        priority_alpha: float = Field(0.6, ge=0, le=1, description="How much priorities count.")
        priority_beta: ProbabilitySchedule = Field(
            linear(0.4, 1.0), description="Importance correction, annealed to 1."
        )
        max_grad_norm: float | None = Field(10.0, gt=0, description="Global gradient clip.")
        normalize_obs: bool = Field(False, description="Standardise float observations.")
        normalize_reward: bool = Field(False, description="Divide by the std of returns.")
        hidden: tuple[int, ...] = Field((64, 64), description="Widths of the hidden layers.")
        activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = Field(
            "relu", description="Nonlinearity of the hidden layers."
        )
        cnn: Literal["nature", "impala"] = Field("nature", description="Image encoder.")

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        reject_unused_setting(hp, "epsilon", active=not hp.noisy, why="noisy=true")
        reject_unused_setting(hp, "target_every", active=hp.tau == 1, why=f"tau={hp.tau:g}")
        for name in ("priority_alpha", "priority_beta"):
            reject_unused_setting(hp, name, active=hp.prioritized, why="prioritized=false")
        super().__init__(spaces, hp, context)
        self.needs = ReplayNeeds(
            capacity=hp.buffer_size, learning_starts=hp.learning_starts,
            train_every=hp.train_every, updates=hp.updates, n_step=hp.n_step, gamma=hp.gamma,
            prioritized=hp.priority_alpha if hp.prioritized else None,
        )  # fmt: skip
        assert isinstance(spaces.action, Discrete)
        self.actions = int(spaces.action.n)
        encoder = make_encoder(
            spaces.observation, hidden=hp.hidden, activation=hp.activation, cnn=hp.cnn,
            init="torch", noisy=hp.noisy,
        )  # fmt: skip
        refuse_without_vectors(hp, encoder, "hidden", "activation")
        head = AtomHead(
            encoder.out_features, self.actions, hp.quantiles, dueling=hp.dueling, init="torch",
            noisy=hp.noisy,
        )  # fmt: skip
        self.q = nn.Sequential(encoder, head).to(self.device)  # theta: [B, A, N]
        self.target = copy.deepcopy(self.q)
        soft = [Polyak(self.target, self.q, hp.tau)] if hp.tau < 1 else []
        updates = context.clock.total_env_steps / hp.train_every * hp.updates
        objective = Objective("q", self.q, self._loss, hp.max_grad_norm, eps=hp.adam_eps)
        self.step = Step(
            [objective], reads=[self.target], polyak=soft, mode=self.mode(updates),
            key=self.step_key,
        )  # fmt: skip
        epsilon = None if hp.noisy else (lambda n: hp.epsilon(self.clock.progress))
        self.policy = self.make_policy(
            nn.Sequential(self.q, AtomMean()), GreedyHead(spaces.action, epsilon)
        )

    def update(self, data: Any) -> None:
        """Take one gradient step on a replay batch; move the target when it is due."""
        lr = self.hp.lr(self.clock.progress)
        learn_values(self, data, *draw_transitions(self, data), lr, noisy=self.hp.noisy)

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        theta = distributional.action_atoms(self.q(obs), batch["action"])
        with torch.no_grad():
            next_theta = self.target(next_obs)  # [B, A, N]
            chooser = self.q(next_obs) if self.hp.double else next_theta
            next_theta = distributional.greedy_atoms(
                chooser.mean(-1), next_theta, action_mask(next_obs)
            )
            # T_j = r + gamma^k (1 - terminated) theta'_j(s', a*)
            target = distributional.atom_targets(
                batch["reward"], batch["discount"], batch["terminated"], next_theta
            )
        tau = distributional.quantile_midpoints(self.hp.quantiles, theta.device)
        item_loss = losses.quantile_huber(theta, target, tau, self.hp.kappa)
        loss = (item_loss * batch.get("weight", 1.0)).mean()
        spread = theta.detach().std(dim=1, correction=0).mean()
        metrics = {"q_mean": theta.mean(), "return_std": spread}
        if self.hp.prioritized:
            metrics["priority"] = item_loss
        return loss, metrics
