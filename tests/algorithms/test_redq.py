"""REDQ: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from families import BOX, STATES, box_items, log_pi, put

from assay.algorithms.redq import REDQ
from assay.core.errors import ConfigError
from assay.optim.update import Step
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Rig,
    make_algorithm,
)
from assay.testing.envs import Reach

SMALL = {
    "buffer_size": 150, "learning_starts": 12, "batch_size": 8, "train_every": 2, "updates": 2,
    "hidden": (16,), "n_critics": 3,
}  # fmt: skip


class TestContract(AlgorithmContract):
    algorithm = "redq"
    settings = SMALL


def by_hand(**settings: Any) -> REDQ:
    """Return REDQ on two states and actions from 0 to 4, with known numbers in unit actions a.

    Mean 0 in state 0 and 1/2 in state 1; standard deviation 1.
    Critics 1 + a, -a, 4 in state 0 and 2 + a, 3 - a, 0 in state 1.
    Targets 5 + 2a, 4, 1 in state 0 and 6 + 2a, 7, 2 in state 1.
    """
    small = {"hidden": (), "alpha": 0.5, "n_critics": 3, "batch_size": 3}
    algorithm = make_algorithm("redq", STATES, BOX, **(small | settings))
    head = algorithm.actor.net[1].linear
    put(head.weight, [[0.0, 0.5], [0.0, 0.0]])
    put(head.bias, [0.0, 0.0])
    for critic, values in (
        (algorithm.critic, [[1.0, 2.0, 1.0], [0.0, 3.0, -1.0], [4.0, 0.0, 0.0]]),
        (algorithm.target, [[5.0, 6.0, 2.0], [4.0, 7.0, 0.0], [1.0, 2.0, 0.0]]),
    ):
        put(critic.ensemble.weights[0], values)  # [member, (state 0, state 1, action)]
        put(critic.ensemble.biases[0], [0.0, 0.0, 0.0])
    return algorithm


class TestLoss:
    @pytest.mark.parametrize(
        ("members", "values"),
        [
            ([0, 1], (4.0, 6 + 2 * math.tanh(0.5))),  # the third and smallest is not asked
            ([2, 0], (1.0, 2.0)),
            ([1], (4.0, 7.0)),
        ],
    )
    def test_critic_by_hand(self, members: list[int], values: tuple[float, float]) -> None:
        algorithm = by_hand()
        batch = algorithm.replay_tensors(box_items()) | {"next_noise": torch.zeros(3, 1)}
        loss, metrics = algorithm._critic_loss(batch | {"members": torch.tensor(members)})
        # A truncation bootstraps, a termination does not.
        y = [
            1 + 0.5 * (values[0] - 0.5 * log_pi(0, 0)),
            0 + 0.5 * (values[1] - 0.5 * log_pi(0, 0.5)),
            -1.0,
        ]
        q = [[1.5, 2.0, 0.0], [-0.5, 3.0, 1.0], [4.0, 0.0, 4.0]]  # all critics learn
        errors = [(a - b) ** 2 for row in q for a, b in zip(row, y, strict=True)]
        assert loss.item() == pytest.approx(0.5 * sum(errors) / 3, rel=1e-5)
        assert metrics["q_mean"].item() == pytest.approx(15 / 9, rel=1e-5)
        assert metrics["q_spread"].item() == pytest.approx(np.std(q, axis=0).mean(), rel=1e-5)

    def test_actor_by_hand(self) -> None:
        algorithm = by_hand()
        batch = algorithm.replay_tensors(box_items())
        batch["noise"] = torch.tensor([[0.5], [-0.5], [0.0]])
        loss, metrics = algorithm._actor_loss(batch)
        # u = 1/2, 0, 0 (states 0, 1, 0); the mean of all critics is 5/3 in both states.
        logs = [log_pi(0.5, 0.5), log_pi(-0.5, 0.0), log_pi(0.0, 0.0)]
        assert loss.item() == pytest.approx(0.5 * sum(logs) / 3 - 5 / 3, rel=1e-5)
        assert metrics["entropy"].item() == pytest.approx(-sum(logs) / 3, rel=1e-5)


class TestUpdate:
    @pytest.mark.parametrize(("delay", "every"), [("auto", 3), (2, 2)])
    def test_the_actor_moves_once_a_round(self, delay: Any, every: int) -> None:
        algorithm = by_hand(alpha="auto", updates=3, policy_delay=delay)
        assert (algorithm.needs.updates, algorithm.needs.train_every) == (3, 1)
        actor, target = (algorithm.full_step.flats[m] for m in (algorithm.actor, algorithm.target))
        critic = algorithm.full_step.flats[algorithm.critic]
        for count in range(1, 7):
            before, last, alpha = actor.clone(), target.clone(), algorithm.temperature().item()
            algorithm.update(CannedReplay(box_items()))
            assert torch.equal(before, actor) == (count % every != 0)
            assert (alpha == algorithm.temperature().item()) == (count % every != 0)
            # The targets do not wait.
            torch.testing.assert_close(target, 0.995 * last + 0.005 * critic)

    def test_draws_different_critics_for_every_target(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        algorithm = by_hand(n_critics=3, n_target_critics=2)
        drawn = []
        original = Step.__call__

        def watch(step: Step, batch: dict[str, torch.Tensor], *rest: Any) -> torch.Tensor:
            drawn.append(tuple(batch["members"].tolist()))
            return original(step, batch, *rest)

        monkeypatch.setattr(Step, "__call__", watch)
        for _ in range(60):
            algorithm.update(CannedReplay(box_items()))
        assert all(len(set(pair)) == 2 for pair in drawn)
        counts = [sum(i in pair for pair in drawn) for i in range(3)]
        assert sum(counts) == 120 and min(counts) >= 25  # 40 each, give or take four errors

    def test_refuses_what_cannot_be(self) -> None:
        with pytest.raises(ConfigError, match="n_target_critics=4 cannot be drawn from"):
            by_hand(n_target_critics=4)
        with pytest.raises(ConfigError, match="policy_delay=0: expected a number of at least 1"):
            by_hand(policy_delay=0)
        with pytest.raises(ConfigError, match=r"alpha_init=0\.1 has no effect with alpha=0\.5"):
            by_hand(alpha_init=0.1)


def test_learns_to_reach_in_few_steps() -> None:
    # The best policy gets -1.2, standing still -8.8. SAC at one update for four steps needs 3000
    # steps for -4; this is a quarter of them.
    rig = Rig(
        "redq", Reach, env_steps=800, num_envs=4, buffer_size=5000, learning_starts=100,
        lr=0.003, hidden=(32,), batch_size=64, tau=0.05, gamma=0.9, n_critics=5, train_every=4,
        updates=5,
    )  # fmt: skip
    assert rig.train().score() > -4
