"""Implicit quantile network (Dabney et al. 2018, arXiv:1806.06923).

Learns Z_tau(s, a), the quantile function of the return, at levels tau in [0, 1] that are drawn
again for every use: N for the prediction, N' for the target, K for the choice of an action.

    y_j = r + gamma^k (1 - terminated) Z'_{tau'_j}(s', argmax_a mean_k Z'_{tau''_k}(s', a))
    L   = sum_i mean_j |tau_i - 1{u_ij < 0}| huber(u_ij),  u_ij = y_j - Z_{tau_i}(s, a)

Options as in DQN (double, dueling, noisy, n-step, prioritised), and `cvar`, the paper's
risk-averse policy: levels for choosing an action are drawn from [0, cvar].

Deviations: of n levels, one is drawn from each of n equal parts of [0, 1], which leaves the
expected loss as it is and takes most of its noise away; parallel environments share the K levels of
a step; without exploration the levels are the midpoints of K equal parts, so that an evaluation
needs no luck; the linear layer of an image network comes before the product with phi(tau), not
behind it (`head_hidden` adds layers there); phi starts at about 1 (see `CosineEmbedding`);
priorities are the loss of a transition, summed over its predicted quantiles and averaged over
its targets, as in QR-DQN (the paper replays uniformly); target copies are counted in updates.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from gymnasium.spaces import Discrete
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import HeadSettings, ValueSettings
from assay.algorithms.shared.value_learning import draw_transitions, learn_values
from assay.buffers.replay_protocol import Replay
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Batch, Spaces, action_mask, unpack
from assay.functional import distributional, losses
from assay.networks.quantile import (
    ActionValues,
    QuantileNetwork,
    draw_levels,
)
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import GreedyHead


@register(
    loop="off_policy",
    actions=("Discrete",),
    family="value",
    paper="arXiv:1806.06923",
    traits=("risk",),
)
class IQN(Algorithm):
    """DQN that learns sampled quantiles of the return. For risk-sensitive choices (CVaR)."""

    class Hyperparameters(HeadSettings, ValueSettings):
        """Settings of IQN."""

        lr: Schedule = Field(constant(5e-5), description="Learning rate or schedule.")
        learning_starts: int = Field(1000, ge=0, description="Random steps before learning.")
        adam_eps: float = Field(3e-4, gt=0, description="Adam's epsilon.")
        quantiles: int = Field(64, gt=0, description="Levels N of the prediction.")
        target_quantiles: int = Field(64, gt=0, description="Levels N' of the target.")
        acting_quantiles: int = Field(32, gt=0, description="Levels K for choosing an action.")
        cosines: int = Field(64, gt=1, description="Cosines that embed a level.")
        kappa: float = Field(1.0, gt=0, description="Width of the Huber loss's quadratic zone.")
        cvar: float = Field(
            1.0, gt=0, le=1, description="Choose by the mean of this worst share of returns."
        )

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        assert isinstance(spaces.action, Discrete)
        self.actions = int(spaces.action.n)
        self.q = QuantileNetwork(
            spaces.observation, self.actions, **hp.encoder(), head_hidden=hp.head_hidden,
            cosines=hp.cosines, dueling=hp.dueling, noisy=hp.noisy,
        ).to(self.device)  # fmt: skip
        self.target = copy.deepcopy(self.q)
        rule = Adam(eps=hp.adam_eps, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step(
            [Objective("q", self.q, self._loss, rule)], polyak=hp.follow(self.target, self.q)
        )
        even = hp.cvar * distributional.quantile_midpoints(hp.acting_quantiles).numpy()
        values = ActionValues(self.q, levels=even).to(self.device)
        head = GreedyHead(spaces.action, hp.explorer(self.clock))
        self.policy = self.make_policy(values, head, levels=self._acting_levels)

    def update(self, data: Replay[Batch]) -> None:
        """Take one gradient step on a replay batch; move the target when it is due."""
        hp = self.hp
        sample, batch = draw_transitions(self, data)
        batch["tau"] = self._levels(hp.quantiles)
        batch["next_tau"] = self._levels(hp.target_quantiles)
        batch["choice_tau"] = hp.cvar * self._levels(hp.acting_quantiles)
        learn_values(self, data, sample, batch, hp.lr(self.clock.progress), noisy=hp.noisy)

    def _acting_levels(self, rng: np.random.Generator) -> np.ndarray:
        return self.hp.cvar * draw_levels(rng, 1, self.hp.acting_quantiles)[0]

    def _levels(self, count: int) -> Tensor:
        return torch.from_numpy(draw_levels(self.rng, self.hp.batch_size, count)).to(self.device)

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp = self.hp
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        tau = batch["tau"]
        # predicted: [B, N]
        predicted = distributional.action_atoms(self.q(obs, tau), batch["action"])
        with torch.no_grad():
            features = self.target.encoder(next_obs)
            chooser, seen = self.target, features
            if hp.double:
                chooser, seen = self.q, self.q.encoder(next_obs)
            choice = batch["choice_tau"]
            mass = torch.full_like(choice, 1 / hp.acting_quantiles)
            next_q = chooser.expectation(seen, choice, mass)
            next_z = self.target.quantiles(features, batch["next_tau"])  # [B, A, N']
            next_z = distributional.greedy_atoms(next_q, next_z, action_mask(next_obs))
            # y_j = r + gamma^k (1 - terminated) Z'_{tau'_j}(s', a*): [B, N']
            y = distributional.atom_targets(
                batch["reward"], batch["discount"], batch["terminated"], next_z
            )
        item = losses.quantile_huber(predicted, y, tau, hp.kappa)
        loss = (item * batch.get("weight", 1.0)).mean()
        metrics = {"q_mean": predicted.mean(), "q_std": predicted.std(dim=1, correction=0).mean()}
        if hp.prioritized:
            metrics["priority"] = item
        return loss, metrics
