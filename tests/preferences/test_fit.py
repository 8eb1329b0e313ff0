"""Fitting a reward: does it find the one behind the answers, and can it be stopped?"""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from preference_samples import ACTION, OBS, answered, linear

import assay
from assay.core.errors import CheckpointError, ConfigError, DataError, SpaceError
from assay.experts.reward_model import FILE, FitSettings, RewardModel
from assay.preferences.files import PreferenceSet
from assay.preferences.fit import doubts, fit

SMALL = FitSettings(hidden=(16,), members=2, epochs=40, lr=1e-2)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> PreferenceSet:
    return answered(tmp_path_factory.mktemp("set"), pairs=200)


@pytest.fixture(scope="module")
def model(found: PreferenceSet, tmp_path_factory: pytest.TempPathFactory) -> RewardModel:
    return fit(found, tmp_path_factory.mktemp("model"), SMALL)


class TestFit:
    def test_it_finds_the_reward_behind_the_answers(self, model: RewardModel) -> None:
        quality = model.facts["quality"]
        assert quality["answers"] == 30 and quality["accuracy"] > 0.85
        assert quality["calibration_error"] < 0.2
        assert sum(row[2] for row in quality["calibration"]) == 30
        rng = np.random.default_rng(0)
        obs, action = rng.uniform(-1, 1, (500, 2)), rng.uniform(-1, 1, (500, 1))
        said = [model(o, a) for o, a in zip(obs.astype("f"), action.astype("f"), strict=True)]
        assert np.corrcoef(said, obs[:, 0] - action[:, 0])[0, 1] > 0.8

    def test_wrong_answers_give_the_opposite(self, tmp_path: Path) -> None:
        wrong = fit(answered(tmp_path / "set", pairs=200, noise=1.0), tmp_path / "model", SMALL)
        up = wrong(np.array([1, 0], "f"), np.array([-1], "f"))
        assert up < wrong(np.array([-1, 0], "f"), np.array([1], "f"))

    def test_it_is_on_the_disk_with_where_it_came_from(
        self, model: RewardModel, found: PreferenceSet
    ) -> None:
        again = assay.learned_reward(model.name)
        obs, action = torch.rand(5, 2), torch.rand(5, 1)
        assert torch.equal(again.rewards(obs, action), model.rewards(obs, action))
        assert isinstance(again, RewardModel) and again.identity == model.identity
        facts = again.facts
        assert facts["set_sha256"] == found.digest() and facts["comparisons"] == 170
        assert facts["provenance"]["files"]["preferences"]["sha256"] == found.digest()

    def test_a_fit_that_was_killed_goes_on_and_ends_the_same(
        self, model: RewardModel, found: PreferenceSet, tmp_path: Path
    ) -> None:
        fitted: list[str] = []

        def die(text: str) -> None:
            fitted.append(text)
            if "2 of 2" in text:
                raise KeyError("the power is out")

        with pytest.raises(KeyError):
            fit(found, tmp_path, SMALL, tell=die)
        assert not (tmp_path / FILE).exists()
        again = fit(found, tmp_path, SMALL, tell=fitted.append)
        assert [text[:8] for text in fitted] == ["Member 1", "Member 2", "Member 2"]
        assert again.identity == model.identity
        fit(found, tmp_path, SMALL, tell=fitted.append)
        assert "fitted to these answers already" in fitted[-1]

    def test_ties_count_and_what_nobody_could_tell_does_not(self, tmp_path: Path) -> None:
        found = answered(tmp_path / "set", pairs=20, equal=1e9)
        side = next(id for id, pair in found.pairs().items() if not pair.held_out)
        found.add_labels([(side, "left", "oracle")])
        made = fit(found, tmp_path / "ties", FitSettings(members=1, hidden=(4,), epochs=1))
        assert made.facts["comparisons"] == 17 and made.facts["quality"] is None
        found.add_labels((pair, "unsure", "oracle") for pair in found.pairs())
        with pytest.raises(DataError, match="no answers to fit a reward to"):
            fit(found, tmp_path / "none", SMALL)

    def test_an_annotator_can_be_left_out(self, tmp_path: Path) -> None:
        found = answered(tmp_path / "set", pairs=20)
        found.add_labels((pair, "left", "lefty") for pair in found.pairs())
        settings = FitSettings(members=1, hidden=(4,), epochs=1)
        both = fit(found, tmp_path / "both", settings)
        one = fit(found, tmp_path / "one", settings, without=["lefty"])
        assert (both.facts["comparisons"], one.facts["comparisons"]) == (34, 17)
        with pytest.raises(DataError, match="Nobody called 'righty'"):
            fit(found, tmp_path / "two", settings, without=["righty"])


class TestBounds:
    def far(self, bound: str, scale: float = 1.0) -> float:
        model = linear(OBS, ACTION, ([100.0, 0.0, 0.0], 0.0), bound=bound)
        model.ensemble.scale.fill_(scale)
        return model(np.array([2.0, 0.0], "f"), np.zeros(1, "f"))

    def test_they_hold_where_nothing_was_seen(self) -> None:
        assert self.far("none") == pytest.approx(200.0)
        assert self.far("tanh") == pytest.approx(1.0)
        assert self.far("clip", scale=10.0) == pytest.approx(5.0)  # 20 deviations
        assert self.far("running", scale=10.0) == pytest.approx(20.0)  # a run goes on from here

    def test_members_are_standardised_before_their_mean(self) -> None:
        model = linear(OBS, ACTION, ([1.0, 0.0, 0.0], 0.0), ([100.0, 0.0, 0.0], 7.0), bound="clip")
        model.ensemble.mean.copy_(torch.tensor([[0.0], [7.0]]))
        model.ensemble.scale.copy_(torch.tensor([[1.0], [100.0]]))
        assert model(np.array([0.5, 0.0], "f"), np.zeros(1, "f")) == pytest.approx(0.5)

    def test_the_data_of_the_fit_is_what_it_is_standardised_by(
        self, found: PreferenceSet, tmp_path: Path
    ) -> None:
        settings = FitSettings(members=2, hidden=(8,), epochs=2, bound="running")
        model = fit(found, tmp_path, settings)
        batch = found.batches[0].dataset
        obs = np.concatenate([batch.episode(n).obs[:-1] for n in range(batch.num_episodes)])
        action = np.concatenate([batch.episode(n).action for n in range(batch.num_episodes)])
        said = model.rewards(torch.from_numpy(obs), torch.from_numpy(action)).numpy()
        assert abs(said.mean()) < 0.4 and 0.5 < said.std() < 1.5
        assert 100 < model.running <= len(obs)


class TestFiles:
    def test_altered_weights_and_other_files_are_refused(self, tmp_path: Path) -> None:
        model = linear(OBS, ACTION, ([1.0, 0.0, 0.0], 0.0))
        model.save(tmp_path / "a", {})
        data = (tmp_path / "a" / "model.safetensors").read_bytes()
        (tmp_path / "a" / "model.safetensors").write_bytes(data[:-1] + b"x")
        with pytest.raises(CheckpointError, match="its SHA-256 is"):
            assay.learned_reward(tmp_path / "a")
        (tmp_path / "a" / FILE).write_text('{"format": "other"}')
        with pytest.raises(ConfigError, match="does not describe a reward model"):
            assay.learned_reward(tmp_path / "a")
        with pytest.raises(ConfigError, match="neither a reward model nor a run"):
            assay.learned_reward(tmp_path / "b")

    def test_it_wraps_an_environment_with_its_spaces(self) -> None:
        env = gym.make("Pendulum-v1")
        model = linear(env.observation_space, env.action_space, ([1.0, 0.0, 0.0, 0.0], 0.25))
        wrapped = model.wrap(env)
        obs, _ = wrapped.reset(seed=3)
        _, reward, _, _, info = wrapped.step(np.zeros(1, "f"))
        assert reward == pytest.approx(obs[0] + 0.25, abs=1e-5) and info["env_reward"] < 0
        with pytest.raises(SpaceError, match="same observations and actions"):
            model.wrap(gym.make("Acrobot-v1"))


@pytest.mark.parametrize(
    ("answers", "accuracy", "log_loss", "words"),
    [
        (9, 3 / 9, 0.6, ["3 of 9 held-out answers right is no better than chance"]),
        (9, 8 / 9, 0.6, []),  # by chance in 2 % of cases
        (8, 6 / 8, 0.6, ["6 of 8"]),  # in 14 %
        (40, 0.9, 2.7, ["log loss of 2.70 is worse than a coin's 0.69"]),
        (4, 0.5, 0.9, ["2 of 4", "0.90"]),
    ],
)
def test_held_out_answers_that_do_not_speak_for_it(
    answers: int, accuracy: float, log_loss: float, words: list[str]
) -> None:
    found = doubts({"answers": answers, "accuracy": accuracy, "log_loss": log_loss})
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def test_a_fit_without_held_out_answers_is_in_doubt() -> None:
    assert doubts(None)[0].startswith("No answers were held out, so that nobody knows")
    assert doubts(None, 6)[0].startswith("All 6 held-out answers are equal, so that nobody knows")


def test_answers_that_are_all_equal_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"All 34 answers of .* are equal: nothing to learn"):
        fit(answered(tmp_path / "set", pairs=40, equal=1e6), tmp_path / "model", SMALL)
    assert not (tmp_path / "model").exists()
