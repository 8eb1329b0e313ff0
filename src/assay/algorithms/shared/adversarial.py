"""What the imitators share that learn a reward against a discriminator.

A rollout is relabelled when it is learned from: nobody sees the environment's rewards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm
from assay.algorithms.settings import ProximalSettings
from assay.algorithms.shared.novelty import successors
from assay.algorithms.shared.proximal import flat_batch, rollout_advantages, run_epochs
from assay.buffers.rollout import Rollout
from assay.core.schedules import Schedule, constant
from assay.core.types import Tree, tree_leaves, tree_map
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
    algorithm: Algorithm, step: Step, data: Rollout, draw: Callable[[Tensor, Any], Any]
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
        step(draw(index, data.expert.sample(hp.disc_batch_size)), lr)


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
