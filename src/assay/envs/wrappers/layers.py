"""What wrappers are built of: backends around backends."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from assay.core import seeding
from assay.core.config import Model
from assay.core.errors import ConfigError, nearest
from assay.core.types import State, Tree
from assay.envs.spaces import ObservationMap
from assay.envs.sync import Step

_MOST_MIB = 64  # of one copy, that a wrapper keeps


class Wrapper(Model, ABC):
    """A wrapper and its settings; the class's name in snake case is how it is asked for."""

    of_rewards: ClassVar[bool] = False  # for training alone

    @abstractmethod
    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""


class Inside(Wrapper):
    """A wrapper inside of every copy, below all others: a step of it is one or more of the copy's.

    It stands there because an episode may end in the middle.
    """

    does: ClassVar[str]  # what it does, for messages: "repeat actions"

    @abstractmethod
    def inside(self, env: gym.Env[Any, Any], training: bool) -> gym.Env[Any, Any]:
        """Return an environment around one copy."""

    def repeats(self) -> int | None:
        """Return how often actions are repeated, where a vector gets nothing else by it."""
        return None

    def layer(self, inner: Any) -> Any:
        """Return the backend: copies have the wrapper themselves."""
        return inner


class OfEntry(Wrapper):
    """A wrapper of one array of the observation."""

    key: str | None = Field(None, description="The entry of a Dict; not needed if it is the only.")


class Layer:
    """A backend around another one, which it leaves as it is.

    What a layer remembers besides are the arrays `kept`, each an attribute with a `_` before it.
    """

    kept: ClassVar[tuple[str, ...]] = ()

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.observations: ObservationMap = inner.observations

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def reset(self, seed: int) -> Tree:
        """Reset all environments."""
        return self.inner.reset(seed)

    def step(self, actions: NDArray[Any]) -> Step:
        """Step all environments."""
        return self.inner.step(actions)

    def first_env(self) -> Any:
        """Return an environment to call methods on; None if they mean other observations."""
        same = self.observations is self.inner.observations
        return self.inner.first_env() if same else None

    def own_state(self) -> State:
        """Return what this layer remembers."""
        return {name: getattr(self, f"_{name}") for name in self.kept}

    def load_own(self, state: State) -> None:
        """Restore what `own_state` returned."""
        for name in self.kept:
            setattr(self, f"_{name}", np.array(state[name]))

    def get_state(self) -> State | None:
        """Return the state of all environments, or None."""
        inside = self.inner.get_state()
        return None if inside is None else {"inner": inside, "own": self.own_state()}

    def set_state(self, state: State) -> None:
        """Restore a state."""
        self.inner.set_state(state["inner"])
        self.load_own(state["own"])

    def _fresh(self, step: Step) -> NDArray[np.bool_]:
        """Return which rows of a step hold the first observation of an episode."""
        _, _, terminated, truncated, valid, _ = step
        if getattr(self.inner, "resets_in_steps", False):
            return np.zeros(len(terminated), bool) if valid is None else ~valid
        return terminated | truncated


class RewardLayer(Layer):
    """Changes rewards."""

    def __init__(self, inner: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        super().__init__(inner)
        self._change = change

    def step(self, actions: NDArray[Any]) -> Step:
        """Step all environments."""
        obs, reward, *rest = self.inner.step(actions)
        return (obs, self._change(reward), *rest)

    def first_env(self) -> Any:
        """Return None: its methods give other rewards."""
        return None


class EntryLayer(Layer):
    """Changes one array of the observation by itself, and its space."""

    def __init__(
        self,
        inner: Any,
        key: str | None,
        space: Callable[[spaces.Box], gym.Space[Any]],
        change: Callable[[NDArray[Any]], NDArray[Any]],
        what: str,
    ) -> None:
        super().__init__(inner)
        self._key, box = entry_of(inner.observations, key, what)
        self._change = change
        self.observations = with_entry(inner.observations, self._key, space(box))

    def reset(self, seed: int) -> Tree:
        """Reset all environments."""
        return self._changed(self.inner.reset(seed))

    def step(self, actions: NDArray[Any]) -> Step:
        """Step all environments."""
        obs, reward, terminated, truncated, valid, final = self.inner.step(actions)
        final = None if final is None else self._changed(final)
        return self._changed(obs), reward, terminated, truncated, valid, final

    def _changed(self, obs: Tree) -> Tree:
        if not isinstance(obs, dict):
            return self._change(obs)
        return {**obs, self._key: self._change(obs[self._key])}


class HistoryLayer(Layer):
    """Keeps the last rows [N, n, ...] of one array of the observation, and shows some of them."""

    kept = ("rows",)

    def __init__(self, inner: Any, key: str | None, count: int, what: str) -> None:
        super().__init__(inner)
        self._key, self.box = entry_of(inner.observations, key, what)
        refuse_large(what, (count, *self.box.shape), self.box.dtype)
        self._rows: NDArray[Any] = np.zeros(
            (inner.num_envs, count, *self.box.shape), self.box.dtype
        )

    def shown(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return what is seen of rows [N, n, ...]."""
        raise NotImplementedError

    def reset(self, seed: int) -> Tree:
        """Reset all environments; all rows are the first observation."""
        obs = self.inner.reset(seed)
        self._rows = np.repeat(self._leaf(obs)[:, None], self._rows.shape[1], 1)
        return self._with(obs, self._rows)

    def step(self, actions: NDArray[Any]) -> Step:
        """Step all environments."""
        step = obs, reward, terminated, truncated, valid, final = self.inner.step(actions)
        before = self._rows
        new = self._leaf(obs)[:, None]
        rows = np.concatenate([before[:, 1:], new], 1)
        if final is not None:
            last = np.concatenate([before[:, 1:], self._leaf(final)[:, None]], 1)
            final = self._with(final, last)
        fresh = self._fresh(step)
        if fresh.any():
            rows[fresh] = new[fresh]
        self._rows = rows
        return self._with(obs, rows), reward, terminated, truncated, valid, final

    def _leaf(self, obs: Tree) -> NDArray[Any]:
        return obs[self._key] if isinstance(obs, dict) else obs

    def _with(self, obs: Tree, rows: NDArray[Any]) -> Tree:
        shown = self.shown(rows)
        return {**obs, self._key: shown} if isinstance(obs, dict) else shown


class RandomLayer(Layer):
    """Draws from a generator that a reset seeds."""

    stream: ClassVar[str] = "wrapper"

    def __init__(self, inner: Any, *rest: Any) -> None:
        super().__init__(inner, *rest)
        self.depth: int = getattr(inner, "depth", 0) + 1  # two of a kind draw differently
        self.rng = seeding.derive_rng(0, self.stream, self.depth)

    def reset(self, seed: int) -> Tree:
        """Reset all environments."""
        self.rng = seeding.derive_rng(seed, self.stream, self.depth)
        return super().reset(seed)

    def own_state(self) -> State:
        """Return where the draws are, and what else there is."""
        return {"rng": seeding.rng_state(self.rng)} | super().own_state()

    def load_own(self, state: State) -> None:
        """Restore where the draws were."""
        super().load_own(state)
        seeding.set_rng_state(self.rng, state["rng"])


def entry_of(observations: ObservationMap, key: str | None, what: str) -> tuple[str, spaces.Box]:
    """Return the key and the Box of the entry that a wrapper is for.

    Raises:
        ConfigError: There is no such entry, several could be meant, or it is not a Box.
    """
    leaves = {leaf.key: leaf.space for leaf in observations.leaves}
    boxes = [name for name, space in leaves.items() if isinstance(space, spaces.Box)]
    if key is None and len(boxes) == 1:
        key = boxes[0]
    if key is None and len(leaves) > 1:
        raise ConfigError(
            f"The wrapper {what} could mean one of {', '.join(boxes) or 'no Box'}.",
            f"Say which: {{{what}: {{key: {boxes[0] if boxes else 'KEY'}}}}}.",
        )
    key = next(iter(leaves)) if key is None else key
    if key not in leaves:
        raise ConfigError(
            f"The wrapper {what} has key='{key}', which observations lack.",
            "Leave it out: they are not a Dict." if "" in leaves else nearest(key, leaves),
        )
    space = leaves[key]
    if not isinstance(space, spaces.Box):
        raise misfit(what, "a Box", space)
    return key, space


def misfit(what: str, wanted: str, space: gym.Space[Any]) -> ConfigError:
    """Return the error that a wrapper is for other observations."""
    return ConfigError(
        f"The wrapper {what} is for {wanted}; the observation is {space}.",
        "Leave it out, or move it: wrappers before it may change the observation, and key names "
        "another entry of a Dict.",
    )


def refuse_large(what: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse a wrapper that would keep more of each copy than a network could take.

    Args:
        what: The wrapper.
        shape: Of the array that it keeps.
        dtype: Of that array.

    Raises:
        ConfigError: It would.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize >> 20
    if size > _MOST_MIB:
        raise ConfigError(
            f"The wrapper {what} would keep {size:,} MiB of every copy of the environment, an "
            f"array of the shape {shape}; at most {_MOST_MIB} MiB were expected.",
            "Give a smaller number.",
        )


def with_entry(observations: ObservationMap, key: str, space: gym.Space[Any]) -> ObservationMap:
    """Return observations in which one entry has another space."""
    if len(observations.leaves) == 1 and not isinstance(observations.source, spaces.Dict):
        return ObservationMap(space, observations.mask_size)
    parts = {leaf.key: leaf.space for leaf in observations.leaves}
    return ObservationMap(spaces.Dict(parts | {key: space}), observations.mask_size)


def mapped(box: spaces.Box, change: Callable[[NDArray[Any]], NDArray[Any]]) -> spaces.Box:
    """Return the Box whose bounds are changed as its values are."""
    low, high = change(box.low[None])[0], change(box.high[None])[0]
    return spaces.Box(low, high, dtype=low.dtype.type)
