"""What every learned reward is: a function of a state and an action, and a wrapper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from assay.core.errors import SpaceError
from assay.core.types import Spaces, Tree
from assay.envs.spaces import ActionMap, ObservationMap
from assay.networks.tensors import to_device

_CPU = torch.device("cpu")


class LearnedReward(ABC):
    """A reward that was learned, frozen.

    Args:
        observations: Makes observations canonical.
        actions: Makes actions canonical.
        name: For messages.

    Attributes:
        identity: The same for the same reward.
        running: 0, or the steps that it was standardised by, where whoever learns from it is to go
            on with running statistics.
    """

    identity: str = ""
    running: int = 0

    def __init__(self, observations: ObservationMap, actions: ActionMap, name: str) -> None:
        self.observations, self.actions, self.name = observations, actions, name

    @property
    def spaces(self) -> Spaces:
        """Return the canonical spaces that it was learned with."""
        return Spaces(self.observations.space, self.actions.space)

    @abstractmethod
    def rewards(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the reward [B] of canonical observations and actions, on their device."""

    def __call__(self, obs: Any, action: Any) -> float:
        """Return the reward for an action in a state, both in the environment's own units."""
        return self.one(self.observations, self.actions, obs, action)

    def one(self, observations: ObservationMap, actions: ActionMap, obs: Any, action: Any) -> float:
        """Return the same, of an environment with these maps."""
        done = to_device(actions.from_env(np.asarray(action)[None]), _CPU)
        return float(self.rewards(to_device(observations.one(obs), _CPU), done)[0])

    def require(self, spaces: Spaces) -> None:
        """Refuse an environment with other spaces than those that it was learned with.

        Raises:
            SpaceError: They are others.
        """
        own = self.spaces
        for found, expected in (
            (spaces.observation, own.observation),
            (spaces.action, own.action),
        ):
            if found != expected:
                raise SpaceError(
                    f"The environment has the space {found}; the reward of '{self.name}' was "
                    f"learned with {expected}.",
                    "Use it in an environment with the same observations and actions.",
                )

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """Return the environment with this reward; its own is in `info["env_reward"]`.

        Raises:
            SpaceError: The environment has other spaces than those that it was learned with.
        """
        wrapped = RewardedBy(env, self)
        self.require(Spaces(wrapped.observations.space, wrapped.actions.space))
        return wrapped


class RewardedBy(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose reward is a learned one."""

    def __init__(self, env: gym.Env[Any, Any], reward: LearnedReward) -> None:
        super().__init__(env)
        self.observations = ObservationMap(env.observation_space)
        self.actions = ActionMap(env.action_space)
        self._reward, self._obs = reward, None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._obs, info = self.env.reset(**options)
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step, and say what it is worth by the learned reward."""
        worth = self._reward.one(self.observations, self.actions, self._obs, action)
        self._obs, reward, terminated, truncated, info = self.env.step(action)
        return self._obs, worth, terminated, truncated, {**info, "env_reward": float(reward)}
