"""Play episodes and keep all of them: what a dataset is recorded from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.types import Action, Tree, action_mask, tree_map
from assay.data.dataset import Episode
from assay.envs.limits import EPISODE_BOUND
from assay.envs.spaces import ObservationMap, TextLeaf
from assay.envs.vector import Vector
from assay.evaluation.evaluate import Agent, clip_to_space, episode_seed, restart_carry
from assay.loops.collect import random_actions


class Mixed:
    """An agent that takes a uniform action with probability epsilon.

    Args:
        agent: Who acts otherwise, deterministically.
        space: The canonical action space.
        epsilon: 0 is the agent itself, 1 acting at random.
        rng: Source of the draws.
    """

    def __init__(
        self, agent: Agent, space: gym.Space[Any], epsilon: float, rng: np.random.Generator
    ) -> None:
        self.agent, self.space, self.epsilon, self.rng = agent, space, epsilon, rng

    def initial_carry(self, n: int) -> Tree:
        """Return that of the agent."""
        return self.agent.initial_carry(n)

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Choose an action for each row of `obs`."""
        choice = self.agent.act(obs, carry, explore)
        count = len(choice.action)
        chance = self.rng.random(count) < self.epsilon
        if not chance.any():
            return choice
        drawn = random_actions(self.rng, self.space, count, action_mask(obs))
        at = chance.reshape(-1, *[1] * (drawn.ndim - 1))
        return Action(np.where(at, drawn, choice.action), choice.carry, choice.extras)


@dataclass(slots=True)
class _Round:
    """The steps of all rows, and where each row's episode ended."""

    steps: list[tuple[Tree, NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]]
    lengths: NDArray[np.int64]
    finals: list[Tree]


def play(agent: Agent, vector: Vector, *, episodes: int, seed: int) -> Iterator[Episode]:
    """Yield episodes in the environment's own units.

    Episode k starts from `episode_seed(seed, k)`, as in an evaluation with this seed.

    Args:
        agent: Who acts, deterministically unless it draws by itself.
        vector: As many environments are played at once as it has.
        episodes: How many.
        seed: Fixes how each begins.
    """
    for first in range(0, episodes, vector.num_envs):
        wanted = min(vector.num_envs, episodes - first)
        played = _play_round(agent, vector, episode_seed(seed, first), wanted)
        for row in range(wanted):
            yield _episode(played, row, vector)


def recorded_space(observations: ObservationMap) -> gym.Space[Any]:
    """Return the space of what `play` yields: flat, in the environment's own units."""
    parts = {
        name: leaf.space if isinstance(leaf, TextLeaf) else leaf.source
        for name, leaf in observations.fields("").items()
    }
    return (
        parts[""]
        if observations.bare
        else gym.spaces.Dict({name.removeprefix("/"): space for name, space in parts.items()})
    )


def restored(observations: ObservationMap, obs: Tree) -> Tree:
    """Return canonical observations [N, ...] in the environment's own units."""
    leaves = observations.fields("")
    if observations.bare:
        return leaves[""].restore(obs)
    return {leaf.key: leaf.restore(obs[leaf.key]) for leaf in leaves.values()}


def _play_round(agent: Agent, vector: Vector, first_seed: int, wanted: int) -> _Round:
    n = vector.num_envs
    lengths = np.zeros(n, np.int64)
    finals: list[Tree] = [None] * n
    steps = []
    playing = np.arange(n) < wanted
    obs, carry = vector.reset(first_seed), agent.initial_carry(n)
    for _ in range(max(EPISODE_BOUND, vector.limit or 0)):
        choice = agent.act(obs, carry, False)
        actions = clip_to_space(choice.action, vector.spaces.action)
        after, reward, terminated, truncated, valid, final = vector.step(actions)
        steps.append((obs, actions, reward, terminated, truncated))
        lengths += playing
        over = terminated | truncated
        for row in np.flatnonzero(playing & over):
            finals[row] = tree_map(lambda part, row=row: part[row], final)
        playing = playing & ~over
        obs = after
        if not playing.any():
            break
        carry = restart_carry(agent, choice.carry, over if valid is None else over | ~valid)
    for row in np.flatnonzero(playing):  # cut by the bound
        finals[row] = tree_map(lambda part, row=row: part[row], obs)
        steps[-1][4][row] = True
    return _Round(steps, lengths, finals)


def _episode(played: _Round, row: int, vector: Vector) -> Episode:
    steps = played.steps[: played.lengths[row]]
    before = [tree_map(lambda part: part[row], step[0]) for step in steps]
    obs = _stack([*before, played.finals[row]])
    action = np.stack([step[1][row] for step in steps])
    to_env = vector.actions.to_env
    reward, terminated, truncated = (np.array([step[i][row] for step in steps]) for i in (2, 3, 4))
    return Episode(
        restored(vector.observations, obs),
        action if to_env is None else to_env(action),
        reward.astype(np.float64),
        terminated,
        truncated,
    )


def _stack(trees: list[Tree]) -> Tree:
    return tree_map(lambda *parts: np.stack(parts), trees[0], *trees[1:])
