"""The states of played episodes, with what the agent carried into each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.types import ACTION_MASK, Action, Tree, tree_leaves, tree_map
from assay.envs.vector import Vector
from assay.evaluation.evaluate import Agent, Around, episode_seed, played_steps, rewarded_carry

Arrays = dict[str, NDArray[Any]]


@dataclass(slots=True)
class States:
    """S moments of episodes.

    Attributes:
        obs: [S, ...] what was acted on.
        carry: [S, ...] what a memory held before it, or None.
        action: [S, ...] what was done.
    """

    obs: Tree
    carry: Tree
    action: NDArray[Any]

    def __len__(self) -> int:
        """Return S."""
        return len(self.action)

    def take(self, rows: Any) -> States:
        """Return some of them: those that an index or a slice names."""
        obs, carry = (tree_map(lambda x: x[rows], tree) for tree in (self.obs, self.carry))
        return States(obs, carry, self.action[rows])


@dataclass(slots=True)
class Episode:
    """One episode.

    Attributes:
        states: T of them.
        reward: [T].
        terminated: Whether it ended by itself; else it was cut off.
        last: The moment after it, as one state; what is done there was not done.
    """

    states: States
    reward: NDArray[np.float64]
    terminated: bool
    last: States


@dataclass(slots=True)
class Visited:
    """All states of played episodes, one episode after the other.

    Attributes:
        episodes: In the order of their seeds.
        states: All of them.
        episode: [S] which episode each is of.
        time: [S] its step in that episode, from 0.
    """

    episodes: list[Episode]
    states: States = field(init=False)
    episode: NDArray[np.int64] = field(init=False)
    time: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        lengths = [len(one.states) for one in self.episodes]
        self.states = join([one.states for one in self.episodes])
        self.episode = np.repeat(np.arange(len(lengths)), lengths)
        self.time = np.concatenate([np.arange(length) for length in lengths])

    @property
    def returns(self) -> NDArray[np.float64]:
        """Return the sum of rewards of each episode."""
        return np.array([one.reward.sum() for one in self.episodes])


class _Watched(Around):
    """An agent that keeps what it carried; `forget` empties its memory before every step."""

    def __init__(self, agent: Agent, forget: bool) -> None:
        super().__init__(agent)
        self.forget = forget
        self.before: list[Tree] = []
        self.after: list[Tree] = []

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        if self.forget and carry is not None:
            carry = self.agent.initial_carry(len(tree_leaves(carry)[0]))
        choice = self.agent.act(obs, carry, explore)
        self.before.append(carry)
        self.after.append(choice.carry)
        return choice


def visit(
    agent: Agent, vector: Vector, *, episodes: int, seed: int, max_steps: int, forget: bool = False
) -> Visited:
    """Play the episodes that an evaluation with this seed plays, and keep their states.

    Args:
        agent: Acts without exploring.
        vector: Where.
        episodes: How many.
        seed: Fixes how each begins.
        max_steps: Where to cut an episode off.
        forget: Empty the memory before every step.
    """
    found: list[Episode] = []
    for first in range(0, episodes, vector.num_envs):
        wanted = min(vector.num_envs, episodes - first)
        watched = _Watched(agent, forget)
        begin = episode_seed(seed, first)
        steps = list(played_steps(watched, vector, begin, wanted, explore=False, limit=max_steps))
        for row in range(wanted):
            length = sum(bool(step.playing[row]) for step in steps)
            own = steps[:length]
            final = own[-1]
            over = bool(final.over[row])
            obs = final.final if over else final.after
            carry = _row(watched.after[length - 1], row)
            told = rewarded_carry(agent, carry, final.reward[row : row + 1])
            end = _row(obs, row)
            choice = agent.act(end, told, False)
            found.append(
                Episode(
                    States(
                        _stacked([_row(step.obs, row) for step in own]),
                        _stacked([_row(carry, row) for carry in watched.before[:length]]),
                        np.stack([step.action[row] for step in own]),
                    ),
                    np.array([step.reward[row] for step in own], np.float64),
                    bool(final.terminated[row]),
                    States(end, told, choice.action),
                )
            )
    return Visited(found)


def entries(obs: Tree) -> Arrays:
    """Return an observation as a dict without its mask; one array has the key ""."""
    if not isinstance(obs, Mapping):
        return {"": obs}
    return {key: x for key, x in obs.items() if key != ACTION_MASK}


def join(parts: list[States]) -> States:
    """Return states one after the other."""
    return States(
        _stacked([part.obs for part in parts]),
        _stacked([part.carry for part in parts]),
        np.concatenate([part.action for part in parts]),
    )


def _row(tree: Tree, row: int) -> Tree:
    return tree_map(lambda x: np.array(x[row : row + 1]), tree)


def _stacked(trees: list[Tree]) -> Tree:
    return tree_map(lambda *parts: np.concatenate(parts), trees[0], *trees[1:])
