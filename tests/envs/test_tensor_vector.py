"""Vector environments of tensors: what they answer arrives, and what acts on them is theirs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import assay
from assay.core.errors import EnvError
from assay.envs.make import make_vector
from assay.envs.tensor_vector import TensorVectorEnv

COUNT, LIMIT = 3, 4


class Line:
    """Points on a line: 1 goes right, at 3 an episode ends, after four steps it is cut.

    It writes into the same tensors again and again, as simulators on a GPU do.
    """

    num_envs = COUNT
    single_observation_space = spaces.Box(-9, 9, (1,), np.float32)
    single_action_space: Any = spaces.Discrete(2)

    def __init__(self, ends: int = 2, told: bool = True) -> None:
        self.ends, self.told = ends, told
        self.x, self.age = torch.zeros(COUNT, 1), torch.zeros(COUNT)
        self.received: Any = None

    def reset(self) -> Any:
        self.x.zero_()
        self.age.zero_()
        return self.x

    def step(self, actions: Any) -> Any:
        self.received = actions
        self.x += 2.0 * actions.reshape(COUNT, 1) - 1.0
        self.age += 1
        arrived, old = self.x[:, 0] >= 3, self.age >= LIMIT
        done, reward = arrived | old, self.x[:, 0].clone()
        info = {"final_obs": self.x.clone()} if self.told else {}
        self.x[done], self.age[done] = 0.0, 0.0
        if self.ends == 2:
            return self.x, reward, arrived, old & ~arrived, info
        return self.x, reward, done, info | {"time_outs": old & ~arrived}


@pytest.mark.parametrize("ends", [1, 2])
def test_episodes_are_those_of_the_tensors(ends: int) -> None:
    line = Line(ends)
    with make_vector(TensorVectorEnv(line)) as vector:
        first = vector.reset(0)
        seen = [first.copy()]
        for _ in range(3):
            obs, reward, terminated, truncated, _, final = vector.step(np.array([1, 0, 1]))
            seen.append(obs)
        assert isinstance(line.received, torch.Tensor)
        assert np.ravel(first).tolist() == [0, 0, 0]  # a copy, whatever the environment writes
        assert [np.ravel(x).tolist() for x in seen[1:]] == [[1, -1, 1], [2, -2, 2], [0, -3, 0]]
        assert reward.tolist() == [3, -3, 3] and terminated.tolist() == [True, False, True]
        assert not truncated.any() and np.ravel(final)[[0, 2]].tolist() == [3, 3]
        _, _, terminated, truncated, _, final = vector.step(np.array([1, 0, 1]))
        assert not terminated.any() and truncated.tolist() == [False, True, False]
        assert np.ravel(final)[1] == -4


def test_where_the_last_observation_is_not_told_the_one_before_stands_in() -> None:
    with make_vector(TensorVectorEnv(Line(told=False))) as vector:
        vector.reset(0)
        for _ in range(3):
            vector.step(np.array([0, 0, 0]))
        with pytest.warns(UserWarning, match="does not report the last observation"):
            *_, truncated, _, final = vector.step(np.array([0, 0, 0]))
        assert truncated.all() and np.ravel(final).tolist() == [-3, -3, -3]


def test_a_policy_learns_on_them(tmp_path: Path) -> None:
    run = assay.train(
        "ppo", TensorVectorEnv(Line()), env_steps=1536, horizon=32, minibatch_size=48, lr=3e-3,
        epochs=6, hidden=(16,), root=tmp_path, compile=False, sinks=[], checkpoint_every=0,
    )  # fmt: skip
    assert run.status == "done"
    agent = assay.load(run.path)
    assert [agent.act(np.array([x], np.float32)) for x in (-2.0, -1.0, 0.0)] == [1, 1, 1]


def test_spaces_of_another_library_are_read() -> None:
    class Other(Line):
        single_action_space = SimpleNamespace(low=[-1.0, -2.0], high=[1.0, 2.0])

    assert TensorVectorEnv(Other()).single_action_space == spaces.Box(
        np.array([-1, -2], np.float32), np.array([1, 2], np.float32)
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_envs": 0}, "has num_envs=0"),
        ({"step": None}, r"has no step\(\)"),
        ({"single_action_space": "two"}, "single_action_space='two'"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvError, match=words):
        TensorVectorEnv(type("Line", (Line,), changes)())


def test_an_environment_of_many_copies_that_is_given_as_one_is_explained() -> None:
    class Lab(Line, gym.Env[Any, Any]):
        pass

    for given in (Lab(), Line()):
        with pytest.raises(EnvError) as caught:
            make_vector(given)  # type: ignore[arg-type]
        assert "TensorVectorEnv" in str(caught.value)
