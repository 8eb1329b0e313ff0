"""Agents of runs under disturbances: what they see, what they do, how their episodes begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.images import is_image
from assay.core.types import Action, Tree, action_mask, tree_leaves, tree_map
from assay.evaluation.evaluate import Agent, rewarded_carry
from assay.functional.layout import box_scale
from assay.loops.collect import random_actions
from assay.networks.normalize import RunningMoments
from assay.robustness.room import Room, movable

Sight = Callable[[Tree, Tree], Tree]  # observations and the carry -> what is seen in their place
_MOST_STATES = 1_000


class Around:
    """What the agents here have in common: another agent, which they tell everything."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def initial_carry(self, n: int) -> Tree:
        """Return that of the agent."""
        return self.agent.initial_carry(n)

    def rewarded(self, carry: Tree, reward: NDArray[Any]) -> Tree:
        """Tell the agent what it got."""
        return rewarded_carry(self.agent, carry, reward)


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


class GaussianNoise:
    """Noise on every number, of a share of the number's own spread."""

    def __init__(self, room: Room, share: float, rng: np.random.Generator) -> None:
        self.room, self.share, self.rng = room, share, rng

    def __call__(self, obs: Tree, carry: Tree) -> Tree:
        """Return disturbed observations."""
        parts = self.room.parts(obs)
        for key, part in parts.items():
            noise = self.rng.standard_normal(part.shape, np.float32)
            parts[key] = part + self.room.radius(key, self.share) * noise
        return self.room.put(obs, parts)


class Corners:
    """Every number as far as the budget goes, up or down by chance.

    No other noise of this largest size moves an observation further: the control of an attack.
    """

    def __init__(self, room: Room, budget: float, rng: np.random.Generator) -> None:
        self.room, self.budget, self.rng = room, budget, rng

    def __call__(self, obs: Tree, carry: Tree) -> Tree:
        """Return disturbed observations."""
        parts = self.room.parts(obs)
        for key, part in parts.items():
            signs = self.rng.integers(2, size=part.shape) * np.float32(2) - np.float32(1)
            parts[key] = part + self.room.radius(key, self.budget) * signs
        return self.room.put(obs, parts)


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
