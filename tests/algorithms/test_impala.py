"""IMPALA: the contract, V-trace in its loss by hand, its lag, and that it learns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.algorithms.impala import IMPALA
from assay.buffers.rollout import Rollout
from assay.core.errors import ConfigError
from assay.core.types import Spaces
from assay.optim.rules import Adam, RMSprop
from assay.testing.algorithms import AlgorithmContract, Case, Rig, make_algorithm
from assay.testing.envs import Corridor, Identity

STATES, ACTIONS = spaces.Discrete(2), spaces.Discrete(2)
LOG_2, LOG_3 = math.log(2), math.log(3)
SMALL = {"horizon": 5, "hidden": (16,)}


class TestContract(AlgorithmContract):
    algorithm = "impala"
    settings = SMALL


class TestContractWithLag(AlgorithmContract):
    algorithm = "impala"
    settings = SMALL | {"actor_lag": 2, "optimizer": "adam"}

    def cases(self) -> Iterator[Case]:
        yield from itertools.islice(super().cases(), 2)  # a lag knows nothing of spaces


def table(**settings: Any) -> IMPALA:
    """Return IMPALA on two states with known numbers.

    State 0: both actions 1/2, V = 1. State 1: actions 3/4 and 1/4 (logits log 3 and 0), V = 2.
    """
    options = {"hidden": (), "horizon": 2, "gamma": 0.5, "entropy_coef": 0.0} | settings
    algorithm = make_algorithm("impala", STATES, ACTIONS, **options)
    net = algorithm.net
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[0.0, LOG_3], [0.0, 0.0]]))  # [action, state]
        net.head.bias.zero_()
        net.value_head[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        net.value_head[0].bias.zero_()
    return algorithm


def rollout(last: int = 0, **flags: Any) -> Rollout:
    """Return states 0, 1 with actions 0, 0 and rewards 1, 2, taken with mu = 1/4 and 1."""
    data = Rollout(Spaces(STATES, ACTIONS), 2, 1)
    off = np.zeros(1, bool)
    for t, mu in enumerate((0.25, 1.0)):
        extras = {"log_prob": np.array([math.log(mu)], np.float32)}
        data.write(t, np.array([t]), np.array([0]), [1.0 + t], off, off, True, extras)
    data.last_obs = np.array([last])
    for name, value in flags.items():
        getattr(data, name)[:, 0] = value
    return data


# pi = 1/2 and 3/4, so pi/mu = 2 and 3/4. V = 1, 2, and V(last) = 1.
# delta_1 = 3/4 (2 + 1/2 - 2) = 3/8; v_1 = 2 + 3/8. Advantage_1 = 3/8.
# delta_0 = 1 (1 + 2/2 - 1) = 1; v_0 = 1 + 1 + 1/2 * 1 * 3/8 = 2 + 3/16.
# Advantage_0 = 1 (1 + 1/2 (2 + 3/8) - 1) = 19/16.
class TestLoss:
    def loss(self, algorithm: IMPALA, data: Rollout) -> tuple[float, dict[str, float]]:
        loss, metrics = algorithm._loss(algorithm._prepare(data))
        return loss.item(), {k: v.item() for k, v in metrics.items()}

    def test_by_hand(self) -> None:
        loss, metrics = self.loss(table(entropy_coef=0.1), rollout())
        policy = -(19 / 16 * -LOG_2 + 3 / 8 * (LOG_3 - 2 * LOG_2)) / 2
        assert metrics["policy_loss"] == pytest.approx(policy, abs=1e-6)
        # Errors 1 + 3/16 and 3/8
        squares = (19 / 16) ** 2 + (3 / 8) ** 2
        assert metrics["value_loss"] == pytest.approx(squares / 4, abs=1e-6)
        entropy = (LOG_2 + 2 * LOG_2 - 0.75 * LOG_3) / 2
        assert metrics["entropy"] == pytest.approx(entropy, abs=1e-6)
        # (r - 1) - log r for r = 2 and 3/4
        kl = (1 - LOG_2 - 0.25 - math.log(0.75)) / 2
        assert metrics["behaviour_kl"] == pytest.approx(kl, abs=1e-6)
        # value_coef 0.5 is of the plain mean square
        assert loss == pytest.approx(policy + 0.5 * squares / 2 - 0.1 * entropy, abs=1e-6)

    def test_without_correction_all_weights_are_one(self) -> None:
        _, metrics = self.loss(table(correction="none"), rollout())
        # delta_1 = 1/2, v_1 = 5/2; v_0 = 1 + 1 + 1/4; advantages 1 + 5/4 - 1 and 1/2
        assert metrics["value_loss"] == pytest.approx((1.25**2 + 0.5**2) / 4, abs=1e-6)
        policy = -(1.25 * -LOG_2 + 0.5 * (LOG_3 - 2 * LOG_2)) / 2
        assert metrics["policy_loss"] == pytest.approx(policy, abs=1e-6)

    def test_bounds_and_lambda(self) -> None:
        _, metrics = self.loss(table(rho_bar=4.0, c_bar=1.5, trace_lambda=0.5), rollout())
        # delta_0 = 2 (1 + 2/2 - 1) = 2, c_0 = 0.5 * 1.5; v_0 - V = 2 + 1/2 * 3/4 * 3/8
        squares = (2 + 9 / 64) ** 2 + (3 / 8) ** 2
        assert metrics["value_loss"] == pytest.approx(squares / 4, abs=1e-6)

    def test_nothing_follows_a_termination(self) -> None:
        _, metrics = self.loss(table(), rollout(terminated=[True, False]))
        # delta_0 = 1 - 1 = 0: no error in state 0, and nothing of step 1 flows back
        assert metrics["value_loss"] == pytest.approx((3 / 8) ** 2 / 4, abs=1e-6)

    def test_a_truncation_bootstraps_from_its_final_observation(self) -> None:
        data = rollout(truncated=[True, False])
        data.add_final(0, 0, np.int64(0))  # V = 1, where the next row has V = 2
        _, metrics = self.loss(table(), data)
        # delta_0 = 1 + 1/2 - 1 = 1/2 is the error and the advantage
        assert metrics["value_loss"] == pytest.approx((0.5**2 + (3 / 8) ** 2) / 4, abs=1e-6)
        policy = -(0.5 * -LOG_2 + 3 / 8 * (LOG_3 - 2 * LOG_2)) / 2
        assert metrics["policy_loss"] == pytest.approx(policy, abs=1e-6)

    def test_rows_that_are_no_transition(self) -> None:
        _, metrics = self.loss(table(), rollout(terminated=[True, False], valid=[True, False]))
        assert metrics["value_loss"] == pytest.approx(0.0, abs=1e-6)
        assert metrics["policy_loss"] == pytest.approx(0.0, abs=1e-6)

    def test_targets_carry_no_gradient(self) -> None:
        algorithm = table()
        loss, _ = algorithm._loss(algorithm._prepare(rollout()))
        weights = [algorithm.net.value_head[0].weight, algorithm.net.head.weight]
        value, policy = torch.autograd.grad(loss, weights)
        # Half of -(v - V) for each state: a target that moved along would give less.
        torch.testing.assert_close(value, -torch.tensor([[19 / 16, 3 / 8]]) / 2)
        # -A/2 (1 - p) for the action taken, A/2 (1 - p) for the other
        a, b = 19 / 16 / 2 * 0.5, 3 / 8 / 2 * 0.25
        torch.testing.assert_close(policy, torch.tensor([[-a, -b], [a, b]]))


class TestLag:
    @pytest.mark.parametrize("lag", [0, 1, 3])
    def test_acts_with_the_policy_of_so_many_updates_ago(self, lag: int) -> None:
        rig = Rig("impala", Corridor, actor_lag=lag, lr=0.01, optimizer="adam", **SMALL)
        algorithm: Any = rig.algorithm

        def head(net: Any) -> list[float]:
            return net.head.weight.detach().flatten().tolist()

        history = [head(algorithm.net)]
        for k in range(1, 8):
            rig.loop.iterate()
            history.append(head(algorithm.net))
            assert history[k] != history[k - 1]
            behaviour = algorithm.net if lag == 0 else algorithm.past.net
            assert head(behaviour) == history[max(0, k - lag)]

    def test_the_newest_policy_is_evaluated_and_the_old_one_explores(self) -> None:
        algorithm = make_algorithm("impala", STATES, ACTIONS, hidden=(), horizon=2, actor_lag=2)
        with torch.no_grad():
            algorithm.net.head.bias.copy_(torch.tensor([50.0, 0.0]))
            algorithm.past.net.head.bias.copy_(torch.tensor([0.0, 50.0]))
        obs = np.zeros(20, np.int64)
        assert not algorithm.act(obs, None, False).action.any()
        choice = algorithm.act(obs, None, True)
        assert choice.action.all()
        # What is stored is the old policy's probability.
        np.testing.assert_allclose(choice.extras["log_prob"], 0.0, atol=1e-6)

    def test_without_lag_the_policies_agree(self) -> None:
        rig = Rig("impala", partial(Identity, ACTIONS), lr=0.01, **SMALL)
        for _ in range(3):
            assert rig.learn(1)["train/behaviour_kl"] == pytest.approx(0.0, abs=1e-6)


def corridor_values(right: float, gamma: float) -> np.ndarray:
    """Return the values of the four inner cells where one goes right with this probability."""
    moves, reward = np.zeros((4, 4)), np.zeros(4)
    for cell in range(4):
        for step, chance in ((-1, 1 - right), (1, right)):
            if 0 <= cell + step < 4:
                moves[cell, cell + step] += chance
            else:
                reward[cell] += chance * (1.0 if step == 1 else 0.2)
    return np.linalg.solve(np.eye(4) - gamma * moves, reward)


class TestEvaluatesTheNewestPolicy:
    """Off-policy evaluation: what V-trace is for, without a policy that moves."""

    def learned(self, **settings: Any) -> np.ndarray:
        """Return the values that are learned of a policy that goes right with 0.9.

        The data is that of the policy from before the first update, which knows no preference.
        """
        lag = 300
        rig = Rig(
            "impala", Corridor, num_envs=8, env_steps=8 * 16 * (lag + 1), horizon=16, gamma=0.9,
            actor_lag=lag, hidden=(), lr="linear:0.05:0", optimizer="adam", entropy_coef=0.0,
            **settings,
        )  # fmt: skip
        algorithm: Any = rig.algorithm
        for _ in range(lag):
            with torch.no_grad():
                algorithm.net.head.weight.zero_()
                algorithm.net.head.bias.copy_(torch.tensor([0.0, math.log(9)]))
            rig.loop.iterate()
        with torch.no_grad():
            return algorithm.net.value(torch.arange(1, 5)).numpy()

    def test_from_an_old_policys_data(self) -> None:
        # A bound above the largest ratio, 0.9 / 0.5, leaves the fixed point where it belongs.
        found = self.learned(rho_bar=2.0)
        np.testing.assert_allclose(found, corridor_values(0.9, 0.9), atol=0.05)

    def test_without_correction_it_is_the_old_policy_that_is_valued(self) -> None:
        found = self.learned(correction="none")
        np.testing.assert_allclose(found, corridor_values(0.5, 0.9), atol=0.05)
        assert abs(found - corridor_values(0.9, 0.9)).min() > 0.1


class TestSettings:
    def test_optimizer(self) -> None:
        [objective] = table().step.objectives
        assert objective.rule == RMSprop(eps=1e-5, max_grad_norm=0.5)
        [objective] = table(optimizer="adam").step.objectives
        assert objective.rule == Adam(eps=1e-5, max_grad_norm=0.5)

    @pytest.mark.parametrize("name", ["rho_bar", "c_bar"])
    def test_refuses_bounds_of_a_correction_that_is_off(self, name: str) -> None:
        with pytest.raises(ConfigError, match=rf"{name}=2.0 has no effect with correction=none"):
            table(correction="none", **{name: 2.0})

    def test_refuses_a_lag_of_the_whole_run(self) -> None:
        with pytest.raises(ConfigError, match=r"actor_lag=50 is no less than the 50 updates"):
            table(env_steps=99, actor_lag=50)
        assert table(env_steps=99, actor_lag=49).past is not None

    def test_refuses_what_the_spaces_have_no_use_for(self) -> None:
        with pytest.raises(ConfigError, match=r"log_std_init=-1.0 has no effect"):
            table(log_std_init=-1.0)
        with pytest.raises(ConfigError, match=r"cnn=impala has no effect"):
            table(cnn="impala")


QUICK = {"horizon": 8, "num_envs": 8, "hidden": (16,), "optimizer": "adam"}
CALM = {"log_std_init": -1.0, "entropy_coef": 0.0, "lr": 0.01}


class TestLearns:
    @pytest.mark.parametrize(
        ("space", "more"),
        [
            (spaces.Discrete(4), {}),
            (spaces.MultiDiscrete([3, 2]), {}),
            (spaces.MultiBinary(3), {}),
            (
                spaces.Box(-1.0, 1.0, (2,), np.float32),
                {"log_std_init": -1.0, "entropy_coef": 0.0, "lr": 0.01},
            ),
        ],
        ids=lambda part: type(part).__name__ if isinstance(part, spaces.Space) else "",
    )
    def test_the_right_answer(self, space: Any, more: dict[str, Any]) -> None:
        env = partial(Identity, space)
        settings = QUICK | {"lr": 0.02, "gamma": 0.0, "actor_lag": 2} | more
        rig = Rig("impala", env, env_steps=10_000, **settings)
        assert rig.train().score() > 8 * 0.9

    def test_to_look_ahead(self) -> None:
        rig = Rig("impala", Corridor, env_steps=10_000, gamma=0.95, lr=0.01, **QUICK)
        assert rig.train().score() == 1.0

    def test_cartpole_from_actors_that_are_behind(self) -> None:
        settings = {
            "num_envs": 8, "horizon": 32, "gamma": 0.98, "lr": "linear:3e-3:0",
            "entropy_coef": 0.02, "optimizer": "adam", "normalize_reward": True, "actor_lag": 8,
        }  # fmt: skip
        rig = Rig("impala", "CartPole-v1", env_steps=100_000, seed=4, **settings)
        assert rig.train().score() > 300
