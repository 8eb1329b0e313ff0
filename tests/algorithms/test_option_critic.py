"""Option-critic: the contract, its targets and losses by hand, and that it learns options."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.algorithms.option_critic import OptionCritic
from assay.buffers.rollout import Rollout
from assay.core.types import Spaces
from assay.envs.make import make_vector
from assay.policies.parts import ModelError
from assay.testing.algorithms import AlgorithmContract, Rig, make_algorithm

STATES, ACTIONS = spaces.Discrete(2), spaces.Discrete(2)
SMALL = {"horizon": 8, "minibatch_size": 8, "epochs": 2, "hidden": (8,), "n_options": 3}
FIRST, SECOND, NONE = [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]


class TestContract(AlgorithmContract):
    algorithm = "option_critic"
    settings = SMALL


def written(**settings: Any) -> OptionCritic:
    """Return the algorithm with two options of which everything is known, in both states.

    Q = (1, 3) in state 0 and (5, 7) in state 1; both options end with probability 1/4 and are
    chosen with probability 1/2; both actions are as likely. So V is 2 and 6.
    """
    options = {
        "hidden": (), "n_options": 2, "horizon": 3, "minibatch_size": 3, "gamma": 0.5,
        "gae_lambda": 0.0, "normalize_advantage": False, "num_envs": 1,
        "deliberation_cost": 0.5, "termination_reg": 0.25,
    }  # fmt: skip
    algorithm = make_algorithm("option_critic", STATES, ACTIONS, **(options | settings))
    net = algorithm.net
    with torch.no_grad():
        net.head.weight.zero_()
        net.head.bias.copy_(torch.tensor([0.0] * 4 + [-math.log(3.0)] * 2 + [0.0] * 2))
        net.value_head[0].weight.copy_(torch.tensor([[1.0, 5.0], [3.0, 7.0]]))
        net.value_head[0].bias.zero_()
    return algorithm


def rollout(states: list[int], acted: list[Any], came: list[Any], drawn: list[int]) -> Rollout:
    """Return one environment's steps with reward 1, which end in state 1."""
    data = Rollout(Spaces(STATES, ACTIONS), len(states), 1)
    off = np.zeros(1, bool)
    for t, state in enumerate(states):
        extras = {
            "log_prob": np.array([math.log(0.5)], np.float32),
            "option_log_prob": np.array([math.log(0.5) * drawn[t]], np.float32),
            "option": np.array([acted[t]], np.float32),
            "arrived": np.array([came[t]], np.float32),
            "drawn": np.array([drawn[t]], np.float32),
        }
        data.write(t, np.array([state]), np.zeros(1, int), np.ones(1), off, off, True, extras)
    data.last_obs = np.ones(1, np.int64)
    return data


def example() -> Rollout:
    """Return three steps: the first option is chosen, goes on, and the second takes over."""
    return rollout([0, 1, 0], [FIRST, FIRST, SECOND], [NONE, FIRST, FIRST], [1, 0, 1])


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


class TestTargets:
    # U(first, 0) = 3/4 * 1 + 1/4 (2 - 1/2) = 1.125; U(first, 1) = 3/4 * 5 + 1/4 * 5.5 = 5.125;
    # U(second, 1) = 3/4 * 7 + 1/4 * 5.5 = 6.625.

    def test_bootstrap_from_the_value_upon_arrival(self) -> None:
        prepared = written()._prepare(example())
        close(prepared["value"], [1, 5, 3])
        # G = 1 + U / 2: of the first in 1, of the first in 0, of the second in 1
        close(prepared["target"], [1 + 5.125 / 2, 1 + 1.125 / 2, 1 + 6.625 / 2])
        close(prepared["advantage"], [2.5625, -3.4375, 1.3125])

    def test_with_lambda_1_the_return_pays_for_every_choice(self) -> None:
        prepared = written(gae_lambda=1.0)._prepare(example())
        last = 1 + 6.625 / 2
        # The choice at the last step, after the first of the episode, costs 1/2.
        middle = 1 + (last - 0.5) / 2
        close(prepared["target"], [1 + middle / 2, middle, last])

    def test_a_lambda_between_mixes_both(self) -> None:
        prepared = written(gae_lambda=0.5)._prepare(example())
        last = 1 + 6.625 / 2
        middle = 1 + 0.5 * (0.5 * 1.125 + 0.5 * (last - 0.5))
        close(prepared["target"], [1 + 0.5 * (0.5 * 5.125 + 0.5 * middle), middle, last])

    def test_ends(self) -> None:
        data = example()
        data.terminated[0, 0] = True
        data.truncated[1, 0] = True
        data.add_final(1, np.array([0]), np.ones(1, np.int64), None)
        prepared = written(gae_lambda=1.0)._prepare(data)
        # Nothing after a termination; after a truncation, U(first, 1) of the final state.
        close(prepared["target"], [1, 1 + 5.125 / 2, 1 + 6.625 / 2])

    def test_the_upper_level(self) -> None:
        prepared = written()._prepare(example())
        # G - V, which counts where an option was chosen
        close(prepared["option_advantage"][[0, 2]], [3.5625 - 2, 4.3125 - 2])
        close(prepared["drawn"], [1, 0, 1])
        # Q(s, w) - V(s) + eta + xi of the option that was there
        close(prepared["going_on"][1:], [5 - 6 + 0.75, 1 - 2 + 0.75])


def test_loss_by_hand() -> None:
    algorithm = written()
    batch = algorithm._prepare(example())
    batch |= {"clip": torch.tensor(0.2), "entropy_coef": torch.tensor(0.1)}
    loss, found = algorithm._loss(batch)
    # All ratios are 1, so that the surrogates are means of advantages: [2.5625, -3.4375, 1.3125],
    # and of the two choices 1.5625 and 2.3125.
    policy, choice = -(2.5625 - 3.4375 + 1.3125) / 3, -(1.5625 + 2.3125) / 2
    value = 0.5 * (2.5625**2 + 3.4375**2 + 1.3125**2) / 3
    # beta = 1/4 where there was an option to end: 0, -0.25 and -0.25 are the advantages
    termination = 0.25 * (-0.25 - 0.25) / 3
    entropy = math.log(2.0)
    close(found["policy_loss"].item(), policy)
    close(found["option_loss"].item(), choice)
    close(found["value_loss"].item(), value)
    close(found["termination_loss"].item(), termination)
    expected = policy + choice + termination + value - 0.1 * entropy - 0.01 * entropy
    close(loss.item(), expected)
    assert found["approx_kl"].item() == found["option_approx_kl"].item() == pytest.approx(0)


def test_gradients_reach_only_what_acted() -> None:
    algorithm = written(termination_reg=0.0, option_entropy_coef=0.0)
    batch = algorithm._prepare(rollout([0], [SECOND], [FIRST], [1]))
    batch |= {"clip": torch.tensor(0.2), "entropy_coef": torch.tensor(0.0)}
    algorithm._loss(batch)[0].backward()
    grad = algorithm.net.head.bias.grad
    assert grad is not None
    # A = 1 + 6.625 / 2 - 3 = 1.3125: pi of the second option rises for action 0 alone.
    close(grad[:4], [0, 0, -1.3125 / 2, 1.3125 / 2])
    # beta (1 - beta) (1 - 2 + 1/2) of the first option: it should end.
    close(grad[4:6], [-0.5 * 3 / 16, 0])
    close(grad[6:], [2.3125 / 2, -2.3125 / 2])


class TestActing:
    def test_draws_ends_and_choices(self) -> None:
        algorithm = written()
        rows = 20_000
        obs = np.zeros(rows, np.int64)
        choice = algorithm.act(obs, algorithm.initial_carry(rows), True)
        assert choice.extras["drawn"].all() and not choice.extras["arrived"].any()
        close(np.exp(choice.extras["option_log_prob"]), 0.5)
        again = algorithm.act(obs, choice.carry, True)
        assert np.array_equal(again.extras["arrived"], choice.extras["option"])
        # One in four ends, and half of those choose the other option: sd is 0.003.
        assert again.extras["drawn"].mean() == pytest.approx(0.25, abs=0.015)
        changed = (again.extras["option"] != choice.extras["option"]).any(1)
        assert changed.mean() == pytest.approx(0.125, abs=0.012)
        assert not changed[again.extras["drawn"] == 0].any()

    def test_without_exploring_an_option_ends_at_its_median(self) -> None:
        algorithm = written()
        carry, obs, drawn = algorithm.initial_carry(1), np.zeros(1, np.int64), []
        for _ in range(7):
            choice = algorithm.act(obs, carry, False)
            carry = choice.carry
            drawn.append(float(choice.extras["drawn"][0]))
        # 1 - (3/4)^k exceeds one half at k = 3: 0.58
        assert drawn == [1, 0, 0, 1, 0, 0, 1]

    def test_has_no_model_file(self) -> None:
        with pytest.raises(ModelError, match="chooses among options"):
            written().policy.snapshot("option_critic", version=1)


def test_logs_what_options_do() -> None:
    algorithm = written()
    algorithm.update(example())
    found = algorithm.drain_metrics()
    close(found["train/option_0_share"], 2 / 3)
    close(found["train/option_length"], 3 / 2)
    close(found["train/termination_rate"], 1 / 2)


def test_learns_the_way_with_options_that_last() -> None:
    """Untrained, 4 % of episodes reach the goal in 50 steps; choices cost, so options last."""
    rooms = make_vector("assay/FourRooms-v0", 16, max_episode_steps=50)
    rig = Rig(
        "option_critic", rooms, num_envs=16, env_steps=24_000, horizon=32, minibatch_size=128,
        lr=2e-3, entropy_coef=0.01, n_options=2, deliberation_cost=0.02,
    )  # fmt: skip
    rig.train()
    assert rig.score(episodes=50) > 0.9
    # With the sign of the termination gradient turned, it is 1.2.
    assert rig.algorithm.drain_metrics()["train/option_length"] > 5
