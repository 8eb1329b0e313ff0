"""Options of resets: they reach every episode, in training and evaluation, or are refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

import assay
from assay.buffers.rollout import Rollout
from assay.core.errors import AssayError, ConfigError, EnvError
from assay.envs.make import make_env, make_vector
from assay.loops.config import RunConfig
from assay.testing.algorithms import assert_same_run, stop_when_called

HIGH = {"low": 0.04, "high": 0.05}
SMALL: dict[str, Any] = {
    "horizon": 8, "num_envs": 2, "hidden": (8,), "env_steps": 128, "eval_episodes": 2, "sinks": (),
    "preset": False, "compile": False, "checkpoint_every": 64, "eval_every": 64,
}  # fmt: skip


class Doors(gym.Env[Any, Any]):
    """Begins where an option says; every episode is one step."""

    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    seen: ClassVar[list[Any]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        door = (options or {}).get("door", 0)
        self.seen.append(options)
        if options:
            options["door"] = -1  # what it does to its options is its own
        return np.array([door], np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {}


class Bare(Doors):
    """Takes no options."""

    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


gym.register("Doors-v0", Doors)
gym.register("DoorsInRows-v0", vector_entry_point=lambda **kwargs: None)


@pytest.mark.parametrize("backend", ["auto", "processes"])
def test_every_episode_begins_with_them(backend: Any) -> None:
    with make_vector("CartPole-v1", 3, backend=backend, reset_options=HIGH) as envs:
        starts = [envs.reset(seed=1)]
        while len(starts) < 4:
            obs, _, _, _, _, final = envs.step(np.ones(3, np.int64))
            if final is not None:
                starts.append(obs)
    # Of copies whose episode goes on, nothing is known.
    assert ((np.stack(starts)[0] >= 0.04) & (np.stack(starts)[0] <= 0.05)).all()
    assert all(((0.04 <= obs) & (obs <= 0.05)).all(1).any() for obs in starts)


@pytest.mark.parametrize("env", ["Doors-v0", Doors, Doors()], ids=["id", "factory", "object"])
def test_of_every_kind_of_environment(env: Any) -> None:
    with make_vector(env, 1, reset_options={"door": 3}) as envs:
        assert envs.reset(seed=0) == 3
        assert envs.step(np.zeros(1, np.int64))[0] == 3


def test_one_environment() -> None:
    with make_env("CartPole-v1", reset_options=HIGH) as env:
        assert (env.reset(seed=0)[0] >= 0.04).all()


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("CartPole-v1", {"backend": "native"}, "native version of 'CartPole-v1' takes no reset_o"),
        ("FrozenLake-v1", {"backend": "vector"}, "no vector version that fits .*reset_options"),
        ("DoorsInRows-v0", {}, "'DoorsInRows-v0' exists only as a vector"),
        (gym.make_vec("CartPole-v1", 2), {}, "starts its episodes itself"),
        (Bare, {}, "its reset refuses the options {'low': 0.04, 'high': 0.05} .TypeError"),
        ("CartPole-v1", {"reset_options": {"low": "a"}}, "refuses the options {'low': 'a'}"),
    ],
)
def test_refused_with_the_reason(env: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_vector(env, **({"reset_options": HIGH} | options)).reset(0)


def test_a_reset_that_fails_anyway_is_not_blamed_on_them() -> None:
    class Broken(Doors):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            raise ValueError("no door")

    with pytest.raises(EnvError, match=r"failed in reset\(\): ValueError: no door"):
        make_vector(Broken, 1, reset_options={"door": 1}).reset(0)


def test_those_that_nobody_looks_at_are_named() -> None:
    with pytest.warns(UserWarning, match="did not look at the options lo. It looked for: high, l"):
        make_vector("CartPole-v1", 1, reset_options={"lo": -0.1}).reset(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_vector("CartPole-v1", 1, reset_options={"low": -0.1}).reset(0)

    class Unpacks(Doors):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=seed, options={**options})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_vector(Unpacks, 1, reset_options={"door": 1}).reset(0)


def test_training_evaluation_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SMALL, "reset_options": HIGH, "root": tmp_path}
    whole = assay.train("ppo", "CartPole-v1", name="whole", **settings)
    assert RunConfig.from_dict(whole.directory.config).run.reset_options == HIGH
    stop_when_called(monkeypatch, Rollout, "write", 21)
    parts = assay.train("ppo", "CartPole-v1", name="parts", **settings)
    assert parts.status == "interrupted"
    assay.resume(parts.path)
    assert_same_run(whole.path, parts.path)
    Doors.seen.clear()
    run = assay.train("ppo", Doors, name="doors", **(settings | {"reset_options": {"door": 3}}))
    assert all(options is not None for options in Doors.seen)
    Doors.seen.clear()
    run.evaluate(episodes=3)
    assert len(Doors.seen) >= 3 and all(options is not None for options in Doors.seen)


def test_bad_values(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reset_options"):
        assay.train("ppo", "CartPole-v1", root=tmp_path, **(SMALL | {"reset_options": 5}))
    with pytest.raises(ConfigError, match="called 'reset_options' here"):
        assay.train("ppo", "CartPole-v1", root=tmp_path, **(SMALL | {"options": {"low": 0}}))
    with pytest.raises(AssayError, match="refuses the options"):
        assay.train("ppo", "CartPole-v1", root=tmp_path, **(SMALL | {"reset_options": {"low": 9}}))
    assert not list(tmp_path.iterdir())


def test_several_agents() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("mpe2", reason="simple_spread needs it")
    with make_vector("simple_spread_v3", 1) as envs:
        usual = envs.reset(0)
    with pytest.warns(UserWarning, match="did not look at the options"):
        envs = make_vector("simple_spread_v3", 1, backend="sync", reset_options={"door": 1})
        same = envs.reset(0)
    assert all(np.array_equal(usual[key], same[key]) for key in usual)


@pytest.mark.parametrize("key", ["reset_options", "env_kwargs"])
def test_values_that_no_file_holds(key: str, tmp_path: Path) -> None:
    doors = lambda **kwargs: Doors()  # noqa: E731
    with pytest.raises(ConfigError, match=r"config.yaml cannot hold .*ndarray.*\n.*tolist"):
        assay.train("ppo", doors, root=tmp_path, **(SMALL | {key: {"door": np.ones(1)}}))
    assert not list(tmp_path.iterdir())
