"""Categorical DQN, C51 (Bellemare et al. 2017, arXiv:1707.06887), with DQN's options.

The return of an action is a distribution over K fixed atoms z_1..z_K between v_min and v_max.
The loss is KL(projection of r + gamma z' || p(s, a)); values are the means sum_k z_k p_k.

Options: double, dueling (a value and an advantage per atom, arXiv:1710.02298), noisy, n-step
returns, prioritised replay. Prioritised replay goes by the KL divergence, as in Rainbow.

Deviations: the KL divergence in place of the cross-entropy (the same gradient, but 0 where
prediction and target agree); target copies are counted in updates, not in environment steps;
gradients are clipped; invalid actions (masks) are excluded from the greedy choice.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

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
from assay.core.types import Batch, Problem, Spaces, action_mask, unpack
from assay.functional import distributional
from assay.networks.encoders import make_encoder
from assay.networks.heads import AtomHead, SupportMean
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import GreedyHead


@register(loop="off_policy", actions=("Discrete",), family="value", paper="arXiv:1707.06887")
class C51(Algorithm):
    """DQN that learns a categorical distribution of returns. For a known range of returns."""

    class Hyperparameters(ValueSettings):
        """Settings of C51."""

        lr: Schedule = Field(constant(2.5e-4), description="Learning rate or schedule.")
        adam_eps: float = Field(3.125e-4, gt=0, description="Adam's epsilon (paper: 0.01 / 32).")
        atoms: int = Field(51, ge=2, description="Atoms of the distribution of returns.")
        v_min: float = Field(-10.0, description="Lowest return, after normalize_reward.")
        v_max: float = Field(10.0, description="Highest return, after normalize_reward.")

        @classmethod
        def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
            """Return rewards that are scaled to the support of the distribution."""
            scaled = not {"v_min", "v_max"} & given.keys()
            return super().fitted(problem, given) | {"normalize_reward": scaled}

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        assert isinstance(spaces.action, Discrete)
        self.actions = int(spaces.action.n)
        encoder = make_encoder(spaces.observation, **hp.encoder(), init="torch", noisy=hp.noisy)
        head = AtomHead(
            encoder.out_features, self.actions, hp.atoms, dueling=hp.dueling, noisy=hp.noisy
        )
        self.q = nn.Sequential(encoder, head).to(self.device)  # logits: [B, A, K]
        self.mean = SupportMean(hp.v_min, hp.v_max, hp.atoms).to(self.device)
        self.target = copy.deepcopy(self.q)
        rule = Adam(eps=hp.adam_eps, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step(
            [Objective("q", self.q, self._loss, rule)], polyak=hp.follow(self.target, self.q)
        )
        self.policy = self.make_policy(
            nn.Sequential(self.q, self.mean), GreedyHead(spaces.action, hp.explorer(self.clock))
        )

    def update(self, data: Replay[Batch]) -> None:
        """Take one gradient step on a replay batch; move the target when it is due."""
        lr = self.hp.lr(self.clock.progress)
        learn_values(self, data, *draw_transitions(self, data), lr, noisy=self.hp.noisy)

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        support = self.mean.support  # z: [K]
        logits = distributional.action_atoms(self.q(obs), batch["action"])
        with torch.no_grad():
            next_logits = self.target(next_obs)  # [B, A, K]
            chooser = self.q(next_obs) if self.hp.double else next_logits
            next_logits = distributional.greedy_atoms(
                self.mean(chooser), next_logits, action_mask(next_obs)
            )
            # Tz = r + gamma^k (1 - terminated) z, with the mass p'(s', a*) on it
            places = distributional.atom_targets(
                batch["reward"], batch["discount"], batch["terminated"], support
            )
            mass = next_logits.softmax(dim=1)
            target = distributional.project_categorical(places, mass, support)
            outside = (places < support[0]) | (places > support[-1])
        kl = distributional.categorical_kl(target, logits)
        loss = (kl * batch.get("weight", 1.0)).mean()
        # Mass that falls off the ends says that v_min and v_max are too narrow.
        clipped = (mass * outside).sum(dim=1).mean()
        metrics = {"q_mean": self.mean(logits.unsqueeze(1)).mean(), "mass_clipped": clipped}
        if self.hp.prioritized:
            metrics["priority"] = kl
        return loss, metrics
