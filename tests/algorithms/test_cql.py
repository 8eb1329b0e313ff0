"""CQL: the contract, its numbers by hand, and that it learns from data of mixed quality."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.algorithms.cql import CQL
from assay.core.errors import ConfigError
from assay.testing.algorithms import make_algorithm, make_batch
from assay.testing.envs import Corridor, Reach
from assay.testing.offline import OfflineContract, OfflineRig, record, torn

STATES, BOX = spaces.Discrete(2), spaces.Box(0.0, 4.0, (1,), np.float32)
SMALL = {"hidden": (16,), "batch_size": 8, "samples": 2}


class TestContract(OfflineContract):
    algorithm = "cql"
    settings = SMALL


class TestLearnedWeight(OfflineContract):
    algorithm = "cql"
    settings = SMALL | {"target_gap": 1.0}

    def cases(self) -> Any:
        """Yield one case of each kind of actions: the weight is the same for all."""
        yield from (case for case in super().cases() if case.name in ("box", "discrete"))


def put(parameter: torch.Tensor, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.tensor(values).reshape(parameter.shape))


def table(**settings: Any) -> CQL:
    """Return CQL on two states, with known numbers in unit actions a.

    The policy's Gaussian has deviation 1 and the mean 0 in state 0, log 3 in state 1.
    Critics 1 + a and -a in state 0, 2 + a and 3 - a in state 1.
    Targets 5 + a and 5 - 2a in state 0, 6 + a and 6 - 2a in state 1.
    """
    algorithm = make_algorithm("cql", STATES, BOX, **({"hidden": (), "samples": 1} | settings))
    put(algorithm.actor.net[1].linear.weight, [[0.0, math.log(3)], [0.0, 0.0]])
    put(algorithm.actor.net[1].linear.bias, [0.0, 0.0])
    for critic, values in (
        (algorithm.critic, [[1.0, 2.0, 1.0], [0.0, 3.0, -1.0]]),
        (algorithm.target, [[5.0, 6.0, 1.0], [5.0, 6.0, -2.0]]),
    ):
        put(critic.ensemble.weights[0], values)  # [member, (state 0, state 1, action)]
        put(critic.ensemble.biases[0], [0.0, 0.0])
    return algorithm


def step(algorithm: CQL) -> dict[str, torch.Tensor]:
    """Return a step from state 0 to state 1 with the unit action 1/2, and noise of 0."""
    one = make_batch(obs=[0], action=[[3.0]], reward=[1.0], next_obs=[1], discount=[0.5])
    zeros = {name: torch.zeros(1, 1) for name in ("noise", "next_noise")}
    drawn = {name: torch.zeros(1, 1, 1) for name in ("drawn", "next_drawn")}
    return {
        **algorithm.replay_tensors(one),
        **zeros,
        **drawn,
        "uniform": torch.full((1, 1, 1), -0.5),
    }


# Less the log-densities: log 0.5 of the uniform action -0.5, log N(0) of the policy's 0 in state 0,
# log N(0) - log(1 - 0.8^2) of its tanh(log 3) = 0.8 in state 1; all valued in state 0.
C = math.log(2 * math.pi) / 2
SEEN = (math.log(2), C, C + math.log(0.36))
GAP_1 = math.log(sum(math.exp(q + d) for q, d in zip((0.5, 1.0, 1.8), SEEN, strict=True))) - 1.5
GAP_2 = math.log(sum(math.exp(q + d) for q, d in zip((0.5, 0.0, -0.8), SEEN, strict=True))) + 0.5


class TestLoss:
    def test_critic_by_hand(self) -> None:
        algorithm = table(cql_alpha=5.0)
        loss, metrics = algorithm._critic_loss(step(algorithm))
        # y = 1 + min(6.8, 4.4) / 2 = 3.2; Q1 = 1.5 and Q2 = -0.5
        expected = 1.7**2 + 3.7**2 + 5.0 * (GAP_1 + GAP_2)
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        assert metrics["gap"].item() == pytest.approx((GAP_1 + GAP_2) / 2, rel=1e-5)

    def test_a_term_below_the_least_is_left_alone(self) -> None:
        algorithm = table(cql_alpha=5.0, least_gap=2.0)
        loss, _ = algorithm._critic_loss(step(algorithm))
        assert GAP_1 < 2.0 < GAP_2
        assert loss.item() == pytest.approx(1.7**2 + 3.7**2 + 5.0 * (2.0 + GAP_2), rel=1e-5)
        [slope] = torch.autograd.grad(loss, [algorithm.critic.ensemble.weights[0]])
        # dQ1 = (state 0, state 1, action) = (1, 0, 1/2), of 2 (1.5 - 3.2)
        assert slope[0].flatten().tolist() == pytest.approx([-3.4, 0.0, -1.7], rel=1e-5)

    def test_the_policy_gets_no_gradient_from_the_critics_loss(self) -> None:
        algorithm = table()
        loss, _ = algorithm._critic_loss(step(algorithm))
        loss.backward()
        assert all(p.grad is None for p in algorithm.actor.parameters())

    def test_a_learned_weight_rises_while_the_gap_is_too_large(self) -> None:
        algorithm = table(target_gap=0.25)
        put(algorithm.lagrange.log_alpha, [math.log(3)])
        batch = step(algorithm)
        loss, _ = algorithm._critic_loss(batch)
        assert loss.item() == pytest.approx(1.7**2 + 3.7**2 + 3.0 * (GAP_1 + GAP_2), rel=1e-5)
        loss, _ = algorithm._lagrange_loss(batch)
        [gradient] = torch.autograd.grad(loss, [algorithm.lagrange.log_alpha])
        gap = (GAP_1 + GAP_2) / 2
        assert gap > 0.25
        assert gradient.tolist() == pytest.approx([-3.0 * (gap - 0.25)], rel=1e-5)

    def test_a_learned_weight_is_bounded(self) -> None:
        algorithm = table(target_gap=0.0)
        put(algorithm.lagrange.log_alpha, [50.0])
        assert float(algorithm._weight()) == 1e6

    def test_actor_by_hand(self) -> None:
        algorithm = table(alpha=0.5)
        loss, _ = algorithm._actor_loss(step(algorithm))
        # The action 0 has min Q = min(1, 0) and log-probability -C
        assert loss.item() == pytest.approx(-0.5 * C, rel=1e-5)

    def test_discrete_by_hand(self) -> None:
        algorithm = make_algorithm("cql", STATES, spaces.Discrete(2), hidden=(), cql_alpha=2.0)
        for net, values in (
            (algorithm.critic, [[0.0, 3.0], [1.0, 2.0]]),  # [action, state]
            (algorithm.target, [[0.0, 4.0], [0.0, 9.0]]),
        ):
            put(net[1][0].weight, values)
            put(net[1][0].bias, [0.0, 0.0])
        one = make_batch(obs=[0], action=[0], reward=[1.0], next_obs=[1], discount=[0.5])
        loss, metrics = algorithm._discrete_critic_loss(algorithm.replay_tensors(one))
        # In state 1 the critic prefers action 0, which the target values 4: y = 3; Q = 0
        gap = math.log(1 + math.e)
        assert loss.item() == pytest.approx(9.0 + 2.0 * gap, rel=1e-6)
        assert metrics["gap"].item() == pytest.approx(gap)

    def test_masked_actions_are_not_pushed_down(self) -> None:
        seen = spaces.Dict({"obs": STATES, "action_mask": spaces.MultiBinary(3)})
        algorithm = make_algorithm("cql", seen, spaces.Discrete(3), hidden=())
        for parameter in algorithm.critic.parameters():
            put(parameter, np.zeros(parameter.shape, np.float32))
        obs = {"obs": [0], "action_mask": [[1, 1, 0]]}
        one = make_batch(obs=obs, action=[0], reward=[0.0], next_obs=obs)
        _, metrics = algorithm._discrete_critic_loss(algorithm.replay_tensors(one))
        assert metrics["gap"].item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("space", "settings", "message"),
    [
        (BOX, {"target_gap": 1.0, "cql_alpha": 2.0}, "cql_alpha=2.0 has no effect with target_gap"),
        (spaces.Discrete(2), {"least_gap": 1.0}, "least_gap=1.0 has no effect because the action"),
        (spaces.Discrete(2), {"samples": 3}, "samples=3 has no effect because the action space is"),
    ],
)
def test_settings_without_effect_are_refused(
    space: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_algorithm("cql", STATES, space, **settings)


QUICK = {
    "gamma": 0.9, "hidden": (32,), "batch_size": 64, "lr": 0.005, "tau": 0.1, "updates": 400,
}  # fmt: skip


class TestLearns:
    def test_better_than_what_was_done(self) -> None:
        """The best policy gets -1.2, standing still (the mean of the data) -8.8."""
        data = record(Reach, behaviour=torn, episodes=100)
        settings = {"cql_alpha": 0.5, "samples": 4, "actor_lr": 0.005, "alpha": 0.01}
        assert OfflineRig("cql", Reach, data=data, **settings, **QUICK).train().score() > -4

    def test_to_look_ahead(self) -> None:
        data = record(Corridor, episodes=100)
        rig = OfflineRig("cql", Corridor, data=data, cql_alpha=0.05, **QUICK)
        assert rig.train().score() == 1.0
