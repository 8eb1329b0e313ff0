"""A broken environment is known before a run begins, in one message."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from env_zoo import Constant, Counter, Masked
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import assay
from assay.core.errors import EnvError
from assay.envs import screen
from assay.envs.checks import check_env
from assay.envs.make import make_vector
from assay.envs.spaces import BadObservationError, ObservationMap
from assay.envs.start_check import check_start

QUICK: dict[str, Any] = {
    "env_steps": 64, "num_envs": 1, "horizon": 32, "minibatch_size": 32, "eval_episodes": 2,
    "hidden": (8,), "sinks": (), "compile": False,
}  # fmt: skip


class Odd(Counter):
    """Gives odd rewards or observations from the first step on."""

    def __init__(self, reward: Any = 1.0, obs: Any = None) -> None:
        super().__init__(100)
        self.odd = reward, obs

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        reward, other = self.odd
        return obs if other is None else other, reward, *rest


class LeavesLater(gym.Env[Any, Any]):
    """Returns a choice that its space does not have, long after the start."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any, good: Any, bad: Any) -> None:
        self.observation_space, self.good, self.bad = space, good, bad
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.good, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.bad if self.steps == 40 else self.good, 0.0, self.steps % 7 == 0, False, {}


@pytest.mark.parametrize("backend", ["sync", "processes"])
@pytest.mark.parametrize(
    ("space", "good", "bad", "said"),
    [
        (spaces.Discrete(4), 1, 4, "returned 4 in an observation"),
        (spaces.Discrete(4, start=5), 6, 4, "returned 4 in an observation"),
        (
            spaces.MultiDiscrete([3, 2]),
            np.array([2, 1]),
            np.array([2, 2]),
            r"returned \[2 2\] in an observation",
        ),
        (
            spaces.Dict({"cell": spaces.Discrete(9), "x": spaces.Box(0, 1, (1,))}),
            {"cell": 8, "x": np.zeros(1, np.float32)},
            {"cell": -1, "x": np.zeros(1, np.float32)},
            "returned -1 in entry 'cell' of an observation",
        ),
    ],
)
def test_a_choice_that_is_none_is_refused_at_any_time(
    space: Any, good: Any, bad: Any, said: str, backend: Any
) -> None:
    with make_vector(partial(LeavesLater, space, good, bad), 2, backend=backend) as envs:
        envs.reset(0)
        for _ in range(39):
            envs.step(np.zeros(2, np.int64))
        with pytest.raises(EnvError, match=f"Environment 0 of .*{said} at step 40, outside of"):
            envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reward": None}, "the reward is None; a number was expected"),
        ({"reward": "1"}, "the reward is '1'; a number was expected"),
        ({"reward": np.ones(2)}, r"the reward is array\(\[1., 1.\]\)"),
        ({"reward": [1.0]}, r"the reward is \[1.0\]; a number was expected"),
        ({"reward": float("nan")}, "returned the reward nan"),
        ({"obs": np.zeros(2, np.float32)}, r"shape \(2,\).* declares shape \(1,\)"),
        ({"obs": np.array([1j])}, "dtype complex128, but its space declares"),
        ({"obs": np.array([np.inf], np.float32)}, "an observation whose component"),
    ],
)
def test_what_is_broken_is_refused_before_the_run_exists(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    for env in (partial(Odd, **wrong), Odd(**wrong)):
        begun: list[Any] = []
        with pytest.raises(EnvError, match=message):
            assay.train("ppo", env, root=tmp_path, callbacks=[begun.append], **QUICK)
        assert begun == []
        assert not list(tmp_path.iterdir())


def boxed(low: float, high: float) -> gym.Env:
    return Constant(spaces.Box(low, high, (2,), np.float32), np.array([0.5, 3.0], np.float32))


def test_a_number_outside_of_its_box_is_warned_of_once(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assay.train("ppo", partial(boxed, 0, 1), root=tmp_path, max_episode_steps=9, **QUICK)
    said = [str(one.message) for one in seen if "outside of" in str(one.message)]
    assert len(said) == 1
    assert "returned 3.0 in an observation, outside of Box(0.0, 1.0, (2,), float32)" in said[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_start(make_vector(partial(boxed, 0, 3)))


class Leaves(Counter):
    """Leaves its Box with the last observation of each episode, which has one step."""

    def __init__(self) -> None:
        super().__init__(1)
        self.observation_space = spaces.Box(0, 0.5, (1,), np.float32)

    def observe(self) -> np.ndarray:
        return np.array([self.t], np.float32)


def test_the_last_observation_of_an_episode_is_looked_at() -> None:
    with pytest.warns(UserWarning, match=r"returned 1.0 in an observation, outside of Box") as seen:
        check_start(make_vector(Leaves, 2))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (spaces.Discrete(3), 3),
        (spaces.Discrete(3, start=1), 0),
        (spaces.MultiDiscrete([2, 2]), np.array([0, 2])),
        (spaces.MultiBinary(2), np.array([0, 2], np.int8)),
        (spaces.Dict({"a": spaces.Discrete(3)}), {"a": 4}),
    ],
)
def test_an_integer_outside_of_its_space_is_refused(space: gym.Space, obs: Any) -> None:
    with pytest.raises(EnvError, match="outside of"):
        check_start(make_vector(partial(Constant, space, obs), 2))


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "FrozenLake-v1",
        "Taxi-v4",
        "Blackjack-v1",
        Counter,
        SyncVectorEnv([Counter]),
        partial(Masked, "info"),
    ],
)
def test_good_environments_pass(env: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_start(make_vector(env))


@pytest.mark.parametrize(
    "space",
    [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(5), spaces.Discrete(5)],
)
def test_only_what_a_mask_allows_is_tried(space: gym.Space) -> None:
    mask = np.array([0, 1, 0, 0, 1], np.int8)
    observation = spaces.Dict(
        {"x": spaces.Box(0, 1, (1,), np.float32), "action_mask": spaces.MultiBinary(5)}
    )
    obs = {"x": np.zeros(1, np.float32), "action_mask": mask}
    env = Constant(observation, obs, space)
    check_start(make_vector(env))
    tried = np.array(env.actions)
    if isinstance(space, spaces.MultiDiscrete):
        assert (tried == [1, 2]).all()
    elif isinstance(space, spaces.MultiBinary):
        assert not tried[:, mask == 0].any() and tried[:, mask == 1].any()
    else:
        assert set(tried.tolist()) <= {1, 4}


def test_floats_of_a_vector_environment_are_not_taken_for_integers() -> None:
    bytes_ = ObservationMap(spaces.Box(0, 255, (4, 4, 3), np.uint8))
    with pytest.raises(BadObservationError, match=r"dtype float64, but its space .* uint8"):
        bytes_.batch(np.full((1, 4, 4, 3), 0.5))
    with pytest.raises(BadObservationError, match="dtype float64"):
        ObservationMap(spaces.Discrete(3, start=1)).batch(np.array([1.5]))
    assert bytes_.batch(np.ones((1, 4, 4, 3), np.int64)).dtype == np.uint8


# ---------------------------------------------------------------------- drawing without a screen


@pytest.fixture
def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("headless")
@pytest.mark.parametrize("env", ["CartPole-v1", "InvertedPendulum-v5"])
def test_a_window_is_refused_where_there_is_no_screen(env: str, tmp_path: Path) -> None:
    """MuJoCo's window would end the process."""
    settings = QUICK | {"env_kwargs": {"render_mode": "human"}}
    with pytest.raises(EnvError, match=r"render_mode='human', which needs a screen.*\n.*--video"):
        assay.train("ppo", env, root=tmp_path, **settings)
    results = check_env(env, env_kwargs={"render_mode": "human"})
    assert not results[-1].ok and "needs a screen" in results[-1].detail


class Draws(Counter):
    """Fails as OpenGL does in the middle of a step."""

    def step(self, action: Any) -> Any:
        import OpenGL.error

        raise OpenGL.error.Error("no context")


@pytest.mark.usefixtures("headless")
def test_an_image_that_cannot_be_drawn_says_what_to_set(tmp_path: Path) -> None:
    pytest.importorskip("OpenGL")
    with pytest.raises(EnvError, match=r"failed in step\(\).*no context") as caught:
        assay.train("ppo", Draws, root=tmp_path, **QUICK)
    assert caught.value.fix is not None and "MUJOCO_GL=egl" in caught.value.fix


def test_an_error_with_a_screen_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("OpenGL")
    monkeypatch.setenv("DISPLAY", ":0")
    with pytest.raises(EnvError) as caught:
        assay.train("ppo", Draws, root=tmp_path, **QUICK)
    assert caught.value.fix is None


@pytest.mark.parametrize("reward", [np.array([1.5]), np.array([[1.5]]), np.array(1.5), 1.5])
def test_an_array_of_one_number_is_a_reward(reward: Any, tmp_path: Path) -> None:
    run = assay.train("ppo", partial(Odd, reward), root=tmp_path, max_episode_steps=4, **QUICK)
    assert run.evaluate(episodes=1).mean == 6.0
    found = next(one for one in check_env(partial(Odd, reward)) if one.name == "rewards")
    assert found.ok and ("Return a float" in (found.fix or "")) == (np.ndim(reward) > 0)


def test_rewards_of_a_vector_environment_are_one_number_each() -> None:
    envs = SyncVectorEnv([Counter] * 2)
    with mock.patch.object(envs, "_rewards", np.zeros((2, 1))):
        vector = make_vector(envs)
        vector.reset(0)
        with pytest.raises(EnvError, match=r"shape \(2, 1\).*\n.*reward.reshape\(num_envs\)"):
            vector.step(np.zeros(2, np.int64))
