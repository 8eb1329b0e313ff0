"""BC: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import BOX, STATES, put
from gymnasium import spaces

import assay
from assay.core.errors import ConfigError, DataError
from assay.core.types import tree_map
from assay.data.collect import from_episodes
from assay.data.dataset import Dataset, Episode
from assay.data.files import save
from assay.testing.algorithms import CannedReplay, Case, make_algorithm, make_batch
from assay.testing.envs import Identity
from assay.testing.offline import OfflineContract, OfflineRig, record

SMALL = {"hidden": (16,), "batch_size": 8}


class TestContract(OfflineContract):
    algorithm = "bc"
    settings = SMALL


def compared(data: Dataset, length: int = 4) -> Dataset:
    """Return pairs of beginnings of episodes, compared by their rewards."""
    made = []
    episodes = [one for one in data.episodes() if one.steps >= length]
    for left, right in zip(episodes[::2], episodes[1::2], strict=False):
        sums = [one.reward[:length].sum() for one in (left, right)]
        for one, own, other in ((left, *sums), (right, *sums[::-1])):
            worth = 0.5 if own == other else float(own > other)
            made.append(
                Episode(
                    tree_map(lambda part: part[: length + 1], one.obs),
                    one.action[:length],
                    one.reward[:length],
                    np.zeros(length, bool),
                    np.arange(length) == length - 1,
                    {"preferred": np.full(length, worth, np.float32)},
                )
            )
    return from_episodes(made, data.schema.observation, data.schema.action)


class PairRig(OfflineRig):
    def __init__(self, algorithm: str, env: Any, data: Dataset | None = None, **more: Any) -> None:
        super().__init__(algorithm, env, data=data or compared(record(env)), **more)


class TestContractOfPairs(OfflineContract):
    algorithm = "bc"
    settings = SMALL | {"contrast": 0.5, "clone_first": 0.01}
    make_rig = PairRig

    def cases(self) -> Iterator[Case]:
        chosen = ("discrete", "box", "sees_dict_masked")  # pairs know nothing of spaces
        yield from (case for case in super().cases() if case.name in chosen)

    def record(self, factory: Any) -> Dataset:
        return compared(record(factory))


class TestLoss:
    def test_box_by_hand(self) -> None:
        algorithm = make_algorithm("bc", STATES, BOX, hidden=())
        put(algorithm.net[1][0].weight, [0.0, math.log(3)])
        put(algorithm.net[1][0].bias, [0.0])
        batch = make_batch(
            obs=[0, 1, 1], action=[[3.0], [4.0], [2.0]], reward=[0.0] * 3, next_obs=[0, 0, 0]
        )
        loss, _ = algorithm._loss(algorithm.replay_tensors(batch))
        # Unit actions 1/2, 1, 0; the policy says 0, tanh(log 3) = 0.8, 0.8: 0.25 + 0.04 + 0.64
        assert loss.item() == pytest.approx(0.93 / 3)

    def test_a_table_of_actions_is_compared_part_by_part(self) -> None:
        space = spaces.Box(-1.0, 1.0, (2, 2), np.float32)
        algorithm = make_algorithm("bc", STATES, space, hidden=())
        for parameter in algorithm.net.parameters():
            put(parameter, np.zeros(parameter.shape, np.float32))
        table = [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, -1.0]]]
        batch = make_batch(obs=[0, 1], action=table, reward=[0.0, 0.0], next_obs=[0, 0])
        loss, _ = algorithm._loss(algorithm.replay_tensors(batch))
        assert loss.item() == pytest.approx(2 / 8)

    def test_discrete_by_hand(self) -> None:
        algorithm = make_algorithm("bc", STATES, spaces.Discrete(2), hidden=())
        put(algorithm.net[1][0].weight, [[0.0, math.log(3)], [0.0, 0.0]])  # [action, state]
        put(algorithm.net[1][0].bias, [0.0, 0.0])
        batch = make_batch(obs=[0, 1, 1], action=[1, 0, 1], reward=[0.0] * 3, next_obs=[0, 0, 0])
        loss, _ = algorithm._discrete_loss(algorithm.replay_tensors(batch))
        # State 0: 1/2 each; state 1: 3/4 and 1/4
        assert loss.item() == pytest.approx(-math.log(0.5 * 0.75 * 0.25) / 3)

    def test_masked_actions_take_no_probability(self) -> None:
        seen = spaces.Dict({"obs": STATES, "action_mask": spaces.MultiBinary(3)})
        algorithm = make_algorithm("bc", seen, spaces.Discrete(3), hidden=())
        for parameter in algorithm.net.parameters():
            put(parameter, np.zeros(parameter.shape, np.float32))
        obs = {"obs": [0, 1], "action_mask": [[1, 1, 0], [1, 1, 1]]}
        batch = make_batch(obs=obs, action=[0, 0], reward=[0.0, 0.0], next_obs=obs)
        loss, _ = algorithm._discrete_loss(algorithm.replay_tensors(batch))
        assert loss.item() == pytest.approx((math.log(2) + math.log(3)) / 2)

    def test_rewards_are_not_read(self) -> None:
        weights = []
        for reward in (0.0, 100.0):
            algorithm = make_algorithm("bc", STATES, BOX, hidden=(), batch_size=2)
            batch = make_batch(
                obs=[0, 1], action=[[3.0], [4.0]], reward=[reward] * 2, next_obs=[0, 0]
            )
            algorithm.update(CannedReplay(batch))
            weights.append(algorithm.net[1][0].weight.tolist())
        assert weights[0] == weights[1]


class TestContrast:
    """Two pairs of segments of two steps; logits 0, 0 in state 0, and log 3, 0 in state 1."""

    OBS, ACTION = [0, 1, 0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0]

    def loss(self, action: Any, weights: Any, actions: Any, cloning: float, **more: Any) -> Any:
        algorithm = make_algorithm("bc", STATES, action, hidden=(), contrast=2.0, **more)
        put(algorithm.net[1][0].weight, weights)
        put(algorithm.net[1][0].bias, [0.0] * len(algorithm.net[1][0].bias))
        batch = make_batch(obs=self.OBS, action=actions, reward=[0.0] * 8, next_obs=[0] * 8)
        tensors = algorithm.replay_tensors(batch)
        tensors |= {"preferred": torch.tensor([1.0, 0.0]), "cloning": torch.tensor(cloning)}
        return algorithm._contrast_loss(tensors)

    def test_discrete_by_hand(self) -> None:
        weights = [[0.0, math.log(3)], [0.0, 0.0]]
        loss, metrics = self.loss(spaces.Discrete(2), weights, self.ACTION, 0.0, contrast_bias=0.5)
        # Sums of 2 log pi. First pair, left preferred: 2 log(1/2 * 3/4) and 2 log(1/2 * 1/4).
        # Second pair, right preferred: 2 log(1/4 * 1/4) and 2 log(1/2 * 1/2).
        first = 2 * math.log(3 / 8) - 0.5 * 2 * math.log(1 / 8)
        second = 2 * math.log(1 / 4) - 0.5 * 2 * math.log(1 / 16)
        by_hand = sum(math.log1p(math.exp(-one)) for one in (first, second)) / 2
        assert loss.item() == pytest.approx(by_hand)
        assert metrics["pair_accuracy"].item() == 1.0
        cloned, _ = self.loss(spaces.Discrete(2), weights, self.ACTION, 1.0)
        steps = [1 / 2, 3 / 4, 1 / 2, 1 / 4, 1 / 4, 1 / 4, 1 / 2, 1 / 2]
        assert cloned.item() == pytest.approx(-sum(math.log(one) for one in steps) / 8)

    def test_box_by_hand(self) -> None:
        # The policy says 0 in state 0 and 0.8 in state 1; actions 2 and 4 are 0 and 1 of the unit.
        actions = [[2.0], [4.0], [2.0], [2.0], [4.0], [4.0], [2.0], [2.0]]
        loss, metrics = self.loss(BOX, [0.0, math.log(3)], actions, 0.0, contrast_bias=1.0)
        # First: -2 * 0.04 and -2 * 0.64, left preferred; second: -2 * 0.08 and 0, right preferred.
        first, second = -0.08 + 1.28, 0.0 + 0.16
        by_hand = sum(math.log1p(math.exp(-one)) for one in (first, second)) / 2
        assert loss.item() == pytest.approx(by_hand, rel=1e-5)
        assert metrics["pair_accuracy"].item() == 1.0

    def test_cloning_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        env = partial(Identity, spaces.Discrete(4))
        rig = PairRig("bc", env, updates=10, contrast=1.0, clone_first=0.35, **SMALL)
        kind, seen = type(rig.algorithm.step), []
        original = kind.__call__

        def spy(step: Any, batch: Any, *more: Any) -> Any:
            seen.append(float(batch["cloning"]))
            return original(step, batch, *more)

        monkeypatch.setattr(kind, "__call__", spy)
        rig.train()
        assert seen == [1.0] * 4 + [0.0] * 6

    @pytest.mark.parametrize("fault", ["extra", "lengths", "odd"])
    def test_data_without_pairs_is_refused(self, fault: str) -> None:
        env = partial(Identity, spaces.Discrete(4))
        data = record(env, episodes=5)
        if fault != "extra":
            whole = list(compared(data).episodes())
            if fault == "odd":
                whole = whole[:3]
            else:
                whole[0] = replace(
                    whole[0], **{n: getattr(whole[0], n)[1:] for n in whole[0].__slots__[:-1]},
                    extras={"preferred": np.ones(3, np.float32)},
                )  # fmt: skip
            data = from_episodes(whole, data.schema.observation, data.schema.action)
        with pytest.raises(DataError, match="does not hold pairs"):
            OfflineRig("bc", env, data=data, contrast=1.0, **SMALL)

    def test_an_environment_beside_the_pairs_is_refused(self, tmp_path: Path) -> None:
        data = save(compared(record("CartPole-v1", episodes=4)), tmp_path / "pairs.npz")
        with pytest.raises(ConfigError, match="env_steps=8: compared pairs"):
            assay.train(
                "bc", "CartPole-v1", data=str(data), contrast=1.0, updates=4, env_steps=8,
                root=tmp_path, device="cpu",
            )  # fmt: skip

    def test_settings_of_pairs_are_refused_without_them(self) -> None:
        with pytest.raises(ConfigError, match=r"contrast_bias=0\.7 has no effect with contrast=0"):
            make_algorithm("bc", STATES, BOX, contrast_bias=0.7)


def test_a_discount_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gamma=0.5 has no effect because bc reads no rewards"):
        make_algorithm("bc", STATES, BOX, gamma=0.5)


class TestLearns:
    @pytest.mark.parametrize(
        "space", [spaces.Discrete(4), spaces.Box(-3.0, 1.0, (2,), np.float32)], ids=str
    )
    def test_what_was_done(self, space: Any) -> None:
        env = partial(Identity, space)
        answers = np.array(env().answers)
        data = record(env, behaviour=lambda obs, rng: answers[obs.argmax(1)])
        rig = OfflineRig("bc", env, data=data, updates=300, lr=0.01, hidden=(16,), batch_size=32)
        # Eight steps, each worth 1 at best; always the same action gives 2 (Box: 5.3).
        assert rig.train().score() > 7.5

    @pytest.mark.parametrize(
        "space", [spaces.Discrete(4), spaces.Box(-3.0, 1.0, (2,), np.float32)], ids=str
    )
    def test_what_was_preferred(self, space: Any) -> None:
        env = partial(Identity, space)
        data = compared(record(env, episodes=400), length=2)
        rig = OfflineRig(
            "bc", env, data=data, updates=300, lr=0.01, hidden=(16,), batch_size=128,
            contrast=1.0, clone_first=0.1,
        )  # fmt: skip
        # Actions are uniform, so that their mean is worth 2 (Box: 5.3), as cloning them is.
        assert rig.train().score() > 7.0
