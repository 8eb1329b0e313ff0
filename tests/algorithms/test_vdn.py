from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.loops.config import resolve
from assay.loops.training import build_algorithm
from assay.testing.algorithms import CannedReplay, Rig, make_batch
from assay.testing.teams import Signals, TeamContract


class TestContract(TeamContract):
    algorithm = "vdn"
    settings: ClassVar = {
        "hidden": (16,), "batch_size": 8, "learning_starts": 8, "train_every": 2, "tau": 0.1,
    }  # fmt: skip


def test_the_loss_is_the_one_computed_by_hand() -> None:
    rig = Rig(
        "vdn", lambda: Signals([spaces.Discrete(2)] * 2), num_envs=1, hidden=(), batch_size=2,
        agent_id=False, double=False, learning_starts=8,
    )  # fmt: skip
    with torch.no_grad():
        for net, scale in ((rig.algorithm.q, 1.0), (rig.algorithm.target, 10.0)):
            net.nets[0][1][0].weight.copy_(scale * torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
            net.nets[0][1][0].bias.zero_()
    seen = [[[1.0, 0.0], [0.0, 1.0]]]  # Q of agent 0: (1, 3), of agent 1: (2, 4)
    batch = make_batch(
        obs={"obs": seen * 2, "alive": [[1, 1], [1, 1]]},
        next_obs={"obs": seen * 2, "alive": [[1, 1], [0, 1]]},
        action=[[0, 1], [1, 0]], reward=[0.5, 0.5], discount=[0.5, 0.5],
    )  # fmt: skip
    # Q_tot: 1 + 4 = 5 and 3 + 2 = 5. Targets: 30 + 40 and, agent 0 being dead, 40.
    errors = np.array([5 - (0.5 + 0.5 * 70), 5 - (0.5 + 0.5 * 40)])
    rig.algorithm.update(CannedReplay(batch))
    found = rig.algorithm.drain_metrics()["train/q_loss"]
    assert found == pytest.approx(0.5 * np.square(errors).mean(), rel=1e-6)


def test_agents_that_come_and_go_learn_to_answer() -> None:
    rig = Rig(
        "vdn", coming_and_going, seed=1, num_envs=8, env_steps=1500, batch_size=64, lr=3e-3,
        learning_starts=64, train_every=4, tau=0.05, hidden=(32,), gamma=0.5,
    )  # fmt: skip
    # Agents act 2 + 4 + 3 times in an episode: 3 in the mean, and 1.5 by chance.
    assert rig.train().score(20) > 2.8


def coming_and_going() -> Signals:
    return Signals([spaces.Discrete(3)] * 3, moving=True, masked=True)


def test_unequal_agents_cannot_share_everything() -> None:
    from assay.core.errors import ConfigError
    from assay.envs.make import make_vector

    config = resolve("vdn", "none", {"env_steps": 100}, {"sharing": "all"}, use_preset=False)
    with make_vector(lambda: Signals([spaces.Discrete(2), spaces.Discrete(3)])) as envs:
        with pytest.raises(ConfigError, match=r"sharing=all: agent 'kinda_0' sees .*'kindb_1'"):
            build_algorithm(config, envs.spaces, config.run.clock())
