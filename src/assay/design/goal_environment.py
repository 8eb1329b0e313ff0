"""The environment of a problem with goals, by Gymnasium-Robotics' interface, to be filled in."""

from __future__ import annotations

from collections.abc import Sequence

from assay.design.problem import StateEntry
from assay.design.rules import DesignError


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
