"""Options as actions: how long they act, what they are paid, and where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import assay
from assay.core.errors import AssayError, ConfigError
from assay.envs.make import make_vector
from assay.envs.wrappers.options import Option, WithOptions

EAST, WEST = {"policy": "ways:east", "until": "ways:at_a_door"}, {"policy": "ways:west", "steps": 2}


class Corridor(gym.Env[Any, Any]):
    """Cells 0 to 9 from the left; each step pays the cell it leads to, and 9 ends the episode."""

    observation_space = gym.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.cell = 0
        return np.array([0.0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.cell = max(0, self.cell + (1 if action else -1))
        obs = np.array([self.cell], np.float32)
        return obs, float(self.cell), self.cell == 9, False, {}


@pytest.fixture
def _ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ways.py").write_text(
        "def east(obs): return 1\ndef west(obs): return 0\n"
        "def at_a_door(obs): return obs[0] in (3, 6)\nnothing = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_rewards_are_summed_with_the_discount() -> None:
    east = Option(lambda _: 1, until=lambda obs: obs[0] == 3)
    west = Option(lambda _: 0, steps=2)
    env = WithOptions(Corridor(), [east, west], gamma=0.5)
    assert env.action_space == gym.spaces.Discrete(2)
    env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(0)
    # 1 + 2/2 + 3/4
    assert (obs[0], reward, terminated, truncated) == (3, 2.75, False, False)
    assert info["option_steps"] == 3
    obs, reward, *_, info = env.step(1)
    assert (obs[0], reward, info["option_steps"]) == (1, 2 + 1 / 2, 2)


def test_an_episode_ends_an_option() -> None:
    env = WithOptions(Corridor(), [Option(lambda _: 1, steps=100)], gamma=1.0)
    env.reset(seed=0)
    obs, reward, terminated, _, info = env.step(0)
    assert (obs[0], reward, terminated, info["option_steps"]) == (9, 45, True, 9)


def test_own_actions_come_first() -> None:
    env = WithOptions(Corridor(), [Option(lambda _: 1, steps=3)], primitive=True)
    assert env.action_space == gym.spaces.Discrete(3)
    env.reset(seed=0)
    assert env.step(2)[0][0] == 3
    obs, reward, *_, info = env.step(0)
    assert (obs[0], reward, info["option_steps"]) == (2, 2, 1)


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize("backend", ["sync", "auto"])
def test_as_a_setting(backend: Any) -> None:
    wrappers = [{"options": {"options": [EAST, WEST], "gamma": 0.5}}]
    with make_vector(Corridor, 2, backend=backend, wrappers=wrappers) as vector:
        assert vector.spaces.action == gym.spaces.Discrete(2)
        vector.reset(seed=0)
        obs, reward, *_ = vector.step(np.array([0, 0]))
        assert obs[:, 0].tolist() == [3, 3] and reward.tolist() == [2.75, 2.75]
        obs, *_ = vector.step(np.array([0, 1]))
        assert obs[:, 0].tolist() == [6, 1]
    # An evaluation reports the environment's own rewards.
    with make_vector(Corridor, 1, training=False, wrappers=wrappers) as vector:
        vector.reset(seed=0)
        assert vector.step(np.array([0]))[1].tolist() == [6]


@pytest.mark.usefixtures("_ways")
def test_natives_are_stepped_one_by_one() -> None:
    wrappers = [{"options": [{"policy": "ways:east", "steps": 5}]}]
    with make_vector("assay/FourRooms-v0", 3, wrappers=wrappers) as vector:
        assert vector.spaces.action == gym.spaces.Discrete(1)
        vector.reset(seed=0)
        assert vector.step(np.zeros(3, int))[0].shape == (3, 13, 13)
    with pytest.raises(AssayError, match="CartPole-v1' cannot run options"):
        make_vector("CartPole-v1", 2, backend="native", wrappers=wrappers)


def test_a_run_is_an_option(tmp_path: Path) -> None:
    small = {"env_steps": 64, "num_envs": 2, "horizon": 16, "minibatch_size": 32, "eval_every": 0}
    run = assay.train("ppo", Corridor, root=tmp_path, max_episode_steps=50, **small)
    wrappers = [{"options": [{"policy": str(run.path), "steps": 2}]}]
    expected = run.agent().act(np.zeros(1, np.float32))
    with make_vector(Corridor, 1, wrappers=wrappers) as vector:
        vector.reset(seed=0)
        obs, *_ = vector.step(np.zeros(1, int))
    assert (obs[0, 0] > 0) == bool(expected)


@pytest.mark.usefixtures("_ways")
def test_learns_to_choose(tmp_path: Path) -> None:
    wrappers = [{"options": [EAST, WEST]}]
    run = assay.train(
        "ppo", Corridor, root=tmp_path, env_steps=1_000, num_envs=4, horizon=16, minibatch_size=64,
        lr=1e-2, eval_every=0, max_episode_steps=30, wrappers=wrappers,
    )  # fmt: skip
    result = run.evaluate(episodes=2)
    # Going east alone ends the episode with 1 + ... + 9 = 45: turning back in time pays more.
    assert result.mean > 100
    assert result.truncated.all()


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"policy": "ways:east"}, "'ways:east' would never end"),
        ({"policy": "ways:nothing", "steps": 1}, "'ways' has no function 'nothing'"),
        ({"policy": "nowhere:east", "steps": 1}, "'nowhere:east' cannot be imported"),
        ({"policy": "runs/none", "steps": 1}, "'runs/none' is neither a run nor a function"),
        ({"policy": "ways:east", "steps": 0}, "steps"),
    ],
)
def test_mistakes_are_named(option: dict[str, Any], message: str) -> None:
    with pytest.raises(AssayError, match=message):
        make_vector(Corridor, 1, wrappers=[{"options": [option]}])


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="primitive=true"):
        WithOptions(gym.make("Pendulum-v1"), [Option(lambda _: [0.0], steps=2)], primitive=True)
    with pytest.raises(ConfigError, match="has none"):
        WithOptions(Corridor(), [])
    with pytest.raises(AssayError, match="so that nothing can run options"):
        make_vector(
            gym.vector.SyncVectorEnv([Corridor]),
            wrappers=[{"options": [{"policy": "operator:truth", "steps": 1}]}],
        )
