"""DDPG: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from families import BOX, STATES, box_items, put
from gymnasium import spaces

from assay.algorithms.ddpg import DDPG
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Rig,
    make_algorithm,
)
from assay.testing.envs import Identity, Reach

SMALL = {
    "buffer_size": 150, "learning_starts": 12, "batch_size": 8, "train_every": 2, "hidden": (16,),
}  # fmt: skip


class TestContract(AlgorithmContract):
    algorithm = "ddpg"
    settings = SMALL


def table(**settings: Any) -> DDPG:
    """Return DDPG on two states and actions from 0 to 4, with known numbers in unit actions a.

    The actor takes 0.8 = tanh(log 3) in state 0 and 0 in state 1, its target the other way round.
    Critic 1 - a in state 0 and 2 - a in state 1; target 5 + a and 6 + a.
    """
    algorithm = make_algorithm("ddpg", STATES, BOX, **({"hidden": (), "batch_size": 3} | settings))
    put(algorithm.actor[1][0].weight, [math.log(3), 0.0])
    put(algorithm.target_actor[1][0].weight, [0.0, math.log(3)])
    for actor in (algorithm.actor, algorithm.target_actor):
        put(actor[1][0].bias, [0.0])
    put(algorithm.critic.ensemble.weights[0], [1.0, 2.0, -1.0])  # [state 0, state 1, action]
    put(algorithm.target_critic.ensemble.weights[0], [5.0, 6.0, 1.0])
    for critic in (algorithm.critic, algorithm.target_critic):
        put(critic.ensemble.biases[0], [0.0])
    return algorithm


class TestLoss:
    def test_critic_by_hand(self) -> None:
        algorithm = table()
        loss, metrics = algorithm._critic_loss(algorithm.replay_tensors(box_items()))
        # Target actions 0 and 0.8: y = 1 + 5/2 = 3.5, 0 + 6.8/2 = 3.4 (truncated), -1 (terminated)
        # Q = 0.5, 2, 2: errors -3, -1.4, 3; squares 9, 1.96, 9
        assert loss.item() == pytest.approx(19.96 / 3, rel=1e-6)
        assert metrics["q_mean"].item() == pytest.approx(1.5)

    def test_actor_climbs_the_critic(self) -> None:
        algorithm = table()
        loss, _ = algorithm._actor_loss(algorithm.replay_tensors(box_items()))
        # Actions 0.8, 0, 0.8: Q = 0.2, 2, 0.2
        assert loss.item() == pytest.approx(-0.8)
        [gradient] = torch.autograd.grad(loss, [algorithm.actor[1][0].bias])
        # The critic falls with the action; the slopes 1 - a^2 are 0.36, 1, 0.36
        assert gradient.tolist() == pytest.approx([1.72 / 3])


class TestUpdate:
    def test_targets_follow_after_every_update(self) -> None:
        algorithm = table(lr=0.1, tau=0.25)
        flats = algorithm.step.flats
        for _ in range(2):
            before = {module: flat.clone() for module, flat in flats.items()}
            algorithm.update(CannedReplay(box_items()))
            for target, source in (
                (algorithm.target_actor, algorithm.actor),
                (algorithm.target_critic, algorithm.critic),
            ):
                assert not torch.equal(flats[source], before[source])
                expected = 0.75 * before[target] + 0.25 * flats[source]
                torch.testing.assert_close(flats[target], expected)


class TestAct:
    def test_noise_is_in_units_of_the_action(self) -> None:
        algorithm = table(exploration_noise="linear:0.1:0.4")
        best = algorithm.act(np.array([0, 1]), None, False).action
        assert best.ravel().tolist() == pytest.approx([3.6, 2.0])  # 2 + 2 * 0.8
        for env_steps, scale in ((0, 0.1), (1000, 0.4)):
            algorithm.clock.env_steps = env_steps
            actions = algorithm.act(np.array([0, 1] * 4000), None, True).action
            assert actions.min() >= 0 and actions.max() <= 4
            # Half the width of the box is 2; five standard errors of a deviation are 4%.
            assert actions[1::2].std() == pytest.approx(2 * scale, rel=0.1)


QUICK = {
    "num_envs": 4, "buffer_size": 5000, "learning_starts": 400, "train_every": 4, "lr": 0.003,
    "hidden": (32,), "batch_size": 64, "tau": 0.05, "exploration_noise": 0.2,
}  # fmt: skip


class TestLearns:
    def test_to_reach(self) -> None:
        # The best policy gets -1.2, standing still -8.8; without a bootstrap it is below -6.
        assert Rig("ddpg", Reach, env_steps=2000, gamma=0.9, **QUICK).train().score() > -4

    def test_the_right_answer(self) -> None:
        env = partial(Identity, spaces.Box(-3.0, 1.0, (2,), np.float32))
        assert Rig("ddpg", env, env_steps=2000, gamma=0.0, **QUICK).train().score() > 8 * 0.9

    def test_at_the_edges_of_a_box(self) -> None:
        # Half the width of this box and its centre are rounded: in float32, -1 * 0.4 + 0.3 is
        # below -0.1, and the environment refuses actions outside.
        env = partial(Identity, spaces.Box(-0.1, 0.7, (1,), np.float32))
        settings = QUICK | {"exploration_noise": 2.0}
        Rig("ddpg", env, env_steps=500, gamma=0.0, **settings).train()
