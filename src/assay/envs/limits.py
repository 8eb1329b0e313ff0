"""Time limits of episodes: the one that was asked for, and the bound where there is none.

Both are truncations: the last observation is a state like any other, which values are bootstrapped
from. The count of steps is saved with the environment's state, so resuming stays exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from assay.core.errors import EnvError

EPISODE_BOUND = 10_000  # steps of an episode of an environment that has no time limit

Factory = Callable[[], gym.Env[Any, Any]]


class EpisodeBound(TimeLimit[Any, Any]):
    """A time limit that nobody asked for, on an environment whose episodes may never end.

    Attributes:
        cut_off: Whether the bound, and nothing else, ended the last episode.
    """

    cut_off = False
    _elapsed_steps: Any

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and truncate the episode at the bound."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._elapsed_steps += 1
        over = terminated or truncated
        self.cut_off = not over and self._elapsed_steps >= self._max_episode_steps
        return obs, reward, terminated, truncated or self.cut_off, info


def own_limit(env: gym.Env[Any, Any]) -> int | None:
    """Return the shortest time limit among an environment's wrappers, or None.

    A bound that nobody asked for is none.
    """
    limits = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit) and not isinstance(env, EpisodeBound):
            limits.append(int(env._max_episode_steps))
        env = env.env
    return min(limits, default=None)


def make_limited(factory: Factory, name: str, steps: int) -> gym.Env[Any, Any]:
    """Make an environment whose episodes are truncated after so many steps.

    Raises:
        EnvError: It has a shorter limit of its own.
    """
    env = factory()
    if not isinstance(env, gym.Env):
        return env  # the caller refuses it
    own = own_limit(env)
    if own is not None and own < steps:
        raise EnvError(
            f"max_episode_steps={steps}, but '{name}' comes with a time limit of {own} steps.",
            f"Make it with a limit of {steps}, or without one.",
        )
    return env if own == steps else TimeLimit(env, steps)


def warn_unending(name: str, bound: int) -> None:
    """Warn that episodes are cut off; Python shows the same warning once."""
    warnings.warn(
        f"An episode of '{name}' did not end within {bound:,} steps. The environment has no time "
        "limit of its own, so the episode counts as truncated there, and so will others. Set "
        "max_episode_steps to choose the limit.",
        stacklevel=1,
    )
