"""The package of an environment of several agents, by PettingZoo's interface, to be filled in."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from assay.design.environment_parts import SHOWN, rules
from assay.design.problem import Agents, Problem
from assay.design.rules import DesignError
from assay.envs.skeleton import package_files, title_of

MAKER = "parallel_env"  # the function that the environment is named by


def team_files(
    problem: Problem,
    agents: Agents,
    *,
    name: str,
    algorithm: str,
    observations: Mapping[str, str],
    actions: Mapping[str, str],
    limit: int,
) -> tuple[str, dict[str, str]]:
    """Return the id of the environment, and the files of its package by their paths.

    Args:
        problem: The problem.
        agents: Its agents.
        name: Of the package.
        algorithm: What its README trains with.
        observations: The space that agents of each type see, as code.
        actions: The space that agents of each type act in, as code.
        limit: Steps after which episodes are cut.

    Raises:
        DesignError: Agents take turns.
    """
    if agents.turns == "alternating":
        raise DesignError(
            "An environment is written for agents that act at once, and these take turns.",
            "Name one that exists: env: ID.",
        )
    names = [f"{kind.name}_{i}" for kind in agents.types for i in range(kind.count)]
    words = {
        "title": title_of(name),
        "name": name,
        "about": problem.description or f"The problem {problem.name}.",
        "agents": "".join(f'    "{one}",\n' for one in names),
        "observation_spaces": _spaces(observations),
        "action_spaces": _spaces(actions),
        "rules": rules(problem, failed="near <= 0.0"),
        "reward": "float(np.mean(list(own.values())))" if agents.reward == "team" else "own[agent]",
        "limit": str(limit),
        "shown": SHOWN,
        "state_space": _STATE_SPACE if agents.global_state else "",
        "state": _STATE if agents.global_state else "",
    }
    env_id = f"{name}:{MAKER}"
    files = package_files(
        name,
        env=Template(_ENV).substitute(words),
        test=Template(_TEST).substitute(words),
        limit=limit,
        algorithm=algorithm,
        init=Template(_INIT).substitute(words),
        env_id=env_id,
        requires="pettingzoo>=1.24",
    )
    return env_id, files


def _spaces(spaces: Mapping[str, str]) -> str:
    """Return a mapping from types to spaces, as lines of code."""
    return "".join(f'        "{kind}": {space},\n' for kind, space in spaces.items())


_INIT = '''"""The environment $title, for several agents."""

from $name.env import $title, parallel_env

__all__ = ["$title", "parallel_env"]
'''

_STATE_SPACE = """
        self.state_space = gym.spaces.Box(-1.0, 1.0, (len(AGENTS),), np.float32)"""

_STATE = '''
    def state(self) -> np.ndarray:
        """Return the state of the whole, for critics that see it. Replace this."""
        return np.array(list(self._x.values()), np.float32)
'''

_ENV = '''"""$about

Agents, spaces, reward terms and endings are those of problem.yaml. What happens in `step` is a
placeholder: every agent is one number that its actions push around, and is to keep it near 0.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from pettingzoo import ParallelEnv

AGENTS = (
$agents)
LIMIT = $limit  # steps of an episode


def parallel_env(render_mode: str | None = None) -> ParallelEnv:
    """Return the environment; this function is its name: $name:parallel_env."""
    return $title(render_mode)


class $title(ParallelEnv):
    """Written by `assay design blueprint`; replace what says so."""

    metadata = {"name": "$name", "render_modes": []}
    seen: dict[str, gym.Space[Any]] = {
$observation_spaces    }
    done: dict[str, gym.Space[Any]] = {
$action_spaces    }

    def __init__(self, render_mode: str | None = None) -> None:
        """Make it. Everybody who may ever act is in possible_agents."""
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self.render_mode = render_mode
        self.np_random = np.random.default_rng()
        self._x = dict.fromkeys(AGENTS, 0.0)
        self._steps = 0$state_space

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return what an agent sees, by its type."""
        return self.seen[agent.rpartition("_")[0]]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return what an agent does, by its type."""
        return self.done[agent.rpartition("_")[0]]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode. All randomness comes from self.np_random, which the seed sets."""
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.agents, self._steps = list(AGENTS), 0
        self._x = {agent: float(self.np_random.uniform(-0.9, 0.9)) for agent in AGENTS}
        return self._observe(), {agent: {} for agent in AGENTS}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Act, and return observations, rewards, terminated, truncated and infos by agent."""
        for agent, action in actions.items():  # replace this
            drive = _drive(self.action_space(agent), action)
            self._x[agent] = float(np.clip(0.95 * self._x[agent] + 0.1 * drive, -1.0, 1.0))
        self._steps += 1
        own, infos = {}, {}
        for agent in self.agents:
            terms = self._terms(1.0 - abs(self._x[agent]))
            own[agent] = float(sum(weight * value for weight, value in terms.values()))
            infos[agent] = {f"reward/{name}": value for name, (_, value) in terms.items()}
        near = 1.0 - float(np.mean([abs(x) for x in self._x.values()]))
        over, cut = any(self._endings(near).values()), self._steps >= LIMIT
        rewards = {agent: $reward for agent in self.agents}
        ends = (dict.fromkeys(self.agents, over), dict.fromkeys(self.agents, cut and not over))
        found = (self._observe(), rewards, *ends, infos)
        if over or cut:
            self.agents = []
        return found
$state
    def get_state(self) -> dict[str, Any]:
        """Return all that changes in an episode: with it training resumes in the middle of one."""
        return {"x": self._x, "steps": self._steps, "agents": self.agents}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self._x, self._steps = dict(state["x"]), int(state["steps"])
        self.agents = list(state["agents"])

$rules
    def _observe(self) -> dict[str, Any]:
        return {agent: _shown(self.observation_space(agent), self._x[agent]) for agent in AGENTS}


def _drive(space: gym.Space[Any], action: Any) -> float:
    """Return an action as one number from -1 to 1. Replace this by what an action does."""
    if isinstance(space, gym.spaces.Box):
        share = (np.clip(action, space.low, space.high) - space.low) / (space.high - space.low)
    elif isinstance(space, gym.spaces.Discrete):
        share = (int(action) - int(space.start)) / max(1, int(space.n) - 1)
    elif isinstance(space, gym.spaces.MultiDiscrete):
        share = np.asarray(action) / np.maximum(1, space.nvec - 1)
    else:
        share = np.asarray(action)
    return 2.0 * float(np.mean(share)) - 1.0


$shown'''

_TEST = '''"""Tests of $title: it keeps to the API, and the same seed gives the same episode."""

from __future__ import annotations

from assay.envs.checks import check_env

import $name


def test_it_keeps_to_the_api() -> None:
    failed = [check for check in check_env("$name:parallel_env", steps=300) if not check.ok]
    assert failed == []


def test_the_same_seed_gives_the_same_episode() -> None:
    first, second = ($name.parallel_env().reset(seed=7)[0] for _ in range(2))
    assert str(first) == str(second)


def test_an_episode_ends_for_all() -> None:
    env = $name.parallel_env()
    env.reset(seed=0)
    for _ in range($limit):
        if env.agents:
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    assert env.agents == []
'''
