"""MOPO: the contract, the fit that comes first and the penalty by hand, and that it learns."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import assay
from assay.algorithms.shared.imagination import imagine
from assay.core.errors import ConfigError, DataError, SpaceError
from assay.data.files import save
from assay.loops.events import Event, Logged
from assay.testing.algorithms import Case, assert_same_run, make_algorithm
from assay.testing.envs import Reach
from assay.testing.offline import OfflineContract, OfflineRig, record, torn

OBS, BOX = spaces.Box(-9.0, 9.0, (2,), np.float32), spaces.Box(0.0, 4.0, (1,), np.float32)
SMALL = {
    "hidden": (16,), "batch_size": 20, "members": 3, "elites": 2, "model_hidden": (8, 8),
    "model_batch_size": 16, "model_epochs": 2, "rollouts": 12, "rollout_length": 2,
    "rollout_every": 5,
}  # fmt: skip


class TestContract(OfflineContract):
    algorithm = "mopo"
    settings = SMALL
    updates = 60  # the 32 steps of the fit come first

    def cases(self) -> Iterator[Case]:
        """Yield those whose observations are vectors."""
        return (case for case in super().cases() if case.observe == "vector")


def mopo(**settings: Any) -> Any:
    return make_algorithm("mopo", OBS, BOX, **(SMALL | settings))


class TestPenalty:
    @pytest.mark.parametrize("penalty, reward", [(0.0, 3.0), (2.0, 3.0 - 2.0 * 0.5)])
    def test_by_hand(self, penalty: float, reward: float) -> None:
        """Every model says a reward of 3. The least sure one has a std of 0.5, of the change."""
        algorithm = mopo(penalty=penalty)
        dynamics = algorithm.dynamics
        with torch.no_grad():
            dynamics.weights[-1].zero_()
            dynamics.biases[-1].zero_()
            dynamics.biases[-1][..., 0] = 3.0
            dynamics.biases[-1][..., 3:6] = -1000.0
            dynamics.min_log_var.fill_(-200.0)
            dynamics.max_log_var.fill_(50.0)
            dynamics.biases[-1][1, 0, 4] = float(np.log(0.25))
        dynamics.elites.copy_(torch.tensor([0, 2]))  # the one in doubt is none of them
        doubt = imagine(algorithm, torch.zeros(4, 2), 1, penalty)
        assert algorithm.imagined.sample(9).reward.tolist() == pytest.approx([reward] * 9)
        assert doubt == pytest.approx(0.5 if penalty else 0.0, rel=1e-4)

    def test_updates_use_it(self) -> None:
        rig = OfflineRig("mopo", Reach, updates=200, penalty=1.0, **SMALL)
        metrics = rig.learn(200)
        assert metrics["train/model_std"] > 0


class TestOrder:
    def test_the_fit_comes_first_and_once(self) -> None:
        data = record(Reach, episodes=10)  # 120 steps, of which 96 are learned from
        rig = OfflineRig("mopo", Reach, data=data, updates=200, **SMALL)
        algorithm: Any = rig.algorithm
        rig.learn(31)
        assert algorithm.model_step.updates == 31 and algorithm.step.updates == 0
        assert algorithm.fit.is_running and len(algorithm.imagined) == 0
        rig.learn(169)  # two epochs of 16 steps
        assert algorithm.model_step.updates == 32 and algorithm.step.updates == 168
        assert not algorithm.fit.is_running

    @pytest.mark.parametrize("updates", [31, 32, 33])
    def test_a_fit_that_takes_all_updates_is_told(self, updates: int) -> None:
        rig = OfflineRig("mopo", Reach, updates=updates, **SMALL)  # 32 of them are the fit's
        with warnings.catch_warnings(record=True) as told:
            rig.learn(updates)
        found = [str(one.message) for one in told if "model_epochs" in str(one.message)]
        assert len(found) == (updates <= 32)
        assert all(f"took all {updates} updates" in text for text in found)

    def test_rollouts_come_every_so_many_updates(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = OfflineRig("mopo", Reach, updates=200, **SMALL)
        algorithm: Any = rig.algorithm
        seen = []

        def spy(learner: Any, obs: Any, length: int, penalty: float) -> float:
            seen.append((algorithm.step.updates, len(obs), length, penalty))
            return imagine(learner, obs, length, penalty)

        monkeypatch.setattr("assay.algorithms.mopo.imagine", spy)
        rig.learn(32 + 11)
        assert seen == [(0, 12, 2, 1.0), (5, 12, 2, 1.0), (10, 12, 2, 1.0)]


@pytest.mark.parametrize("moment", [20, 44], ids=["while_it_fits", "afterwards"])
def test_a_killed_run_ends_like_the_undisturbed_one(tmp_path: Any, moment: int) -> None:
    path = save(record(Reach, episodes=10), tmp_path / "data.npz")
    options: dict[str, Any] = {
        "data": str(path), "updates": 60, "checkpoint_every": 10, "log_every": 4, "sinks": (),
        "eval_every": 0, "compile": False, "preset": False, "root": tmp_path, **SMALL,
    }  # fmt: skip

    def die(event: Event) -> None:
        if isinstance(event, Logged) and event.clock.count >= moment:
            raise KeyError("the power is out")

    whole = assay.train("mopo", Reach, name="whole", **options)
    with pytest.raises(KeyError, match="power"):
        assay.train("mopo", Reach, name="killed", callbacks=[die], **options)
    killed = assay.resume(tmp_path / "killed", env=Reach)
    assert_same_run(whole.path, killed.path)


class TestRefuses:
    def test_a_set_without_next_observations(self, tmp_path: Any) -> None:
        """Observations and steps as many as each other: what followed the last one is missing."""
        path = save(record(Reach, episodes=2), tmp_path / "set.npz")
        with np.load(path) as held:
            columns = dict(held)
        columns["obs"] = columns["obs"][: len(columns["reward"])]
        np.savez(path, **columns)
        with pytest.raises(DataError, match="last observation of each"):
            assay.train("mopo", Reach, data=str(path), updates=10, root=tmp_path, **SMALL)

    def test_observations_without_a_model(self) -> None:
        with pytest.raises(SpaceError, match="mopo models observations that are vectors"):
            make_algorithm("mopo", spaces.Discrete(3), BOX, **SMALL)

    def test_ends_that_nobody_knows(self) -> None:
        with pytest.raises(ConfigError, match="termination=known"):
            OfflineRig("mopo", Reach, termination="known", **SMALL)


QUICK = {
    "gamma": 0.9, "hidden": (32,), "batch_size": 64, "lr": 0.003, "tau": 0.05, "members": 4,
    "elites": 3, "model_hidden": (32, 32), "model_batch_size": 64, "model_epochs": 30,
    "rollouts": 1000, "rollout_length": 2, "rollout_every": 250, "updates": 1200,
}  # fmt: skip


class TestLearns:
    def test_better_than_what_was_done(self) -> None:
        """The best policy gets -1.2, standing still (the mean of the data) -8.8."""
        data = record(Reach, behaviour=torn, episodes=60)
        assert OfflineRig("mopo", Reach, data=data, real_ratio=0.0, **QUICK).train().score() > -3
