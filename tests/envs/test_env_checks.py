"""The environment checker finds what is wrong, and nothing else."""

from __future__ import annotations

import importlib
import random
import re
from functools import partial
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_zoo import Constant, Counter, Masked, SavesItself, Spoiler
from gymnasium import spaces

from assay.envs.checks import CheckResult, check_env

ALGORITHMS = {"ppo": ("Box", "Discrete"), "sac": ("Box",), "dqn": ("Discrete",)}


def check(env, steps: int = 200, **options) -> dict[str, CheckResult]:
    results = check_env(env, steps=steps, **options)
    assert len({result.name for result in results}) == len(results)
    return {result.name: result for result in results}


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", Counter, partial(Masked, "info")]
)
def test_good_environments_pass(env) -> None:
    results = check(env, algorithms=ALGORITHMS)
    assert [r.name for r in results.values() if not r.ok] == []
    assert set(results) >= {
        "made", "spaces", "observations", "observation range", "rewards", "flags", "determinism",
        "episodes", "actions", "speed", "state", "algorithms",
    }  # fmt: skip


def test_details() -> None:
    results = check("CartPole-v1", algorithms=ALGORITHMS, clock=count(0.0, 0.001).__next__)
    assert results["algorithms"].detail == "for Discrete actions: dqn, ppo"
    assert results["speed"].detail == "1,000 steps per second (one copy)"
    assert "native" in results["backend"].detail
    assert "can be saved" in results["state"].detail
    assert "cannot be saved" in check(Counter)["state"].detail
    assert "can be saved" in check(SavesItself)["state"].detail
    assert "algorithms" not in check(Counter)


class LeavesBounds(Counter):
    observation_space = spaces.Box(0, 1, (1,), np.float32)


class Unseeded(Counter):
    def observe(self):
        return np.array([random.random()], np.float32)


class NewActions(Counter):
    """Makes a new action space at every reset, and shows what was done."""

    def reset(self, **kwargs):
        self.action_space, self.last = spaces.Discrete(50), 0
        return super().reset(**kwargs)

    def step(self, action):
        self.last = action
        return super().step(action)

    def observe(self):
        return np.array([self.last / 50], np.float32)


class IntFlags(Counter):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, int(terminated), truncated, info


@pytest.mark.parametrize(
    ("env", "failing", "detail"),
    [
        (partial(Constant, spaces.Text(3), "a"), "spaces", "text alone"),
        (partial(Constant, spaces.Sequence(spaces.Discrete(2)), ()), "spaces", "Sequence"),
        (partial(Constant, spaces.Box(0, 1, (2,)), np.zeros(3)), "observations", r"shape \(3,\)"),
        (partial(Spoiler, "nan_obs"), "observations", "not finite"),
        (LeavesBounds, "observation range", "outside of \\["),
        (partial(Spoiler, "nan_reward"), "rewards", "in step 3, the reward is nan"),
        (partial(Spoiler, "no_reward"), "rewards", "in step 3, the reward is None"),
        (IntFlags, "flags", "terminated of step 1 is 0"),
        (Unseeded, "determinism", "differ from step [01] on, and so does a new copy$"),
        (partial(Spoiler, "raise"), "runs", "the pantry is empty"),
        (lambda: 1 / 0, "made", "ZeroDivisionError"),
        (lambda: 3, "made", "returned a int"),
        ("CartPol-v1", "made", "CartPol-v1"),
    ],
)
def test_faults_are_found(env, failing: str, detail: str) -> None:
    results = check(env)
    assert [name for name, result in results.items() if not result.ok] == [failing]
    assert re.search(detail, results[failing].detail)


class Remembers(Counter):
    """An environment that knows how many episodes it has begun."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + self.episodes, terminated, truncated, info


def test_what_an_episode_leaves_behind_is_told_from_other_randomness() -> None:
    found = check(partial(Remembers, 5))["determinism"]
    assert not found.ok
    assert "differ from step 1 on; a new copy repeats the first" in found.detail
    assert "one that is resumed differs" in found.fix
    given = check(Remembers(5))["determinism"]  # an object has no new copy
    assert given.detail.endswith("with the same actions differ from step 1 on")


class Blank(Counter):
    """An environment whose images are never drawn."""

    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)

    def observe(self) -> np.ndarray:
        return np.zeros((12, 12, 3), np.uint8)


def test_images_without_anything_in_them_are_found() -> None:
    found = check(Blank)["observations"]
    assert not found.ok and "images have one colour, 0" in found.detail
    assert "render_mode=rgb_array" in found.fix


class RemembersCuts(Counter):
    """An environment that knows whether the last episode was left in the middle."""

    cut = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.cut = float(0 < self.t < self.length)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + self.cut, terminated, truncated, info


def test_what_an_episode_that_was_cut_leaves_behind_is_found() -> None:
    found = check(partial(RemembersCuts, 8))["determinism"]  # 200 steps end with an episode
    assert not found.ok and "a new copy repeats the first" in found.detail


def test_bipedal_walker_keeps_its_world_from_one_episode_to_the_next() -> None:
    """Gymnasium's reset() destroys the bodies alone; what a Box2D world keeps changes contacts."""
    box2d = pytest.importorskip("Box2D")
    walker = importlib.import_module("gymnasium.envs.box2d.bipedal_walker").BipedalWalker

    class NewWorld(walker):  # type: ignore[misc, valid-type]
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self._destroy()
            self.world = box2d.b2World()
            return super().reset(seed=seed, options=options)

    kept = check("BipedalWalker-v3", steps=300)["determinism"]
    assert not kept.ok and "a new copy repeats the first" in kept.detail
    assert check(NewWorld, steps=300)["determinism"].ok


def test_actions_are_the_same_where_their_space_is_not() -> None:
    assert check(NewActions)["determinism"].ok


def test_advice() -> None:
    limit = check(partial(Counter, 5))["episodes"]
    assert limit.ok and "truncated" in limit.fix
    assert check(partial(Counter, 5, truncates=True))["episodes"].fix is None
    assert "max_episode_steps=N" in check(partial(Counter, 10**6))["episodes"].fix
    box = spaces.Box(0, 1, (1,))
    obs = np.zeros(1, np.float32)
    wide = check(partial(Constant, box, obs, spaces.Box(-1000, 1000, (1,))))["actions"]
    assert wide.ok and "RescaleAction" in wide.fix
    endless = check(partial(Constant, box, obs, spaces.Box(-np.inf, np.inf, (1,))))["actions"]
    assert endless.ok and "finite bounds" in endless.fix
    assert check(partial(Constant, box, obs, spaces.Box(-1, 1, (1,))))["actions"].fix is None


def test_no_algorithm_fits() -> None:
    result = check(Counter, algorithms={"sac": ("Box",)})["algorithms"]
    assert not result.ok and "Discrete" in result.detail


def test_an_environment_of_the_callers_is_not_closed() -> None:
    closed = []

    class Closes(Counter):
        def close(self) -> None:
            closed.append(self)

    check(Closes())
    assert closed == []
    check(Closes)
    assert len(closed) == 1
    assert not check(gym.vector.SyncVectorEnv([Counter]))["made"].ok


def test_a_double_that_was_rounded_past_its_bound_is_within() -> None:
    above = partial(Constant, spaces.Box(0, 1, (1,), np.float64), np.array([1 + 2.3e-16]))
    assert check(above)["observation range"].ok


def test_the_number_that_is_farthest_outside_is_named() -> None:
    env = partial(Constant, spaces.Box(0, 1, (2,), np.float64), np.array([1 + 2.3e-16, 1.5]))
    assert "has 1.5 at [1], outside of [0, 1]" in check(env)["observation range"].detail
