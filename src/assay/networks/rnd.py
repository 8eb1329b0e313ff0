"""Random network distillation: a reward for what is new (Burda et al. 2018, arXiv:1810.12894).

A predictor learns the output of a fixed random network. Where it has seldom been, it errs: the
error is the intrinsic reward. Observations are standardised and clipped at 5 for both networks, and
the reward is divided by the running standard deviation of its own discounted sum.

Deviations: the statistics begin with the first collected data (the paper steps a random agent
before); a stack of frames is looked at as a whole, not its last frame alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from assay.core.types import State, Tree, tree_map, unpack
from assay.functional.losses import weighted_mean
from assay.functional.returns import linear_recurrence_numpy
from assay.networks.acting import Forward
from assay.networks.conv import is_image
from assay.networks.encoders import make_encoder
from assay.networks.mlp import mlp
from assay.networks.normalize import RewardScaler, RunningNormalizer

CLIP = 5.0  # of standardised observations
FEW = 32  # prediction errors, before which their spread says nothing


class Distillation(nn.Module):
    """A fixed random network and a predictor of its output, deeper by one layer.

    Args:
        space: Observation space.
        hidden: Widths of the hidden layers of both.
        cnn: Image encoder of both.
        features: Width of the output.
    """

    def __init__(
        self, space: gym.Space[Any], *, hidden: Sequence[int], cnn: str, features: int = 64
    ) -> None:
        super().__init__()

        def network(*sizes: int) -> nn.Sequential:
            encoder = make_encoder(_standardised(space), hidden=hidden, activation="relu", cnn=cnn)
            head = mlp((encoder.out_features, *sizes), "relu", output_gain=math.sqrt(2))
            return nn.Sequential(encoder, head)

        self.target = network(features).requires_grad_(False)
        self.predictor = network(features, features)

    def error(self, novel: Tree) -> Tensor:
        """Return the mean squared error [B] of the prediction for standardised observations."""
        return (self.predictor(novel) - self.target(novel)).square().mean(-1)

    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what the predictor minimises; `novel_weight` [B] may leave rows out."""
        return weighted_mean(self.error(unpack("novel", batch)), batch.get("novel_weight")), {}


class Curiosity:
    """Turn observations into intrinsic rewards; holds the statistics that this needs.

    Build it after the parameters have been flattened (by `Step`).

    Args:
        net: The two networks.
        space: Observation space.
        num_envs: Environments N whose streams of rewards are followed.
        gamma: Discount of the intrinsic return.
        device: Where the networks live.
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


def _standardised(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of what the normaliser makes of observations: images become floats."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({k: _standardised(part) for k, part in space.spaces.items()})
    if is_image(space):
        return gym.spaces.Box(-CLIP, CLIP, space.shape, np.float32)
    return space


def _merge(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, *x.shape[2:])
