"""The package of an environment with the spaces, terms and endings of a problem, to be filled in.

What it does is a placeholder that can be trained on; what it looks like is the problem.
"""

from __future__ import annotations

from string import Template
from typing import Any

from assay.design.environment_parts import (
    GOAL_ENV,
    GOAL_TEST,
    SHOWN,
    goal_of,
    rules,
    success,
    team_files,
)
from assay.design.problem import Action, ActionPart, Agents, AgentType, Bound, Problem, StateEntry
from assay.design.rules import DesignError
from assay.design.sizes import assumed_steps, limits
from assay.envs.skeleton import package_files, refuse_name


def environment_files(problem: Problem, algorithm: str) -> tuple[str, dict[str, str]]:
    """Return the id of the environment, and the files of its package by their paths.

    Raises:
        DesignError: State, action or goal is missing, or agents take turns or have goals.
        ConfigError: The problem's name cannot be that of a package.
    """
    state, action = problem.state, problem.action
    agents = problem.agents if problem.agents is not None else Agents()
    several = sum(kind.count for kind in agents.types) > 1
    if not several and (state is None or action is None or action.kind in (None, "hybrid")):
        raise DesignError(
            "Without a state and an action no environment can be written.",
            "Describe both, or name an environment that exists: env: ID.",
        )
    with_goals = problem.mdp is not None and bool(problem.mdp.goals)
    if several and with_goals:
        raise DesignError(
            "An environment of several agents is written without goals.",
            "Name one that exists: env: ID, or remove mdp.goals.",
        )
    name = problem.name if problem.name.endswith("_env") else f"{problem.name}_env"
    title = refuse_name(name)
    # What is privileged, and texts, the agent does not see.
    entries = state.entries if state is not None else ()
    seen = [entry for entry in entries if not entry.privileged and entry.kind != "text"]
    limit = (problem.mdp.limit if problem.mdp is not None else None) or assumed_steps(problem)
    if several:
        return team_files(
            problem,
            agents,
            name=name,
            algorithm=algorithm,
            observations={kind.name: _seen(kind, seen) for kind in agents.types},
            actions={kind.name: _done(kind, action) for kind in agents.types},
            limit=limit,
        )
    assert action is not None
    words = {
        "title": title,
        "name": name,
        "about": problem.description or f"The problem {problem.name}.",
        "observation_space": _observation_space(seen),
        "observe": _observe(seen),
        "entries": str(len(seen)),
        "action_space": _action_space(action),
        "drive": _drive(action),
        "rules": rules(problem, failed="bool(np.abs(self._x).max() >= 1.0)"),
        "success": success(problem),
        "masks": _masks(action),
        "shown": SHOWN,
    }
    env, test = _ENV, _TEST
    if with_goals:
        env, test, words = GOAL_ENV, GOAL_TEST, words | _goal_words(problem, seen)
    files = package_files(
        name,
        env=Template(env).substitute(words),
        test=Template(test).substitute(words),
        limit=limit,
        algorithm=algorithm,
    )
    return f"{name}:{title}-v0", files


def _goal_words(problem: Problem, seen: list[StateEntry]) -> dict[str, str]:
    """Return what the template of an environment with goals has in place of other words."""
    goal = goal_of(seen)
    shape = tuple(goal.shape or ())
    low, high = _bound(goal.low, "-1.0", shape), _bound(goal.high, "1.0", shape)
    others = [one for one in seen if one is not goal and one.name != "achieved_goal"]
    others.sort(key=lambda one: one.name != "observation")
    # Hindsight replay asks for an entry of this name; the first one has it.
    names = ["observation", *(one.name for one in others[1:])]
    spaces = [_space(one) for one in others] or ["goal"]
    return {
        "goal_space": f"gym.spaces.Box({low}, {high}, {shape}, np.float32)",
        "entries": "".join(
            f'                "{name}": {space},\n'
            for name, space in zip(names, spaces, strict=True)
        ),
        "rules": rules(problem, failed="near <= 0.0"),
    }


def _seen(kind: AgentType, entries: list[StateEntry]) -> str:
    """Return what agents of a type see, as code: their own, or else the state."""
    if kind.observation is not None:
        return f"gym.spaces.Box(-np.inf, np.inf, {tuple(kind.observation)}, np.float32)"
    if not entries:
        raise DesignError(
            f"Agents of type '{kind.name}' see nothing.",
            "Describe a state, or give the type an observation.",
        )
    return _observation_space(entries)


def _done(kind: AgentType, action: Action | None) -> str:
    """Return what agents of a type do, as code: their own, or else the action of all."""
    own = kind.action if kind.action is not None else action
    if own is None or own.kind in (None, "hybrid"):
        raise DesignError(
            f"No environment can be written for what agents of type '{kind.name}' do.",
            "Give the type an action that is not a hybrid, or name an environment: env: ID.",
        )
    return _action_space(own)


def _observation_space(entries: list[StateEntry]) -> str:
    if len(entries) == 1:
        return _space(entries[0])
    lines = "".join(f'                "{entry.name}": {_space(entry)},\n' for entry in entries)
    return "gym.spaces.Dict(\n            {\n" + lines + "            }\n        )"


def _space(entry: StateEntry) -> str:
    if entry.kind == "category":
        return f"gym.spaces.Discrete({entry.size})"
    shape = tuple(entry.shape or ())
    if entry.kind == "binary":
        return f"gym.spaces.MultiBinary({list(shape) if len(shape) > 1 else shape[0]})"
    if entry.kind == "image":
        return f"gym.spaces.Box(0, 255, {shape}, np.uint8)"
    dtype = entry.dtype if entry.dtype not in (None, "bool") else "float32"
    low, high = _bound(entry.low, "-np.inf", shape), _bound(entry.high, "np.inf", shape)
    return f"gym.spaces.Box({low}, {high}, {shape}, np.{dtype})"


def _bound(bound: Bound, missing: str, shape: tuple[int, ...]) -> str:
    values = limits(bound)
    if len(values) > 1:
        return f"np.array({list(values)}, np.float32).reshape({shape})"
    return str(values[0]) if values else missing


def _observe(entries: list[StateEntry]) -> str:
    if len(entries) == 1:
        return "_shown(self.observation_space, self._x[0])"
    return (
        "{\n"
        "            name: _shown(space, x)\n"
        "            for (name, space), x in zip(self.observation_space.items(), self._x, "
        "strict=True)\n"
        "        }"
    )


def _action_space(action: Action | ActionPart) -> str:
    if action.kind == "discrete":
        return f"gym.spaces.Discrete({action.n})"
    if action.kind == "multi_discrete":
        return f"gym.spaces.MultiDiscrete({list(action.sizes or ())})"
    if action.kind == "multi_binary":
        return f"gym.spaces.MultiBinary({action.n})"
    shape = tuple(action.shape or ())
    low, high = _bound(action.low, "-1.0", shape), _bound(action.high, "1.0", shape)
    return f"gym.spaces.Box({low}, {high}, {shape}, np.float32)"


def _drive(action: Action) -> str:
    """Return how an action becomes one number from -1 to 1, as lines of code."""
    return {
        "discrete": "drive = 2.0 * int(action) / max(1, int(self.action_space.n) - 1) - 1.0",
        "multi_discrete": (
            "most = np.maximum(1, self.action_space.nvec - 1)\n"
            "        drive = 2.0 * float(np.mean(action / most)) - 1.0"
        ),
        "multi_binary": "drive = 2.0 * float(np.mean(action)) - 1.0",
        "box": (
            "low, high = self.action_space.low, self.action_space.high\n"
            "        share = (np.clip(action, low, high) - low) / (high - low)\n"
            "        drive = 2.0 * float(np.mean(share)) - 1.0"
        ),
    }[str(action.kind)]


def _masks(action: Action) -> str:
    if not action.mask:
        return ""
    sizes: Any = action.n if action.kind == "discrete" else sum(action.sizes or (action.n or 0,))
    return (
        "\n    def action_masks(self) -> np.ndarray:\n"
        '        """Return which choices are allowed: all of them. Replace this."""\n'
        f"        return np.ones({sizes}, bool)\n"
    )


_ENV = '''"""$about

Spaces, reward terms and endings are those of problem.yaml. What happens in `step` is a placeholder:
every entry is one number that actions push around, and the agent is to keep them near 0.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class $title(gym.Env[Any, Any]):
    """Written by `assay design blueprint`; replace what says so."""

    metadata = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        """Make it."""
        self.observation_space = $observation_space
        self.action_space = $action_space
        self.render_mode = render_mode
        self._x = np.zeros($entries)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. All randomness comes from self.np_random, which the seed sets."""
        super().reset(seed=seed)
        self._x = self.np_random.uniform(-0.9, 0.9, $entries)  # replace this
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act, and return (observation, reward, terminated, truncated, info)."""
        $drive
        self._x = np.clip(0.95 * self._x + 0.1 * drive, -1.0, 1.0)  # replace this
        near = 1.0 - float(np.abs(self._x).mean())
        terms = self._terms(near)
        endings = self._endings(near)
        info: dict[str, Any] = {f"reward/{name}": value for name, (_, value) in terms.items()}
        info |= endings$success
        reward = sum(weight * value for weight, value in terms.values())
        # A time limit is not reported here: gymnasium.register adds it, as truncated.
        return self._observe(), float(reward), any(endings.values()), False, info
$masks
    def get_state(self) -> dict[str, Any]:
        """Return all that changes in an episode: with it training resumes in the middle of one."""
        return {"x": self._x.tolist()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self._x = np.array(state["x"])

$rules
    def _observe(self) -> Any:
        return $observe


$shown'''

_TEST = '''"""Tests of $title: it keeps to the API, and its reward is the sum of its terms."""

from __future__ import annotations

import gymnasium as gym
import pytest
from assay.envs.checks import check_env

import $name


def test_it_keeps_to_the_api() -> None:
    failed = [check for check in check_env("$name:$title-v0", steps=300) if not check.ok]
    assert failed == []


def test_the_reward_is_the_sum_of_its_terms() -> None:
    env = $name.$title()
    env.action_space.seed(0)
    env.reset(seed=0)
    _, reward, *_ = env.step(env.action_space.sample())
    near = 1.0 - sum(map(abs, env.get_state()["x"])) / $entries
    assert reward == pytest.approx(sum(w * v for w, v in env._terms(near).values()))


def test_the_same_seed_gives_the_same_episode() -> None:
    first, second = (gym.make("$title-v0").reset(seed=7)[0] for _ in range(2))
    assert str(first) == str(second)


def test_a_state_can_be_restored() -> None:
    one, two = $name.$title(), $name.$title()
    one.reset(seed=3)
    two.reset(seed=4)
    two.set_state(one.get_state())
    one.action_space.seed(0)
    action = one.action_space.sample()
    assert str(one.step(action)) == str(two.step(action))
'''
