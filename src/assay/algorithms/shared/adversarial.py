"""What the imitators share that learn a reward against a discriminator.

A rollout is relabelled when it is learned from: nobody sees the environment's rewards.

What tells the two apart has statistics of its own to normalise observations with, of which one half
is the expert's. Those of the policy would not do: where it has not been yet, an expert's
observation may be many of its deviations away, and every rollout would move the expert's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm
from assay.algorithms.settings import Unused
from assay.algorithms.shared.novelty import successors
from assay.algorithms.shared.proximal import flat_batch, rollout_advantages, run_epochs
from assay.algorithms.shared.proximal_settings import ProximalSettings
from assay.buffers.rollout import Rollout
from assay.core.schedules import Schedule, constant
from assay.core.types import Spaces, State, Tree, tree_leaves, tree_map
from assay.networks.normalize import RunningNormalizer, normalizable
from assay.networks.tensors import to_device
from assay.optim.update import Step


class AdversarialSettings(ProximalSettings):
    """A policy that learns as PPO's, and what tells it from the expert."""

    disc_lr: Schedule = Field(constant(3e-4), description="Learning rate of the discriminator.")
    disc_updates: int = Field(
        16, gt=0, description="Gradient steps of the discriminator per rollout."
    )
    disc_batch_size: int = Field(
        256, gt=0, description="Steps of the expert, and as many of the policy, per such step."
    )
    disc_hidden: tuple[int, ...] = Field(
        (100, 100), description="Widths of the discriminator's hidden layers."
    )
    disc_entropy: float = Field(1e-3, ge=0, description="Bonus for the discriminator's entropy.")
    gradient_penalty: float = Field(
        1.0, ge=0, description="Weight of a penalty that keeps the discriminator smooth."
    )
    disc_normalize: bool = Field(
        True, description="Standardise its float observations by what both have seen."
    )

    def unused(self, spaces: Spaces) -> Unused:
        """Yield the setting where no part of the observation can be normalised."""
        if not normalizable(spaces.observation):
            yield "disc_normalize", f"because {spaces.observation} has no float array"


class DiscriminatorInputs:
    """Observations as a discriminator takes them, with the statistics that normalise them.

    Args:
        algorithm: Whose observations they are.

    Attributes:
        norm: The statistics; None where the discriminator sees what the policy sees.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        own = algorithm.hp.disc_normalize
        self.norm = RunningNormalizer(algorithm.spaces.observation) if own else None
        self._algorithm = algorithm

    def see(self, data: Rollout) -> None:
        """Take in a rollout, and as many steps of its expert."""
        rows = int(data.valid.sum())
        if self.norm is not None and rows:
            assert data.expert is not None
            self.norm.update(data.obs, data.valid)
            self.norm.update(tree_map(lambda x: x.cpu().numpy(), data.expert.sample(rows).obs))

    def arrays(self, obs: Tree) -> Tree:
        """Return NumPy observations as the discriminator takes them."""
        if self.norm is None:
            return self._algorithm.inputs(obs)
        return to_device(self.norm.normalize(obs), self._algorithm.device)

    def tensors(self, obs: Tree) -> Tree:
        """Return observations of a replay batch, which are tensors, in the same way."""
        norm = self._algorithm.obs_norm if self.norm is None else self.norm
        return obs if norm is None else norm.normalize_torch(obs)

    def state(self) -> State:
        """Return what a checkpoint needs."""
        return {} if self.norm is None else self.norm.state()

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        if self.norm is not None:
            self.norm.load_state(state)


def flat_rows(tree: Tree) -> Tree:
    """Return arrays [T, N, ...] of a rollout as [T * N, ...]."""
    return tree_map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def true_successors(data: Rollout) -> Tree:
    """Return what followed each row, [T * N, ...]; after a truncation, the final observation.

    After a termination it is where the next episode began: nothing may depend on it.
    """
    after = successors(data.obs, data.last_obs)
    if (finals := data.finals) is not None:
        for rows, last in zip(tree_leaves(after), tree_leaves(finals.obs), strict=True):
            rows[finals.step, finals.env] = last
    return flat_rows(after)


def train_discriminator(
    algorithm: Algorithm,
    step: Step,
    data: Rollout,
    draw: Callable[[Tensor, Any], dict[str, Tensor]],
) -> None:
    """Take the gradient steps of the discriminator on one rollout.

    Args:
        algorithm: Whose settings and randomness count.
        step: Of the discriminator.
        data: The rollout, with its expert.
        draw: Makes a batch of chosen rows [B] of the rollout and a batch of the expert.
    """
    hp = algorithm.hp
    assert data.expert is not None
    lr = hp.disc_lr(algorithm.clock.progress)
    rows = np.flatnonzero(data.valid)
    # A short rollout may hold nothing but the resets of environments.
    for _ in range(hp.disc_updates if len(rows) else 0):
        chosen = algorithm.rng.choice(rows, hp.disc_batch_size)
        index = torch.from_numpy(chosen).to(algorithm.device)
        batch = draw(index, data.expert.sample(hp.disc_batch_size))
        if hp.gradient_penalty:
            mix = torch.from_numpy(algorithm.rng.random(len(chosen), dtype=np.float32))
            batch["mix"] = mix.to(algorithm.device)
        step(batch, lr)


def learn_from_rewards(
    algorithm: Algorithm,
    step: Step,
    data: Rollout,
    reward: np.ndarray,
    obs: Tree,
    values: tuple[np.ndarray, np.ndarray],
) -> None:
    """Let the policy learn from a rollout as PPO does, with learned rewards [T, N].

    They are what the reward scaler sees, and what it scales.
    """
    done = data.terminated | data.truncated
    if algorithm.reward_scale is not None:
        algorithm.reward_scale.update(reward, done, data.valid)
    if data.valid.any():
        algorithm.note(learned_reward=float(reward[data.valid].mean()))
    value, next_value = values
    advantage, target = rollout_advantages(algorithm, data, reward, value, next_value)
    batch = flat_batch(data, obs, value, advantage, target, algorithm.device)
    run_epochs(algorithm, step, batch, data.length * data.num_envs)
