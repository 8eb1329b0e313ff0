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

import torch
from gymnasium.spaces import Discrete
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import ValueSettings
from assay.algorithms.shared.value_learning import draw_transitions, learn_values
from assay.buffers.replay_protocol import Replay
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Batch, Spaces, action_mask, unpack
from assay.functional import distributional, losses
from assay.networks.encoders import make_encoder
from assay.networks.heads import AtomHead, AtomMean
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import GreedyHead


@register(
    loop="off_policy",
    actions=("Discrete",),
    family="value",
    paper="arXiv:1710.10044",
    traits=("first",),
)
class QRDQN(Algorithm):
    """DQN that learns quantiles of the return. First choice for discrete actions with replay."""

    class Hyperparameters(ValueSettings):
        """Settings of QR-DQN."""

        lr: Schedule = Field(constant(5e-5), description="Learning rate or schedule.")
        adam_eps: float = Field(3.125e-4, gt=0, description="Adam's epsilon (paper: 0.01 / 32).")
        quantiles: int = Field(200, gt=0, description="Quantiles of the return per action.")
        kappa: float = Field(1.0, gt=0, description="Width of the loss's quadratic zone.")

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        assert isinstance(spaces.action, Discrete)
        self.actions = int(spaces.action.n)
        encoder = make_encoder(spaces.observation, **hp.encoder(), init="torch", noisy=hp.noisy)
        head = AtomHead(
            encoder.out_features, self.actions, hp.quantiles, dueling=hp.dueling, noisy=hp.noisy
        )
        self.q = nn.Sequential(encoder, head).to(self.device)  # theta: [B, A, N]
        self.target = copy.deepcopy(self.q)
        rule = Adam(eps=hp.adam_eps, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step(
            [Objective("q", self.q, self._loss, rule)], polyak=hp.follow(self.target, self.q)
        )
        self.policy = self.make_policy(
            nn.Sequential(self.q, AtomMean()), GreedyHead(spaces.action, hp.explorer(self.clock))
        )

    def update(self, data: Replay[Batch]) -> None:
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
