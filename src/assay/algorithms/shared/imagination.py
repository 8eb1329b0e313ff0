"""Learning in a model of the environment: its settings, and rollouts of a policy in it.

Rollouts begin in real states. In every step a random elite of the ensemble predicts each row, and
a rollout stops after a predicted end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np
import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from assay.algorithms.base import Algorithm
from assay.algorithms.shared.model_fit import model_inputs
from assay.buffers.imagined import ImaginedReplay
from assay.buffers.mixed import joined
from assay.core import seeding
from assay.core.config import Settings
from assay.core.errors import ConfigError, SpaceError
from assay.core.schedules import Schedule, constant
from assay.core.types import Batch, Spaces, Termination
from assay.networks.dynamics import DynamicsEnsemble, Prediction
from assay.networks.normalize import RunningNormalizer
from assay.optim.objective import Loss
from assay.optim.update import Step
from assay.optim.wide import wide_products

TerminationKind = Literal["auto", "known", "learned"]


class ModelSettings(Settings):
    """The ensemble, how it is fitted, and the rollouts in it."""

    # Older versions of pydantic reserve names that begin with model_.
    model_config = ConfigDict(protected_namespaces=())

    members: int = Field(7, gt=0, description="Models in the ensemble.")
    elites: int = Field(5, gt=0, description="Models that predict, the best on held-out data.")
    model_hidden: tuple[int, ...] = Field(
        (200, 200, 200, 200), description="Widths of a model's hidden layers."
    )
    model_lr: Schedule = Field(constant(1e-3), description="Learning rate of the models.")
    model_beta: float = Field(
        0.5, ge=0, le=1, description="Weight of unsure predictions in the fit; 0: the likelihood."
    )
    model_batch_size: int = Field(256, gt=0, description="Transitions per step of a model.")
    model_holdout: float = Field(0.2, gt=0, lt=1, description="Share of held-out transitions.")
    model_patience: int = Field(
        5, ge=0, description="Epochs without a better model after which a fit ends."
    )
    model_epochs: int = Field(200, gt=0, description="Most epochs of a fit.")
    termination: TerminationKind = Field(
        "auto", description="How episodes end: the environment's rule if known, or learned."
    )
    rollouts: int = Field(20_000, gt=0, description="Rollouts in the model at a time.")
    rollout_length: Schedule = Field(
        constant(1.0), description="Steps of a rollout, rounded down; a schedule."
    )
    real_ratio: float = Field(0.05, ge=0, le=1, description="Share of real transitions in a batch.")

    def length(self, progress: float) -> int:
        """Return the steps of a rollout when `progress` of the run is done, at least 1."""
        return max(1, int(self.rollout_length(progress) + 1e-9))

    @property
    def longest(self) -> int:
        """Return the most steps that a rollout can have."""
        return max(1, int(max(self.rollout_length.start, self.rollout_length.end) + 1e-9))


class Imaginer(Protocol):
    """What the functions below need of an algorithm."""

    hp: Any  # has `ModelSettings`
    actor: Any  # a SquashedActor
    dynamics: DynamicsEnsemble
    imagined: ImaginedReplay
    model_step: Step
    rule: Termination | None
    obs_norm: RunningNormalizer | None
    rng: np.random.Generator

    def noise(self, *shape: int) -> Tensor:
        """Draw standard normal noise."""


def make_dynamics(spaces: Spaces, hp: ModelSettings, name: str) -> DynamicsEnsemble:
    """Make the ensemble for an environment.

    Raises:
        SpaceError: Observations are not vectors of floats.
        ConfigError: There are more elites than members.
    """
    if hp.elites > hp.members:
        raise ConfigError(
            f"elites={hp.elites} is more than members={hp.members}.",
            "Elites are chosen among the members: lower elites or raise members.",
        )
    space = spaces.observation
    vector = isinstance(space, gym.spaces.Box) and len(space.shape) == 1
    if not vector or not np.issubdtype(space.dtype, np.floating):
        raise SpaceError(
            f"{name} models observations that are vectors of floats; this environment has {space}.",
            "Flatten the observation with a wrapper, or choose an algorithm without a model.",
        )
    action = int(np.prod(spaces.action.shape))
    return DynamicsEnsemble(
        space.shape[0],
        action,
        members=hp.members,
        elites=hp.elites,
        hidden=hp.model_hidden,
        beta=hp.model_beta,
    )


def model_loss(dynamics: DynamicsEnsemble) -> Loss:
    """Return the loss of the ensemble as a function of a batch of `ModelData`."""

    def model(batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return dynamics.loss(**batch)

    return model


def make_imagined(algorithm: Algorithm, batches: int) -> ImaginedReplay:
    """Make the replay for the newest `batches` of rollouts, however long they get."""
    hp = algorithm.hp
    return ImaginedReplay(
        algorithm.spaces,
        hp.rollouts * hp.longest * batches,
        gamma=hp.gamma,
        device=algorithm.device,
        rng=seeding.derive_rng(algorithm.context.seed, "imagined"),
    )


def mixed_batch(learner: Imaginer, data: Any) -> Batch:
    """Draw a batch of which the share `real_ratio` is real, and comes last."""
    size = learner.hp.batch_size
    real = int(size * learner.hp.real_ratio)
    if real == size:
        drawn: Batch = data.sample(size)
        return drawn
    imagined = learner.imagined.sample(size - real)
    return joined(imagined, data.sample(real), real) if real else imagined


def choose_rule(hp: ModelSettings, find: Callable[[], Termination | None]) -> Termination | None:
    """Return the rule of how episodes end that a model uses, or None to learn it.

    Raises:
        ConfigError: It is to be known, and is not.
    """
    if hp.termination == "learned":
        return None
    rule = find()
    if rule is None and hp.termination == "known":
        raise ConfigError(
            "termination=known, but how episodes of this environment end is not known.",
            "Use termination=learned or auto, or give the environment a method "
            "terminates(obs) that returns a bool for each row of obs.",
        )
    return rule


@torch.no_grad()
def imagine(learner: Imaginer, obs: Tensor, length: int, penalty: float = 0.0) -> float:
    """Roll the policy out in the model, and add what happens to `learner.imagined`.

    Args:
        learner: Whose policy and model.
        obs: [B, n] real states to begin in.
        length: Steps.
        penalty: Reward less for each unit of the largest standard deviation of all members.

    Returns:
        The mean penalty, before it is weighted.
    """
    with wide_products(learner.model_step.wide):
        return _imagine(learner, obs, length, penalty)


def _imagine(learner: Imaginer, obs: Tensor, length: int, penalty: float) -> float:
    doubts = []
    for _ in range(length):
        action = _act(learner, obs)
        inputs = model_inputs(learner.actor.scale, obs, action)
        found = _predict(learner, inputs)
        std = torch.exp(0.5 * found.log_var)
        drawn = found.mean + std * learner.noise(*found.mean.shape)
        reward, next_obs = drawn[:, 0], obs + drawn[:, 1:]
        if penalty:
            doubt = largest_std(learner.dynamics.all_members(inputs))
            reward = reward - penalty * doubt
            doubts.append(doubt.mean().item())
        ended = _ended(learner, next_obs, found.end)
        # What a model that diverges predicts is not experience.
        fine = torch.isfinite(next_obs).all(1) & torch.isfinite(reward)
        columns = {
            "obs": obs, "action": action, "reward": reward, "next_obs": next_obs,
            "terminated": ended.to(reward.dtype),
        }  # fmt: skip
        learner.imagined.add(**{name: rows[fine] for name, rows in columns.items()})
        obs = next_obs[fine & ~ended]
        if not len(obs):
            break
    return float(np.mean(doubts)) if doubts else 0.0


def largest_std(found: Prediction) -> Tensor:
    """Return [B] the largest norm of a member's standard deviations: u(s, a) of MOPO."""
    return torch.exp(0.5 * found.log_var).norm(dim=-1).amax(0)


def _act(learner: Imaginer, obs: Tensor) -> Tensor:
    """Return what the policy does, in the environment's units."""
    seen = obs if learner.obs_norm is None else learner.obs_norm.normalize_torch(obs)
    actor = learner.actor
    unit, _ = actor.sample(seen, learner.noise(len(obs), *actor.distribution.noise_shape))
    action: Tensor = actor.scale.center + actor.scale.half_width * unit
    return action


def _predict(learner: Imaginer, inputs: Tensor) -> Prediction:
    dynamics, rng = learner.dynamics, learner.rng
    order = torch.from_numpy(rng.permutation(len(inputs))).to(inputs.device)
    chosen = torch.from_numpy(rng.permutation(len(dynamics.elites))).to(inputs.device)
    return dynamics.dealt(inputs, order, dynamics.elites[chosen])


def _ended(learner: Imaginer, next_obs: Tensor, logit: Tensor) -> Tensor:
    if learner.rule is None:
        return logit > 0.0
    ended = np.asarray(learner.rule(next_obs.cpu().numpy()), np.bool_)
    return torch.from_numpy(ended).to(next_obs.device)
