"""Dataset aggregation (Ross, Gordon and Bagnell 2011, arXiv:1011.0686).

The learner acts, an expert says at every state what it would have done, and the learner is trained
on all answers so far. So it learns what to do where its own mistakes lead, which demonstrations of
the expert do not show. In the beginning the expert acts itself: a step is its own with probability
beta, which falls. No reward is read.

Deviations: a round is a number of steps, after which so many gradient steps go on from the policy
as it is, where the paper trains a new one to convergence. Who acts is drawn at every step, and beta
is a schedule over the run. The policy is that of BC.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context, ReplayNeeds
from assay.algorithms.settings import (
    LearningSettings,
    NetworkSettings,
    NormalizeObsSettings,
    Unused,
)
from assay.algorithms.shared.cloning import (
    Teacher,
    box_loss,
    choice_loss,
    clone_head,
    clone_network,
)
from assay.core.registry import register
from assay.core.schedules import ProbabilitySchedule, linear
from assay.core.types import Action, Spaces, Tree, unpack
from assay.functional.distributions import policy_distribution
from assay.networks.heads import ActionScale
from assay.optim.rules import Adam
from assay.optim.update import Objective


@register(
    loop="off_policy",
    actions=("Discrete", "Box"),
    family="imitation",
    paper="arXiv:1011.0686",
    expert="policy",
)
class DAgger(Algorithm):
    """Learn from an expert that answers on the learner's own states. Needs fewer labels than BC."""

    class Hyperparameters(NormalizeObsSettings, NetworkSettings, LearningSettings):
        """Settings of DAgger."""

        batch_size: int = Field(256, gt=0, description="Answers per gradient step.")
        train_every: int = Field(500, gt=0, description="Environment steps per round.")
        updates: int = Field(250, gt=0, description="Gradient steps per round.")
        beta: ProbabilitySchedule = Field(
            linear(1.0, 0.0, 0.5), description="Share of steps that the expert takes; it falls."
        )

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the discount: no reward is read."""
            yield "gamma", "because dagger reads no rewards"

    gives_extras = True

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        # All answers are kept.
        size = context.clock.total + context.num_envs
        self.needs = ReplayNeeds(
            capacity=size, learning_starts=0, train_every=hp.train_every, updates=hp.updates
        )
        self.teacher: Teacher | None = None  # the loop brings it
        if isinstance(spaces.action, Box):
            self.scale = ActionScale(spaces.action).to(self.device)
            loss = self._loss
        else:
            self.distribution = policy_distribution(spaces.action)
            loss = self._discrete_loss
        self.net = clone_network(spaces, hp).to(self.device)
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("dagger", self.net, loss, rule)])
        self.policy = self.make_policy(self.net, clone_head(spaces.action))

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Act as the policy does; while data is collected, ask the expert, which may act."""
        choice = self.policy.act(obs, carry, False)
        if not explore:
            return choice
        assert self.teacher is not None
        label = np.asarray(self.teacher.label(obs, self.rng), choice.action.dtype)
        # pi_i = beta_i pi* + (1 - beta_i) pi
        own = self.rng.random(len(label)) >= self.hp.beta(self.clock.progress)
        rows = own.reshape(-1, *[1] * (label.ndim - 1))
        return Action(np.where(rows, choice.action, label), None, {"label": label})

    def update(self, data: Any) -> None:
        """Take one gradient step on answers of the whole run."""
        drawn = data.sample(self.hp.batch_size)
        batch = self.replay_tensors(drawn) | {"label": drawn.extras["label"]}
        self.step(batch, self.hp.lr(self.clock.progress))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return box_loss(self.net, self.scale, unpack("obs", batch), batch["label"]), {}

    def _discrete_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return choice_loss(self.net, self.distribution, unpack("obs", batch), batch["label"]), {}
