from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from assay.buffers.reservoir import Reservoir
from assay.core.types import pack
from assay.envs.games.registry import make_tree
from assay.envs.make import make_vector
from assay.evaluation.game import policy_strategy
from assay.functional.games.best_response import exploitation
from assay.testing.algorithms import Rig
from assay.testing.teams import TeamContract

KUHN = make_tree("kuhn_poker")
SMALL: dict[str, Any] = {
    "hidden": (16,), "horizon": 8, "minibatch_size": 16, "epochs": 2, "average_batch": 8,
    "average_updates": 2, "eta": 0.5,
}  # fmt: skip


class TestContract(TeamContract):
    algorithm = "nfsp"
    settings: ClassVar = {**SMALL, "horizon": 4, "minibatch_size": 4}
    updates = 16

    def cases(self) -> Iterator[Any]:
        """Yield agents that come and go, and of two kinds; the games below take turns."""
        names = ("come_and_go_masked", "unequal_with_state")
        return (case for case in super().cases() if case.name in names)


class TestReservoir:
    def test_every_row_is_kept_with_the_same_probability(self) -> None:
        kept = np.zeros(40)
        for seed in range(2000):
            reservoir = Reservoir(10, np.random.default_rng(seed))
            for begin in (0, 3, 15):  # in pieces of unequal size
                stop = {0: 3, 3: 15, 15: 40}[begin]
                reservoir.add("a", {"x": np.arange(begin, stop)})
            kept[reservoir._columns["a"]["x"]] += 1
        assert kept.sum() == 20_000
        assert (np.abs(kept / 2000 - 0.25) < 0.05).all()  # 10 of 40; five standard errors

    def test_groups_are_kept_apart_and_saved(self) -> None:
        rng = np.random.default_rng(0)
        reservoir = Reservoir(4, rng)
        reservoir.add("a", {"x": np.arange(3), "y": np.arange(6.0).reshape(3, 2)})
        reservoir.add("b", {"x": np.arange(10, 20)})
        assert (reservoir.size("a"), reservoir.size("b"), reservoir.size("c")) == (3, 4, 0)
        rows = reservoir.sample("a", 50)
        assert set(rows["x"].tolist()) == {0, 1, 2}
        np.testing.assert_array_equal(rows["y"][:, 0], 2.0 * rows["x"])
        again = Reservoir(4, rng)
        again.load_state(reservoir.state())
        assert again.state()["head"]["seen"] == {"a": 3, "b": 10}
        np.testing.assert_array_equal(again._columns["b"]["x"], reservoir._columns["b"]["x"])


def rig(num_envs: int = 4, **settings: Any) -> Rig:
    table = make_vector("kuhn_poker", num_envs, env_kwargs={"seat": "all"})
    return Rig("nfsp", table, num_envs=num_envs, **(SMALL | settings))


def test_an_agent_follows_one_policy_through_an_episode() -> None:
    played = rig(num_envs=8, horizon=32)
    played.collector.collect_rollout(played.loop.rollout)
    best, done = played.loop.rollout.extras["best"], played.loop.rollout.terminated
    changed = (best[1:] != best[:-1]).any(-1)
    assert changed.any() and not changed[~done[:-1]].any()
    assert 0.2 < best.mean() < 0.8


def test_only_best_responses_teach() -> None:
    """A rollout in which nobody followed its best response changes nothing and is not kept."""
    played = rig(eta=1e-9)
    before = played.weights()
    played.loop.iterate()
    after = played.weights()
    assert played.algorithm.reservoir.size("player") == 0
    same = {name: np.array_equal(before[name], after[name]) for name in before}
    assert all(same.values()), same


def test_what_best_responses_did_is_remembered() -> None:
    played = rig(eta=1.0)
    played.loop.iterate()
    learner: Any = played.algorithm
    assert learner.reservoir.size("player") == 32  # every step is one decision
    rows = learner.reservoir._columns["player"]
    seats = rows["obs/obs"][:32, :2].argmax(1)
    np.testing.assert_array_equal(seats, rows["obs/agent"][:32])


def test_the_loss_of_the_average_is_the_one_computed_by_hand() -> None:
    learner: Any = rig().algorithm
    crew, net = learner.crews[0], learner.averages[0]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        bias = next(p for p in net[-1].parameters() if p.ndim == 1)
        bias.copy_(torch.tensor([np.log(3.0), 0.0]))  # 3/4 and 1/4
    own = {
        "obs/obs": torch.zeros(3, 11), "obs/agent": torch.zeros(3, dtype=torch.int64),
        "obs/action_mask": torch.tensor([[1, 1], [1, 1], [0, 1]]),
        "action": torch.tensor([0, 1, 1]),
    }  # fmt: skip
    loss, _ = learner._average_loss(crew, net, pack("player", own))
    # The third may only bet: probability 1.
    assert loss.item() == pytest.approx(-(np.log(0.75) + np.log(0.25)) / 3, rel=1e-5)


def test_averages_of_best_responses_leave_less_to_exploit() -> None:
    learner = rig(
        num_envs=64, horizon=32, minibatch_size=512, epochs=4, hidden=(64, 64), gamma=1.0, lr=1e-3,
        eta=0.2, average_batch=256, average_updates=16, env_steps=20_480,
    )  # fmt: skip
    strategy = policy_strategy(KUHN, learner.train().algorithm.policy, sampled=True)
    assert exploitation(KUHN, strategy).exploitability < 0.35  # uniform play: 0.458
