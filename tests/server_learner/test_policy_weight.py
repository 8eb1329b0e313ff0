"""The losses of the on-policy algorithms with `policy_weight`, worked out by hand.

State 0: both actions 1/2, V = 1. State 1: actions 3/4 and 1/4 (logits log 3 and 0), V = 2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.buffers.rollout import Rollout
from assay.core.types import Spaces
from assay.testing.algorithms import make_algorithm

STATES, ACTIONS = spaces.Discrete(2), spaces.Discrete(2)
LOG_2, LOG_3 = math.log(2), math.log(3)
ENTROPY = (LOG_2, 2 * LOG_2 - 0.75 * LOG_3)  # of the two states
NAN = math.nan
NEVER = torch.zeros(4, 1)  # does an episode begin
COEFFICIENTS = {"clip": torch.tensor(0.2), "entropy_coef": torch.tensor(0.1)}


def table(name: str, **settings: Any) -> Any:
    algorithm = make_algorithm(name, STATES, ACTIONS, **({"hidden": ()} | settings))
    net = algorithm.net
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[0.0, LOG_3], [0.0, 0.0]]))  # [action, state]
        net.head.bias.zero_()
        net.value_head[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        net.value_head[0].bias.zero_()
    return algorithm


def items(**columns: list[float]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(column) for name, column in columns.items()}


# Four steps; the third was not the policy's, the fourth is not a transition.
COMMON: dict[str, Any] = {
    "obs": [0, 1, 1, 0],
    "action": [0, 0, 1, 1],
    "value": [1.0, 2.0, 2.0, NAN],
    "advantage": [2.0, 1.0, -1.0, NAN],
    "target": [0.0, 4.0, 2.0, NAN],
    "weight": [1.0, 1.0, 1.0, 0.0],
    "policy_weight": [1.0, 1.0, 0.0, 0.0],
}


def test_ppo() -> None:
    batch = items(**COMMON, log_prob=[-LOG_2] * 3 + [NAN]) | COEFFICIENTS
    settings = {"horizon": 3, "minibatch_size": 3}
    algorithm = table("ppo", **settings, normalize_advantage=False)
    loss, metrics = algorithm._loss(batch)
    # min(r A, clip(r) A) = 2 and min(1.5, 1.2) = 1.2; the third adds 0: (2 + 1.2) / 3
    assert metrics["policy_loss"].item() == pytest.approx(-3.2 / 3, abs=1e-6)
    # Errors 1, 2, 0: the third state is valued like the others
    assert metrics["value_loss"].item() == pytest.approx(5 / 6, abs=1e-6)
    entropy = sum(ENTROPY) / 3
    assert loss.item() == pytest.approx(-3.2 / 3 + 0.5 * 5 / 3 - 0.1 * entropy, abs=1e-6)


def test_ppo_normalises_over_the_policys_steps() -> None:
    batch = items(**COMMON, log_prob=[-LOG_2] * 3 + [NAN]) | COEFFICIENTS
    algorithm = table("ppo", horizon=3, minibatch_size=3)
    _, metrics = algorithm._loss(batch)
    # Of 2 and 1: mean 3/2, deviation sqrt(1/2), so +-1/sqrt(2); r = 1 and min(-1.5, -1.2) = -1.5
    expected = -(1 - 1.5) / math.sqrt(2) / 3
    assert metrics["policy_loss"].item() == pytest.approx(expected, abs=1e-5)


def test_a2c_weighs_nothing_by_default() -> None:
    batch = items(**COMMON, log_prob=[5.0, 5.0, 5.0, NAN]) | COEFFICIENTS
    _, metrics = table("a2c", horizon=3)._loss(batch)
    policy = -(2 * -LOG_2 + (LOG_3 - 2 * LOG_2)) / 3
    assert metrics["policy_loss"].item() == pytest.approx(policy, abs=1e-6)


def test_a2c_truncates_the_weights() -> None:
    # mu = 3/4 for the first action (pi = 1/2): weight 2/3; mu = 1/2 for the second (pi = 3/4): 1
    behaviour = [math.log(0.75), -LOG_2, 0.0, NAN]
    algorithm = table("a2c", horizon=3, importance_clip=1.0)
    loss, metrics = algorithm._loss(items(**COMMON, log_prob=behaviour) | COEFFICIENTS)
    policy = -(2 / 3 * 2 * -LOG_2 + 1 * (LOG_3 - 2 * LOG_2)) / 3
    assert metrics["policy_loss"].item() == pytest.approx(policy, abs=1e-6)
    entropy = sum(ENTROPY) / 3
    assert loss.item() == pytest.approx(policy + 0.5 * 5 / 3 - 0.1 * entropy, abs=1e-6)
    # The weight is a number, not a function of the policy: -w A (1 - p) / 3 for the action taken
    three = {name: x[:3] for name, x in items(**COMMON, log_prob=behaviour).items()}
    _, metrics = algorithm._loss(three | COEFFICIENTS)
    [gradient] = torch.autograd.grad(metrics["policy_loss"], [algorithm.net.head.weight])
    a, b = 2 / 3 * 2 * 0.5 / 3, 0.25 / 3
    torch.testing.assert_close(gradient, torch.tensor([[-a, -b], [a, b]]))


def test_impala_keeps_the_step_in_the_trace_and_out_of_the_gradient() -> None:
    """States 0, 1 with actions 0, 0 and rewards 1, 2, taken with mu = 1/4 and 1; V(last) = 1."""
    algorithm = table("impala", horizon=2, gamma=0.5, entropy_coef=0.1)
    data = Rollout(Spaces(STATES, ACTIONS), 2, 1)
    off = np.zeros(1, bool)
    for t, (mu, weight) in enumerate(((0.25, 1.0), (1.0, 0.0))):
        extras = {"log_prob": np.array([math.log(mu)], np.float32)}
        data.policy_weight[t] = weight
        data.write(t, np.array([t]), np.array([0]), [1.0 + t], off, off, True, extras)
    data.last_obs = np.array([0])
    loss, metrics = algorithm._loss(algorithm._prepare(data))
    # As in the algorithm's own test: advantages 19/16 and 3/8, of which the second has no part
    policy = -(19 / 16 * -LOG_2) / 2
    assert metrics["policy_loss"].item() == pytest.approx(policy, abs=1e-6)
    squares = (19 / 16) ** 2 + (3 / 8) ** 2
    assert metrics["value_loss"].item() == pytest.approx(squares / 4, abs=1e-6)
    expected = policy + 0.5 * squares / 2 - 0.1 * ENTROPY[0] / 2
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_recurrent_ppo() -> None:
    settings = {"horizon": 4, "minibatch_size": 4, "chunk": 4, "normalize_advantage": False}
    algorithm: Any = make_algorithm("recurrent_ppo", STATES, ACTIONS, **settings)
    data = Rollout(Spaces(STATES, ACTIONS), 4, 1)
    data.runs.carry = carry = algorithm.initial_carry(1)
    off = np.zeros(1, bool)
    sampled = [1.0, 0.0, 1.0, 1.0]
    for t in range(4):
        obs = np.array([t % 2])
        chosen = algorithm.act(obs, carry, True)
        carry = chosen.carry
        data.policy_weight[t] = sampled[t]
        data.write(t, obs, chosen.action, [1.0 + t], off, off, True, chosen.extras)
    data.last_obs, data.last_carry = np.array([0]), carry
    data.valid[3] = False
    batch = algorithm._prepare(data) | COEFFICIENTS
    advantage = batch["advantage"][0]
    loss, metrics = algorithm._loss(batch)
    # Every ratio is 1: the first and the third of three steps count.
    policy = -(advantage[0] + advantage[2]).item() / 3
    assert metrics["policy_loss"].item() == pytest.approx(policy, abs=1e-6)
    params, _ = algorithm.net(
        torch.from_numpy(data.obs[:, 0]), algorithm.tensors(data.runs.carry), NEVER
    )
    entropy = algorithm.distribution.entropy(params, None)
    expected = (entropy[0] + entropy[2]).item() / 3
    assert metrics["entropy"].item() == pytest.approx(expected, abs=1e-6)
    assert loss.item() == pytest.approx(
        policy + metrics["value_loss"].item() - 0.1 * expected, abs=1e-6
    )
