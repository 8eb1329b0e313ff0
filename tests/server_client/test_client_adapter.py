"""Gymnasium environments as controlled systems."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from client_support import CHOICE, SEEN, model
from fake_server import FakeServer, wait_for
from gymnasium import spaces

import assay
from assay.core.errors import ConfigError, EnvError
from assay.server.client.adapter import EnvClient, EnvClients
from assay.server.client.spaces import nearest_to_zero

AWAY = "127.0.0.1:9"
QUICK: dict[str, Any] = {
    "algorithm": "ppo",
    "client": "ada",
    "batch_steps": 100,
    "batch_seconds": 1e6,
    "retry_seconds": 0.01,
}


class Counting(gym.Env[Any, Any]):
    """Observes how often it was stepped in all; episodes last as long as told, and end as told."""

    observation_space = SEEN
    action_space = CHOICE

    def __init__(self, plan: list[tuple[int, str]], masks: bool = False) -> None:
        self.plan, self.masks = plan, masks
        self.count = self.episode = self.step_number = 0
        self.actions: list[int] = []
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.step_number = 0
        return self.obs(), self.info()

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.count += 1
        self.step_number += 1
        length, ending = self.plan[(self.episode - 1) % len(self.plan)]
        over = self.step_number >= length
        flags = over and ending in ("terminated", "both"), over and ending in ("truncated", "both")
        return self.obs(), float(self.count), *flags, self.info()

    def obs(self) -> Any:
        return np.array([self.count % 10, self.step_number, 0], np.float32)

    def info(self) -> dict[str, Any]:
        mask = np.array([1, 0, 0], np.int8) if self.count % 2 else np.array([0, 1, 1], np.int8)
        return {"action_mask": mask} if self.masks else {}

    def close(self) -> None:
        self.closed = True


def played(plan: list[tuple[int, str]], episodes: int, **options: Any) -> tuple[Any, Any, Any]:
    env = Counting(plan, options.pop("with_masks", False))
    with FakeServer() as server:
        with assay.connect_env(env, server.address, "p", **{**QUICK, **options}) as runner:
            assert isinstance(runner, EnvClient)
            result = runner.run(episodes=episodes)
            assert runner.connection.flush(30)
        assert env.closed
        fields = {
            name: np.concatenate([one.fields[name] for _, _, _, one in server.kept])
            for name in server.kept[0][3].fields
        }
    return result, fields, env


def test_ends_are_told_apart_and_bootstrapped_from_the_right_observation():
    plan = [(2, "terminated"), (3, "truncated"), (2, "both")]
    # The first reset looks for masks.
    result, fields, _ = played(plan[-1:] + plan[:-1], 3)
    assert [(e.total, e.length, e.terminated) for e in result] == [
        (1 + 2, 2, True),
        (3 + 4 + 5, 3, False),
        (6 + 7, 2, True),
    ]
    np.testing.assert_array_equal(fields["reward"], [1, 2, 3, 4, 5, 6, 7])
    np.testing.assert_array_equal(fields["terminated"], [0, 1, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(fields["truncated"], [0, 0, 0, 0, 1, 0, 1])
    # Observations are those before the steps; what a reset shows belongs to the next episode.
    np.testing.assert_array_equal(fields["obs"][:, 0], [0, 1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(fields["obs"][:, 1], [0, 1, 0, 1, 2, 0, 1])
    # One row: what the truncated episode showed last, and not what the reset after it did.
    np.testing.assert_array_equal(fields["bootstrap"], [[5, 3, 0]])


def test_masks_of_the_environment_reach_the_model_and_the_record():
    result, fields, env = played([(4, "truncated")], 2, with_masks=True)
    assert len(result) == 2
    np.testing.assert_array_equal(fields["obs/action_mask"], [[0, 1, 1], [1, 0, 0]] * 4)
    np.testing.assert_array_equal(fields["bootstrap/action_mask"], [[0, 1, 1], [0, 1, 1]])
    assert env.actions == [1, 0] * 4  # the constant 0, where it is valid
    np.testing.assert_array_equal(fields["flags"], [10, 8] * 4)


def test_it_acts_with_models_as_they_come():
    env = Counting([(5, "truncated")])
    with FakeServer() as server:
        server.publish(model(1, prefers=2))
        with assay.connect_env(env, server.address, "p", wait_seconds=30, **QUICK) as runner:
            runner.run(episodes=1)
            assert env.actions == [2] * 5
            server.publish(model(2, prefers=1))
            wait_for(lambda: runner.connection.status().acting.version == 2)
            runner.run(steps=7)  # to the end of the second episode
            assert env.actions == [2] * 5 + [1] * 10


def test_cartpole_by_its_name_without_a_server():
    with assay.connect_env(
        "CartPole-v1", AWAY, algorithm="ppo", env_seed=3, close_seconds=0.0
    ) as runner:
        (episode,) = runner.run(episodes=1)
        assert 8 <= episode.length <= 11 and episode.terminated  # pushed to one side only
        assert runner.connection.spec.name == "CartPole-v1"
        status = runner.connection.status()
        assert status.acting.sources == {"constant": episode.length}


def test_several_at_once():
    with FakeServer() as server:
        with assay.connect_env(
            lambda: Counting([(3, "terminated")]), server.address, "p", copies=3, **QUICK
        ) as runner:
            assert isinstance(runner, EnvClients)
            result = runner.run(episodes=4)
            assert [e.length for e in result] == [3] * 12
            assert all(client.connection.flush(30) for client in runner.clients)
        assert {who for who, *_ in server.kept} == {"ada-0", "ada-1", "ada-2"}
        assert all(server.steps(f"ada-{i}") == list(range(1, 13)) for i in range(3))


def test_an_environment_that_fails_ends_all():
    class Broken(Counting):
        def step(self, action: Any) -> Any:
            raise RuntimeError("the pole fell")

    environments = iter([Counting([(3, "terminated")]), Broken([(3, "terminated")])])
    with assay.connect_env(
        lambda: next(environments), AWAY, "p", copies=2, close_seconds=0.0, algorithm="ppo"
    ) as runner:
        with pytest.raises(RuntimeError, match="the pole fell"):
            runner.run(steps=10**9)


def test_mistakes():
    with pytest.raises(ConfigError, match="no end"):
        with assay.connect_env("CartPole-v1", AWAY, algorithm="ppo", close_seconds=0.0) as runner:
            runner.run()
    with pytest.raises(EnvError, match="CartPole-v9"):
        assay.connect_env("CartPole-v9", AWAY, algorithm="ppo")
    with pytest.raises(ConfigError, match="algorithm is missing"):
        assay.connect_env("CartPole-v1", AWAY)
    with pytest.raises(ConfigError, match="copies=2"):
        assay.connect_env(Counting([(1, "both")]), AWAY, "p", copies=2, algorithm="ppo")
    with pytest.raises(ConfigError, match="unknown setting 'algoritm'"):
        assay.connect_env("CartPole-v1", AWAY, algoritm="ppo")


def test_what_does_least():
    assert nearest_to_zero(spaces.Discrete(3)) == 0
    np.testing.assert_array_equal(nearest_to_zero(spaces.Box(1, 2, (2,))), [1, 1])
    np.testing.assert_array_equal(nearest_to_zero(spaces.MultiDiscrete([2, 3])), [0, 0])
    np.testing.assert_array_equal(nearest_to_zero(spaces.MultiBinary(2)), [0, 0])
    given = {"algorithm": "sac", "bounds": {"low": 0.5, "high": 2}, "close_seconds": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with assay.connect_env("Pendulum-v1", AWAY, **given) as runner:
            assert runner.connection.act(np.zeros(3, np.float32)).tolist() == [0.5]
