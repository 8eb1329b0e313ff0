"""Model-based policy optimisation (Janner et al. 2019, arXiv:1906.08253), for Box actions.

An ensemble of probabilistic models is fitted to all real transitions every `model_every` steps.
Short rollouts of the policy in the model, branched from real states, fill a second replay. Soft
actor-critic learns from both, many times per environment step.

Deviations: the likelihood is weighted (arXiv:2203.09168; `model_beta=0` is the paper's), and
targets are standardised like inputs, which fits deterministic systems many times better in as many
steps. Unit actions go into the model. The elites share a batch of rollouts evenly, in random order
(the authors draw one of them for each row). Where the environment's rule of how episodes end is not
known, the ensemble learns it: a rollout ends where its model finds that more likely than not.
`rollout_length` is linear from the start of the run and rounded down (the authors' schedule begins
after 20 epochs). The temperature starts at `alpha_init`, as in SAC.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import (
    ActorCriticSettings,
    EntropySettings,
    NormalizeSettings,
    PolyakSettings,
)
from assay.algorithms.shared import soft
from assay.algorithms.shared.imagination import (
    ModelSettings,
    choose_rule,
    imagine,
    make_dynamics,
    make_imagined,
    mixed_batch,
    model_loss,
)
from assay.algorithms.shared.model_fit import EnsembleFit, model_data
from assay.buffers.replay import ReplayBuffer
from assay.core.registry import register
from assay.core.types import Spaces, Termination
from assay.optim.update import Objective
from assay.policies.heads import SquashedHead


@register(
    loop="off_policy",
    actions=("Box",),
    family="model-based",
    paper="arXiv:1906.08253",
    traits=("frugal", "vectors"),
)
class MBPO(Algorithm):
    """SAC on imagined transitions. Needs few real steps, and much computing for each."""

    class Hyperparameters(
        ModelSettings, EntropySettings, NormalizeSettings, PolyakSettings, ActorCriticSettings
    ):
        """Settings of MBPO."""

        n_step: Literal[1] = Field(1, description="Steps before bootstrapping; always 1.")
        updates: int = Field(20, gt=0, description="Gradient steps per round.")
        model_epochs: int = Field(100, gt=0, description="Most epochs of a fit.")
        model_every: int = Field(
            250, gt=0, description="Environment steps between fits of the model."
        )
        model_retain: int = Field(
            4, gt=0, description="Batches of rollouts that are kept, one for each fit."
        )

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        self.rule: Termination | None = None
        dynamics = make_dynamics(spaces, hp, self.spec.name).to(self.device)
        networks = soft.soft_networks(spaces, hp, self.device)
        self.actor, self.critic, self.target, self.temperature = networks
        self.target_entropy = soft.target_entropy(hp, self.actor)
        self.step = soft.soft_step(self, hp, soft.soft_losses(self))
        self.dynamics = dynamics  # from here on, so that the step above does not carry it
        self.model_step = self.make_step([Objective("model", dynamics, model_loss(dynamics))])
        self.best = copy.deepcopy(dynamics)
        self.fit = EnsembleFit(dynamics, self.best, self.model_step, hp)
        self.imagined = make_imagined(self, hp.model_retain)
        self.policy = self.make_policy(self.actor.net, SquashedHead(spaces.action))

    def know_termination(self, find: Callable[[], Termination | None]) -> None:
        """Take the environment's rule of how episodes end, or learn it."""
        self.rule = choose_rule(self.hp, find)

    def update(self, data: ReplayBuffer) -> None:
        """Refresh the model and its rollouts if they are due; move the policy once."""
        at = self.fit.fitted_at
        if at is None or self.clock.env_steps - at >= self.hp.model_every:
            self._refresh(data)
        soft.soft_update(self, self.replay_tensors(mixed_batch(self, data)))

    def _refresh(self, data: ReplayBuffer) -> None:
        """Fit the model to all real transitions, and roll the policy out in it."""
        hp, progress, fit = self.hp, self.clock.progress, self.fit
        rows = model_data(self.actor.scale, data.all(), self.device)
        seed = int(self.rng.integers(1 << 62))
        fit.begin(rows, seed=seed, at=self.clock.env_steps, learn_ends=self.rule is None)
        while fit.is_running:
            fit.advance(hp.rates(self.model_step, progress))
        length = hp.length(progress)
        self.imagined.keep = hp.rollouts * length * hp.model_retain
        imagine(self, data.sample(hp.rollouts).obs, length)
        self.note(model_error=fit.error, model_epochs=fit.epochs, rollout_length=length)
