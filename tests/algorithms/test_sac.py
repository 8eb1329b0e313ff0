"""SAC: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from families import BOX, STATES, box_items, log_pi, put
from gymnasium import spaces

from assay.algorithms.sac import SAC
from assay.core.errors import ConfigError
from assay.core.types import Batch
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Rig,
    make_algorithm,
    make_batch,
)
from assay.testing.envs import Corridor, Identity, Reach

LOG_2, LOG_3 = math.log(2), math.log(3)
SMALL = {
    "buffer_size": 150, "learning_starts": 12, "batch_size": 8, "train_every": 2, "hidden": (16,),
}  # fmt: skip


class TestContract(AlgorithmContract):
    algorithm = "sac"
    lowered = True
    settings = SMALL


def box(**settings: Any) -> SAC:
    """Return SAC on two states and actions from 0 to 4, with known numbers in unit actions a.

    Mean 0 in state 0 and 1/2 in state 1; standard deviation 1.
    Critics 1 + a and -a in state 0, 2 + a and 3 - a in state 1.
    Targets 5 + 2a and 4 in state 0, 6 + 2a and 7 in state 1.
    """
    settings = {"hidden": (), "alpha": 0.5} | settings
    algorithm = make_algorithm("sac", STATES, BOX, **settings)
    put(algorithm.actor.net[1].linear.weight, [[0.0, 0.5], [0.0, 0.0]])
    put(algorithm.actor.net[1].linear.bias, [0.0, 0.0])
    for critic, values in (
        (algorithm.critic, [[1.0, 2.0, 1.0], [0.0, 3.0, -1.0]]),
        (algorithm.target, [[5.0, 6.0, 2.0], [4.0, 7.0, 0.0]]),
    ):
        put(critic.ensemble.weights[0], values)  # [member, (state 0, state 1, action)]
        put(critic.ensemble.biases[0], [0.0, 0.0])
    return algorithm


class TestBoxLoss:
    def test_critic_by_hand(self) -> None:
        algorithm = box()
        batch = algorithm.replay_tensors(box_items()) | {"next_noise": torch.zeros(3, 1)}
        loss, metrics = algorithm._critic_loss(batch)
        # Next action 0 in state 0: the smaller target is 4.
        y0 = 1 + 0.5 * (4 - 0.5 * log_pi(0, 0))
        # Next action tanh(1/2) = 0.462 in state 1: 6 + 0.924 is below 7. A truncation bootstraps.
        y1 = 0 + 0.5 * (6 + 2 * math.tanh(0.5) - 0.5 * log_pi(0, 0.5))
        y2 = -1.0  # terminated
        first = ((1.5 - y0) ** 2 + (2 - y1) ** 2 + (0 - y2) ** 2) / 3
        second = ((-0.5 - y0) ** 2 + (3 - y1) ** 2 + (1 - y2) ** 2) / 3
        assert loss.item() == pytest.approx((first + second) / 2, rel=1e-5)
        assert metrics["q_mean"].item() == pytest.approx((1.5 + 2 + 0 - 0.5 + 3 + 1) / 6)

    def test_actor_by_hand(self) -> None:
        algorithm = box()
        batch = algorithm.replay_tensors(box_items())
        batch["noise"] = torch.tensor([[0.5], [-0.5], [0.0]])
        loss, metrics = algorithm._actor_loss(batch)
        # u = 1/2, 0, 0 (states 0, 1, 0); the smaller critics: -tanh(1/2), min(2, 3), min(1, 0)
        logs = [log_pi(0.5, 0.5), log_pi(-0.5, 0.0), log_pi(0.0, 0.0)]
        expected = (0.5 * sum(logs) + math.tanh(0.5) - 2 - 0) / 3
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        assert metrics["entropy"].item() == pytest.approx(-sum(logs) / 3, rel=1e-5)

    def test_actor_gradient_by_hand(self) -> None:
        algorithm = box()
        batch = algorithm.replay_tensors(box_items()) | {"noise": torch.zeros(3, 1)}
        loss, _ = algorithm._actor_loss({k: v[:1] for k, v in batch.items()})
        [gradient] = torch.autograd.grad(loss, [algorithm.actor.net[1].linear.bias])
        # At u = 0: d log pi / d mean = 2 tanh(0) = 0, and Q = -a falls with a: dJ/dmean = 1.
        # d log pi / d log std = -1, times alpha; without noise, std does not move the action.
        assert gradient.tolist() == pytest.approx([1.0, -0.5])

    @pytest.mark.parametrize(("target", "sign"), [(100.0, 1), (-100.0, -1)])
    def test_temperature_rises_when_the_entropy_is_too_low(self, target: float, sign: int) -> None:
        algorithm = box(alpha="auto", alpha_init=2.0, target_entropy=target, batch_size=3, lr=0.1)
        loss, _ = algorithm._alpha_loss({"entropy": torch.tensor(1.5)})
        assert loss.item() == pytest.approx(math.log(2) * (1.5 - target), rel=1e-6)
        algorithm.update(CannedReplay(box_items()))
        # The first step of Adam is the learning rate, whatever the gradient.
        assert algorithm.temperature().item() == pytest.approx(2 * math.exp(sign * 0.1), rel=1e-4)

    def test_temperature_leaves_the_actor_alone(self) -> None:
        """The gradient of the temperature's loss stops at the entropy."""
        learned, fixed = (box(alpha=alpha, batch_size=3, lr=0.1) for alpha in ("auto", 1.0))
        for algorithm in (learned, fixed):
            algorithm.update(CannedReplay(box_items()))
        assert torch.equal(learned.step.flats[learned.actor], fixed.step.flats[fixed.actor])
        assert fixed.temperature().item() == 1.0

    @pytest.mark.parametrize(
        ("alpha", "reason"),
        [
            (0.0, "alpha=0.0: expected a number above 0, or auto"),
            (-0.1, "alpha=-0.1: expected a number above 0, or auto"),
            (math.nan, "=nan: input should be a finite number"),
        ],
    )
    def test_refuses_a_temperature_that_has_no_logarithm(self, alpha: float, reason: str) -> None:
        with pytest.raises(ConfigError, match=reason):
            box(alpha=alpha)

    def test_target_entropy(self) -> None:
        wide = make_algorithm("sac", STATES, spaces.Box(-1, 1, (3,)), hidden=())
        assert wide.target_entropy == -3.0
        assert box(alpha="auto", target_entropy=0.7).target_entropy == 0.7
        four = make_algorithm("sac", STATES, spaces.Discrete(4), hidden=())
        assert four.target_entropy == pytest.approx(0.5 * math.log(4))

    @pytest.mark.parametrize(
        ("settings", "name", "why"),
        [
            ({"alpha": 0.5, "alpha_init": 2.0}, "alpha_init=2.0", "with alpha=0.5"),
            ({"alpha": 0.5, "target_entropy": -3.0}, "target_entropy=-3.0", "with alpha=0.5"),
            (
                {"alpha": 0.5, "target_entropy_share": 0.9},
                "target_entropy_share=0.9",
                "with alpha=0.5",
            ),
            (
                {"target_entropy_share": 0.9},
                "target_entropy_share=0.9",
                "because the action space is a Box",
            ),
        ],
    )
    def test_refuses_what_has_no_effect(self, settings: Any, name: str, why: str) -> None:
        with pytest.raises(ConfigError, match=f"{name} has no effect {why}"):
            make_algorithm("sac", STATES, BOX, hidden=(), **settings)

    def test_refuses_a_share_of_a_given_entropy(self) -> None:
        settings = {"target_entropy": 0.3, "target_entropy_share": 0.9}
        with pytest.raises(ConfigError, match=r"has no effect with target_entropy=0\.3"):
            make_algorithm("sac", STATES, spaces.Discrete(2), hidden=(), **settings)

    def test_targets_follow_after_every_update(self) -> None:
        algorithm = box(batch_size=3, lr=0.1, tau=0.25)
        before = algorithm.step.flats[algorithm.target].clone()
        algorithm.update(CannedReplay(box_items()))
        critic, target = (algorithm.step.flats[m] for m in (algorithm.critic, algorithm.target))
        torch.testing.assert_close(target, 0.75 * before + 0.25 * critic)

    def test_acts_in_the_units_of_the_environment(self) -> None:
        algorithm, states = box(), np.array([0, 1])
        best = algorithm.act(states, None, False).action
        assert best.ravel().tolist() == pytest.approx([2.0, 2 + 2 * math.tanh(0.5)])
        drawn = algorithm.act(np.zeros(4000, np.int64), None, True).action
        assert drawn.min() >= 0 and drawn.max() <= 4
        # atanh brings the Gaussian back: mean 0, standard deviation 1; five errors are 0.08.
        u = np.arctanh((drawn - 2) / 2)
        assert u.mean() == pytest.approx(0, abs=0.08) and u.std() == pytest.approx(1, abs=0.06)


def discrete(**settings: Any) -> SAC:
    """Return SAC on two states and two actions with known numbers.

    Policy 1/2, 1/2 in state 0 and 3/4, 1/4 in state 1.
    The smaller critic is 1, 2 in state 0 and 3, 0 in state 1; the smaller target is 3, 2 and 1, 4.
    """
    settings = {"hidden": (), "alpha": 0.5} | settings
    algorithm = make_algorithm("sac", STATES, spaces.Discrete(2), **settings)
    put(algorithm.actor[1].weight, [[0.0, LOG_3], [0.0, 0.0]])
    put(algorithm.actor[1].bias, [0.0, 0.0])
    for critic, values in (
        (algorithm.critic, [[[1.0, 5.0], [3.0, 1.0]], [[2.0, 2.0], [4.0, 0.0]]]),
        (algorithm.target, [[[4.0, 2.0], [1.0, 5.0]], [[3.0, 6.0], [2.0, 4.0]]]),
    ):
        put(critic.members.weights[0], values)  # [member, state, action]
        put(critic.members.biases[0], [[0.0, 0.0], [0.0, 0.0]])
    return algorithm


def discrete_items() -> Batch:
    """Return a plain step, a truncated one and a terminated one."""
    return make_batch(
        obs=[0, 1, 1], action=[0, 0, 1], reward=[1.0, 0.0, -1.0], next_obs=[0, 1, 0],
        terminated=[0, 0, 1], truncated=[0, 1, 0], discount=[0.5, 0.5, 0.5],
    )  # fmt: skip


ENTROPY_1 = 2 * LOG_2 - 0.75 * LOG_3  # of (3/4, 1/4); that of (1/2, 1/2) is log 2


class TestDiscreteLoss:
    def test_critic_by_hand(self) -> None:
        algorithm = discrete()
        loss, _ = algorithm._discrete_critic_loss(algorithm.replay_tensors(discrete_items()))
        # V = sum pi Q + alpha H: (3 + 2) / 2 + log 2 / 2 and (3 * 1 + 4) / 4 + H / 2
        y = [1 + 0.5 * (2.5 + 0.5 * LOG_2), 0.5 * (1.75 + 0.5 * ENTROPY_1), -1.0]
        first = ((1 - y[0]) ** 2 + (3 - y[1]) ** 2 + (1 - y[2]) ** 2) / 3
        second = ((2 - y[0]) ** 2 + (4 - y[1]) ** 2 + (0 - y[2]) ** 2) / 3
        assert loss.item() == pytest.approx((first + second) / 2, rel=1e-5)

    def test_actor_by_hand(self) -> None:
        algorithm = discrete()
        loss, metrics = algorithm._discrete_actor_loss(algorithm.replay_tensors(discrete_items()))
        # -alpha H - sum pi Q: Q is (1 + 2) / 2 in state 0 and (3 * 3 + 0) / 4 in state 1, twice
        expected = -0.5 * (LOG_2 + 2 * ENTROPY_1) / 3 - (1.5 + 2 * 2.25) / 3
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        assert metrics["entropy"].item() == pytest.approx((LOG_2 + 2 * ENTROPY_1) / 3, rel=1e-5)

    def test_masked_actions_have_no_part(self) -> None:
        space = spaces.Dict({"obs": STATES, "action_mask": spaces.MultiBinary(2)})
        algorithm = make_algorithm("sac", space, spaces.Discrete(2), hidden=(), alpha=0.5)
        put(algorithm.target.members.weights[0], [[[4.0, 2.0], [1.0, 5.0]]] * 2)
        put(algorithm.critic.members.weights[0], [[[0.0, 0.0], [0.0, 0.0]]] * 2)
        for critic in (algorithm.target, algorithm.critic):
            put(critic.members.biases[0], [[0.0, 0.0], [0.0, 0.0]])
        items = discrete_items()
        items.obs = {"obs": items.obs, "action_mask": torch.ones(3, 2)}
        masks = torch.tensor([[0, 1], [1, 0], [1, 1]])
        items.next_obs = {"obs": items.next_obs, "action_mask": masks}
        loss, _ = algorithm._discrete_critic_loss(algorithm.replay_tensors(items))
        # One action is left, of entropy 0: y = 1 + 2/2, 0 + 1/2, -1, and Q = 0 twice
        assert loss.item() == pytest.approx((4 + 0.25 + 1) / 3, rel=1e-5)

    def test_target_entropy_counts_valid_actions(self) -> None:
        space = spaces.Dict({"obs": STATES, "action_mask": spaces.MultiBinary(4)})
        masks = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
        batch = {"obs/obs": torch.zeros(4), "obs/action_mask": masks, "entropy": torch.tensor(0.7)}
        settings = {"hidden": (), "alpha_init": 2.0}
        algorithm = make_algorithm(
            "sac", space, spaces.Discrete(4), **settings, target_entropy_share=0.75
        )
        loss, _ = algorithm._discrete_alpha_loss(batch)
        # Of 4, 2, 1 and (by mistake) no valid actions, which count as 4:
        # 3/4 (2 + 1 + 0 + 2) log 2 / 4
        assert loss.item() == pytest.approx(LOG_2 * (0.7 - 0.75 * 1.25 * LOG_2), rel=1e-5)
        given = make_algorithm("sac", space, spaces.Discrete(4), **settings, target_entropy=0.2)
        assert given._discrete_alpha_loss(batch)[0].item() == pytest.approx(LOG_2 * 0.5, rel=1e-5)


QUICK = {
    "num_envs": 4, "buffer_size": 5000, "learning_starts": 200, "train_every": 4, "lr": 0.003,
    "hidden": (32,), "batch_size": 64, "tau": 0.05,
}  # fmt: skip


class TestLearns:
    @pytest.mark.parametrize("normalize", [False, True])
    def test_to_reach(self, normalize: bool) -> None:
        # The best policy gets -1.2, standing still -8.8; without a bootstrap it is below -6.
        rig = Rig(
            "sac", Reach, env_steps=1800, gamma=0.9, normalize_obs=normalize,
            normalize_reward=normalize, **QUICK,
        )  # fmt: skip
        assert rig.train().score() > -4

    @pytest.mark.parametrize("masked", [False, True])
    def test_the_right_answer(self, masked: bool) -> None:
        env = partial(Identity, spaces.Discrete(4), masked=masked)
        assert Rig("sac", env, env_steps=900, gamma=0.0, **QUICK).train().score() == 8.0

    def test_to_look_ahead(self) -> None:
        rig = Rig("sac", Corridor, env_steps=2000, gamma=0.9, alpha=0.01, **QUICK)
        assert rig.train().score() == 1.0
