"""IQL: the contract, its numbers by hand, and that it learns from data of mixed quality."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.algorithms.iql import IQL
from assay.core.types import Batch
from assay.testing.algorithms import CannedReplay, make_algorithm, make_batch
from assay.testing.envs import Corridor, Reach
from assay.testing.offline import OfflineContract, OfflineRig, record, torn

STATES, BOX = spaces.Discrete(2), spaces.Box(0.0, 4.0, (1,), np.float32)
SMALL = {"hidden": (16,), "batch_size": 8}


class TestContract(OfflineContract):
    algorithm = "iql"
    settings = SMALL


def put(parameter: torch.Tensor, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.tensor(values).reshape(parameter.shape))


def table(**settings: Any) -> IQL:
    """Return IQL on two states and actions from 0 to 4, with known numbers in unit actions a.

    Critics 1 + a and -a in state 0, 2 + a and 3 - a in state 1.
    Targets 5 + a and 5 - 2a in state 0, 6 + a and 6 - 2a in state 1.
    V is 4.5 in state 0 and 5 in state 1. The policy is the normal distribution of unit actions.
    """
    settings = {"hidden": (), "batch_size": 4} | settings
    algorithm = make_algorithm("iql", STATES, BOX, **settings)
    for critic, values in (
        (algorithm.critic, [[1.0, 2.0, 1.0], [0.0, 3.0, -1.0]]),
        (algorithm.target, [[5.0, 6.0, 1.0], [5.0, 6.0, -2.0]]),
    ):
        put(critic.ensemble.weights[0], values)  # [member, (state 0, state 1, action)]
        put(critic.ensemble.biases[0], [0.0, 0.0])
    put(algorithm.value.members.weights[0], [4.5, 5.0])
    put(algorithm.value.members.biases[0], [0.0])
    put(algorithm.actor[1].mean.weight, [0.0, 0.0])
    put(algorithm.actor[1].mean.bias, [0.0])
    return algorithm


def items() -> Batch:
    """Return a plain step, a truncated one, another plain one and a terminated one.

    The unit actions are 1/2, 0, -1 and 1.
    """
    return make_batch(
        obs=[0, 0, 1, 1], action=[[3.0], [2.0], [0.0], [4.0]], reward=[1.0, 0.0, -1.0, 2.0],
        next_obs=[0, 0, 1, 1], terminated=[0, 0, 0, 1], truncated=[0, 1, 0, 0],
        discount=[0.5, 0.5, 0.5, 0.5],
    )  # fmt: skip


class TestLoss:
    def test_value_by_hand(self) -> None:
        algorithm = table(expectile=0.7)
        batch = algorithm.replay_tensors(items())
        loss, metrics = algorithm._value_loss(batch)
        # The smaller targets at the recorded actions: min(5.5, 4), 5, min(5, 8), min(7, 4); less V
        assert batch["advantage"].tolist() == pytest.approx([-0.5, 0.5, 0.0, -1.0])
        # u = -0.5, 0.5, 0, -1, weighed 0.3, 0.7, 0.7, 0.3
        assert loss.item() == pytest.approx((0.3 * 0.25 + 0.7 * 0.25 + 0.3) / 4)
        assert metrics["value_mean"].item() == pytest.approx(4.75)

    def test_critic_by_hand(self) -> None:
        algorithm = table()
        loss, metrics = algorithm._critic_loss(algorithm.replay_tensors(items()))
        # y = 1 + 4.5 / 2, 0 + 4.5 / 2 (truncated: bootstraps), -1 + 5 / 2, 2 (terminated)
        # Q1 = 1.5, 1, 1, 3 less y = 3.25, 2.25, 1.5, 2; Q2 = -0.5, 0, 4, 2
        squares = [3.0625, 1.5625, 0.25, 1.0, 14.0625, 5.0625, 6.25, 0.0]
        assert loss.item() == pytest.approx(sum(squares) / 4, rel=1e-6)
        assert metrics["q_mean"].item() == pytest.approx(12 / 8)

    @pytest.mark.parametrize(
        ("beta", "weights"),
        [
            (2.0, [math.exp(-1), math.e, 1.0, math.exp(-2)]),
            (20.0, [math.exp(-10), 100.0, 1.0, math.exp(-20)]),  # exp(10) is more than 100
            (0.0, [1.0, 1.0, 1.0, 1.0]),
        ],
    )
    def test_actor_by_hand(self, beta: float, weights: list[float]) -> None:
        algorithm = table(beta=beta)
        batch = algorithm.replay_tensors(items())
        algorithm._value_loss(batch)
        loss, metrics = algorithm._actor_loss(batch)
        # log N(u) of u = 0.5, 0, -1, 1, less log 2 for the width of the box
        squares = [0.25, 0.0, 1.0, 1.0]
        log_pi = [-x / 2 - math.log(2 * math.pi) / 2 - math.log(2) for x in squares]
        expected = -sum(w * p for w, p in zip(weights, log_pi, strict=True)) / 4
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        assert metrics["weight"].item() == pytest.approx(sum(weights) / 4, rel=1e-5)
        assert metrics["advantage"].item() == pytest.approx(-1 / 4)

    @pytest.mark.parametrize(("log_std", "bound"), [(-9.0, -5.0), (5.0, 2.0)])
    def test_the_log_std_is_held_within_bounds(self, log_std: float, bound: float) -> None:
        algorithm = table(beta=0.0)
        losses = []
        for value in (log_std, bound):
            put(algorithm.actor[1].log_std, [value])
            batch = algorithm.replay_tensors(items())
            algorithm._value_loss(batch)
            losses.append(algorithm._actor_loss(batch)[0].item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)

    def test_discrete_by_hand(self) -> None:
        algorithm = make_algorithm("iql", STATES, spaces.Discrete(2), hidden=(), beta=1.0)
        # Two members, two states, two actions
        put(
            algorithm.target.members.weights[0],
            [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 0.0], [3.0, 9.0]]],
        )
        put(
            algorithm.critic.members.weights[0],
            [[[0.0, 1.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 0.0]]],
        )
        for critic in (algorithm.target, algorithm.critic):
            put(critic.members.biases[0], [[0.0, 0.0], [0.0, 0.0]])
        put(algorithm.value.members.weights[0], [1.0, 3.0])
        put(algorithm.value.members.biases[0], [0.0])
        put(algorithm.actor[1].weight, [[0.0, math.log(3)], [0.0, 0.0]])  # [action, state]
        put(algorithm.actor[1].bias, [0.0, 0.0])
        columns = {"obs": [0, 1], "action": [1, 0], "next_obs": [1, 0]}
        batch = algorithm.replay_tensors(
            make_batch(**columns, reward=[1.0, 0.0], discount=[0.5, 0.5])
        )
        loss, _ = algorithm._value_loss(batch)
        # min Q' = 0 and 3, V = 1 and 3: u = -1 and 0
        assert loss.item() == pytest.approx(0.3 / 2)
        loss, _ = algorithm._actor_loss(batch)
        # Weights exp(-1) and 1; log 1/2 and log 3/4
        assert loss.item() == pytest.approx(-(math.exp(-1) * math.log(0.5) + math.log(0.75)) / 2)
        loss, _ = algorithm._critic_loss(batch)
        # y = 1 + 3 / 2 and 0 + 1 / 2; Q1 = 1 and 0, Q2 = 0 and 0
        assert loss.item() == pytest.approx((2.25 + 0.25 + 6.25 + 0.25) / 2)


class TestUpdate:
    def test_each_network_moves_and_the_targets_follow(self) -> None:
        algorithm = table(lr=0.1, tau=0.25)
        flats = algorithm.step.flats
        before = {module: flat.clone() for module, flat in flats.items()}
        algorithm.update(CannedReplay(items()))
        for module in (algorithm.actor, algorithm.critic, algorithm.value):
            assert not torch.equal(flats[module], before[module])
        expected = 0.75 * before[algorithm.target] + 0.25 * flats[algorithm.critic]
        torch.testing.assert_close(flats[algorithm.target], expected)

    def test_learning_rates(self) -> None:
        algorithm = table(lr=0.1, actor_lr="cosine:0.2:0", critic_lr=0.3)
        assert algorithm.hp.rates(algorithm.step, 0.5) == pytest.approx([0.1, 0.1, 0.3])


QUICK = {
    "gamma": 0.9, "hidden": (32,), "batch_size": 64, "lr": 0.003, "tau": 0.05, "updates": 500,
}  # fmt: skip


class TestLearns:
    def test_better_than_what_was_done(self) -> None:
        """The best policy gets -1.2, standing still (the mean of the data) -8.8."""
        data = record(Reach, behaviour=torn, episodes=100)
        rig = OfflineRig("iql", Reach, data=data, beta=10.0, expectile=0.9, **QUICK)
        assert rig.train().score() > -4

    def test_to_look_ahead(self) -> None:
        """Random walks go left for 0.2 far more often than right for 1, and never in one go."""
        data = record(Corridor, episodes=100)
        rig = OfflineRig("iql", Corridor, data=data, beta=10.0, expectile=0.9, seed=0, **QUICK)
        assert rig.score() < 1.0  # others go right before they have learned anything
        assert rig.train().score() == 1.0
