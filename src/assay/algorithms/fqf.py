"""Fully parameterized quantile function (Yang et al. 2019, arXiv:1911.02140).

Like IQN, but the quantile levels are learned: a proposal network cuts [0, 1] into N fractions
0 = tau_0 < ... < tau_N = 1 for each state, with midpoints tauhat_i. The return's distribution is
Z(tauhat_i) with mass tau_{i+1} - tau_i, so Q(s, a) = sum_i (tau_{i+1} - tau_i) Z_{tauhat_i}(s, a).

    y_j = r + gamma^k (1 - terminated) Z'_{tauhat'_j}(s', argmax_a Q'(s', a)), of mass m'_j
    L   = sum_i sum_j m'_j |tauhat_i - 1{u_ij < 0}| huber(u_ij),  u_ij = y_j - Z_{tauhat_i}(s, a)

The proposal network alone descends the 1-Wasserstein distance between Z and its steps, by
dW1/dtau_i = 2 Z(tau_i) - Z(tauhat_i) - Z(tauhat_{i-1}), less `entropy` times the entropy of the
masses. It has an optimizer of its own and reads features without gradient.

Deviations: target values count by their mass m'_j and not 1/N each. With unequal fractions, equal
weights would stand for another distribution, whose mean is not the Q that actions are chosen by;
bootstrapped over and over, that error makes values diverge (seen on CartPole, at a return of 9).
Where Z decreases, the gradient of W1 keeps its sign (see `fraction_gradient`). The target's
fractions come from the proposal network on the target's features. RMSprop is that of A2C (decay
0.99). Priorities are the loss of a transition, summed over its predicted quantiles and averaged
over its targets, as in QR-DQN (the paper replays uniformly). The linear layer of an image network
comes before the product with phi(tau). That embedding starts at about 1 (see `CosineEmbedding`).
"""

from __future__ import annotations

import copy

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
    FractionProposal,
    QuantileNetwork,
    fraction_gradient,
)
from assay.optim.rules import Adam, RMSprop
from assay.optim.update import Objective
from assay.policies.heads import GreedyHead


@register(loop="off_policy", actions=("Discrete",), family="value", paper="arXiv:1911.02140")
class FQF(Algorithm):
    """IQN with learned quantile levels. For long-tailed returns; more expensive than IQN."""

    class Hyperparameters(HeadSettings, ValueSettings):
        """Settings of FQF."""

        lr: Schedule = Field(constant(5e-5), description="Learning rate of the quantiles.")
        learning_starts: int = Field(1000, ge=0, description="Random steps before learning.")
        adam_eps: float = Field(3e-4, gt=0, description="Adam's epsilon.")
        fraction_lr: Schedule = Field(
            constant(2.5e-9), description="Learning rate of the fractions (RMSprop)."
        )
        entropy: float = Field(1e-3, ge=0, description="Keeps the fractions apart.")
        fractions: int = Field(32, gt=1, description="Number N of fractions.")
        cosines: int = Field(64, gt=1, description="Cosines that embed a level.")
        kappa: float = Field(1.0, gt=0, description="Width of the Huber loss's quadratic zone.")

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
        width = self.q.encoder.out_features
        self.proposal = FractionProposal(width, hp.fractions).to(self.device)
        rule = Adam(eps=hp.adam_eps, max_grad_norm=hp.max_grad_norm)
        quantiles = Objective("q", self.q, self._quantile_loss, rule)
        # The quantile loss comes first: it leaves what the fraction loss needs in the batch.
        fractions = Objective("fraction", self.proposal, self._fraction_loss, RMSprop(eps=1e-5))
        self.step = self.make_step([quantiles, fractions], polyak=hp.follow(self.target, self.q))
        self.policy = self.make_policy(
            ActionValues(self.q, self.proposal), GreedyHead(spaces.action, hp.explorer(self.clock))
        )

    def update(self, data: Replay[Batch]) -> None:
        """Move quantiles and fractions by one step each; move the target when it is due."""
        rates = self.hp.rates(self.step, self.clock.progress)
        learn_values(self, data, *draw_transitions(self, data), rates, noisy=self.hp.noisy)

    def _quantile_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp = self.hp
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        action = batch["action"]
        features = self.q.encoder(obs)
        with torch.no_grad():
            tau, middle, _, _ = self.proposal(features)
            inner = self.q.quantiles(features, tau[:, 1:-1])
            at_fractions = distributional.action_atoms(inner, action)  # [B, N - 1]
        z = self.q.quantiles(features, middle)  # [B, A, N]
        at_midpoints = distributional.action_atoms(z, action)  # [B, N]
        with torch.no_grad():
            next_features = self.target.encoder(next_obs)
            _, next_middle, next_mass, _ = self.proposal(next_features)
            next_z = self.target.quantiles(next_features, next_middle)  # [B, A, N]
            if hp.double:
                seen = self.q.encoder(next_obs)
                _, seen_middle, seen_mass, _ = self.proposal(seen)
                next_q = self.q.expectation(seen, seen_middle, seen_mass)
            else:
                # Q(s', a) = sum_j (tau_{j+1} - tau_j) Z_{tauhat_j}(s', a)
                next_q = (next_mass.unsqueeze(1) * next_z).sum(dim=2)
            next_z = distributional.greedy_atoms(next_q, next_z, action_mask(next_obs))
            # y_j = r + gamma^k (1 - terminated) Z'_{tauhat'_j}(s', a*): [B, N]
            y = distributional.atom_targets(
                batch["reward"], batch["discount"], batch["terminated"], next_z
            )
        item = losses.quantile_huber(at_midpoints, y, middle, hp.kappa, next_mass)
        loss = (item * batch.get("weight", 1.0)).mean()
        batch["features"] = features.detach()
        batch["at_fractions"], batch["at_midpoints"] = at_fractions, at_midpoints.detach()
        spread = at_midpoints.std(dim=1, correction=0).mean()
        metrics = {"q_mean": at_midpoints.mean(), "q_std": spread}
        if hp.prioritized:
            metrics["priority"] = item
        return loss, metrics

    def _fraction_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        fractions = self.proposal(batch["features"])
        # dL/dtau_i = dW1/dtau_i, by way of a product whose other factor is constant
        gradient = fraction_gradient(batch["at_fractions"], batch["at_midpoints"])
        item = (gradient * fractions.tau[:, 1:-1]).sum(dim=1) - self.hp.entropy * fractions.entropy
        loss = (item * batch.get("weight", 1.0)).mean()
        return loss, {"fraction_entropy": fractions.entropy.mean()}
