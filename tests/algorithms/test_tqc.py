"""TQC: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from families import BOX, STATES, box_items, log_pi, put
from gymnasium import spaces

from assay.algorithms.tqc import TQC, sorted_quantile_huber
from assay.core.errors import ConfigError
from assay.functional.losses import quantile_huber
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Rig,
    make_algorithm,
)
from assay.testing.envs import Reach

SMALL = {
    "buffer_size": 150, "learning_starts": 12, "batch_size": 8, "train_every": 2,
    "hidden": (16,), "n_critics": 3, "n_quantiles": 5,
}  # fmt: skip


class TestContract(AlgorithmContract):
    algorithm = "tqc"
    settings = SMALL


def by_hand(**settings: Any) -> TQC:
    """Return TQC on two states and actions from 0 to 4, with known numbers in unit actions a.

    Mean 0 in state 0 and 1/2 in state 1; standard deviation 1. Two critics of two quantiles:
    (a, 1) and (2, 4 - a) in state 0, (3 + a, 0) and (1, 1 - a) in state 1.
    Targets (1, 2) and (5, 7) in state 0, (6 + 2a, 3) and (4, 8) in state 1.
    """
    small = {"hidden": (), "alpha": 0.5, "n_critics": 2, "n_quantiles": 2}
    dropped = {"top_quantiles_to_drop_per_net": 1}
    algorithm = make_algorithm("tqc", STATES, BOX, **(small | dropped | settings))
    head = algorithm.actor.net[1].linear
    put(head.weight, [[0.0, 0.5], [0.0, 0.0]])
    put(head.bias, [0.0, 0.0])
    for critic, values in (  # [member, (state 0, state 1, action), quantile]
        (algorithm.critic, [[[0.0, 1.0], [3.0, 0.0], [1.0, 0.0]],
                            [[2.0, 4.0], [1.0, 1.0], [0.0, -1.0]]]),
        (algorithm.target, [[[1.0, 2.0], [6.0, 3.0], [2.0, 0.0]],
                            [[5.0, 7.0], [4.0, 8.0], [0.0, 0.0]]]),
    ):  # fmt: skip
        put(critic.members.weights[0], values)
        put(critic.members.biases[0], [[0.0, 0.0], [0.0, 0.0]])
    return algorithm


def pinball(z: float, y: float, tau: float) -> float:
    """Return |tau - 1{y < z}| huber(y - z)."""
    size = abs(y - z)
    return abs(tau - (y < z)) * (0.5 * size**2 if size <= 1 else size - 0.5)


class TestLoss:
    def test_critic_by_hand(self) -> None:
        algorithm = by_hand()
        batch = algorithm.replay_tensors(box_items()) | {"next_noise": torch.zeros(3, 1)}
        loss, metrics = algorithm._critic_loss(batch)
        # Of the pool 1, 2, 5, 7 the two largest go; one of each critic would leave 1 and 5.
        bonus0 = -0.5 * log_pi(0, 0)
        y0 = [1 + 0.5 * (z + bonus0) for z in (1, 2)]
        # Of 6.92, 3, 4, 8 remain 3 and 4. A truncation bootstraps, a termination does not.
        bonus1 = -0.5 * log_pi(0, 0.5)
        y1 = [0 + 0.5 * (z + bonus1) for z in (3, 4)]
        y2 = [-1.0, -1.0]
        z = [
            [(0.5, 1.0), (3.0, 0.0), (-1.0, 1.0)],  # of each item, the first critic
            [(2.0, 3.5), (1.0, 1.0), (2.0, 5.0)],
        ]
        expected = 0.0
        for critic in z:  # a sum over critics, of means over items, quantiles and targets
            errors = [
                pinball(quantile, target, tau)
                for quantiles, y in zip(critic, (y0, y1, y2), strict=True)
                for quantile, tau in zip(quantiles, (0.25, 0.75), strict=True)
                for target in y
            ]
            expected += sum(errors) / len(errors)
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        assert metrics["q_mean"].item() == pytest.approx((4.5 + 14.5) / 12, rel=1e-5)

    def test_dropping_none_keeps_all(self) -> None:
        algorithm = by_hand(top_quantiles_to_drop_per_net=0, alpha=1e-8)
        batch = algorithm.replay_tensors(box_items()) | {"next_noise": torch.zeros(3, 1)}
        loss, _ = algorithm._critic_loss({k: v[:1] for k, v in batch.items()})
        y = [1.5, 2.0, 3.5, 4.5]
        first = [pinball(z, t, tau) for z, tau in ((0.5, 0.25), (1.0, 0.75)) for t in y]
        second = [pinball(z, t, tau) for z, tau in ((2.0, 0.25), (3.5, 0.75)) for t in y]
        assert loss.item() == pytest.approx((sum(first) + sum(second)) / 8, rel=1e-5)

    def test_actor_by_hand(self) -> None:
        algorithm = by_hand()
        batch = algorithm.replay_tensors(box_items())
        batch["noise"] = torch.tensor([[0.5], [-0.5], [0.0]])
        loss, metrics = algorithm._actor_loss(batch)
        # u = 1/2, 0, 0 (states 0, 1, 0). All quantiles count: (7 + a - a) / 4 and (5 + a - a) / 4
        logs = [log_pi(0.5, 0.5), log_pi(-0.5, 0.0), log_pi(0.0, 0.0)]
        assert loss.item() == pytest.approx((0.5 * sum(logs) - (7 + 5 + 7) / 4) / 3, rel=1e-5)
        assert metrics["entropy"].item() == pytest.approx(-sum(logs) / 3, rel=1e-5)

    def test_temperature_follows_the_entropy_and_nothing_else(self) -> None:
        learned, fixed = (by_hand(alpha=a, batch_size=3, lr=0.1) for a in ("auto", 1.0))
        for algorithm in (learned, fixed):
            algorithm.update(CannedReplay(box_items()))
        # Far above the target entropy of -1: alpha falls by the learning rate, Adam's first step.
        assert learned.temperature().item() == pytest.approx(math.exp(-0.1), rel=1e-4)
        assert fixed.temperature().item() == 1.0
        assert torch.equal(learned.step.flats[learned.actor], fixed.step.flats[fixed.actor])

    def test_targets_follow_after_every_update(self) -> None:
        algorithm = by_hand(batch_size=3, lr=0.1, tau=0.25)
        before = algorithm.step.flats[algorithm.target].clone()
        algorithm.update(CannedReplay(box_items()))
        critic, target = (algorithm.step.flats[m] for m in (algorithm.critic, algorithm.target))
        torch.testing.assert_close(target, 0.75 * before + 0.25 * critic)

    def test_levels_are_midpoints(self) -> None:
        algorithm = make_algorithm("tqc", STATES, BOX, hidden=(), n_quantiles=4)
        assert algorithm.critic.tau.tolist() == [1 / 8, 3 / 8, 5 / 8, 7 / 8]


class TestSortedQuantileHuber:
    def test_by_hand(self) -> None:
        target = torch.tensor([[-3.0, -0.5, 0.5, 2.0]])
        found = sorted_quantile_huber(torch.zeros(1, 1), target, torch.tensor([0.25]))
        # Below: 3/4 (2.5 + 0.125); above: 1/4 (0.125 + 1.5)
        assert found.item() == pytest.approx((0.75 * 2.625 + 0.25 * 1.625) / 4)

    @pytest.mark.parametrize("offset", [0.0, 3000.0])
    @pytest.mark.parametrize("spread", [0.1, 1.0, 20.0])
    def test_is_the_plain_loss(self, offset: float, spread: float) -> None:
        generator = torch.Generator().manual_seed(0)
        draw = torch.randn(6, 40, generator=generator) * spread + offset
        target = draw[:, 10:].sort(dim=1).values
        predicted = draw[:, :10].clone().requires_grad_()
        tau = (torch.arange(10) + 0.5) / 10
        found = sorted_quantile_huber(predicted, target, tau).sum(1)
        exact = predicted.detach().double().requires_grad_()
        expected = quantile_huber(exact, target.double(), tau.double())
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)
        [slope] = torch.autograd.grad(found.sum(), [predicted])
        [right] = torch.autograd.grad(expected.sum(), [exact])
        torch.testing.assert_close(slope.double(), right, rtol=1e-3, atol=1e-3)

    def test_ties(self) -> None:
        target = torch.tensor([[0.0, 1.0, 1.0, 2.0]])
        predicted, tau = torch.tensor([[1.0, 0.0, 3.0]]), torch.tensor([0.1, 0.5, 0.9])
        found = sorted_quantile_huber(predicted, target, tau).sum(1)
        torch.testing.assert_close(found, quantile_huber(predicted, target, tau))


class TestSettings:
    def test_target_entropy(self) -> None:
        wide = make_algorithm("tqc", STATES, spaces.Box(-1, 1, (3,)), hidden=())
        assert wide.target_entropy == -3.0
        assert by_hand(alpha="auto", target_entropy=0.7).target_entropy == 0.7

    def test_refuses_to_drop_everything(self) -> None:
        with pytest.raises(ConfigError, match="per_net=2 leaves nothing of n_quantiles=2"):
            by_hand(top_quantiles_to_drop_per_net=2)

    @pytest.mark.parametrize("setting", [{"alpha_init": 0.1}, {"target_entropy": -2.0}])
    def test_refuses_what_a_fixed_temperature_ignores(self, setting: dict[str, float]) -> None:
        with pytest.raises(ConfigError, match=r"has no effect with alpha=0\.5"):
            by_hand(**setting)


def test_learns_to_reach() -> None:
    # The best policy gets -1.2, standing still -8.8; without a bootstrap it is below -6.
    rig = Rig(
        "tqc", Reach, env_steps=1800, num_envs=4, buffer_size=5000, learning_starts=200,
        train_every=4, lr=0.003, hidden=(32,), batch_size=64, tau=0.05, gamma=0.9,
        n_critics=3, n_quantiles=9,
    )  # fmt: skip
    assert rig.train().score() > -4
