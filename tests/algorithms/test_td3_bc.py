"""TD3+BC: the contract, its numbers by hand, and that it learns from data of mixed quality."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from families import BOX, STATES, put

from assay.algorithms.td3_bc import TD3BC
from assay.core.types import Batch
from assay.testing.algorithms import CannedReplay, make_algorithm, make_batch
from assay.testing.envs import Reach
from assay.testing.offline import OfflineContract, OfflineRig, record, torn

SMALL = {"hidden": (16,), "batch_size": 8}


class TestContract(OfflineContract):
    algorithm = "td3_bc"
    settings = SMALL


def table(lift: float = 0.0, **settings: Any) -> TD3BC:
    """Return TD3+BC on two states, with known numbers in unit actions a.

    Both actors: 0 in state 0 and tanh(log 3) = 0.8 in state 1.
    Critics 1 + a and -a in state 0, 2 + a and 3 - a in state 1, and `lift` more.
    Targets 5 + a and 5 - 2a in state 0, 6 + a and 6 - 2a in state 1.
    """
    settings = {"hidden": (), "batch_size": 4} | settings
    algorithm = make_algorithm("td3_bc", STATES, BOX, **settings)
    for actor in (algorithm.actor, algorithm.target_actor):
        put(actor[1][0].weight, [0.0, math.log(3)])
        put(actor[1][0].bias, [0.0])
    for critic, values, bias in (
        (algorithm.critic, [[1.0, 2.0, 1.0], [0.0, 3.0, -1.0]], lift),
        (algorithm.target_critic, [[5.0, 6.0, 1.0], [5.0, 6.0, -2.0]], 0.0),
    ):
        put(critic.ensemble.weights[0], values)  # [member, (state 0, state 1, action)]
        put(critic.ensemble.biases[0], [bias, bias])
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


def named(algorithm: TD3BC) -> dict[str, torch.Tensor]:
    batch = algorithm.replay_tensors(items())
    return batch | {"action": torch.tensor([[0.5], [0.0], [-1.0], [1.0]])}


class TestLoss:
    def test_critic_by_hand(self) -> None:
        algorithm = table()
        batch = named(algorithm) | {"noise": torch.tensor([[1.0], [-10.0], [10.0], [0.0]])}
        loss, metrics = algorithm._critic_loss(batch)
        # Noise 0.2, -2 clipped to -0.5, 2 clipped to 0.5: next actions 0.2, -0.5, 1.3 clipped to 1.
        # The smaller targets 4.6, 4.5, 4: y = 3.3, 2.25 (truncated: bootstraps), 1, 2 (terminated)
        # Q1 = 1.5, 1, 1, 3 and Q2 = -0.5, 0, 4, 2
        squares = [3.24, 1.5625, 0.0, 1.0, 14.44, 5.0625, 9.0, 0.0]
        assert loss.item() == pytest.approx(sum(squares) / 4, rel=1e-6)
        assert metrics["q_mean"].item() == pytest.approx(12 / 8)

    def test_actor_by_hand(self) -> None:
        algorithm = table()
        loss, metrics = algorithm._actor_loss(named(algorithm))
        # Q1 of actions 0, 0, 0.8, 0.8 is 1, 1, 2.8, 2.8: lambda = 2.5 / 1.9, and lambda Q = 2.5.
        # Squared distances to 0.5, 0, -1, 1 are 0.25, 0, 3.24, 0.04.
        assert metrics["bc_loss"].item() == pytest.approx(3.53 / 4)
        assert loss.item() == pytest.approx(-2.5 + 3.53 / 4)
        [gradient] = torch.autograd.grad(loss, [algorithm.actor[1][0].bias])
        # Slopes of tanh 1, 1, 0.36, 0.36. Values: -lambda 2.72 / 4, if lambda has no gradient.
        # Imitation: 2 / 4 (-0.5 + 0 + 1.8 * 0.36 - 0.2 * 0.36) = 0.038
        assert gradient.tolist() == pytest.approx([-2.5 / 1.9 * 2.72 / 4 + 0.038])

    def test_values_of_both_signs_are_scaled_by_their_size(self) -> None:
        algorithm = table(lift=-2.0, alpha=0.9)
        loss, _ = algorithm._actor_loss(named(algorithm))
        # Q1 = -1, -1, 0.8, 0.8: the mean is -0.1 and the mean size 0.9
        assert loss.item() == pytest.approx(0.1 + 3.53 / 4)

    def test_values_of_zero_leave_imitation(self) -> None:
        algorithm = table()
        for parameter in algorithm.critic.parameters():
            put(parameter, np.zeros(parameter.shape, np.float32))
        loss, _ = algorithm._actor_loss(named(algorithm))
        assert loss.item() == pytest.approx(3.53 / 4)


class TestUpdate:
    @pytest.mark.parametrize("delay", [1, 2])
    def test_actor_and_targets_wait(self, delay: int) -> None:
        algorithm = table(policy_delay=delay, lr=0.1, tau=0.25)
        flats = algorithm.full_step.flats
        slow = (algorithm.actor, algorithm.target_actor, algorithm.target_critic)
        for update in range(1, 5):
            before = {module: flat.clone() for module, flat in flats.items()}
            algorithm.update(CannedReplay(items()))
            assert not torch.equal(flats[algorithm.critic], before[algorithm.critic])
            for module in slow:
                assert torch.equal(flats[module], before[module]) == bool(update % delay)

    def test_imitates_in_the_unit_box(self) -> None:
        """The environment's actions 3, 2, 0, 4 are 0.5, 0, -1, 1 in the loss."""
        algorithm = table(policy_delay=1)
        algorithm.update(CannedReplay(items()))
        assert algorithm.drain_metrics()["train/bc_loss"] == pytest.approx(3.53 / 4)


QUICK = {
    "gamma": 0.9, "hidden": (32,), "batch_size": 64, "lr": 0.003, "tau": 0.05, "updates": 900,
}  # fmt: skip


class TestLearns:
    def test_better_than_what_was_done(self) -> None:
        """The best policy gets -1.2, standing still (the mean of the data) -8.8."""
        data = record(Reach, behaviour=torn, episodes=100)
        assert OfflineRig("td3_bc", Reach, data=data, **QUICK).train().score() > -4

    def test_evaluation_sees_what_learning_saw(self) -> None:
        """The statistics of the data, far from 0 and 1, are applied when acting."""
        data = record(Reach, behaviour=torn, episodes=10)
        algorithm = OfflineRig("td3_bc", Reach, data=data, hidden=(8,)).algorithm
        obs = np.array([[0.5, -0.5]], np.float32)
        rows = np.concatenate([episode.obs[:-1] for episode in data.episodes()])
        unit = torch.from_numpy((obs - rows.mean(0)) / rows.std(0))
        with torch.no_grad():
            expected = 1.0 + 2.0 * algorithm.actor(unit).numpy()
        np.testing.assert_allclose(algorithm.act(obs, None, False).action, expected, rtol=1e-4)
