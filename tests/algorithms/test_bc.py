"""BC: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core.errors import ConfigError
from assay.testing.algorithms import CannedReplay, make_algorithm, make_batch
from assay.testing.envs import Identity
from assay.testing.offline import OfflineContract, OfflineRig, record

STATES, BOX = spaces.Discrete(2), spaces.Box(0.0, 4.0, (1,), np.float32)
SMALL = {"hidden": (16,), "batch_size": 8}


class TestContract(OfflineContract):
    algorithm = "bc"
    settings = SMALL


def put(parameter: torch.Tensor, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.tensor(values).reshape(parameter.shape))


class TestLoss:
    def test_box_by_hand(self) -> None:
        algorithm = make_algorithm("bc", STATES, BOX, hidden=())
        put(algorithm.net[1][0].weight, [0.0, math.log(3)])
        put(algorithm.net[1][0].bias, [0.0])
        batch = make_batch(
            obs=[0, 1, 1], action=[[3.0], [4.0], [2.0]], reward=[0.0] * 3, next_obs=[0, 0, 0]
        )
        loss, _ = algorithm._loss(algorithm.replay_tensors(batch))
        # Unit actions 1/2, 1, 0; the policy says 0, tanh(log 3) = 0.8, 0.8: 0.25 + 0.04 + 0.64
        assert loss.item() == pytest.approx(0.93 / 3)

    def test_a_table_of_actions_is_compared_part_by_part(self) -> None:
        space = spaces.Box(-1.0, 1.0, (2, 2), np.float32)
        algorithm = make_algorithm("bc", STATES, space, hidden=())
        for parameter in algorithm.net.parameters():
            put(parameter, np.zeros(parameter.shape, np.float32))
        table = [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, -1.0]]]
        batch = make_batch(obs=[0, 1], action=table, reward=[0.0, 0.0], next_obs=[0, 0])
        loss, _ = algorithm._loss(algorithm.replay_tensors(batch))
        assert loss.item() == pytest.approx(2 / 8)

    def test_discrete_by_hand(self) -> None:
        algorithm = make_algorithm("bc", STATES, spaces.Discrete(2), hidden=())
        put(algorithm.net[1][0].weight, [[0.0, math.log(3)], [0.0, 0.0]])  # [action, state]
        put(algorithm.net[1][0].bias, [0.0, 0.0])
        batch = make_batch(obs=[0, 1, 1], action=[1, 0, 1], reward=[0.0] * 3, next_obs=[0, 0, 0])
        loss, _ = algorithm._discrete_loss(algorithm.replay_tensors(batch))
        # State 0: 1/2 each; state 1: 3/4 and 1/4
        assert loss.item() == pytest.approx(-math.log(0.5 * 0.75 * 0.25) / 3)

    def test_masked_actions_take_no_probability(self) -> None:
        seen = spaces.Dict({"obs": STATES, "action_mask": spaces.MultiBinary(3)})
        algorithm = make_algorithm("bc", seen, spaces.Discrete(3), hidden=())
        for parameter in algorithm.net.parameters():
            put(parameter, np.zeros(parameter.shape, np.float32))
        obs = {"obs": [0, 1], "action_mask": [[1, 1, 0], [1, 1, 1]]}
        batch = make_batch(obs=obs, action=[0, 0], reward=[0.0, 0.0], next_obs=obs)
        loss, _ = algorithm._discrete_loss(algorithm.replay_tensors(batch))
        assert loss.item() == pytest.approx((math.log(2) + math.log(3)) / 2)

    def test_rewards_are_not_read(self) -> None:
        weights = []
        for reward in (0.0, 100.0):
            algorithm = make_algorithm("bc", STATES, BOX, hidden=(), batch_size=2)
            batch = make_batch(
                obs=[0, 1], action=[[3.0], [4.0]], reward=[reward] * 2, next_obs=[0, 0]
            )
            algorithm.update(CannedReplay(batch))
            weights.append(algorithm.net[1][0].weight.tolist())
        assert weights[0] == weights[1]


def test_a_discount_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gamma=0.5 has no effect because bc reads no rewards"):
        make_algorithm("bc", STATES, BOX, gamma=0.5)


class TestLearns:
    @pytest.mark.parametrize(
        "space", [spaces.Discrete(4), spaces.Box(-3.0, 1.0, (2,), np.float32)], ids=str
    )
    def test_what_was_done(self, space: Any) -> None:
        env = partial(Identity, space)
        answers = np.array(env().answers)
        data = record(env, behaviour=lambda obs, rng: answers[obs.argmax(1)])
        rig = OfflineRig("bc", env, data=data, updates=300, lr=0.01, hidden=(16,), batch_size=32)
        # Eight steps, each worth 1 at best; always the same action gives 2 (Box: 5.3).
        assert rig.train().score() > 7.5
