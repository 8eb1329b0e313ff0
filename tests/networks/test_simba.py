"""Residual networks: what they compute, in torch, in NumPy, in a file and in every actor-critic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from assay.core.config import UnusedSettingError
from assay.core.errors import ConfigError
from assay.networks.simba import ResidualBlock, ResidualEnsemble, residual_trunk
from assay.policies.from_torch import describe
from assay.policies.model_file import parse_snapshot
from assay.policies.numpy_network import NumpyNetwork
from assay.testing.algorithms import Rig, assert_same, make_algorithm
from assay.testing.envs import Reach

OBSERVATION = Box(-np.inf, np.inf, (3,), np.float32)
ACTION = Box(-2.0, 2.0, (2,), np.float32)


def test_a_block_adds_to_its_input() -> None:
    block = ResidualBlock(4)
    x = torch.randn(5, 4)
    inside = torch.relu(block.norm(x) @ block.up.weight.T + block.up.bias)
    assert block.up.weight.shape == (16, 4)
    torch.testing.assert_close(block(x), x + inside @ block.down.weight.T + block.down.bias)
    with torch.no_grad():
        block.down.weight.zero_()
    assert torch.equal(block(x), x)


def test_members_differ_and_can_be_chosen() -> None:
    ensemble = ResidualEnsemble(4, (3, 8, 8, 2))
    x = torch.randn(5, 3)
    out = ensemble(x)
    assert out.shape == (4, 5, 2)
    assert not torch.equal(out[0], out[1])
    assert torch.equal(ensemble(x, torch.tensor([2, 0])), out[[2, 0]])


def test_widths_must_agree() -> None:
    with pytest.raises(ConfigError, match=r"hidden=\[8, 4\] with network=simba"):
        residual_trunk(3, (8, 4))


@pytest.mark.parametrize("algorithm", ["sac", "td3", "ddpg", "tqc", "redq", "ppo"])
def test_numpy_and_a_file_act_as_torch_does(algorithm: str) -> None:
    made = make_algorithm(algorithm, OBSERVATION, ACTION, network="simba", hidden=(8, 8))
    policy = made.policy
    obs = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    with torch.no_grad():
        expected = policy.network(torch.from_numpy(obs)).numpy()
    found = NumpyNetwork(describe(policy.network)).call(obs)
    np.testing.assert_allclose(found[:, : expected.shape[1]], expected, atol=1e-5)
    snapshot = parse_snapshot(policy.snapshot(algorithm, version=1).data)
    assert [layer.kind for layer in snapshot.architecture.layers][1:3] == ["residual"] * 2


def test_other_algorithms_refuse_it() -> None:
    with pytest.raises(UnusedSettingError, match="normalised by batches"):
        make_algorithm("crossq", OBSERVATION, ACTION, network="simba")
    with pytest.raises(
        UnusedSettingError, match="activation=tanh has no effect with network=simba"
    ):
        make_algorithm("sac", OBSERVATION, ACTION, network="simba", activation="tanh")


def test_a_restored_learner_goes_on_alike() -> None:
    settings = {"network": "simba", "hidden": (8,), "learning_starts": 12, "batch_size": 8}
    one, two = (Rig("sac", Reach, **settings) for _ in range(2))
    for _ in range(20):
        one.loop.iterate()
    two.algorithm.load_state(one.algorithm.state())
    assert_same(two.algorithm.state(), one.algorithm.state())
    assert one.algorithm.updates > 0
