"""Rules of how episodes end: they say what the environments do."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from assay.core.errors import EnvError
from assay.envs.make import make_vector
from assay.envs.termination import METHOD, named_rule
from assay.testing.envs import Reach

ENDING = [
    "CartPole-v1", "MountainCarContinuous-v0", "Hopper-v5", "Walker2d-v5", "Ant-v5",
    "Humanoid-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5",
]  # fmt: skip
ENDLESS = ["Pendulum-v1", "HalfCheetah-v5", "Reacher-v5", "Pusher-v5", "Swimmer-v5"]


def played(env_id: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what followed random steps, and whether it ended the episode."""
    if not env_id.startswith(("CartPole", "Mountain", "Pendulum")):
        pytest.importorskip("mujoco")
    env = gym.make(env_id)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=3)
    found, ended = [], []
    for _ in range(steps):
        swing = np.sign(obs[1:]) + (obs[1:] == 0)  # random actions do not reach the top
        action = swing if env_id.startswith("Mountain") else env.action_space.sample()
        obs, _, terminated, truncated, _ = env.step(action)
        found.append(obs)
        ended.append(terminated)
        if terminated or truncated:
            obs, _ = env.reset()
    env.close()
    return np.stack(found).astype(np.float32), np.array(ended)


@pytest.mark.parametrize("env_id", ENDING)
def test_rule_says_what_the_environment_does(env_id: str) -> None:
    rule = named_rule(env_id)
    assert rule is not None
    obs, terminated = played(env_id, 1500 if env_id == "Ant-v5" else 400)
    assert 0 < terminated.sum() < len(terminated)
    np.testing.assert_array_equal(rule(obs), terminated)


@pytest.mark.parametrize("env_id", ENDLESS)
def test_episodes_that_never_end(env_id: str) -> None:
    rule = named_rule(env_id)
    assert rule is not None
    obs, terminated = played(env_id, 60)
    assert not terminated.any() and not rule(obs).any()


def test_numbers_that_are_not_finite_end_an_episode() -> None:
    """A model may predict them; an environment would end or fail."""
    for env_id, size in (("Hopper-v5", 11), ("Ant-v5", 105), ("InvertedPendulum-v5", 4)):
        rule = named_rule(env_id)
        assert rule is not None and rule(np.full((1, size), np.nan)).all()


class Ends(Reach):
    """Says itself how it ends."""

    def terminates(self, obs: np.ndarray) -> np.ndarray:
        """Return whether the point is right of 1."""
        return obs[:, 0] > 1.0


def found(env: Any, **options: Any) -> Any:
    with make_vector(env, **options) as envs:
        return envs.termination_rule()


def test_an_environment_may_bring_its_own() -> None:
    assert METHOD == "terminates"
    for factory in (Ends, lambda: gym.wrappers.TimeLimit(Ends(), 5)):
        rule = found(factory)
        assert rule(np.array([[2.0, 0.0], [0.5, 0.0]])).tolist() == [True, False]
    assert found(Reach) is None


class Halved(gym.ObservationWrapper):
    """Shows half of what there is, in the same space."""

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation / 2


class Wider(gym.Wrapper):
    """Shows a third number."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        return np.append(obs, 0.0), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return np.append(obs, 0.0), *rest


class HalvedEnds(Halved):
    """Says how it ends by what it shows."""

    def terminates(self, obs: np.ndarray) -> np.ndarray:
        return obs[:, 0] > 0.5


@pytest.mark.parametrize("wrapper", [Halved, Wider])
def test_a_rule_is_not_used_where_a_wrapper_changes_observations(wrapper: type) -> None:
    """It was written for others: a model would predict ends where there are none."""
    for factory in (
        lambda: wrapper(Ends()),
        lambda: gym.wrappers.TimeLimit(wrapper(Ends()), 5),
    ):
        with pytest.warns(UserWarning, match=f"not used: the wrapper {wrapper.__name__} changes"):
            assert found(factory) is None


def test_a_wrapper_brings_the_rule_of_what_it_shows() -> None:
    rule = found(lambda: gym.wrappers.TimeLimit(HalvedEnds(Ends()), 5))
    assert rule(np.array([[0.6, 0.0], [0.4, 0.0]])).tolist() == [True, False]
    rule = found(lambda: gym.wrappers.DtypeObservation(Ends(), np.float64))  # the same numbers
    assert rule(np.array([[2.0, 0.0], [0.5, 0.0]])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda obs: obs[0] > 1.0, r"terminates\(obs\) .* returned the shape \(2,\) for 3"),
        (lambda obs: bool(obs[0, 0] > 1.0), r"returned the shape \(\) for 3"),
        (lambda obs: obs.heat > 1.0, r"failed in terminates\(\): AttributeError"),
        (lambda: False, r"failed in terminates\(\): TypeError"),
    ],
)
def test_a_rule_that_is_none_is_refused_at_once(answer: Any, said: str) -> None:
    def make() -> gym.Env:
        env = Reach()
        env.terminates = answer
        return env

    with pytest.raises(EnvError, match=said):
        found(make)


def test_other_settings_than_the_ids_own_have_no_rule() -> None:
    pytest.importorskip("mujoco")
    assert found("Hopper-v5") is not None
    assert found("Hopper-v5", max_episode_steps=10) is not None
    assert found("Hopper-v5", env_kwargs={"terminate_when_unhealthy": False}) is None
    assert found(partial(gym.make, "Hopper-v5")) is None
    assert found("Acrobot-v1") is None


def test_another_package_may_use_a_name_of_gymnasium() -> None:
    gym.register("Reacher-v77", entry_point=f"{__name__}:Reach")
    try:
        assert found("Reacher-v77", max_episode_steps=5) is None
    finally:
        del gym.registry["Reacher-v77"]
