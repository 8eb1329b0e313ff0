"""A learned reward, frozen: what GAIL or AIRL found, for another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch

from assay.agents import Agent, load
from assay.core.errors import ConfigError, SpaceError
from assay.envs.spaces import ActionMap, ObservationMap


class LearnedReward:
    """The reward that a run learned, as a function and as a wrapper of environments.

    Of AIRL it is g, without the potential; of GAIL the reward of its discriminator.

    Args:
        agent: What was loaded of the run.
        name: Of the run, for messages.
    """

    def __init__(self, agent: Agent, name: str) -> None:
        self.agent, self.name = agent, name

    def __call__(self, obs: Any, action: Any) -> float:
        """Return the reward for an action in a state, both in the environment's own units."""
        agent, algorithm = self.agent, cast(Any, self.agent.algorithm)
        seen = algorithm.disc_inputs.arrays(agent.observations.one(obs))
        done = agent.actions.from_env(np.asarray(action)[None])
        return float(algorithm.learned_reward(seen, torch.from_numpy(done))[0])

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """Return the environment with this reward; its own is in `info["env_reward"]`.

        Raises:
            SpaceError: The environment has other spaces than that of the run.
        """
        agent = self.agent
        pairs = (
            (ObservationMap(env.observation_space).space, agent.observations.space),
            (ActionMap(env.action_space).space, agent.actions.space),
        )
        for found, expected in pairs:
            if found != expected:
                raise SpaceError(
                    f"The environment has the space {found}; the reward of '{self.name}' was "
                    f"learned with {expected}.",
                    "Wrap an environment with the same observations and actions.",
                )
        return RewardedBy(env, self)


class RewardedBy(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose reward is a learned one."""

    def __init__(self, env: gym.Env[Any, Any], reward: LearnedReward) -> None:
        super().__init__(env)
        self._reward, self._obs = reward, None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._obs, info = self.env.reset(**options)
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step, and say what it is worth by the learned reward."""
        worth = self._reward(self._obs, action)
        self._obs, reward, terminated, truncated, info = self.env.step(action)
        return self._obs, worth, terminated, truncated, {**info, "env_reward": float(reward)}


def learned_reward(run: Path | str | Any) -> LearnedReward:
    """Return the reward that a run of GAIL or AIRL learned, frozen as its last checkpoint has it.

    Args:
        run: The run, or its directory.

    Raises:
        ConfigError: The algorithm of the run learns no reward.

    Example:
        reward = assay.learned_reward("runs/my-airl")
        assay.train("ppo", lambda: reward.wrap(gym.make("Pendulum-v1", g=5.0)))
    """
    path = Path(getattr(run, "path", run))
    agent = load(path)
    if not hasattr(agent.algorithm, "learned_reward"):
        raise ConfigError(
            f"The run '{path}' is of {agent.algorithm.spec.name}, which learns no reward.",
            "Give a run of gail or airl.",
        )
    return LearnedReward(agent, str(path))
