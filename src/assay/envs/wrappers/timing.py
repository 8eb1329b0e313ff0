"""Wrappers of what happens when: stacks, delays, repeated and sticky actions, time."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from assay.core.images import is_image
from assay.core.types import Tree
from assay.envs.sync import Step
from assay.envs.wrappers.layers import (
    HistoryLayer,
    Inside,
    Layer,
    OfEntry,
    RandomLayer,
    Wrapper,
    entry_of,
    misfit,
    refuse_large,
    with_entry,
)


class StackLayer(HistoryLayer):
    """Shows all rows that it keeps."""

    def __init__(self, inner: Any, key: str | None, frames: int) -> None:
        super().__init__(inner, key, frames, "frame_stack")
        self._flat = len(self.box.shape) == 1
        bounds = (self.box.low, self.box.high)
        low, high = (self.shown(np.repeat(b[None, None], frames, 1))[0] for b in bounds)
        stacked = spaces.Box(low, high, dtype=low.dtype.type)
        self.observations = with_entry(inner.observations, self._key, stacked)

    def shown(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return vectors one after the other, and others as they are."""
        return rows.reshape(len(rows), -1) if self._flat else rows


class FrameStack(OfEntry):
    """The last observations together: vectors one after the other, others on a new first axis."""

    frames: int = Field(gt=1, examples=[4], description="How many; the newest is last.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        return StackLayer(inner, self.key, self.frames)


class _DelayLayer(HistoryLayer):
    def shown(self, rows: NDArray[Any]) -> NDArray[Any]:
        return rows[:, 0]


class ObsDelay(OfEntry):
    """What was observed some steps ago; the first observation until then."""

    steps: int = Field(gt=0, examples=[2], description="How many steps.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        return _DelayLayer(inner, self.key, self.steps + 1, "obs_delay")


class _ActionDelayLayer(Layer):
    kept = ("queue",)

    def __init__(self, inner: Any, steps: int) -> None:
        super().__init__(inner)
        space = inner.actions.space
        refuse_large("action_delay", (steps, *space.shape), space.dtype)
        self._steps, self._queue = steps, np.zeros(0)

    def reset(self, seed: int) -> Tree:
        obs = self.inner.reset(seed)
        first = _neutral(self.inner.actions.space)
        self._queue = np.broadcast_to(
            first, (self.inner.num_envs, self._steps, *np.shape(first))
        ).copy()
        return obs

    def step(self, actions: NDArray[Any]) -> Step:
        actions = np.asarray(actions)
        queue = np.concatenate([self._queue, actions[:, None].astype(self._queue.dtype)], 1)
        step = self.inner.step(queue[:, 0])
        self._queue = queue[:, 1:]
        fresh = self._fresh(step)
        if fresh.any():
            self._queue[fresh] = _neutral(self.inner.actions.space)
        return step


class ActionDelay(Wrapper):
    """Actions that take effect some steps later; 0, or what is nearest to it, until then."""

    steps: int = Field(gt=0, examples=[2], description="How many steps.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        return _ActionDelayLayer(inner, self.steps)


class _StickyLayer(RandomLayer):
    stream = "sticky"
    kept = ("last", "begun")

    def __init__(self, inner: Any, share: float) -> None:
        super().__init__(inner)
        self._share, self._last = share, np.zeros(0)
        self._begun = np.zeros(inner.num_envs, bool)  # whether there is an action to repeat

    def reset(self, seed: int) -> Tree:
        self._begun = np.zeros(self.inner.num_envs, bool)
        return super().reset(seed)

    def step(self, actions: NDArray[Any]) -> Step:
        actions = np.asarray(actions)
        stuck = (self.rng.random(len(actions)) < self._share) & self._begun
        if stuck.any():
            rows = stuck.reshape(-1, *[1] * (actions.ndim - 1))
            actions = np.where(rows, self._last, actions)
        step = self.inner.step(actions)
        self._last, self._begun = actions, ~self._fresh(step)
        return step


class StickyActions(Wrapper):
    """With some probability the last action is done again in place of the chosen one."""

    probability: float = Field(gt=0, lt=1, examples=[0.25], description="How often.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        return _StickyLayer(inner, self.probability)


class _TimeLayer(Layer):
    kept = ("steps",)

    def __init__(self, inner: Any, key: str | None, limit: int) -> None:
        super().__init__(inner)
        self._key, box = entry_of(inner.observations, key, "time_in_obs")
        if len(box.shape) != 1 or box.dtype.kind != "f":
            raise misfit("time_in_obs", "vectors of floats", box)
        self._limit, self._steps = limit, np.zeros(inner.num_envs, np.int64)
        low, high = np.append(box.low, 0.0), np.append(box.high, 1.0)
        longer = spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self.observations = with_entry(inner.observations, self._key, longer)

    def reset(self, seed: int) -> Tree:
        self._steps = np.zeros(self.inner.num_envs, np.int64)
        return self._with(self.inner.reset(seed), self._steps)

    def step(self, actions: NDArray[Any]) -> Step:
        step = obs, reward, terminated, truncated, valid, final = self.inner.step(actions)
        after = self._steps + 1
        self._steps = np.where(self._fresh(step), 0, after)
        final = None if final is None else self._with(final, after)
        return self._with(obs, self._steps), reward, terminated, truncated, valid, final

    def _with(self, obs: Tree, steps: NDArray[np.int64]) -> Tree:
        share = np.minimum(steps / self._limit, 1.0).astype(np.float32)[:, None]
        if not isinstance(obs, dict):
            return np.concatenate([obs, share], 1)
        return {**obs, self._key: np.concatenate([obs[self._key], share], 1)}


class TimeInObs(OfEntry):
    """One number more: which share of the time limit is over."""

    limit: int = Field(gt=0, examples=[500], description="The steps that count as 1.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        return _TimeLayer(inner, self.key, self.limit)


class ActionRepeat(Inside):
    """Each action several times, with the sum of the rewards."""

    times: int = Field(gt=1, examples=[4], description="How many times.")
    pool: ClassVar[int] = 1
    does: ClassVar[str] = "repeat actions"

    def inside(self, env: gym.Env[Any, Any], training: bool) -> gym.Env[Any, Any]:
        """Return an environment that repeats actions."""
        return Repeated(env, self.times, self.pool)

    def repeats(self) -> int:
        """Return how often; frames are pooled of images alone."""
        return self.times


class FrameSkip(ActionRepeat):
    """As `action_repeat`; of images, the brightest pixels of the last two frames are seen."""

    pool: ClassVar[int] = 2


class Repeated(gym.Wrapper[Any, Any, Any, Any]):
    """An environment in which an action is done several times, as far as its episode goes.

    Args:
        env: The environment.
        times: How many times.
        pool: Of how many last frames the largest values are seen.
    """

    def __init__(self, env: gym.Env[Any, Any], times: int, pool: int) -> None:
        super().__init__(env)
        self._times = times
        self._pool = pool if is_image(env.observation_space) else 1

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step until the episode ends, or as often as it is to be repeated."""
        total = 0.0
        frames: list[Any] = []
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            frames = [*frames[1 - self._pool :], obs] if self._pool > 1 else [obs]
            if terminated or truncated:
                break
        seen = frames[0] if len(frames) == 1 else np.maximum.reduce(frames)
        return seen, total, terminated, truncated, info


def _neutral(space: gym.Space[Any]) -> NDArray[Any]:
    """Return the action 0, or what is nearest to it."""
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return np.zeros(space.shape or (), np.int64)
