"""TD3: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from families import BOX, STATES, put
from gymnasium import spaces

from assay.algorithms.td3 import TD3
from assay.core.errors import ConfigError
from assay.core.types import Batch
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Rig,
    make_algorithm,
    make_batch,
)
from assay.testing.envs import Identity, Reach

SMALL = {
    "buffer_size": 150, "learning_starts": 12, "batch_size": 8, "train_every": 2, "hidden": (16,),
}  # fmt: skip


class TestContract(AlgorithmContract):
    algorithm = "td3"
    settings = SMALL


def table(**settings: Any) -> TD3:
    """Return TD3 on two states and actions from 0 to 4, with known numbers in unit actions a.

    Both actors: 0 in state 0 and tanh(log 3) = 0.8 in state 1.
    Critics 1 + a and -a in state 0, 2 + a and 3 - a in state 1.
    Targets 5 + a and 5 - 2a in state 0, 6 + a and 6 - 2a in state 1.
    """
    algorithm = make_algorithm("td3", STATES, BOX, **({"hidden": (), "batch_size": 4} | settings))
    for actor in (algorithm.actor, algorithm.target_actor):
        put(actor[1][0].weight, [0.0, math.log(3)])
        put(actor[1][0].bias, [0.0])
    for critic, values in (
        (algorithm.critic, [[1.0, 2.0, 1.0], [0.0, 3.0, -1.0]]),
        (algorithm.target_critic, [[5.0, 6.0, 1.0], [5.0, 6.0, -2.0]]),
    ):
        put(critic.ensemble.weights[0], values)  # [member, (state 0, state 1, action)]
        put(critic.ensemble.biases[0], [0.0, 0.0])
    return algorithm


def items() -> Batch:
    """Return a plain step, a truncated one, another plain one and a terminated one.

    The unit actions are 1/2, 0, -1 and 1.
    """
    return make_batch(
        obs=[0, 0, 1, 1], action=[[3.0], [2.0], [0.0], [4.0]], reward=[1.0, 0.0, -1.0, 2.0],
        next_obs=[0, 0, 1, 1], terminated=[0, 0, 0, 1], truncated=[0, 1, 0, 0],
        discount=[0.5, 0.5, 0.5, 0.5],
    )  # fmt: skip


class TestClip:
    def test_a_sum_of_rewards_may_be_larger_than_one(self) -> None:
        """Rewards are clipped at 10 each; of k summed ones as much as k clipped ones give."""
        many = {"discount": [0.5, 0.25, 0.125], "reward": [100.0, 100.0, 100.0]}
        columns = {"obs": [0, 0, 0], "action": [[2.0]] * 3, "next_obs": [0, 0, 0]}
        batch = make_batch(**columns, **many)
        for n, gamma, bounds in ((3, 0.5, [10, 15, 17.5]), (1, 0.5, [10] * 3), (3, 1.0, [30] * 3)):
            settings = {"gamma": gamma, "n_step": n, "normalize_reward": True}
            algorithm = make_algorithm("td3", STATES, BOX, hidden=(), **settings)
            assert algorithm.replay_tensors(batch)["reward"].tolist() == pytest.approx(bounds)


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (
                {"target_noise": 0.0, "target_noise_clip": 0.3},
                "target_noise_clip=0.3 has no effect with target_noise=0",
            ),
            (
                {"target_noise": 0.3, "target_noise_clip": 0.0},
                "target_noise=0.3 has no effect with target_noise_clip=0",
            ),
        ],
    )
    def test_refuses_a_bound_of_no_noise(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            table(**settings)

    def test_the_target_action_may_be_without_noise(self) -> None:
        assert table(target_noise=0.0).hp.target_noise == 0


class TestLoss:
    def test_critic_by_hand(self) -> None:
        algorithm = table()
        batch = algorithm.replay_tensors(items())
        batch["noise"] = torch.tensor([[1.0], [-10.0], [10.0], [0.0]])
        loss, metrics = algorithm._critic_loss(batch)
        # Noise 0.2, -2 clipped to -0.5, 2 clipped to 0.5: next actions 0.2, -0.5, 1.3 clipped to 1.
        # The smaller targets: min(5.2, 4.6), min(4.5, 6), min(7, 4)
        # y = 1 + 2.3 = 3.3, 0 + 2.25 (truncated: bootstraps), -1 + 2 = 1, 2 (terminated)
        # Q1 = 1.5, 1, 1, 3: errors -1.8, -1.25, 0, 1; squares 3.24, 1.5625, 0, 1
        # Q2 = -0.5, 0, 4, 2: errors -3.8, -2.25, 3, 0; squares 14.44, 5.0625, 9, 0
        assert loss.item() == pytest.approx(5.8025 / 4 + 28.5025 / 4, rel=1e-6)
        assert metrics["q_mean"].item() == pytest.approx((6.5 + 5.5) / 8)

    def test_actor_climbs_the_first_critic(self) -> None:
        algorithm = table()
        batch = algorithm.replay_tensors(items())
        loss, _ = algorithm._actor_loss(batch)
        # Q1 of actions 0, 0, 0.8, 0.8 is 1, 1, 2.8, 2.8. The second critic falls with the action.
        assert loss.item() == pytest.approx(-7.6 / 4)
        [gradient] = torch.autograd.grad(loss, [algorithm.actor[1][0].bias])
        # -mean of dQ1/da = 1 times the slope 1 - a^2 = 1, 1, 0.36, 0.36
        assert gradient.tolist() == pytest.approx([-2.72 / 4])


class TestUpdate:
    @pytest.mark.parametrize("delay", [1, 2, 3])
    def test_actor_and_targets_wait(self, delay: int) -> None:
        algorithm = table(policy_delay=delay, lr=0.1, tau=0.25)
        flats = algorithm.full_step.flats
        slow = (algorithm.actor, algorithm.target_actor, algorithm.target_critic)
        for update in range(1, 7):
            before = {module: flat.clone() for module, flat in flats.items()}
            algorithm.update(CannedReplay(items()))
            assert not torch.equal(flats[algorithm.critic], before[algorithm.critic])
            for module in slow:
                assert torch.equal(flats[module], before[module]) == bool(update % delay)
            if update % delay == 0:
                for target, source in (
                    (algorithm.target_actor, algorithm.actor),
                    (algorithm.target_critic, algorithm.critic),
                ):
                    expected = 0.75 * before[target] + 0.25 * flats[source]
                    torch.testing.assert_close(flats[target], expected)

    def test_both_steps_continue_one_optimizer(self) -> None:
        algorithm = table()
        for _ in range(5):
            algorithm.update(CannedReplay(items()))
        counts = {k: int(v["count"]) for k, v in algorithm.full_step.state()["moments"].items()}
        assert counts == {"critic": 5, "actor": 2}
        assert int(algorithm.critic_step.state()["moments"]["critic"]["count"]) == 5

    def test_target_noise_is_drawn_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        algorithm = table()
        drawn: list[torch.Tensor] = []
        noise = algorithm.noise
        monkeypatch.setattr(algorithm, "noise", lambda *s: drawn.append(noise(*s)) or drawn[-1])
        for _ in range(2):
            algorithm.update(CannedReplay(items()))
        assert [tuple(d.shape) for d in drawn] == [(4, 1)] * 2
        assert not torch.equal(drawn[0], drawn[1])


class TestAct:
    def test_noise_is_in_units_of_the_action(self) -> None:
        algorithm = table(exploration_noise="linear:0.1:0.4")
        best = algorithm.act(np.array([0, 1]), None, False).action
        assert best.ravel().tolist() == pytest.approx([2.0, 3.6])  # 2 + 2 * 0.8
        for env_steps, scale in ((0, 0.1), (1000, 0.4)):
            algorithm.clock.env_steps = env_steps
            actions = algorithm.act(np.array([0, 1] * 4000), None, True).action
            assert actions.min() >= 0 and actions.max() <= 4
            # Half the width of the box is 2; five standard errors of a deviation are 4%.
            assert actions[::2].std() == pytest.approx(2 * scale, rel=0.1)


QUICK = {
    "num_envs": 4, "buffer_size": 5000, "learning_starts": 400, "train_every": 4, "lr": 0.003,
    "hidden": (32,), "batch_size": 64, "tau": 0.05, "exploration_noise": 0.2,
}  # fmt: skip


class TestLearns:
    def test_to_reach(self) -> None:
        # The best policy gets -1.2, standing still -8.8; without a bootstrap it is below -6.
        assert Rig("td3", Reach, env_steps=2400, gamma=0.9, **QUICK).train().score() > -4

    def test_the_right_answer(self) -> None:
        env = partial(Identity, spaces.Box(-3.0, 1.0, (2,), np.float32))
        assert Rig("td3", env, env_steps=2400, gamma=0.0, **QUICK).train().score() > 8 * 0.9
