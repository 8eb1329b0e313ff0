"""CrossQ: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from families import BOX, STATES, put

from assay.algorithms.crossq import CrossQ
from assay.core.errors import ConfigError
from assay.core.types import Batch
from assay.networks.batchnorm import BatchRenorm
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Rig,
    make_algorithm,
    make_batch,
)
from assay.testing.envs import Reach

EPS = 1e-3


SMALL = {
    "buffer_size": 150, "learning_starts": 12, "batch_size": 8, "train_every": 2,
    "hidden": (16,), "critic_hidden": (16,), "policy_delay": 2, "renorm_warmup": 1,
}  # fmt: skip


class TestContract(AlgorithmContract):
    algorithm = "crossq"
    settings = SMALL


def by_hand(**settings: Any) -> CrossQ:
    """Return CrossQ on two states and actions from 0 to 4, with known numbers.

    Mean 0 and standard deviation 1 in both states. On normalised inputs (s0, s1, a) the critics
    are 1 + 2 s0 + a and 3 - s1 + 2 a.
    """
    small = {"hidden": (), "critic_hidden": (), "alpha": 0.5, "batch_size": 2, "policy_delay": 2}
    algorithm = make_algorithm("crossq", STATES, BOX, **(small | settings))
    head = algorithm.actor.net[1].linear
    put(head.weight, [[0.0, 0.0], [0.0, 0.0]])
    put(head.bias, [0.0, 0.0])
    values = (([2.0, 0.0, 1.0], 1.0), ([0.0, -1.0, 2.0], 3.0))
    for member, (weight, bias) in zip(algorithm.critic.members, values, strict=True):
        put(member[1].weight, weight)
        put(member[1].bias, bias)
    return algorithm


def items() -> Batch:
    """Return a truncated and a terminated step; the unit actions are 1/2 and -1/2."""
    return make_batch(
        obs=[0, 1], action=[[3.0], [1.0]], reward=[1.0, -1.0], next_obs=[1, 1],
        terminated=[0, 1], truncated=[1, 0], discount=[0.5, 0.5],
    )  # fmt: skip


def norms(module: torch.nn.Module) -> list[BatchRenorm]:
    return [m for m in module.modules() if isinstance(m, BatchRenorm)]


LOG_PI = -0.5 * math.log(2 * math.pi)  # of the noise 0, at u = 0


class TestLoss:
    def test_critic_by_hand(self) -> None:
        algorithm = by_hand()
        batch = algorithm.replay_tensors(items()) | {"next_noise": torch.zeros(2, 1)}
        loss, metrics = algorithm._critic_loss(batch)
        # The joint batch: states 0, 1, 1, 1 and actions 1/2, -1/2, 0, 0 (a' = tanh 0).
        # Means 1/4, 3/4, 0; variances 3/16, 3/16, 1/8.
        s, a = math.sqrt(3 / 16 + EPS), math.sqrt(1 / 8 + EPS)
        first = [1 + 2 * 0.75 / s + 0.5 / a, 1 - 2 * 0.25 / s - 0.5 / a]
        second = [3 + 0.75 / s + 2 * 0.5 / a, 3 - 0.25 / s - 2 * 0.5 / a]
        next_q = min(1 - 2 * 0.25 / s, 3 - 0.25 / s)
        y = [1 + 0.5 * (next_q - 0.5 * LOG_PI), -1.0]
        errors = [(q - t) ** 2 for qs in (first, second) for q, t in zip(qs, y, strict=True)]
        assert loss.item() == pytest.approx(0.5 * sum(errors) / 2, rel=1e-5)
        assert metrics["q_mean"].item() == pytest.approx(sum(first + second) / 4, rel=1e-5)

    def test_the_critic_pass_learns_the_joint_statistics(self) -> None:
        algorithm = by_hand()
        batch = algorithm.replay_tensors(items()) | {"next_noise": torch.zeros(2, 1)}
        algorithm._critic_loss(batch)
        for norm in norms(algorithm.critic):
            assert norm.mean.tolist() == pytest.approx([0.0025, 0.0075, 0.0])
            variance = [0.99 + 0.01 * v for v in (3 / 16, 3 / 16, 1 / 8)]
            assert norm.variance.tolist() == pytest.approx(variance)
            assert norm.count.item() == 1
        for norm in norms(algorithm.actor):  # next actions come from the running statistics
            assert norm.count.item() == 0 and norm.mean.tolist() == [0.0, 0.0]

    def test_actor_by_hand(self) -> None:
        algorithm = by_hand()
        batch = algorithm.replay_tensors(items()) | {"noise": torch.zeros(2, 1)}
        loss, metrics = algorithm._actor_loss(batch)
        # Running statistics of the critics: mean 0, variance 1. Actions 0, states 0 and 1.
        s = math.sqrt(1 + EPS)
        q = [min(1 + 2 / s, 3), min(1, 3 - 1 / s)]
        assert loss.item() == pytest.approx(0.5 * LOG_PI - sum(q) / 2, rel=1e-5)
        assert metrics["entropy"].item() == pytest.approx(-LOG_PI, rel=1e-5)
        assert all(norm.count.item() == 0 for norm in norms(algorithm.critic))
        assert all(norm.count.item() == 1 for norm in norms(algorithm.actor))

    def test_targets_carry_no_gradient(self) -> None:
        """A shift of all values moves the targets as well, but its gradient is that of q alone."""
        algorithm = by_hand()
        batch = algorithm.replay_tensors(items()) | {"next_noise": torch.zeros(2, 1)}
        loss, _ = algorithm._critic_loss(batch)
        bias = algorithm.critic.members[0][1].bias
        [slope] = torch.autograd.grad(loss, [bias])
        s, a = math.sqrt(3 / 16 + EPS), math.sqrt(1 / 8 + EPS)
        q = [1 + 1.5 / s + 0.5 / a, 1 - 0.5 / s - 0.5 / a]
        y = [1 + 0.5 * (1 - 0.5 / s - 0.5 * LOG_PI), -1.0]
        assert slope.item() == pytest.approx((q[0] - y[0] + q[1] - y[1]) / 2, rel=1e-5)


class TestUpdate:
    def test_the_actor_is_late(self) -> None:
        algorithm = by_hand(alpha="auto", policy_delay=3)
        flat = {m: algorithm.full_step.flats[m] for m in (algorithm.actor, algorithm.critic)}
        moved = []
        for _ in range(6):
            before = {m: f.clone() for m, f in flat.items()}
            alpha = algorithm.temperature().item()
            algorithm.update(CannedReplay(items()))
            assert not torch.equal(before[algorithm.critic], flat[algorithm.critic])
            late = not torch.equal(before[algorithm.actor], flat[algorithm.actor])
            assert late == (algorithm.temperature().item() != alpha)
            moved.append(late)
        assert moved == [False, False, True, False, False, True]
        assert [n.count.item() for n in norms(algorithm.actor)] == [2.0]
        assert [n.count.item() for n in norms(algorithm.critic)] == [6.0, 6.0]

    def test_adam_forgets_fast(self) -> None:
        algorithm = by_hand(policy_delay=1)
        algorithm.update(CannedReplay(items()))
        for name in ("critic", "actor"):
            moments = algorithm.full_step.moments[name]
            first, second = moments["first"], moments["second"]
            some = second > 1e-12
            # (1 - beta1)^2 g^2 / ((1 - beta2) g^2)
            ratio = first[some].square() / second[some]
            torch.testing.assert_close(
                ratio, torch.full_like(ratio, 0.5**2 / 0.001), rtol=1e-3, atol=0
            )

    def test_acting_uses_the_running_statistics(self) -> None:
        algorithm = by_hand()
        put(algorithm.actor.net[1].linear.weight, [[1.0, 0.0], [0.0, 0.0]])
        norm = norms(algorithm.actor)[0]
        put(norm.mean, [0.5, 0.0])
        put(norm.variance, [0.25 - EPS, 1.0])
        # (1 - 1/2) / (1/2) = 1 in state 0 and -1 in state 1, whatever else is in the batch
        for states in ([0], [0, 0, 1]):
            best = algorithm.act(np.array(states), None, False).action
            units = [math.tanh(1.0 if state == 0 else -1.0) for state in states]
            assert best.ravel().tolist() == pytest.approx([2 + 2 * u for u in units])

    @pytest.mark.parametrize("setting", [{"alpha_init": 0.1}, {"target_entropy": -2.0}])
    def test_refuses_what_a_fixed_temperature_ignores(self, setting: dict[str, float]) -> None:
        with pytest.raises(ConfigError, match=r"has no effect with alpha=0\.5"):
            by_hand(**setting)


def test_learns_to_reach() -> None:
    # The best policy gets -1.2, standing still -8.8; without a bootstrap it is below -6.
    rig = Rig(
        "crossq", Reach, env_steps=1600, num_envs=4, buffer_size=5000, learning_starts=200,
        train_every=4, lr=0.005, hidden=(32,), critic_hidden=(64,), batch_size=64, gamma=0.9,
        policy_delay=2,
    )  # fmt: skip
    assert rig.train().score() > -4
