"""ReBRAC: the contract, its numbers by hand, and that it learns from data of mixed quality."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from families import BOX, STATES, put
from gymnasium import spaces

from assay.algorithms.rebrac import ReBRAC
from assay.core.config import UnusedSettingError
from assay.core.types import Batch
from assay.testing.algorithms import CannedReplay, make_algorithm, make_batch
from assay.testing.envs import Reach
from assay.testing.offline import OfflineContract, OfflineRig, record, torn

SMALL = {"hidden": (16,), "batch_size": 8}


class TestContract(OfflineContract):
    algorithm = "rebrac"
    settings = SMALL


def table(**settings: Any) -> ReBRAC:
    """Return ReBRAC on two states, with known numbers in unit actions a.

    Both actors: 0 in state 0 and tanh(log 3) = 0.8 in state 1.
    Critics 1 + a and 3 - a in state 0, 2 + a and 3 - a in state 1.
    Targets 5 + a and 5 - 2a in state 0, 6 + a and 6 - 2a in state 1.
    """
    settings = {"hidden": (), "batch_size": 4, "actor_beta": 0.5, "critic_beta": 2.0} | settings
    algorithm = make_algorithm("rebrac", STATES, BOX, **settings)
    for actor in (algorithm.actor, algorithm.target_actor):
        put(actor[1][0].weight, [0.0, math.log(3)])
        put(actor[1][0].bias, [0.0])
    for critic, values in (
        (algorithm.critic, [[1.0, 2.0, 1.0], [3.0, 3.0, -1.0]]),
        (algorithm.target_critic, [[5.0, 6.0, 1.0], [5.0, 6.0, -2.0]]),
    ):
        put(critic.ensemble.weights[0], values)  # [member, (state 0, state 1, action)]
        put(critic.ensemble.biases[0], [0.0, 0.0])
    return algorithm


def items() -> Batch:
    """Return a plain step, a truncated one, another plain one and a terminated one.

    The unit actions are 1/2, 0, -1 and 1, and those that followed 0, none, 1/2 and none.
    """
    return make_batch(
        obs=[0, 0, 1, 1], action=[[3.0], [2.0], [0.0], [4.0]], reward=[1.0, 0.0, -1.0, 2.0],
        next_obs=[0, 0, 1, 1], terminated=[0, 0, 0, 1], truncated=[0, 1, 0, 0],
        discount=[0.5, 0.5, 0.5, 0.5], next_action=[[2.0], [0.0], [3.0], [0.0]],
        has_next=[1.0, 0.0, 1.0, 0.0],
    )  # fmt: skip


def named(algorithm: ReBRAC) -> dict[str, torch.Tensor]:
    batch = algorithm.replay_tensors(items())
    return batch | {
        "action": torch.tensor([[0.5], [0.0], [-1.0], [1.0]]),
        "next_action": torch.tensor([[0.0], [-1.0], [0.5], [-1.0]]),
        "has_next": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        "actor_beta": torch.tensor(0.5),
        "critic_beta": torch.tensor(2.0),
    }


class TestLoss:
    def test_critic_by_hand(self) -> None:
        algorithm = table()
        batch = named(algorithm) | {"noise": torch.tensor([[1.0], [-10.0], [10.0], [0.0]])}
        loss, metrics = algorithm._critic_loss(batch)
        # Noise 0.2, -2 clipped to -0.5, 2 clipped to 0.5: next actions 0.2, -0.5, 1.3 clipped to 1.
        # The smaller targets 4.6, 4.5, 4. Penalties 2 * 0.04, none (nothing followed), 2 * 0.25.
        # y = 1 + 4.52 / 2, 4.5 / 2 (truncated: bootstraps), -1 + 3.5 / 2, 2 (terminated)
        # Q1 = 1.5, 1, 1, 3 and Q2 = 2.5, 3, 4, 2
        y = [3.26, 2.25, 0.75, 2.0]
        squares = [(q - t) ** 2 for q, t in zip([1.5, 1, 1, 3, 2.5, 3, 4, 2], y + y, strict=True)]
        assert loss.item() == pytest.approx(sum(squares) / 4, rel=1e-6)
        assert metrics["next_bc"].item() == pytest.approx((0.04 + 0.25) / 4)

    def test_actor_by_hand(self) -> None:
        algorithm = table()
        loss, metrics = algorithm._actor_loss(named(algorithm))
        # The smaller of the critics for actions 0, 0, 0.8, 0.8: 1, 1, 2.2, 2.2; their mean is 1.6.
        # Squared distances to 0.5, 0, -1, 1 are 0.25, 0, 3.24, 0.04.
        assert metrics["bc_loss"].item() == pytest.approx(3.53 / 4)
        assert loss.item() == pytest.approx(-1.0 + 0.5 * 3.53 / 4)
        [gradient] = torch.autograd.grad(loss, [algorithm.actor[1][0].bias])
        # Slopes of tanh 1, 1, 0.36, 0.36, of the critics 1, 1, -1, -1; lambda has no gradient.
        # Imitation: 0.5 * 2 / 4 (-0.5 + 0 + 1.8 * 0.36 - 0.2 * 0.36) = 0.019
        assert gradient.tolist() == pytest.approx([-1 / 1.6 * 1.28 / 4 + 0.019])

    def test_a_penalty_counts_all_parts_of_an_action(self) -> None:
        """The paper sums over the parts of an action, where TD3+BC takes their mean."""
        box = spaces.Box(-1.0, 1.0, (3,), np.float32)
        algorithm = make_algorithm("rebrac", STATES, box, hidden=(), batch_size=1)
        for parameter in algorithm.actor.parameters():
            put(parameter, np.zeros(parameter.shape, np.float32))
        batch = {
            "obs": torch.tensor([0]),
            "action": torch.full((1, 3), 0.5),
            "actor_beta": torch.tensor(1.0),
        }
        _, metrics = algorithm._actor_loss(batch)
        assert metrics["bc_loss"].item() == pytest.approx(0.75)


class TestUpdate:
    @pytest.mark.parametrize("delay", [1, 2])
    def test_actor_and_targets_wait(self, delay: int) -> None:
        algorithm = table(policy_delay=delay, lr=0.1, tau=0.25)
        flats = algorithm.full_step.flats
        slow = (algorithm.actor, algorithm.target_actor, algorithm.target_critic)
        for update in range(1, 5):
            before = {module: flat.clone() for module, flat in flats.items()}
            algorithm.update(CannedReplay(items()))
            assert not torch.equal(flats[algorithm.critic], before[algorithm.critic])
            for module in slow:
                assert torch.equal(flats[module], before[module]) == bool(update % delay)

    def test_both_actions_are_in_the_unit_box(self) -> None:
        """The environment's actions 3, 2, 0, 4 are 0.5, 0, -1, 1 in the loss; 2 and 3 followed."""
        algorithm = table(policy_delay=1, target_noise=0.0, target_noise_clip=0.5)
        algorithm.update(CannedReplay(items()))
        metrics = algorithm.drain_metrics()
        assert metrics["train/bc_loss"] == pytest.approx(3.53 / 4)
        assert metrics["train/next_bc"] == pytest.approx((0.0 + 0.3**2) / 4)  # 0 - 0, 0.8 - 0.5

    def test_weights_follow_their_schedules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[float, float]] = []
        loss = ReBRAC._actor_loss

        def spy(self: ReBRAC, batch: dict[str, torch.Tensor]) -> Any:
            seen.append((batch["actor_beta"].item(), batch["critic_beta"].item()))
            return loss(self, batch)

        monkeypatch.setattr(ReBRAC, "_actor_loss", spy)
        algorithm = table(actor_beta="linear:1:0", critic_beta="linear:3:1", policy_delay=1)
        for updates in (0, 500):
            algorithm.clock.updates = updates
            algorithm.update(CannedReplay(items()))
        assert seen == [pytest.approx((1.0, 3.0)), pytest.approx((0.5, 2.0))]


def test_critics_are_normalised() -> None:
    critic = make_algorithm("rebrac", STATES, BOX).critic.ensemble
    assert [tuple(gain.shape) for gain in critic.gains] == [(2, 256)] * 3
    assert not make_algorithm("rebrac", STATES, BOX, layer_norm=False).critic.ensemble.gains
    with pytest.raises(UnusedSettingError, match="layer_norm"):
        make_algorithm("rebrac", STATES, BOX, network="simba", layer_norm=False)


QUICK = {
    "gamma": 0.9, "hidden": (32,), "batch_size": 64, "lr": 0.003, "tau": 0.05, "updates": 900,
}  # fmt: skip


class TestLearns:
    def test_better_than_what_was_done(self) -> None:
        """The best policy gets -1.2, standing still (the mean of the data) -8.8."""
        data = record(Reach, behaviour=torn, episodes=100)
        assert OfflineRig("rebrac", Reach, data=data, **QUICK).train().score() > -3
