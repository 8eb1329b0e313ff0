"""Tiny environments with known answers."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Counter(gym.Env):
    """Observes 100 * episode + t, is rewarded with t, and ends after `length` steps."""

    observation_space = spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 3, truncates: bool = False) -> None:
        self.length = length
        self.truncates = truncates
        self.episode = -1
        self.t = 0
        self.actions: list[Any] = []

    def observe(self) -> np.ndarray:
        return np.array([100 * self.episode + self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self.actions.append(action)
        self.t += 1
        over = self.t >= self.length
        terminated, truncated = over and not self.truncates, over and self.truncates
        return self.observe(), float(self.t), terminated, truncated, {}


class Spoiler(Counter):
    """A counter that does something bad at its third step."""

    def __init__(self, what: str, length: int = 100) -> None:
        super().__init__(length)
        self.what = what

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.t == 3:
            match self.what:
                case "raise":
                    raise KeyError("the pantry is empty")
                case "nan_obs":
                    obs[0] = np.nan
                case "inf_obs":
                    obs[0] = -np.inf
                case "nan_reward":
                    reward = float("nan")
                case "nan_final":
                    obs[0], terminated = np.nan, True
                case "text_reward":
                    reward = "1.0"
                case "no_reward":
                    reward = None
                case "shape":
                    obs = np.zeros(2, np.float32)
                case "dtype":
                    obs = np.array(["a"])
                case "four":
                    return obs, reward, terminated, info  # type: ignore[return-value]
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exit":
                    os._exit(7)
                case "hang":
                    time.sleep(600)
        return obs, reward, terminated, truncated, info


class Masked(Counter):
    """Offers action (t mod 3) alone, in the info as Gymnasium does or by sb3-contrib's method.

    One that "forgets" leaves out the mask at t = 1, and the method is refused in a terminal state.
    """

    action_space = spaces.Discrete(3)

    def __init__(self, how: str, length: int = 2, truncates: bool = True) -> None:
        super().__init__(length, truncates)
        self.how = how
        if how == "method":
            self.action_masks = self.mask

    def mask(self) -> np.ndarray:
        if self.how == "method" and self.t == self.length and not self.truncates:
            raise RuntimeError("the game is over")
        return np.arange(3) == self.t % 3

    def info(self) -> dict:
        forgets = self.how == "forgets" and self.t == 1
        return {"action_mask": self.mask()} if self.how != "method" and not forgets else {}

    def reset(self, **arguments: Any) -> tuple[Any, dict]:
        return super().reset(**arguments)[0], self.info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        return *super().step(action)[:4], self.info()


class Constant(gym.Env):
    """Always observes the same; actions are kept."""

    def __init__(self, space: gym.Space, obs: Any, action_space: gym.Space | None = None) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.obs = obs
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self.actions.append(np.copy(action))
        if isinstance(action, np.ndarray):
            action[...] = 0  # an environment may do what it likes with what it was given
        return self.obs, 0.0, False, False, {}


class SavesItself(Counter):
    """A random walk that can save itself."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        obs, reward, *rest = super().step(action)
        return obs, reward + float(self.np_random.normal()), *rest

    def get_state(self) -> dict[str, Any]:
        return {"episode": self.episode, "t": np.array(self.t)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.episode, self.t = state["episode"], int(state["t"])


class Keeper(gym.Wrapper):
    """A wrapper that is not on the list."""


class Echo(Constant):
    """Observes the last action."""

    def __init__(self, space: gym.Space) -> None:
        observation = spaces.Box(-10, 10, space.shape, np.float32)
        super().__init__(observation, np.zeros(space.shape, np.float32), space)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        return np.array(action, np.float32), 0.0, False, False, {}
