"""MBPO: the contract, the model's fit and rollouts by hand, and that it learns in its model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import assay
from assay.algorithms.shared.imagination import imagine, largest_std, mixed_batch
from assay.algorithms.shared.model_fit import MOST_HELD_OUT, EnsembleFit, ModelData, model_data
from assay.cli import main
from assay.core.errors import ConfigError, SpaceError
from assay.networks.dynamics import Prediction
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Case,
    Rig,
    make_algorithm,
    make_batch,
)
from assay.testing.envs import Reach

OBS, BOX = spaces.Box(-9.0, 9.0, (2,), np.float32), spaces.Box(0.0, 4.0, (1,), np.float32)
MODEL = {
    "members": 3, "elites": 2, "model_hidden": (8, 8), "model_batch_size": 8, "model_epochs": 2,
    "rollouts": 12,
}  # fmt: skip
SMALL = MODEL | {
    "hidden": (16,), "batch_size": 20, "learning_starts": 8, "updates": 2, "model_every": 16,
    "rollout_length": "linear:1:3",
}  # fmt: skip


class TestContract(AlgorithmContract):
    algorithm = "mbpo"
    settings = SMALL
    updates = 60  # the steps of the first fit come first

    def cases(self) -> Iterator[Case]:
        """Yield those whose observations are vectors."""
        return (case for case in super().cases() if case.observe == "vector")


def mbpo(**settings: Any) -> Any:
    return make_algorithm("mbpo", OBS, BOX, **(SMALL | settings))


def certain(algorithm: Any, change: list[float], reward: float, end: float = -1.0) -> None:
    """Let every model predict the same whatever it is asked, with no doubt."""
    dynamics = algorithm.dynamics
    with torch.no_grad():
        dynamics.weights[-1].zero_()
        dynamics.min_log_var.fill_(-200.0)
        row = [reward, *change, *[-1000.0] * 3, end]
        dynamics.biases[-1].copy_(torch.tensor(row).expand_as(dynamics.biases[-1]))


class TestRollouts:
    def test_by_hand(self) -> None:
        """The reward is 2, and a step adds (1, -1): the rows are chains from the two starts."""
        algorithm = mbpo()
        certain(algorithm, [1.0, -1.0], 2.0)
        imagine(algorithm, torch.tensor([[0.0, 0.0], [10.0, 10.0]]), 3)
        drawn = algorithm.imagined.sample(300)
        assert len(algorithm.imagined) == 6
        assert set(map(tuple, drawn.obs.round().tolist())) == {
            (0, 0), (1, -1), (2, -2), (10, 10), (11, 9), (12, 8),
        }  # fmt: skip
        torch.testing.assert_close(drawn.next_obs - drawn.obs, torch.tensor([[1.0, -1.0]] * 300))
        assert drawn.reward.tolist() == pytest.approx([2.0] * 300)
        assert not drawn.terminated.any() and not drawn.truncated.any()
        assert drawn.action.min() >= 0.0 and drawn.action.max() <= 4.0  # the environment's units
        assert drawn.action.unique().numel() > 3

    def test_they_stop_after_an_end_by_the_rule(self) -> None:
        algorithm = mbpo()
        certain(algorithm, [1.0, 0.0], 0.0, end=100.0)  # the rule counts, not what is learned
        algorithm.rule = lambda obs: obs[:, 0] >= 2.0
        imagine(algorithm, torch.tensor([[0.0, 0.0], [1.0, 0.0], [-5.0, 0.0]]), 4)
        drawn = algorithm.imagined.sample(400)
        ended = set(map(tuple, drawn.obs[drawn.terminated > 0].round().tolist()))
        assert len(algorithm.imagined) == 2 + 1 + 4
        assert ended == {(1.0, 0.0)}

    @pytest.mark.parametrize("end, rows", [(0.1, 2), (-0.1, 6)])
    def test_they_stop_where_an_end_was_learned(self, end: float, rows: int) -> None:
        algorithm = mbpo()
        certain(algorithm, [1.0, 0.0], 0.0, end=end)
        imagine(algorithm, torch.zeros(2, 2), 3)
        assert len(algorithm.imagined) == rows
        assert algorithm.imagined.sample(9).terminated.tolist() == [float(end > 0)] * 9

    def test_what_is_not_finite_is_no_experience(self) -> None:
        algorithm = mbpo()
        certain(algorithm, [float("inf"), 0.0], 0.0)
        imagine(algorithm, torch.zeros(2, 2), 3)
        assert len(algorithm.imagined) == 0

    def test_noise_has_the_models_variance(self) -> None:
        algorithm = mbpo(rollouts=5000)
        certain(algorithm, [1.0, 0.0], 0.0)
        with torch.no_grad():
            algorithm.dynamics.biases[-1][..., 4] = float(np.log(0.25))  # of the first change
            algorithm.dynamics.max_log_var.fill_(50.0)
        imagine(algorithm, torch.zeros(5000, 2), 1)
        change = algorithm.imagined.sample(5000).next_obs[:, 0]
        assert change.mean().item() == pytest.approx(1.0, abs=0.05)
        assert change.std().item() == pytest.approx(0.5, abs=0.05)

    def test_only_elites_predict_and_all_of_them(self) -> None:
        algorithm = mbpo()
        certain(algorithm, [0.0, 0.0], 0.0)
        with torch.no_grad():
            for member in range(3):
                algorithm.dynamics.biases[-1][member, 0, 0] = float(member)
        algorithm.dynamics.elites.copy_(torch.tensor([2, 0]))
        imagine(algorithm, torch.zeros(12, 2), 1)
        reward = algorithm.imagined.sample(200).reward.round()
        assert set(reward.tolist()) == {0.0, 2.0}

    def test_largest_std_by_hand(self) -> None:
        # Member 0: variances 9 and 16, a norm of 5; member 1: 1 and 0 (log -inf), a norm of 1.
        log_var = torch.tensor([[[9.0, 16.0]], [[1.0, 0.0]]]).log()
        found = Prediction(torch.zeros(2, 1, 2), log_var, torch.zeros(2, 1))
        assert largest_std(found).tolist() == pytest.approx([5.0])


class TestSchedules:
    def test_length_is_rounded_down_and_at_least_1(self) -> None:
        hp = mbpo(rollout_length="linear:0:4").hp
        assert [hp.length(p) for p in (0.0, 0.3, 0.5, 0.74, 1.0)] == [1, 1, 2, 2, 4]
        assert hp.longest == 4

    def test_fits_and_rollouts_come_every_so_many_steps(self) -> None:
        rig = Rig("mbpo", Reach, num_envs=1, env_steps=80, **(SMALL | {"model_every": 10}))
        moments = []
        begin = rig.algorithm.fit.begin

        def spy(data: ModelData, **options: Any) -> None:
            moments.append((options["at"], len(data.inputs)))
            begin(data, **options)

        rig.algorithm.fit.begin = spy  # type: ignore[attr-defined]
        rig.train(45)
        # Learning starts after 8 steps, in the one that the clock calls 8: 9 transitions are there.
        assert moments == [(8, 9), (18, 19), (28, 29), (38, 39)]
        assert rig.algorithm.step.updates == 2 * (45 - 8)

    def test_rollouts_of_the_last_fits_are_kept(self) -> None:
        rig = Rig(
            "mbpo", Reach, num_envs=1, env_steps=100,
            **(SMALL | {"rollout_length": "linear:0:4", "model_retain": 2}),
        ).train(30)  # fmt: skip
        assert rig.algorithm.imagined.capacity == 12 * 4 * 2
        assert rig.algorithm.imagined.keep == 12 * 1 * 2

    @pytest.mark.parametrize("ratio, real", [(0.0, 0), (0.26, 5), (1.0, 20)])
    def test_a_batch_has_its_share_of_real_transitions(self, ratio: float, real: int) -> None:
        algorithm = mbpo(real_ratio=ratio)
        certain(algorithm, [0.0, 0.0], 5.0)
        imagine(algorithm, torch.zeros(4, 2), 1)
        rows = {"obs": [[1.0, 1.0]] * 20, "next_obs": [[1.0, 1.0]] * 20, "action": [[1.0]] * 20}
        canned = CannedReplay(make_batch(**rows, reward=[-7.0] * 20, discount=[0.9] * 20))
        batch = mixed_batch(algorithm, canned)
        assert batch.reward.tolist() == pytest.approx([5.0] * (20 - real) + [-7.0] * real)
        assert len(canned.calls) == (real > 0)


class TestFit:
    def fit(self, errors: list[list[float]] | None = None, **settings: Any) -> EnsembleFit:
        """Return a fit of three models to 30 transitions, if given with these held-out errors."""
        algorithm = mbpo(**({"model_epochs": 50} | settings))
        fit: EnsembleFit = algorithm.fit
        if errors is not None:
            script = iter(errors)
            fit.dynamics.errors = lambda *a: torch.tensor(next(script))  # type: ignore
        torch.manual_seed(0)
        inputs = torch.randn(30, 3)
        rows = ModelData(inputs, inputs.square(), torch.zeros(30))
        fit.begin(rows, seed=3, at=0, learn_ends=False)
        return fit

    def finish(self, fit: EnsembleFit) -> EnsembleFit:
        while fit.is_running:
            fit.advance([1e-3])
        return fit

    def test_it_ends_when_no_member_got_better_for_long(self) -> None:
        """An error that falls by less than 1 % is no better; one better member is enough."""
        fallen = [[1.0, 1.0, 1.0], [0.995, 1.0, 2.0], [1.0, 1.0, 0.5], *[[0.9901, 1.0, 0.5]] * 3]
        assert self.finish(self.fit(fallen, model_patience=2)).epochs == 6

    def test_members_go_back_to_their_best_epoch(self) -> None:
        fit = self.fit([[1.0, 1.0, 1.0], [2.0, 0.5, 2.0], *[[2.0] * 3] * 2], model_patience=1)
        seen = []
        while fit.is_running:
            epochs = fit.epochs
            before = fit.dynamics.weights[0].detach().clone()
            fit.advance([1e-3])
            if fit.epochs > epochs and fit.is_running:
                seen.append(fit.dynamics.weights[0].detach().clone())
        found = fit.dynamics.weights[0]
        assert torch.equal(found[0], seen[0][0]) and torch.equal(found[2], seen[0][2])
        assert torch.equal(found[1], seen[1][1])
        assert not torch.equal(found, before)

    def test_elites_are_the_best_on_what_was_held_out(self) -> None:
        fit = self.finish(self.fit([[0.7, 0.3, 0.5]] * 9, model_patience=0))
        assert fit.dynamics.elites.tolist() == [1, 2]
        assert fit.error == pytest.approx(0.4)

    def test_it_ends_after_the_most_epochs(self) -> None:
        fit = self.fit([[1 / n] * 3 for n in range(1, 9)], model_epochs=4)
        assert self.finish(fit).epochs == 4

    def test_what_is_held_out_is_not_learned(self) -> None:
        fit = self.fit(model_holdout=0.2)
        learned, held = fit._learned, fit._held_out
        assert learned is not None and held is not None
        assert len(held.inputs) == 6 and len(learned.inputs) == 24
        rows = torch.cat([learned.inputs, held.inputs])
        assert len(rows.unique(dim=0)) == 30
        torch.testing.assert_close(fit.dynamics.input_mean, learned.inputs.mean(0))
        assert MOST_HELD_OUT == 5000

    def test_members_have_bootstrap_samples_of_their_own(self) -> None:
        fit = self.fit()
        first = np.sort(fit._order, axis=1)
        assert first.shape == (3, 24) and (first[0] != first[1]).any()
        assert len(np.unique(first[0])) < 24
        order, fit.epochs = fit._order.copy(), 1
        fit._deal()
        assert (fit._order != order).any()
        np.testing.assert_array_equal(np.sort(fit._order, axis=1), first)

    def test_it_learns(self) -> None:
        fit = self.fit(model_patience=5, model_hidden=(32, 32))
        start = fit.dynamics.errors(*fit._held_out, torch.tensor(0.0)).mean().item()  # type: ignore
        assert self.finish(fit).error < 0.5 * start

    def test_a_single_transition_is_enough(self) -> None:
        fit: EnsembleFit = mbpo().fit
        one = ModelData(torch.zeros(1, 3), torch.ones(1, 3), torch.zeros(1))
        fit.begin(one, seed=0, at=0, learn_ends=True)
        assert np.isfinite(self.finish(fit).error)

    def test_truncation_is_no_end(self) -> None:
        batch = make_batch(
            obs=[[1.0, 2.0]] * 3, action=[[3.0]] * 3, reward=[5.0] * 3, next_obs=[[0.0, 4.0]] * 3,
            terminated=[0, 1, 0], truncated=[1, 0, 0], discount=[1.0] * 3,
        )  # fmt: skip
        rows = model_data(mbpo().actor.scale, batch, torch.device("cpu"))
        assert rows.ended.tolist() == [0.0, 1.0, 0.0]
        assert rows.inputs[0].tolist() == [1.0, 2.0, 0.5]  # 3 of [0, 4] is 0.5 of [-1, 1]
        assert rows.targets[0].tolist() == [5.0, -1.0, 2.0]


class TestEnds:
    """Whether the environment's rule or the model says how episodes end."""

    @pytest.mark.parametrize("how, known", [("auto", True), ("known", True), ("learned", False)])
    def test_rule_of_the_environment(self, how: str, known: bool) -> None:
        rig = Rig("mbpo", "Pendulum-v1", num_envs=1, **SMALL, termination=how)
        assert (rig.algorithm.rule is not None) == known  # type: ignore[attr-defined]

    def test_unknown_rule_is_learned_or_refused(self) -> None:
        rig = Rig("mbpo", Reach, num_envs=1, **SMALL)
        assert rig.algorithm.rule is None  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="termination=known"):
            Rig("mbpo", Reach, num_envs=1, **SMALL, termination="known")

    def test_exit_code_and_one_clear_message(
        self,
        tmp_path: Any,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        arguments = ["train", "mbpo", "BipedalWalker-v3", "termination=known", "env_steps=2000"]
        pytest.importorskip("Box2D")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert "termination=known" in said and "terminates(obs)" in said
        assert "Traceback" not in said

    def test_ends_are_learned(self) -> None:
        """An end that follows from state and action is predicted after a fit."""
        algorithm = mbpo(model_hidden=(32, 32), model_epochs=60, model_batch_size=64)
        torch.manual_seed(1)
        inputs = torch.randn(600, 3)
        ended = (inputs[:, 0] + inputs[:, 2] > 1.0).float()
        rows = ModelData(inputs, torch.zeros(600, 3), ended)
        algorithm.fit.begin(rows, seed=0, at=0, learn_ends=True)
        while algorithm.fit.is_running:
            algorithm.fit.advance([3e-3])
        found = algorithm.dynamics.all_members(inputs).end > 0
        assert (found == ended.bool()).float().mean() > 0.95


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(3), spaces.Box(0, 255, (3, 8, 8), np.uint8), spaces.Box(-1, 1, (2, 2))],
)
def test_observations_without_a_model_are_refused(space: Any) -> None:
    with pytest.raises(SpaceError, match="vectors of floats"):
        make_algorithm("mbpo", space, BOX, **SMALL)


def test_more_elites_than_members_are_refused() -> None:
    with pytest.raises(ConfigError, match="elites=4 is more than members=3"):
        mbpo(elites=4)


class TestCheckpoints:
    def test_what_was_imagined_is_in_sections_that_acting_does_not_read(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = assay.train(
            "mbpo", Reach, env_steps=60, num_envs=1, root=tmp_path, name="r", sinks=(),
            eval_every=0, checkpoint_every=20, keep_checkpoints=2, compile=False, **SMALL,
        )  # fmt: skip
        places = checkpoint.list_checkpoints(RunDirectory.open(run.path).checkpoints_path)
        manifest = checkpoint.read_manifest(places[-1])["sections"]
        assert {"algorithm-imagined-head", "algorithm-imagined-00000"} <= manifest.keys()
        assert "imagined" not in checkpoint.read_checkpoint(places[-1])["normalisers"]
        for file in places[-1].glob("algorithm-imagined-*"):
            file.unlink()  # whoever acts does not miss them
        agent = assay.load(run.path)
        assert agent.act(np.zeros(2, np.float32)).shape == (1,)


QUICK = {
    "gamma": 0.9, "hidden": (32,), "batch_size": 64, "lr": 0.003, "tau": 0.05,
    "learning_starts": 60, "env_steps": 200, "num_envs": 1, "updates": 4, "members": 4,
    "elites": 3, "model_hidden": (32, 32), "rollouts": 500, "model_every": 50, "model_epochs": 30,
}  # fmt: skip


class TestLearns:
    def test_in_its_model_alone(self) -> None:
        """Not one real transition is in a batch. The best policy gets -1.2.

        With a model that predicts the opposite change the score is below -5.
        """
        assert Rig("mbpo", Reach, real_ratio=0.0, **QUICK).train().score() > -3
