from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core.types import Spaces, Team
from assay.loops.config import resolve
from assay.loops.training import build_algorithm
from assay.testing.algorithms import CannedReplay, Rig, make_batch
from assay.testing.teams import TeamContract

TWO_STEP = {
    "num_envs": 8, "env_steps": 1200, "batch_size": 64, "buffer_size": 3000, "lr": 3e-3,
    "learning_starts": 64, "train_every": 4, "tau": 0.02, "hidden": (32,), "epsilon": 1.0,
}  # fmt: skip


class TestContract(TeamContract):
    algorithm = "qmix"
    settings: ClassVar = {
        "hidden": (16,), "batch_size": 8, "learning_starts": 8, "train_every": 2, "tau": 0.1,
    }  # fmt: skip


def two_agents() -> Spaces:
    """Return the spaces of two agents that see one number each and choose between two actions."""
    one = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    joint = {
        "obs": spaces.Box(-np.inf, np.inf, (2, 1), np.float32),
        "alive": spaces.MultiBinary(2),
        "action_mask": spaces.MultiBinary(4),
        "state": spaces.Box(-np.inf, np.inf, (1,), np.float32),
    }
    choice = spaces.Discrete(2)
    team = Team(("a_0", "a_1"), ("a", "a"), (one, one), (choice, choice), True, True)
    return Spaces(spaces.Dict(joint), spaces.MultiDiscrete([2, 2]), team)


def test_the_loss_is_the_one_computed_by_hand() -> None:
    run = {"env_steps": 100, "num_envs": 1, "seed": 1, "device": "cpu", "compile": False}
    settings: ClassVar = {
        "hidden": (), "mixer_embed": 1, "mixer_hidden": 0, "batch_size": 2, "agent_id": False,
        "target_every": 1000,
    }  # fmt: skip
    config = resolve("qmix", "none", run, settings, use_preset=False)
    qmix = build_algorithm(config, two_agents(), config.run.clock())
    for net in (qmix.q, qmix.target):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
            linear = net.nets[0][1][0]
            linear.weight.copy_(torch.tensor([[1.0], [-1.0]]))  # Q_a(o) = (o, -o)
            mixer = net.mixer
            mixer.weights_1[0].bias.copy_(torch.tensor([1.0, -2.0]))  # |W1| = (1, 2)
            mixer.weights_2[0].bias.fill_(-3.0)  # |w2| = 3
            mixer.bias_1[0].bias.fill_(0.5)
            mixer.value[-1].bias.fill_(1.0)  # V(s) = 1
    with torch.no_grad():
        qmix.target.mixer.value[-1].bias.fill_(2.0)
    batch = make_batch(
        obs={
            "obs": [[[1.0], [2.0]], [[1.0], [2.0]]], "alive": [[1, 1], [1, 0]],
            "action_mask": [[1, 1, 1, 1]] * 2, "state": [[0.0], [0.0]],
        },
        next_obs={
            "obs": [[[3.0], [-1.0]], [[3.0], [-1.0]]], "alive": [[1, 1], [1, 1]],
            "action_mask": [[0, 1, 1, 1]] * 2, "state": [[0.0], [0.0]],
        },
        action=[[0, 1], [1, 0]], reward=[1.0, 1.0], discount=[0.9, 0.9], terminated=[0.0, 1.0],
    )  # fmt: skip
    # Row 0: Q = (1, -2); h = 1*1 + 2*(-2) + 0.5 = -2.5, ELU -> e^-2.5 - 1; Q_tot = 3 h + 1.
    # Next: agent 0 may only take action 1, of value -3; agent 1 prefers action 1, of value 1:
    # h = -3 + 2 + 0.5 = -0.5, ELU -> e^-0.5 - 1; target 3 h + 2; y = 1 + 0.9 (3 h + 2).
    # Row 1: agent 1 is dead: Q = (-1, 0); h = -0.5; terminated: y = 1.
    elu = [np.exp(-2.5) - 1, np.exp(-0.5) - 1]
    total = [3 * elu[0] + 1, 3 * elu[1] + 1]
    target = [1 + 0.9 * (3 * elu[1] + 2), 1.0]
    expected = 0.5 * np.mean([(q - y) ** 2 for q, y in zip(total, target, strict=True)])
    qmix.update(CannedReplay(batch))
    found = qmix.drain_metrics()
    assert found["train/q_loss"] == pytest.approx(expected, rel=1e-5)
    assert found["train/q_total"] == pytest.approx(np.mean(total), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_it_finds_8_in_the_two_step_game_where_sums_find_7(seed: int) -> None:
    assert Rig("qmix", "assay/TwoStep-v0", seed=seed, **TWO_STEP).train().score(4) == 8.0
    assert Rig("vdn", "assay/TwoStep-v0", seed=seed, **TWO_STEP).train().score(4) == 7.0
