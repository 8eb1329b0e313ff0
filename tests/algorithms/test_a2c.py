"""A2C: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.algorithms.a2c import A2C
from assay.buffers.rollout import Rollout
from assay.core.types import Spaces
from assay.optim.rules import Adam, RMSprop
from assay.testing.algorithms import AlgorithmContract, Rig, make_algorithm
from assay.testing.envs import Corridor, Identity

STATES, ACTIONS = spaces.Discrete(2), spaces.Discrete(2)
LOG_2, LOG_3 = math.log(2), math.log(3)
SMALL = {"horizon": 5, "hidden": (16,)}


class TestContract(AlgorithmContract):
    algorithm = "a2c"
    settings = SMALL


def table(**settings: Any) -> A2C:
    """Return A2C on two states with known numbers.

    State 0: both actions 1/2, V = 1. State 1: actions 3/4 and 1/4 (logits log 3 and 0), V = 2.
    """
    algorithm = make_algorithm("a2c", STATES, ACTIONS, **({"hidden": (), "horizon": 3} | settings))
    net = algorithm.net
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[0.0, LOG_3], [0.0, 0.0]]))  # [action, state]
        net.head.bias.zero_()
        net.value_head[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        net.value_head[0].bias.zero_()
    return algorithm


# The fourth is not a transition: nothing of it counts.
ITEMS = {
    "obs": torch.tensor([0, 1, 1, 0]),
    "action": torch.tensor([0, 0, 1, 1]),
    "advantage": torch.tensor([2.0, 1.0, -1.0, math.nan]),
    "target": torch.tensor([0.0, 4.0, 2.0, math.nan]),
    "weight": torch.tensor([1.0, 1.0, 1.0, 0.0]),
    "policy_weight": torch.ones(4),
    "entropy_coef": torch.tensor(0.1),
}


class TestLoss:
    def test_by_hand(self) -> None:
        loss, metrics = table()._loss(dict(ITEMS))
        # -(2 log 1/2 + log 3/4 - log 1/4) / 3 = (2 log 2 - log 3) / 3
        policy = (2 * LOG_2 - LOG_3) / 3
        assert metrics["policy_loss"].item() == pytest.approx(policy, abs=1e-6)
        # Errors 1, 2, 0: half the mean square is 5/6
        assert metrics["value_loss"].item() == pytest.approx(5 / 6, abs=1e-6)
        # log 2 once, and twice -(3/4 log 3/4 + 1/4 log 1/4) = log 4 - 3/4 log 3
        entropy = (LOG_2 + 2 * (2 * LOG_2 - 0.75 * LOG_3)) / 3
        assert metrics["entropy"].item() == pytest.approx(entropy, abs=1e-6)
        # value_coef 0.5 is of the plain mean square, 5/3
        assert loss.item() == pytest.approx(policy + 0.5 * 5 / 3 - 0.1 * entropy, abs=1e-6)

    def test_gradient_by_hand(self) -> None:
        algorithm = table(value_coef=0.0)
        loss, _ = algorithm._loss({k: v[:1] if v.ndim else v for k, v in ITEMS.items()})
        [gradient] = torch.autograd.grad(loss, [algorithm.net.head.weight])
        # d/dl of -2 log p_0 at p = (1/2, 1/2) is -2 (1 - 1/2) and -2 (0 - 1/2), in state 0 alone
        torch.testing.assert_close(gradient, torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))

    def test_normalises_advantages_only_if_asked(self) -> None:
        _, metrics = table(normalize_advantage=True)._loss(dict(ITEMS))
        # Advantages 2, 1, -1: mean 2/3, squares 16/9, 1/9, 25/9, so std = sqrt(42/9 / 2)
        std = math.sqrt(42 / 18)
        expected = -(4 / 3 * -LOG_2 + 1 / 3 * (LOG_3 - 2 * LOG_2) - 5 / 3 * -2 * LOG_2) / (3 * std)
        assert metrics["policy_loss"].item() == pytest.approx(expected, abs=1e-6)


def rollout() -> Rollout:
    """Return states 0, 1, 0 with rewards 1, 2, 3 under action 0; the last one follows into 1."""
    data = Rollout(Spaces(STATES, ACTIONS), 3, 1)
    off, zero = np.zeros(1, bool), np.zeros(1, np.int64)
    for t, (state, reward) in enumerate([(0, 1.0), (1, 2.0), (0, 3.0)]):
        extras = {"log_prob": np.zeros(1, np.float32)}
        data.write(t, np.array([state]), zero, np.array([reward]), off, off, True, extras)
    data.last_obs = np.array([1])
    return data


class TestUpdate:
    @pytest.mark.parametrize(
        ("end", "targets"),
        [
            # n-step returns: G2 = 3 + 2/2 = 4, G1 = 2 + 4/2 = 4, G0 = 1 + 4/2 = 3
            (None, [3.0, 4.0, 4.0]),
            # Terminated at 1: G1 = 2, G0 = 1 + 2/2 = 2
            ("terminated", [2.0, 2.0, 4.0]),
            # Truncated at 1 with V(final) = 2: G1 = 2 + 2/2 = 3, G0 = 1 + 3/2 = 2.5
            ("truncated", [2.5, 3.0, 4.0]),
        ],
    )
    def test_returns_by_hand(
        self, end: str | None, targets: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        algorithm, data = table(gamma=0.5), rollout()
        if end is not None:
            getattr(data, end)[1, 0] = True
        if end == "truncated":
            data.add_final(1, 0, np.int64(1))
        seen: list[dict[str, Any]] = []
        monkeypatch.setattr(
            algorithm, "step", lambda batch, lr: seen.append(batch) or torch.zeros(1)
        )
        algorithm.update(data)
        [batch] = seen  # one gradient step on the whole rollout
        assert batch["target"].tolist() == targets
        values = torch.tensor([1.0, 2.0, 1.0])
        assert batch["advantage"].tolist() == (torch.tensor(targets) - values).tolist()

    def test_one_step_of_rmsprop(self) -> None:
        [objective] = table().step.objectives
        assert objective.rule == RMSprop(eps=1e-5, max_grad_norm=0.5)
        [objective] = table(optimizer="adam").step.objectives
        assert objective.rule == Adam(eps=1e-5, max_grad_norm=0.5)
        algorithm = table()
        algorithm.update(rollout())
        assert algorithm.updates == 1


QUICK = {"horizon": 8, "num_envs": 8, "hidden": (16,)}


class TestLearns:
    @pytest.mark.parametrize(
        ("space", "more"),
        [
            (spaces.Discrete(4), {}),
            (spaces.MultiDiscrete([3, 2]), {}),
            (spaces.MultiBinary(3), {}),
            (spaces.Box(-1.0, 1.0, (2,), np.float32), {"log_std_init": -1.0}),
        ],
        ids=lambda part: type(part).__name__ if isinstance(part, spaces.Space) else "",
    )
    def test_the_right_answer(self, space: Any, more: dict[str, Any]) -> None:
        rig = Rig(
            "a2c", partial(Identity, space), env_steps=10_000, gamma=0.0, lr=0.02, **QUICK,
            **more,
        )  # fmt: skip
        assert rig.train().score() > 8 * 0.9

    def test_to_look_ahead(self) -> None:
        rig = Rig(
            "a2c", Corridor, env_steps=10_000, gamma=0.95, lr=0.01, entropy_coef=0.01, **QUICK
        )
        assert rig.train().score() == 1.0
