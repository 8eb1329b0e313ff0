"""Play episodes and keep all of them: what a dataset is recorded from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.types import Action, Tree, action_mask, tree_leaves, tree_map
from assay.data.dataset import Episode
from assay.data.schema import LOG_PROB
from assay.envs.limits import EPISODE_BOUND
from assay.envs.spaces import ObservationMap, TextLeaf
from assay.envs.vector import Vector
from assay.evaluation.evaluate import Agent, Around, PlayedStep, episode_seed, played_steps
from assay.loops.collect import random_actions


class Mixed(Around):
    """An agent that takes a uniform action with probability epsilon.

    Args:
        agent: Who acts otherwise, deterministically.
        space: The canonical action space.
        epsilon: 0 is the agent itself, 1 acting at random.
        rng: Source of the draws.
        log_prob: Tell the log-probability of each action, as the extra `log_prob`.

    Raises:
        ConfigError: `log_prob` is asked for, and actions have none.
    """

    def __init__(
        self,
        agent: Agent,
        space: gym.Space[Any],
        epsilon: float,
        rng: np.random.Generator,
        *,
        log_prob: bool = False,
    ) -> None:
        super().__init__(agent)
        self.space, self.epsilon, self.rng = space, epsilon, rng
        self.log_prob = log_prob
        if log_prob and not isinstance(space, gym.spaces.Discrete):
            raise ConfigError(
                f"Log-probabilities are recorded of Discrete actions, and these are {space}.",
                "Leave out --log-prob; evaluations estimate them.",
            )

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Choose an action for each row of `obs`."""
        choice = self.agent.act(obs, carry, explore)
        count, action = len(choice.action), choice.action
        chance = self.rng.random(count) < self.epsilon
        if chance.any():
            drawn = random_actions(self.rng, self.space, count, action_mask(obs))
            action = np.where(chance.reshape(-1, *[1] * (drawn.ndim - 1)), drawn, action)
        extras = choice.extras
        if self.log_prob:
            extras = {**extras, LOG_PROB: self._log_prob(action, choice.action, action_mask(obs))}
        return Action(action, choice.carry, extras)

    def _log_prob(
        self, action: NDArray[Any], best: NDArray[Any], mask: NDArray[Any] | None
    ) -> NDArray[np.float64]:
        assert isinstance(self.space, gym.spaces.Discrete)
        valid = np.full(len(action), int(self.space.n))
        if mask is not None:
            allowed = mask.astype(bool).sum(1)
            valid = np.where(allowed > 0, allowed, valid)  # one that allows nothing allows all
        # (1 - epsilon) 1{a = pi(s)} + epsilon / |A(s)|
        return np.log((1.0 - self.epsilon) * (action == best) + self.epsilon / valid)


class Uniform:
    """Takes uniform actions, among those that the mask allows."""

    def __init__(self, space: gym.Space[Any], rng: np.random.Generator) -> None:
        self.space, self.rng = space, rng

    def initial_carry(self, n: int) -> Tree:
        """Return nothing: it does not remember."""
        return None

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Choose an action for each row of `obs`."""
        count = len(tree_leaves(obs)[0])
        return Action(random_actions(self.rng, self.space, count, action_mask(obs)))


@dataclass(slots=True)
class _Round:
    """The steps of all rows, and where each row's episode ended."""

    steps: list[PlayedStep]
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
    bound = max(EPISODE_BOUND, vector.limit or 0)
    made = _Round([], np.zeros(n, np.int64), [None] * n)
    for step in played_steps(agent, vector, first_seed, wanted, explore=False, limit=bound):
        made.steps.append(step)
        made.lengths += step.playing
        for row in np.flatnonzero(step.playing & step.over):
            made.finals[row] = _row(step.final, row)
    last = made.steps[-1]
    for row in np.flatnonzero(last.playing_on):  # cut by the bound
        made.finals[row] = _row(last.after, row)
        last.truncated[row] = True
    return made


def _episode(played: _Round, row: int, vector: Vector) -> Episode:
    steps = played.steps[: played.lengths[row]]
    obs = _stack([*(_row(step.obs, row) for step in steps), played.finals[row]])
    action = np.stack([step.action[row] for step in steps])
    to_env = vector.actions.to_env
    return Episode(
        restored(vector.observations, obs),
        action if to_env is None else to_env(action),
        np.array([step.reward[row] for step in steps], np.float64),
        np.array([step.terminated[row] for step in steps]),
        np.array([step.truncated[row] for step in steps]),
        {
            name: np.array([step.extras[name][row] for step in steps])
            for name in steps[0].extras
            if name == LOG_PROB  # others are for who learns
        },
    )


def _row(tree: Tree, row: int | np.intp) -> Tree:
    return tree_map(lambda part: part[row], tree)


def _stack(trees: list[Tree]) -> Tree:
    return tree_map(lambda *parts: np.stack(parts), trees[0], *trees[1:])
