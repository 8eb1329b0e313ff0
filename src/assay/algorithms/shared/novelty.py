"""Rewards for what is new, by random network distillation (arXiv:1810.12894).

Observations are standardised and clipped at 5 for both networks of `assay.networks.rnd`, and the
prediction error is divided by the running standard deviation of its own discounted sum.

Deviation: the statistics begin with the first collected data (the paper steps a random agent
before).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay.core.types import State, Tree, tree_map
from assay.functional.returns import linear_recurrence_numpy
from assay.networks.normalize import RewardScaler, RunningNormalizer
from assay.networks.rnd import CLIP, Distillation
from assay.policies.forward import Forward

if TYPE_CHECKING:
    import gymnasium as gym

FEW = 32  # prediction errors, before which their spread says nothing


class Curiosity:
    """Turn observations into intrinsic rewards; holds the statistics that this needs.

    Build it after the parameters have been flattened (by `Step`).
    """

    def __init__(
        self,
        net: Distillation,
        space: gym.Space[Any],
        num_envs: int,
        gamma: float,
        device: torch.device,
    ) -> None:
        self.normalizer = RunningNormalizer(space, CLIP, images=True)
        self.scaler = RewardScaler(num_envs, gamma, clip=math.inf)
        self._predictor, self._target = (Forward(m, device) for m in (net.predictor, net.target))

    def observe(self, obs: Tree, valid: np.ndarray | None = None) -> tuple[Tree, np.ndarray]:
        """Take in what was met, step by step: first the observations, then their novelty.

        The intrinsic return runs on over episode ends: a game over must not be what ends novelty.

        Args:
            obs: NumPy observations [T, N, ...].
            valid: [T, N]; rows that are False count for nothing.

        Returns:
            The standardised observations [T * N, ...], and the scaled rewards [T, N].
        """
        self.normalizer.update(obs, valid)
        novel = tree_map(_merge, self.normalizer.normalize(obs))
        # The forward passes reuse their memory; the difference is a new array.
        error = np.square(self._predictor.call(novel) - self._target.call(novel)).mean(-1)
        error = error.reshape(-1, self.scaler.num_envs)
        self.scaler.update(error, np.zeros_like(error), valid)
        return novel, self.scaler.scale(error)

    def tensors(self, obs: Tree) -> Tree:
        """Return replayed observations (tensors) standardised."""
        return self.normalizer.normalize_torch(obs)

    @property
    def scale(self) -> float:
        """Return what turns a prediction error into a reward; 0 before there is a spread to use."""
        if self.scaler.moments.count < FEW:
            return 0.0
        return float(self.scaler.scale(np.ones(())))

    def state(self) -> State:
        """Return what a checkpoint needs."""
        return {"observations": self.normalizer.state(), "rewards": self.scaler.state()}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        self.normalizer.load_state(state["observations"])
        self.scaler.load_state(state["rewards"])


def non_episodic_gae(
    reward: np.ndarray,
    value: np.ndarray,
    last_value: np.ndarray,
    gamma: float,
    lam: float,
    valid: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages and targets of a return that runs on over episode ends.

    Args:
        reward: [T, N].
        value: [T, N], of each row's observation.
        last_value: [N], of what followed the last row.
        gamma: Discount.
        lam: Weight of longer returns.
        valid: [T, N]; rows that are False get 0, and the row before is followed by the one after.

    Returns:
        The advantages and the targets `advantage + value`, both [T, N] float32.
    """
    following = np.concatenate([value[1:], last_value[None]])
    if not valid.all():
        for t in range(len(value) - 2, -1, -1):
            following[t] = np.where(valid[t + 1], value[t + 1], following[t + 1])
    # A_t = r_t + gamma V(s_{t+1}) - V(s_t) + gamma lambda A_{t+1}
    delta = np.where(valid, reward + gamma * following - value, 0.0).astype(np.float32)
    coefficient = np.where(valid, gamma * lam, 1.0).astype(np.float32)
    advantage = np.where(valid, linear_recurrence_numpy(delta, coefficient), np.float32(0))
    return advantage, np.where(valid, advantage + value, np.float32(0))


def successors(obs: Tree, last_obs: Tree) -> Tree:
    """Return what followed each row [T, N, ...] of a rollout; after an end, the next beginning."""
    return tree_map(lambda x, last: np.concatenate([x[1:], last[None]]), obs, last_obs)


def _merge(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, *x.shape[2:])
