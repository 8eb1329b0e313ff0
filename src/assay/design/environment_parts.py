"""What the environments that a blueprint writes consist of, as code: all, with goals, of teams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template

from assay.design.problem import Agents, Ending, Problem, RewardTerm, StateEntry
from assay.design.rules import DesignError
from assay.envs.skeleton import package_files, title_of

_SUCCEEDED = "near > 0.99"


def rules(problem: Problem, failed: str) -> str:
    """Return the methods with the terms of the reward and the endings.

    `near`, that both are given, is 1 where the placeholder is at its aim and 0 far from it.

    Args:
        problem: The problem.
        failed: The condition of endings that are failures.
    """
    return Template(_RULES).substitute(
        terms=_terms(problem, failed), endings=_endings(problem, failed)
    )


def success(problem: Problem) -> str:
    """Return the entry of the info that evaluations read, where success is an ending."""
    endings = problem.mdp.endings if problem.mdp is not None else ()
    names = [f'endings["{ending.name}"]' for ending in endings if ending.kind == "success"]
    return f' | {{"is_success": {" or ".join(names)}}}' if names else ""


def _terms(problem: Problem, failed: str) -> str:
    terms = problem.reward.terms if problem.reward is not None else ()
    if not terms:
        return '            "progress": (1.0, near),\n'
    kinds = [ending.kind for ending in _ends(problem)]
    # What is paid at the end is paid where the episode ends, and so once.
    at_end = failed if kinds and "success" not in kinds else _SUCCEEDED
    shares = {"dense": "near", "sparse": "(near > 0.95)", "terminal": f"({at_end})"}
    return "".join(
        f'            "{term.name}": ({term.weight!r}, {_value(term)} * {shares[term.kind]}),\n'
        for term in terms
    )


def _value(term: RewardTerm) -> str:
    low = 0.0 if term.low is None else term.low
    high = low + 1.0 if term.high is None else term.high
    return f"{low!r} + {high - low!r}"


def _endings(problem: Problem, failed: str) -> str:
    conditions = {"success": _SUCCEEDED, "failure": failed}
    lines = [f'            "{e.name}": {conditions[e.kind]},\n' for e in _ends(problem)]
    return "{\n" + "".join(lines) + "        }" if lines else "{}"


def _ends(problem: Problem) -> list[Ending]:
    """Return the endings that a placeholder can come to."""
    endings = problem.mdp.endings if problem.mdp is not None else ()
    return [ending for ending in endings if ending.kind in ("success", "failure")]


_RULES = '''    def _terms(self, near: float) -> dict[str, tuple[float, float]]:
        """Return the weight and the value of every term of the reward. Replace the values."""
        return {
$terms        }

    def _endings(self, near: float) -> dict[str, bool]:
        """Return which endings were reached: nothing follows them. Replace the conditions."""
        return $endings
'''

# A function of every environment that is written, also of those for one agent.
SHOWN = '''def _shown(space: gym.Space[Any], x: float) -> Any:
    """Return a number from -1 to 1 as a value of a space. Replace this by what is measured."""
    if isinstance(space, gym.spaces.Dict):
        return {name: _shown(part, x) for name, part in space.items()}
    if isinstance(space, gym.spaces.Discrete):
        return np.int64(min(int((x + 1) / 2 * space.n), int(space.n) - 1))
    if isinstance(space, gym.spaces.MultiBinary):
        return np.full(space.shape, x > 0, np.int8)
    assert isinstance(space, gym.spaces.Box)
    low = np.where(np.isfinite(space.low), space.low, -1.0)
    high = np.where(np.isfinite(space.high), space.high, 1.0)
    return (low + (x + 1) / 2 * (high - low)).astype(space.dtype)
'''


def goal_of(entries: Sequence[StateEntry]) -> StateEntry:
    """Return the entry of the state that is the goal: `desired_goal`, or one with that word.

    Raises:
        DesignError: There is none, or it has no distance.
    """
    named = [one for one in entries if "goal" in one.name.lower() and "achieved" not in one.name]
    found = sorted(named, key=lambda one: one.name != "desired_goal")
    if not found or found[0].kind != "vector":
        what = (
            f"'{found[0].name}' is a {found[0].kind}" if found else "no entry of the state is one"
        )
        raise DesignError(
            f"An environment with goals is written for goals that are vectors, and {what}.",
            "Describe it: {name: desired_goal, shape: [3], low: -1, high: 1}; or name an "
            "environment that exists: env: ID.",
        )
    return found[0]


GOAL_ENV = '''"""$about

Spaces, reward terms and endings are those of problem.yaml, and the goal is one of its entries. What
happens in `step` is a placeholder: everything is one number that actions push around, and the agent
is to bring it to another one.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class $title(gym.Env[Any, Any]):
    """Written by `assay design blueprint`; replace what says so."""

    metadata = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        """Make it. Hindsight replay looks for observation, achieved_goal and desired_goal."""
        goal = $goal_space
        self.observation_space = gym.spaces.Dict(
            {
$entries                "achieved_goal": goal,
                "desired_goal": goal,
            }
        )
        self.action_space = $action_space
        self.render_mode = render_mode
        self._x = self._goal = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. All randomness comes from self.np_random, which the seed sets."""
        super().reset(seed=seed)
        self._x, self._goal = (float(x) for x in self.np_random.uniform(-0.9, 0.9, 2))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act, and return (observation, reward, terminated, truncated, info)."""
        $drive
        self._x = float(np.clip(0.95 * self._x + 0.1 * drive, -1.0, 1.0))  # replace this
        seen = self._observe()
        goals = seen["achieved_goal"], seen["desired_goal"]
        near = self._near(*goals)
        endings = {name: bool(reached) for name, reached in self._endings(near).items()}
        info: dict[str, Any] = {f"reward/{n}": float(v) for n, (_, v) in self._terms(near).items()}
        info |= endings$success
        # A time limit is not reported here: gymnasium.register adds it, as truncated.
        over = bool(self.compute_terminated(*goals, {}))
        return seen, float(self.compute_reward(*goals, {})), over, False, info

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return the reward by the two goals alone, of one step or of a batch."""
        terms = self._terms(self._near(achieved_goal, desired_goal))
        return sum(weight * value for weight, value in terms.values())

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return whether nothing follows, by the two goals alone, of one step or of a batch."""
        endings = self._endings(self._near(achieved_goal, desired_goal))
        return np.any(list(endings.values()), axis=0)

    def _near(self, achieved: Any, desired: Any) -> Any:
        """Return 1 at the goal and 0 far from it, of one step or of a batch. Replace this."""
        goal = self.observation_space["desired_goal"]
        far = np.abs(achieved - desired) / (goal.high - goal.low)
        return 1.0 - far.mean(axis=tuple(range(-len(goal.shape), 0)))
$masks
    def get_state(self) -> dict[str, Any]:
        """Return all that changes in an episode: with it training resumes in the middle of one."""
        return {"x": self._x, "goal": self._goal}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self._x, self._goal = state["x"], state["goal"]

$rules
    def _observe(self) -> dict[str, Any]:
        seen = {name: _shown(space, self._x) for name, space in self.observation_space.items()}
        return seen | {"desired_goal": _shown(self.observation_space["desired_goal"], self._goal)}


$shown'''

GOAL_TEST = '''"""Tests of $title: it keeps to the API, and its reward is that of its goals."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from assay.envs.checks import check_env

import $name


def test_it_keeps_to_the_api() -> None:
    failed = [check for check in check_env("$name:$title-v0", steps=300) if not check.ok]
    assert failed == []


def test_the_reward_of_a_step_is_that_of_its_goals() -> None:
    env = $name.$title()
    env.action_space.seed(0)
    env.reset(seed=0)
    seen, reward, terminated, *_ = env.step(env.action_space.sample())
    goals = seen["achieved_goal"], seen["desired_goal"]
    assert reward == float(env.compute_reward(*goals, {}))
    assert terminated == bool(env.compute_terminated(*goals, {}))
    batch = env.compute_reward(*(np.stack([goal, goal]) for goal in goals), {})
    assert list(batch) == [reward, reward]


def test_the_same_seed_gives_the_same_episode() -> None:
    first, second = (gym.make("$title-v0").reset(seed=7)[0] for _ in range(2))
    assert str(first) == str(second)
'''


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
