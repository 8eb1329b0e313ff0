"""A saved environment continues exactly where it was, or reports that it cannot be saved."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_zoo import Counter, Keeper, SavesItself
from gymnasium import wrappers

from assay.core.errors import EnvError
from assay.core.types import tree_leaves
from assay.envs.make import make_vector
from assay.envs.vector import Vector


def play(envs: Vector, actions: list[np.ndarray]) -> list[list[Any]]:
    """Return every bit that the steps gave."""
    seen = []
    for action in actions:
        obs, reward, terminated, truncated, _, final = envs.step(action)
        done = terminated | truncated
        last = [] if final is None else [leaf[done] for leaf in tree_leaves(final)]
        arrays = [*tree_leaves(obs), reward, terminated, truncated, *last]
        seen.append([array.tobytes() for array in arrays])
    return seen


def sample(envs: Vector, count: int) -> list[np.ndarray]:
    space = gym.vector.utils.batch_space(envs.spaces.action, envs.num_envs)
    space.seed(0)
    return [np.asarray(space.sample()) for _ in range(count)]


def through_json(state: Any) -> Any:
    """Send a state the way of a checkpoint: arrays apart, the rest as JSON."""
    if isinstance(state, np.ndarray):
        assert state.dtype.kind in "fiub"
        return state.copy()
    if isinstance(state, dict):
        return {key: through_json(part) for key, part in state.items()}
    if isinstance(state, list) and any(isinstance(part, dict) for part in state):
        return [through_json(part) for part in state]
    return json.loads(json.dumps(state, allow_nan=False))


def ends_seen(seen: list[list[Any]]) -> int:
    return sum(b"\x01" in row for step in seen for row in step[2:4])


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("HalfCheetah-v5", {"max_episode_steps": 120}),
        ("Hopper-v5", {}),
        ("Walker2d-v5", {}),
        ("Ant-v5", {}),
        ("Humanoid-v5", {}),
        ("Reacher-v5", {}),
        ("Pusher-v5", {}),
        ("InvertedDoublePendulum-v5", {}),
        ("HalfCheetah-v4", {"max_episode_steps": 120}),
        ("CartPole-v1", {"sutton_barto_reward": True}),
        ("Pendulum-v1", {"g": 9.0}),
        ("Acrobot-v1", {"max_episode_steps": 90}),
        ("MountainCar-v0", {"max_episode_steps": 70}),
        ("MountainCarContinuous-v0", {"max_episode_steps": 70}),
        ("FrozenLake-v1", {}),
        ("Blackjack-v1", {}),
    ],
)
def test_restoring_is_exact(name: str, kwargs: dict) -> None:
    if "v5" in name or "v4" in name:
        pytest.importorskip("mujoco")
    options: dict = {"backend": "sync", "env_kwargs": kwargs}
    with make_vector(name, 2, **options) as envs:
        actions = sample(envs, 340)
        envs.reset(seed=3)
        play(envs, actions[:40])
        state = through_json(envs.get_state())
        expected = play(envs, actions[40:])
    assert ends_seen(expected), "the test is to cross the end of an episode"
    with make_vector(name, 2, **options) as fresh:
        fresh.set_state(state)
        assert play(fresh, actions[40:]) == expected
        # And from anywhere: nothing of what went on in between is left.
        fresh.set_state(state)
        assert play(fresh, actions[40:]) == expected


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_native_restores_exactly(name: str) -> None:
    with make_vector(name, 5) as envs:
        actions = sample(envs, 250)
        envs.reset(seed=3)
        play(envs, actions[:30])
        state = through_json(envs.get_state())
        expected = play(envs, actions[30:])
    with make_vector(name, 5) as fresh:
        fresh.set_state(state)
        assert play(fresh, actions[30:]) == expected


def test_an_environment_may_save_itself_within_known_wrappers() -> None:
    def factory() -> gym.Env:
        env: gym.Env = wrappers.RecordEpisodeStatistics(SavesItself(50))
        env = wrappers.TimeAwareObservation(wrappers.TimeLimit(env, 7))
        return wrappers.StickyAction(env, repeat_action_probability=0.4)

    envs = make_vector(factory, 2)
    actions = sample(envs, 30)
    envs.reset(seed=0)
    play(envs, actions[:10])
    state = through_json(envs.get_state())
    expected = play(envs, actions[10:])
    fresh = make_vector(factory, 2)
    fresh.set_state(state)
    assert play(fresh, actions[10:]) == expected and ends_seen(expected)


def test_what_cannot_be_saved_gives_none() -> None:
    class Derived(type(gym.make("Acrobot-v1").unwrapped)):
        """Might hold anything: it is not Gymnasium's own."""

    cases: list[Any] = [
        Counter,
        lambda: Keeper(SavesItself()),
        lambda: wrappers.TimeLimit(Keeper(gym.make("Acrobot-v1")), 5),
        lambda: wrappers.TransformObservation(SavesItself(), lambda obs: obs, None),
        Derived,
        "LunarLander-v3",
        gym.vector.SyncVectorEnv([SavesItself]),
    ]
    for case in cases:
        with make_vector(case) as envs:
            envs.reset(seed=0)
            assert envs.get_state() is None, case


def test_a_state_of_another_environment_is_refused() -> None:
    envs = make_vector("Acrobot-v1", 2, backend="sync")
    envs.reset(seed=0)
    state = envs.get_state()
    other = make_vector("MountainCar-v0", 2, backend="sync")
    with pytest.raises(EnvError, match=r"is of .*AcrobotEnv"):
        other.set_state(state)
    unlimited = make_vector(lambda: gym.make("Acrobot-v1").unwrapped, 2)
    with pytest.raises(EnvError, match="in 2 wrappers"):
        unlimited.set_state(state)


def test_a_state_that_a_checkpoint_cannot_store_is_refused() -> None:
    class Hoards(SavesItself):
        def get_state(self) -> dict[str, Any]:
            return {"fine": 1, "worse": {"things": {1, 2}}}

    envs = make_vector(Hoards)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"\['worse'\]\['things'\] is a set"):
        envs.get_state()


def test_a_vector_environment_may_save_itself() -> None:
    class Saves(gym.vector.SyncVectorEnv):
        def get_state(self) -> dict[str, Any]:
            return {"t": [env.t for env in self.envs]}

        def set_state(self, state: dict[str, Any]) -> None:
            for env, t in zip(self.envs, state["t"], strict=True):
                env.episode, env.t = 0, t

    def new() -> Vector:
        return make_vector(Saves([lambda: Counter(2), lambda: Counter(3)]))  # resets on next step

    envs = new()
    envs.reset(seed=0)
    actions = np.zeros(2, np.int64)
    envs.step(actions)
    envs.step(actions)
    state = envs.get_state()
    fresh = new()
    fresh.set_state(through_json(state))
    assert fresh.step(actions)[4].tolist() == [False, True]
