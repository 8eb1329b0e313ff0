"""C51: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from families import (
    ACTIONS,
    MASKED_STATES,
    OPTIONS,
    QUICK,
    SMALL,
    STATES,
    WITHOUT_EFFECT,
    ContractOfEveryOption,
    Learning,
    check_numpy_acts_as_torch,
    check_target_is_copied,
    four_steps,
    mask_next,
)
from gymnasium import spaces
from torch import nn

from assay.algorithms.c51 import C51
from assay.core.errors import ConfigError
from assay.core.types import Batch
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Case,
    make_algorithm,
)

SETTINGS = SMALL | {"atoms": 11}


class TestContract(AlgorithmContract):
    algorithm = "c51"
    settings = SETTINGS
    compiled_settings = OPTIONS

    def cases(self) -> Iterator[Case]:
        yield Case("discrete", spaces.Discrete(4))
        yield Case("discrete_from_2_masked", spaces.Discrete(3, start=2), masked=True)
        yield Case("sees_discrete", spaces.Discrete(4), "discrete")
        yield Case("sees_image", spaces.Discrete(4), "image")


class TestContractWithEveryOption(ContractOfEveryOption):
    algorithm = "c51"
    settings = SETTINGS | OPTIONS


# Probabilities of the returns 0, 1 and 2 by state and action, and their means.
ONLINE = [
    [(0.25, 0.25, 0.5), (0.5, 0.25, 0.25)],  # state 0: 1.25, 0.75
    [(0.5, 0.25, 0.25), (0.25, 0.25, 0.5)],  # state 1: 0.75, 1.25
]
TARGET = [
    [(0.5, 0.25, 0.25), (0.25, 0.25, 0.5)],  # state 0: 0.75, 1.25
    [(0.25, 0.5, 0.25), (0.5, 0.25, 0.25)],  # state 1: 1, 0.75
]
TAKEN = [ONLINE[0][0], ONLINE[0][1], ONLINE[1][0], ONLINE[1][1]]


def table(observation: spaces.Space[Any] = STATES, **settings: Any) -> C51:
    """Return C51 on two states with the distributions above."""
    plain = {"hidden": (), "atoms": 3, "v_min": 0.0, "v_max": 2.0}
    algorithm = make_algorithm("c51", observation, ACTIONS, **(plain | settings))
    for network, mass in ((algorithm.q, ONLINE), (algorithm.target, TARGET)):
        layer = network[1].advantage[0]
        with torch.no_grad():
            # mass: [state, action, atom]; weight: [action * atom, state]
            layer.weight.copy_(torch.tensor(mass).log().reshape(2, 6).T)
            layer.bias.zero_()
    return algorithm


def items(**more: Any) -> Batch:
    return four_steps(**({"reward": [0.5, 1.5, 0.0, 1.0]} | more))


def divergences(targets: Sequence[Sequence[float]]) -> list[float]:
    """Return KL(target || prediction) of each item."""
    return [
        sum(m * math.log(m / p) for m, p in zip(target, taken, strict=True) if m > 0)
        for target, taken in zip(targets, TAKEN, strict=True)
    ]


# The target network prefers action 0 in state 1 and action 1 in state 0.
PROJECTED = [
    # (0.25, 0.5, 0.25) at 0.5 + (0, 1, 2) / 2 = 0.5, 1, 1.5
    (0.125, 0.75, 0.125),
    # terminated: all at 1.5
    (0.0, 0.5, 0.5),
    # truncated, so bootstrapped: (0.25, 0.25, 0.5) at 0, 0.5, 1
    (0.375, 0.625, 0.0),
    # (0.25, 0.25, 0.5) at 1 + (0, 1, 2) / 4 = 1, 1.25, 1.5
    (0.0, 0.6875, 0.3125),
]
# The online network prefers the other ones; (0.5, 0.25, 0.25) lies at the same places.
PROJECTED_DOUBLE = [
    (0.25, 0.625, 0.125),
    (0.0, 0.5, 0.5),
    (0.625, 0.375, 0.0),
    (0.0, 0.8125, 0.1875),
]


class TestLoss:
    @pytest.mark.parametrize("double", [False, True])
    def test_by_hand(self, double: bool) -> None:
        algorithm = table(double=double)
        loss, metrics = algorithm._loss(algorithm.replay_tensors(items()))
        expected = divergences(PROJECTED_DOUBLE if double else PROJECTED)
        assert loss.item() == pytest.approx(sum(expected) / 4, rel=1e-5)
        assert metrics["q_mean"].item() == pytest.approx((1.25 + 0.75 + 0.75 + 1.25) / 4)
        assert metrics["mass_clipped"].item() == 0.0

    def test_importance_weights(self) -> None:
        algorithm = table(prioritized=True)
        weight = [1.0, 0.5, 0.25, 0.0]
        batch = algorithm.replay_tensors(items()) | {"weight": torch.tensor(weight)}
        loss, metrics = algorithm._loss(batch)
        expected = divergences(PROJECTED)
        assert metrics["priority"].tolist() == pytest.approx(expected, rel=1e-5)
        weighed = sum(w * e for w, e in zip(weight, expected, strict=True))
        assert loss.item() == pytest.approx(weighed / 4, rel=1e-5)

    def test_masked_actions_are_not_bootstrapped_from(self) -> None:
        algorithm = table(MASKED_STATES)
        batch = mask_next(items(), [[0, 1], [1, 1], [1, 0], [1, 1]])
        loss, _ = algorithm._loss(algorithm.replay_tensors(batch))
        # What is left in the first and third is what the online network preferred above.
        left = [PROJECTED_DOUBLE[0], PROJECTED[1], PROJECTED_DOUBLE[2], PROJECTED[3]]
        assert loss.item() == pytest.approx(sum(divergences(left)) / 4, rel=1e-5)

    def test_returns_outside_the_support_are_reported(self) -> None:
        algorithm = table()
        batch = items(reward=[1.5, 3.0, 0.0, -1.0])
        _, metrics = algorithm._loss(algorithm.replay_tensors(batch))
        # 0.25 at 2.5; all at 3; none; 0.25, 0.25, 0.5 at -1, -0.75, -0.5
        assert metrics["mass_clipped"].item() == pytest.approx((0.25 + 1.0 + 0.0 + 1.0) / 4)


class TestUpdate:
    def test_priorities_are_the_divergences_before_the_step(self) -> None:
        algorithm = table(prioritized=True, batch_size=4, lr=0.1)
        algorithm.clock.env_steps = 500  # of 1000
        replay = CannedReplay(items(weight=[1.0, 1.0, 1.0, 1.0], index=[7, 8, 9, 3]))
        algorithm.update(replay)
        assert replay.calls == [(4, pytest.approx(0.7))]
        [(index, errors)] = replay.priorities
        assert index == [7, 8, 9, 3]
        assert errors == pytest.approx(divergences(PROJECTED), rel=1e-5)

    def test_target_is_copied_when_due(self) -> None:
        algorithm = table(target_every=2, batch_size=4, lr=0.1)
        check_target_is_copied(algorithm, items, every=2)

    def test_steps_lower_the_loss(self) -> None:
        algorithm = table(lr=0.05, batch_size=4)
        before, _ = algorithm._loss(algorithm.replay_tensors(items()))
        for _ in range(200):
            algorithm.update(CannedReplay(items()))
        after, _ = algorithm._loss(algorithm.replay_tensors(items()))
        # A divergence, unlike a cross-entropy, can come down to nothing.
        assert before.item() > 0.2 and after.item() < 0.01


class TestSettings:
    @pytest.mark.parametrize(("settings", "message"), WITHOUT_EFFECT)
    def test_what_has_no_effect_is_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            table(**settings)

    def test_a_support_needs_room(self) -> None:
        with pytest.raises(ConfigError, match="v_min=3 and v_max=2"):
            table(v_min=3.0)


@pytest.mark.parametrize("options", [{}, {"dueling": True}, {"dueling": True, "noisy": True}])
def test_numpy_acts_as_torch_does(options: dict[str, Any]) -> None:
    observation = spaces.Box(-1.0, 1.0, (3,), np.float32)
    algorithm = make_algorithm("c51", observation, spaces.Discrete(4), atoms=7, **options)
    network = nn.Sequential(algorithm.q, algorithm.mean)
    check_numpy_acts_as_torch(network, atol=1e-4)


class TestLearns(Learning):
    algorithm = "c51"
    quick = QUICK | {"atoms": 21, "v_min": 0.0}
    highest_returns = (8.0, 2.0)
