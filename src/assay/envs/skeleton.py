"""The package of an environment of one's own, as `assay envs new` writes it."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
from pathlib import Path
from string import Template
from typing import Literal

from assay.core.errors import ConfigError, EnvError
from assay.runs.files import run_error

Actions = Literal["discrete", "box"]

_NAME = re.compile(r"[a-z][a-z0-9_]{1,39}")


def write_skeleton(name: str, place: Path, actions: Actions = "discrete") -> tuple[Path, str]:
    """Write a package with an environment, its registration and its tests.

    Args:
        name: Of the package and its directory.
        place: The directory that the package's directory is made in.
        actions: The kind of actions that the environment takes.

    Returns:
        The package's directory, and the id to train on from there.

    Raises:
        ConfigError: The name cannot be that of a package, or is taken.
        RunError: The files cannot be written; none is left behind.
    """
    title = refuse_name(name)
    target = place / name
    if target.exists() or target.is_symlink():
        raise EnvError(
            f"'{target}' exists already, and nothing was changed.",
            "Choose another name, or another directory with --dir.",
        )
    words = {"name": name, "title": title, **_ACTIONS[actions]}
    files = package_files(
        name,
        env=Template(_ENV).substitute(words),
        test=Template(_TEST).substitute(words),
        limit=50,
        algorithm=words["algorithm"],
    )
    try:
        target.mkdir(parents=True)
        try:
            for path, text in files.items():
                file = target / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
    except OSError as error:
        raise run_error(error, f"write '{target}'") from None
    return target, f"{name}:{title}-v0"


def package_files(
    name: str,
    *,
    env: str,
    test: str,
    limit: int,
    algorithm: str,
    init: str | None = None,
    env_id: str | None = None,
    requires: str = "gymnasium>=1.0",
) -> dict[str, str]:
    """Return the files of a package with an environment, by their paths.

    Args:
        name: Of the package; the environment's class is called the same in its own case.
        env: The module with the environment.
        test: The module with its tests.
        limit: Steps after which episodes are cut.
        algorithm: What its README trains with.
        init: The package's `__init__.py`; by default it registers the environment.
        env_id: What the environment is trained by, if that is not its registration.
        requires: What the package needs beside NumPy.
    """
    title = title_of(name)
    words = {
        "name": name, "title": title, "limit": str(limit), "algorithm": algorithm,
        "id": env_id or f"{name}:{title}-v0", "requires": requires,
    }  # fmt: skip
    return {
        "pyproject.toml": Template(_PROJECT).substitute(words),
        "README.md": Template(_README).substitute(words),
        f"{name}/__init__.py": init or Template(_INIT).substitute(words),
        f"{name}/env.py": env,
        f"tests/test_{name}.py": test,
    }


def title_of(name: str) -> str:
    """Return the name of a package's class.

    Example:
        >>> title_of("my_env")
        'MyEnv'
    """
    return "".join(part.title() for part in name.split("_") if part)


def refuse_name(name: str) -> str:
    """Return the name of the class of a package, if there can be one of that name.

    Raises:
        ConfigError: There cannot, or a module that is installed has it.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"'{name}' cannot be the name of a package.",
            "Use 2 to 40 lower-case letters, digits and '_', starting with a letter: my_env",
        )
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"'{name}' is the name of a module that is installed, which it would hide.",
            "Choose another name.",
        )
    return title_of(name)


_ACTIONS: dict[Actions, dict[str, str]] = {
    "discrete": {
        "action_type": "int",
        "action_space": "gym.spaces.Discrete(3)",
        "action_words": "0 goes left, 1 stays, 2 goes right",
        "move": "0.1 * (int(action) - 1)",
        "towards": "int(np.sign(np.round(target - position, 1))) + 1",
        "algorithm": "ppo",
    },
    "box": {
        "action_type": "np.ndarray",
        "action_space": "gym.spaces.Box(-1.0, 1.0, (1,), np.float32)",
        "action_words": "the speed, from -1 to 1",
        "move": "0.1 * float(np.clip(action[0], -1.0, 1.0))",
        "towards": "np.clip([(target - position) / 0.1], -1.0, 1.0).astype(np.float32)",
        "algorithm": "ppo",
    },
}

_ENV = '''"""$title: reach a target on a line. Replace this by what your environment is about."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class $title(gym.Env[np.ndarray, $action_type]):
    """Go to the target.

    An observation is (position, target), both from -1 to 1. An action is one number:
    $action_words.
    The reward is minus the distance that is left. The episode ends at the target; that it is also
    cut after 50 steps is said where it is registered, in `__init__.py`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 10}

    def __init__(self, width: float = 0.05, render_mode: str | None = None) -> None:
        """Make it; the target is reached within `width`."""
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = $action_space
        self.width = width
        self.render_mode = render_mode
        self._position = self._target = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode. All randomness comes from self.np_random, which the seed sets."""
        super().reset(seed=seed)
        self._position, self._target = 0.1 * self.np_random.integers(-10, 11, size=2)
        return self._observe(), {}

    def step(self, action: $action_type) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move, and return (observation, reward, terminated, truncated, info)."""
        moved = self._position + $move
        self._position = float(np.clip(moved, -1.0, 1.0))
        distance = abs(self._position - self._target)
        reached = distance <= self.width
        # A time limit is not reported here: gymnasium.register adds it, as truncated.
        return self._observe(), -distance, reached, False, {"is_success": reached}

    def render(self) -> str | None:
        """Return the line as text."""
        if self.render_mode != "ansi":
            return None
        line = ["."] * 21
        line[round(10 * self._target) + 10] = "x"
        line[round(10 * self._position) + 10] = "o"
        return "".join(line)

    def get_state(self) -> dict[str, Any]:
        """Return all that changes in an episode: with it training resumes in the middle of one."""
        return {"position": float(self._position), "target": float(self._target)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self._position, self._target = float(state["position"]), float(state["target"])

    def _observe(self) -> np.ndarray:
        return np.array([self._position, self._target], np.float32)
'''

_INIT = '''"""The environment $title-v0, registered when this package is imported."""

from gymnasium import register

from $name.env import $title

__all__ = ["$title"]

register("$title-v0", entry_point="$name.env:$title", max_episode_steps=$limit)
'''

_TEST = '''"""Tests of $title: its rules, and that it keeps to Gymnasium's API."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from assay.envs.checks import check_env
from gymnasium.utils.env_checker import check_env as check_api

import $name


@pytest.fixture
def env() -> gym.Env:
    return gym.make("$title-v0")


def towards(obs: np.ndarray) -> object:
    """Return the best action."""
    position, target = obs
    return $towards


def test_it_keeps_to_the_api(env: gym.Env) -> None:
    check_api(env.unwrapped, skip_render_check=True)
    failed = [check for check in check_env("$title-v0", steps=300) if not check.ok]
    assert failed == []


def test_the_reward_is_minus_the_distance(env: gym.Env) -> None:
    obs, _ = env.reset(seed=0)
    obs, reward, *_ = env.step(towards(obs))
    assert reward == pytest.approx(-abs(float(obs[0] - obs[1])), abs=1e-6)


def test_it_can_be_solved(env: gym.Env) -> None:
    for seed in range(10):
        obs, _ = env.reset(seed=seed)
        for _ in range(25):
            obs, _, terminated, _, info = env.step(towards(obs))
            if terminated:
                break
        assert terminated and info["is_success"]


def test_the_same_seed_gives_the_same_episode(env: gym.Env) -> None:
    first, second = (env.reset(seed=7)[0] for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, env.reset(seed=8)[0])


def test_a_state_can_be_restored() -> None:
    one, two = $name.$title(), $name.$title()
    obs, _ = one.reset(seed=3)
    two.reset(seed=4)
    two.set_state(one.get_state())
    action = towards(obs)
    assert np.array_equal(one.step(action)[0], two.step(action)[0])


def test_it_is_drawn() -> None:
    env = gym.make("$title-v0", render_mode="ansi")
    env.reset(seed=0)
    assert "o" in env.render()
'''

_PROJECT = """[build-system]
requires = ["setuptools>=68"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
description = "The environment $title."
requires-python = ">=3.11"
dependencies = ["$requires", "numpy"]

[project.optional-dependencies]
test = ["assay", "pytest"]

[tool.setuptools]
packages = ["$name"]

[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
"""

_README = """# $title
Write what the agent sees, does and is rewarded for. The environment is in `$name/env.py`, and
`$name/__init__.py` makes it known.

    pip install -e '.[test]'
    pytest
    assay envs check $id
    assay train $algorithm $id env_steps=30000

The part before the colon is the package that has it. From this directory it works without an
installation.
"""
