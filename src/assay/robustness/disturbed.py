"""Agents of runs under disturbances: what they see, what they do, how their episodes begin.

A `Room` says which numbers of an observation can be moved, and how far a budget of 1 moves each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.images import is_image
from assay.core.types import ACTION_MASK, Action, Tree, action_mask, tree_leaves, tree_map
from assay.evaluation.evaluate import Agent, Around, rewarded_carry
from assay.functional.layout import box_scale
from assay.loops.collect import random_actions
from assay.networks.normalize import RunningMoments

Sight = Callable[[Tree, Tree], Tree]  # observations and the carry -> what is seen in their place
BARE = ""  # the key of an observation that is one array
Parts = dict[str, NDArray[Any]]
_MOST_STATES = 1_000


class Watched(Around):
    """An agent whose observations are looked at while it plays.

    Attributes:
        states: Some of the observations, each a batch of one, with what the agent carried.
    """

    def __init__(self, agent: Agent, space: gym.Space[Any], rng: np.random.Generator) -> None:
        super().__init__(agent)
        self._space, self._rng = space, rng
        self._moments = {
            key: RunningMoments(() if is_image(box) else box.shape)
            for key, box in movable(space).items()
        }
        self.states: list[tuple[Tree, Tree]] = []

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Let the agent act."""
        for key, moments in self._moments.items():
            rows = obs[key] if isinstance(obs, Mapping) else obs
            moments.update(rows.reshape(-1, *moments.mean.shape))
        if len(self.states) < _MOST_STATES:
            row = int(self._rng.integers(len(tree_leaves(obs)[0])))
            one = [tree_map(lambda x: np.array(x[row : row + 1]), tree) for tree in (obs, carry)]
            self.states.append((one[0], one[1]))
        return self.agent.act(obs, carry, explore)

    def room(self) -> Room:
        """Return how far numbers can be moved, by what was seen.

        Raises:
            ConfigError: There are no numbers.
        """
        boxes = movable(self._space)
        if not boxes:
            raise ConfigError(
                f"The observations are choices ({self._space}), which cannot be moved a little.",
                "Leave out disturbances of observations.",
            )
        scales = {
            key: np.broadcast_to(np.sqrt(self._moments[key].var), box.shape).astype(np.float32)
            for key, box in boxes.items()
        }
        return Room(boxes, scales)


class Misled(Around):
    """An agent that sees something else.

    Args:
        agent: Who acts.
        see: What it is shown, for observations and its carry.
    """

    def __init__(self, agent: Agent, see: Sight) -> None:
        super().__init__(agent)
        self.see = see

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Act on what is seen."""
        return self.agent.act(self.see(obs, carry), carry, explore)


def gaussian_noise(
    room: Room, share: float, rng: np.random.Generator, obs: Tree, carry: Tree
) -> Tree:
    """Return observations with noise on every number, of a share of the number's own spread."""
    parts = room.parts(obs)
    for key, part in parts.items():
        noise = rng.standard_normal(part.shape, np.float32)
        parts[key] = part + room.radius(key, share) * noise
    return room.put(obs, parts)


def corners(room: Room, budget: float, rng: np.random.Generator, obs: Tree, carry: Tree) -> Tree:
    """Return observations with every number as far as the budget goes, up or down by chance.

    No other noise of this largest size moves an observation further: the control of an attack.
    """
    parts = room.parts(obs)
    for key, part in parts.items():
        signs = rng.integers(2, size=part.shape) * np.float32(2) - np.float32(1)
        parts[key] = part + room.radius(key, budget) * signs
    return room.put(obs, parts)


class NoisyActions(Around):
    """An agent with Gaussian noise on its Box actions, in units of half their range."""

    def __init__(
        self, agent: Agent, space: gym.spaces.Box, share: float, rng: np.random.Generator
    ) -> None:
        super().__init__(agent)
        self.space, self.share, self.rng = space, share, rng

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Act, with noise."""
        choice = self.agent.act(obs, carry, explore)
        half_width = box_scale(self.space)[1].reshape(self.space.shape)
        noise = self.rng.standard_normal(choice.action.shape, np.float32) * half_width
        action = np.clip(choice.action + self.share * noise, self.space.low, self.space.high)
        return Action(action.astype(self.space.dtype), choice.carry, choice.extras)


class LateStart(Around):
    """An agent that takes over after some random actions at the start of every episode."""

    def __init__(
        self, agent: Agent, space: gym.Space[Any], steps: int, rng: np.random.Generator
    ) -> None:
        super().__init__(agent)
        self.space, self.steps, self.rng = space, steps, rng

    def initial_carry(self, n: int) -> Tree:
        """Return that of the agent, and how many steps of each episode are over."""
        return {"agent": self.agent.initial_carry(n), "steps": np.zeros(n, np.int64)}

    def rewarded(self, carry: Tree, reward: NDArray[Any]) -> Tree:
        """Tell the agent what it got."""
        return {**carry, "agent": rewarded_carry(self.agent, carry["agent"], reward)}

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Act at random at first; the agent sees everything all the same."""
        choice = self.agent.act(obs, carry["agent"], explore)
        action, early = choice.action, carry["steps"] < self.steps
        if early.any():
            rows = len(tree_leaves(obs)[0])
            drawn = random_actions(self.rng, self.space, rows, action_mask(obs))
            action = np.where(early.reshape(-1, *[1] * (drawn.ndim - 1)), drawn, action)
        after = {"agent": choice.carry, "steps": carry["steps"] + 1}
        return Action(action, after, choice.extras)


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The arrays of an observation that can be moved: numbers, not choices and masks.

    Attributes:
        boxes: Their spaces, by key; `BARE` where the observation is one array.
        scales: The standard deviation of each number over undisturbed episodes; of an image, one
            for all its pixels.
    """

    boxes: dict[str, gym.spaces.Box]
    scales: dict[str, NDArray[np.float32]]

    def parts(self, obs: Tree) -> Parts:
        """Return the arrays that can be moved, as floats."""
        given = obs if isinstance(obs, Mapping) else {BARE: obs}
        return {key: given[key].astype(np.float32) for key in self.boxes}

    def put(self, obs: Tree, parts: Mapping[str, Any]) -> Tree:
        """Return an observation with other arrays, within the bounds of their spaces."""
        if not isinstance(obs, Mapping):
            return self._fitted(BARE, parts[BARE])
        return {**obs, **{key: self._fitted(key, part) for key, part in parts.items()}}

    def radius(self, key: str, budget: float) -> NDArray[np.float32]:
        """Return how far a budget moves each number of an array."""
        return np.float32(budget) * self.scales[key]

    def _fitted(self, key: str, part: NDArray[Any]) -> NDArray[Any]:
        box = self.boxes[key]
        whole = box.dtype.kind in "ui"
        return np.clip(np.rint(part) if whole else part, box.low, box.high).astype(box.dtype)


def movable(space: gym.Space[Any]) -> dict[str, gym.spaces.Box]:
    """Return the arrays of numbers of a canonical space by key."""
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {BARE: space}
    return {
        key: part
        for key, part in parts.items()
        if key != ACTION_MASK and isinstance(part, gym.spaces.Box)
    }
