"""Rainbow (Hessel et al. 2018, arXiv:1710.02298): six improvements of DQN in one.

Categorical returns (see C51) with double Q-learning, dueling streams, noisy layers in place of
epsilon, n-step returns and prioritised replay. The loss is

    w KL(projection of R^(n) + gamma^n z || p(s, a)), a* by the online network's means

with importance weights w; a transition's priority is its KL divergence. Each part is an option of
DQN or C51; this file has them all, always on, in the paper's network: noisy dueling streams with
hidden layers of their own behind a plain encoder.

Deviations: the KL divergence in place of the cross-entropy (the same gradient); target copies are
counted in updates; gradients are clipped (10, as Dueling DQN does); an image's features end in the
CNN's own dense layer before the streams; all environments share one draw of the noise per step;
invalid actions (masks) are excluded from the greedy choice.
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
from assay.algorithms.settings import (
    ON_VECTORS,
    NetworkSettings,
    NormalizeSettings,
    ReplaySettings,
    TargetSettings,
)
from assay.algorithms.shared.value_learning import draw_transitions, learn_values
from assay.buffers.replay_protocol import Replay
from assay.core.images import has_large_images
from assay.core.registry import register
from assay.core.schedules import ProbabilitySchedule, Schedule, constant, linear
from assay.core.types import Batch, Problem, Spaces, action_mask, unpack
from assay.functional import distributional
from assay.networks.encoders import make_encoder
from assay.networks.heads import AtomHead, SupportMean
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import GreedyHead


@register(loop="off_policy", actions=("Discrete",), family="value", paper="arXiv:1710.02298")
class Rainbow(Algorithm):
    """C51 with all extensions of DQN. For images and long runs."""

    class Hyperparameters(NormalizeSettings, TargetSettings, NetworkSettings, ReplaySettings):
        """Settings of Rainbow."""

        lr: Schedule = Field(constant(6.25e-5), description="Learning rate or schedule.")
        learning_starts: int = Field(1600, ge=0, description="Random steps before learning.")
        n_step: int = Field(3, gt=0, description="Steps before bootstrapping.")
        target_every: int = Field(2000, gt=0, description="Updates between target copies.")
        hidden: tuple[int, ...] = Field((128,), description="Widths of the encoder's layers.")
        streams: tuple[int, ...] = Field((128,), description="Widths of each stream's layers.")
        adam_eps: float = Field(1.5e-4, gt=0, description="Adam's epsilon.")
        atoms: int = Field(51, ge=2, description="Atoms of the distribution of returns.")
        v_min: float = Field(-10.0, description="Lowest return, after normalize_reward.")
        v_max: float = Field(10.0, description="Highest return, after normalize_reward.")
        priority_alpha: float = Field(0.5, ge=0, le=1, description="How much priorities count.")
        priority_beta: ProbabilitySchedule = Field(
            linear(0.4, 1.0), description="Importance correction, annealed to 1."
        )

        @classmethod
        def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
            """Return rewards that are scaled to the support, and more learning on vectors."""
            scaled = not {"v_min", "v_max"} & given.keys()
            fit = super().fitted(problem, given) | {"normalize_reward": scaled}
            return fit if has_large_images(problem.spaces.observation) else fit | ON_VECTORS

        def encoder_only(self) -> tuple[str, ...]:
            """Return the settings that the streams do not read."""
            return ("hidden",) if self.streams else ("hidden", "activation")

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(prioritized=hp.priority_alpha)
        assert isinstance(spaces.action, Discrete)
        self.actions = int(spaces.action.n)
        encoder = make_encoder(spaces.observation, **hp.encoder(), init="torch")
        head = AtomHead(
            encoder.out_features, self.actions, hp.atoms, dueling=True, hidden=hp.streams,
            activation=hp.activation, noisy=True,
        )  # fmt: skip
        self.q = nn.Sequential(encoder, head).to(self.device)  # logits: [B, A, K]
        self.mean = SupportMean(hp.v_min, hp.v_max, hp.atoms).to(self.device)
        self.target = copy.deepcopy(self.q)
        rule = Adam(eps=hp.adam_eps, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step(
            [Objective("q", self.q, self._loss, rule)], polyak=hp.follow(self.target, self.q)
        )
        network = nn.Sequential(self.q, self.mean)
        self.policy = self.make_policy(network, GreedyHead(spaces.action, None))

    def update(self, data: Replay[Batch]) -> None:
        """Take one gradient step on a replay batch; move the target when it is due."""
        lr = self.hp.lr(self.clock.progress)
        learn_values(self, data, *draw_transitions(self, data), lr, noisy=True)

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        support = self.mean.support  # z: [K]
        logits = distributional.action_atoms(self.q(obs), batch["action"])
        with torch.no_grad():
            next_logits = self.target(next_obs)  # [B, A, K]
            # a* = argmax_a of the online network's means
            next_logits = distributional.greedy_atoms(
                self.mean(self.q(next_obs)), next_logits, action_mask(next_obs)
            )
            # Tz = r + gamma^k (1 - terminated) z, with the mass p'(s', a*) on it
            places = distributional.atom_targets(
                batch["reward"], batch["discount"], batch["terminated"], support
            )
            mass = next_logits.softmax(dim=1)
            target = distributional.project_categorical(places, mass, support)
            outside = (places < support[0]) | (places > support[-1])
        kl = distributional.categorical_kl(target, logits)
        loss = (kl * batch["weight"]).mean()
        # Mass that falls off the ends says that v_min and v_max are too narrow.
        clipped = (mass * outside).sum(dim=1).mean()
        q_mean = self.mean(logits.unsqueeze(1)).mean()
        return loss, {"q_mean": q_mean, "mass_clipped": clipped, "priority": kl}
