"""An exported policy acts as the agent does, on every kind of space, and is refused if not."""

from __future__ import annotations

import errno
import importlib.util
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from assay.algorithms.base import Algorithm, Context
from assay.core import registry
from assay.core.errors import AssayError, ConfigError, MissingExtraError, RunError
from assay.core.types import Clock, Spaces
from assay.policies.export import Format, export_policy, sample_observations

VECTOR = Box(-np.inf, np.inf, (4,), np.float32)
LIMITED = Box(np.array([-2.0, 0.5], np.float32), np.array([3.0, 1.0], np.float32))
MASKED = Dict({"arm/joints": VECTOR, "gear": Discrete(4), "action_mask": MultiBinary(5)})
SEEN = Dict({"camera": Box(0, 255, (8, 10, 3), np.uint8), "arm": VECTOR})
DREAMS = {"deter": 16, "hidden": 8, "classes": 3, "stoch": 4, "blocks": 2, "units": 8}

CASES = {
    "ppo box": ("ppo", VECTOR, LIMITED, {"normalize_obs": True, "log_std_init": 1.0}),
    "ppo masked": ("ppo", MASKED, Discrete(5), {"normalize_obs": True}),
    "ppo multi-discrete": ("ppo", MASKED, MultiDiscrete([2, 3]), {}),
    "ppo multi-binary": ("ppo", Discrete(7), MultiBinary(4), {}),
    "ppo image": ("ppo", Box(0, 255, (3, 36, 36), np.uint8), Discrete(3), {}),
    "a2c": ("a2c", VECTOR, Discrete(3), {}),
    "dqn": ("dqn", VECTOR, Discrete(3), {"noisy": True, "dueling": True}),
    "sac": ("sac", VECTOR, LIMITED, {"normalize_obs": True}),
    "sac discrete": ("sac", VECTOR, Discrete(3), {}),
    "td3": ("td3", VECTOR, LIMITED, {}),
    "ddpg": ("ddpg", VECTOR, LIMITED, {}),
    "r2d2": ("r2d2", VECTOR, Discrete(3), {}),
    "recurrent lstm": ("recurrent_ppo", VECTOR, LIMITED, {"normalize_obs": True}),
    "recurrent gru": ("recurrent_ppo", MASKED, Discrete(5), {"memory": "gru"}),
    "transformer": ("recurrent_ppo", VECTOR, Discrete(3), {"memory": "transformer"}),
    "dreamer masked": ("dreamerv3", MASKED, Discrete(5), DREAMS),
    "dreamer image": ("dreamerv3", SEEN, LIMITED, DREAMS | {"depth": 2}),
}
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="the extra onnx is not installed",
)


def make(
    name: str, observation: gym.Space[Any], action: gym.Space[Any], settings: dict[str, Any]
) -> Algorithm:
    """Make an algorithm whose policy differs between observations, as a trained one's does."""
    cls = registry.get(name)
    spaces = Spaces(observation, action)
    context = Context(Clock(1000), num_envs=8)
    algorithm: Algorithm = cls(spaces, cls.Hyperparameters(**settings), context)
    algorithm.update_obs_stats(sample_observations(observation, action, 64, seed=5))
    with torch.no_grad():
        for parameter in algorithm.policy.network.parameters():
            parameter.mul_(3.0)
    return algorithm


def check(case: str, path: Path, format: Format) -> None:
    algorithm = make(*CASES[case])
    obs = sample_observations(*CASES[case][1:3], 64, seed=0)
    carry = algorithm.initial_carry(64)
    actions = np.asarray(algorithm.act(obs, carry, False).action)
    assert len(np.unique(actions, axis=0)) > 1, "the case does not tell policies apart"
    result = export_policy(algorithm.policy, path, format)
    assert result.path == path and path.stat().st_size > 0
    assert result.observations == 64
    limit = 1e-4 if np.issubdtype(actions.dtype, np.floating) else 0
    assert result.max_difference <= limit
    assert result.output == (actions.shape[1:], str(actions.dtype))
    # The agent is left as it was.
    np.testing.assert_array_equal(algorithm.act(obs, carry, False).action, actions)


@pytest.mark.parametrize("case", CASES)
def test_torchscript_acts_as_the_agent(case: str, tmp_path: Path) -> None:
    check(case, tmp_path / "policy.pt", "torchscript")


# An LSTM is compared below, step by step.
ON_ONNX = [
    "ppo box", "ppo masked", "ppo multi-binary", "ppo image", "dqn", "recurrent gru",
    "transformer", "dreamer masked", "dreamer image",
]  # fmt: skip


@needs_onnx
@pytest.mark.parametrize("case", ON_ONNX)
def test_onnx_acts_as_the_agent(case: str, tmp_path: Path) -> None:
    check(case, tmp_path / "policy.onnx", "onnx")


@needs_onnx
def test_a_dict_becomes_named_inputs(tmp_path: Path) -> None:
    import onnxruntime

    algorithm = make(*CASES["ppo masked"])
    result = export_policy(algorithm.policy, tmp_path / "policy.onnx", "onnx")
    names = {"arm/joints": ((4,), "float32"), "gear": ((), "int64"), "action_mask": ((5,), "int8")}
    assert {name: (shape, dtype) for name, shape, dtype in result.inputs} == names
    session = onnxruntime.InferenceSession(str(result.path))
    assert {entry.name for entry in session.get_inputs()} == set(names)
    # Any number of observations, and the mask is obeyed.
    obs = sample_observations(MASKED, Discrete(5), 7, seed=3)
    obs["action_mask"][:] = np.eye(5, dtype=np.int8)[2]
    (actions,) = session.run(["action"], obs)
    assert actions.tolist() == [2] * 7


@needs_onnx
def test_a_memory_is_an_input_and_an_output(tmp_path: Path) -> None:
    import onnxruntime

    algorithm = make(*CASES["recurrent lstm"])
    result = export_policy(algorithm.policy, tmp_path / "policy.onnx", "onnx")
    names = {name: shape for name, shape, _ in result.inputs}
    size = algorithm.hp.memory_size
    assert names["carry/h"] == names["carry/c"] == (1, size)
    session = onnxruntime.InferenceSession(str(result.path))
    obs = sample_observations(VECTOR, LIMITED, 3, seed=3)
    feed = {"observation": obs} | {k: np.zeros((3, 1, size), np.float32) for k in names if "/" in k}
    carry = algorithm.initial_carry(3)
    for _ in range(4):
        action, h, c = session.run(["action", "next_carry/h", "next_carry/c"], feed)
        choice = algorithm.act(obs, carry, False)
        carry = choice.carry
        np.testing.assert_allclose(action, choice.action, atol=1e-4)
        feed |= {"carry/h": h, "carry/c": c}


def test_torchscript_takes_a_dict_of_tensors(tmp_path: Path) -> None:
    algorithm = make(*CASES["ppo masked"])
    result = export_policy(algorithm.policy, tmp_path / "policy.pt", "torchscript")
    policy = torch.jit.load(str(result.path))
    obs = sample_observations(MASKED, Discrete(5), 3, seed=3)
    obs["action_mask"][:] = np.eye(5, dtype=np.int8)[4]
    assert policy({k: torch.from_numpy(v) for k, v in obs.items()}).tolist() == [4] * 3


def test_a_policy_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(*CASES["td3"])
    policy = algorithm.policy.module()

    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return self.policy(obs) + 0.01

    monkeypatch.setattr(algorithm.policy, "module", Shifted)
    with pytest.raises(AssayError, match=r"differs from the agent by 0\.01"):
        export_policy(algorithm.policy, tmp_path / "policy.pt", "torchscript")
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(*CASES["a2c"])
    with pytest.raises(ConfigError, match="onnx, torchscript"):
        export_policy(algorithm.policy, tmp_path / "x", "pickle")  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="is a file"):
        export_policy(algorithm.policy, tmp_path / "file" / "x.pt", "torchscript")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"assay\[onnx\]"):
        export_policy(algorithm.policy, tmp_path / "x.onnx", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own writer ends the process there."""

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RunError, match="the disk is full"):
        export_policy(make(*CASES["a2c"]).policy, tmp_path / "x.pt", "torchscript")
    assert list(tmp_path.iterdir()) == []


def test_sampled_observations_lie_in_their_space() -> None:
    far = Box(np.array([100.0, -1.0], np.float32), np.array([np.inf, 1e30], np.float32))
    spaces = Dict(
        {
            "far": far,
            "image": Box(0, 255, (2, 2, 1), np.uint8),
            "grid": MultiDiscrete([3, 5]),
            "bits": MultiBinary(6),
            "one": Discrete(4),
            "action_mask": MultiBinary(5),
        }
    )
    drawn = sample_observations(spaces, MultiDiscrete([2, 3]), 200, seed=1)
    for i in range(200):
        assert spaces.contains({key: value[i] for key, value in drawn.items()})
    near, all_of_them = drawn["far"][:100], drawn["far"]
    assert near.max() <= 110.0 < all_of_them.max() <= 1_100.0
    assert drawn["grid"].max(0).tolist() == [2, 4] and drawn["image"].max() == 255
    # Each of the two choices has something left to choose from, and something is forbidden.
    mask = drawn["action_mask"]
    assert mask[:, :2].any(1).all() and mask[:, 2:].any(1).all() and not mask.all()
