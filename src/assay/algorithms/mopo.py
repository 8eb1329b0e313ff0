"""Model-based offline policy optimisation (Yu et al. 2020, arXiv:2005.13239), for Box actions.

An ensemble of probabilistic models is fitted to the recorded transitions first. Then soft
actor-critic learns from short rollouts in it, branched from recorded states, whose rewards are less
by `penalty` times the largest standard deviation of the ensemble, and from recorded transitions.

Deviations: those of MBPO's model and rollouts (see `mbpo`). A step of the fit is an update of the
run like one of the policy, so that a run which is ended while it fits goes on where it was.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import numpy as np
from pydantic import Field

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import EntropySettings, OfflineActorCriticSettings
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
from assay.buffers.dataset import DatasetBuffer
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Spaces, Termination
from assay.optim.update import Objective
from assay.policies.heads import SquashedHead


@register(
    loop="offline",
    actions=("Box",),
    family="model-based",
    paper="arXiv:2005.13239",
    traits=("vectors",),
)
class MOPO(Algorithm):
    """SAC in a model of the data that is punished where the model is unsure. Can leave the data."""

    class Hyperparameters(ModelSettings, EntropySettings, OfflineActorCriticSettings):
        """Settings of MOPO."""

        penalty: float = Field(
            1.0, ge=0, description="Reward less per unit of the model's largest std (lambda)."
        )
        rollouts: int = Field(10_000, gt=0, description="Rollouts in the model at a time.")
        rollout_length: Schedule = Field(
            constant(5.0), description="Steps of a rollout, rounded down; a schedule."
        )
        rollout_every: int = Field(
            1000, gt=0, description="Updates of the policy between batches of rollouts."
        )
        model_retain: int = Field(5, gt=0, description="Batches of rollouts that are kept.")

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

    def update(self, data: DatasetBuffer) -> None:
        """Take one step of the fit; once it is finished, move the policy once."""
        if self.fit.fitted_at is None or self.fit.is_running:
            self._fit(data)
            if self.updates >= self.clock.total:
                warnings.warn(
                    f"The fit of the model took all {self.clock.total:,} updates of the run: the "
                    "policy has learned nothing. Raise updates, or lower model_epochs.",
                    stacklevel=2,
                )
            return
        if self.step.updates % self.hp.rollout_every == 0:
            self._imagine(data)
        soft.soft_update(self, self.replay_tensors(mixed_batch(self, data)))

    def _fit(self, data: DatasetBuffer) -> None:
        fit = self.fit
        if not fit.has_data:
            rows = model_data(self.actor.scale, data.batch(np.arange(len(data))), self.device)
            if fit.is_running:  # the run was ended meanwhile
                fit.attach(rows)
            else:
                seed = int(self.rng.integers(1 << 62))
                fit.begin(rows, seed=seed, at=self.clock.count, learn_ends=self.rule is None)
        fit.advance(self.hp.rates(self.model_step, self.clock.progress))
        self.note(model_error=fit.error, model_epochs=fit.epochs)

    def _imagine(self, data: DatasetBuffer) -> None:
        """Roll the policy out in the model, from recorded states."""
        hp = self.hp
        length = hp.length(self.clock.progress)
        self.imagined.keep = hp.rollouts * length * hp.model_retain
        doubt = imagine(self, data.sample(hp.rollouts).obs, length, hp.penalty)
        self.note(model_std=doubt, rollout_length=length)
