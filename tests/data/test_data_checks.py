"""Making, validating, summarising, merging and dividing datasets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import CHOICE, OBS, THRUST, assert_same, play, sample
from gymnasium import spaces

from assay import data
from assay.core.errors import ConfigError, DataError, RunError
from assay.data.findings import Finding


def changed(number: int, **fields: Any) -> data.Dataset:
    """Return the sample with another value in some fields of one episode."""
    episodes = list(sample().episodes())
    episodes[number] = dataclasses.replace(episodes[number], **fields)
    return data.from_episodes(episodes, OBS, CHOICE, name="the sample")


def with_value(number: int, name: str, place: Any, value: Any) -> data.Dataset:
    rows = getattr(sample().episode(number), name).copy()
    rows[place] = value
    return changed(number, **{name: rows})


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


class TestValidate:
    def test_nothing_is_wrong_with_the_sample(self) -> None:
        assert data.validate(sample()) == []

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_values_that_are_not_finite(self, value: float) -> None:
        found = only(data.validate(with_value(2, "obs", (4, 1), value)))
        assert (found.level, found.code, found.field) == ("error", "not_finite", "obs")
        assert (found.episode, found.step, found.count) == (2, 4, 1)
        assert found.message == (
            f"Step 4 of episode 2 of the sample has the value {value} in 'obs'; expected a finite "
            "number."
        )

    def test_the_observation_after_the_last_step_is_looked_at(self) -> None:
        found = only(data.validate(with_value(1, "obs", (4, 0), np.nan)))
        assert (found.episode, found.step) == (1, 4)

    @pytest.mark.parametrize("value", [1, 5])
    def test_actions_out_of_bounds(self, value: int) -> None:
        found = only(data.validate(with_value(3, "action", 2, value)))
        assert (found.code, found.episode, found.step) == ("out_of_bounds", 3, 2)
        assert f"value {value} in 'action'; expected a value of Discrete(3, start=2)" in (
            found.message
        )

    def test_rounding_is_not_out_of_bounds(self) -> None:
        rng = np.random.default_rng(0)
        one = play(rng, OBS, THRUST, 30)
        action = one.action.copy()
        action[3, 0] = np.float32(0.5 + 1e-6)
        fine = data.from_episodes([dataclasses.replace(one, action=action)], OBS, THRUST)
        assert data.validate(fine) == []
        action[3, 0] = 0.51
        bad = data.from_episodes([dataclasses.replace(one, action=action)], OBS, THRUST)
        assert only(data.validate(bad)).code == "out_of_bounds"

    def test_a_terminal_too_early(self) -> None:
        found = only(data.validate(with_value(3, "terminated", 1, True)))
        assert (found.code, found.field, found.episode, found.step) == (
            "early_terminal", "terminated", 3, 1,
        )  # fmt: skip

    def test_a_missing_terminal(self) -> None:
        off = np.zeros(5, bool)
        found = only(data.validate(changed(2, terminated=off, truncated=off)))
        assert (found.level, found.code, found.episode) == ("warning", "missing_terminal", 2)

    def test_a_duplicate(self) -> None:
        episodes = list(sample().episodes())
        twice = data.from_episodes([*episodes, episodes[1]], OBS, CHOICE)
        found = only(data.validate(twice))
        assert (found.level, found.code, found.episode) == ("warning", "duplicate", 5)
        assert "episode 5 is episode 1" in found.message

    def test_coverage(self) -> None:
        one = sample().episode(4)
        wide = spaces.Discrete(9)
        still = dataclasses.replace(one, action=one.action * 0 + 3)
        found = only(data.validate(data.from_episodes([still], OBS, wide)))
        assert (found.level, found.code) == ("warning", "coverage")
        assert "cover 11% of choices" in found.message
        lever = dataclasses.replace(one, action=np.zeros((one.steps, 1), np.float32))
        found = only(data.validate(data.from_episodes([lever], OBS, spaces.Box(-1, 1, (1,)))))
        assert "of the range of some components" in found.message

    @pytest.mark.filterwarnings("error")
    def test_coverage_far_out_of_bounds(self) -> None:
        one = play(np.random.default_rng(0), OBS, THRUST, 3)
        far = np.array([[3e38, 0.5], [-3e38, 0.5], [0.0, 0.5]], np.float32)
        made = data.from_episodes([dataclasses.replace(one, action=far)], OBS, THRUST)
        assert data.summarise(made).coverage is not None

    def test_an_observation_that_never_changes(self) -> None:
        episodes = [dataclasses.replace(one, obs=one.obs * 0) for one in sample().episodes()]
        found = only(data.validate(data.from_episodes(episodes, OBS, CHOICE)))
        assert (found.level, found.code, found.field) == ("warning", "constant", "obs")

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        (tmp_path / "a.npz").touch()
        found = only(data.validate(tmp_path / "a.npz"))
        assert (found.level, found.code) == ("error", "unreadable")

    def test_against_an_environment(self) -> None:
        found = data.validate(sample(), "CartPole-v1")
        assert [one.field for one in found] == ["obs"]
        assert "shape (2,); expected (4,)" in found[0].message
        pendulum = data.validate(sample(), "Pendulum-v1")
        assert [one.field for one in pendulum] == ["obs", "action"]

    def test_many_are_counted(self) -> None:
        episodes = [
            dataclasses.replace(one, reward=one.reward * np.nan) for one in sample().episodes()
        ]
        found = only(data.validate(data.from_episodes(episodes, OBS, CHOICE)))
        assert (found.episode, found.step, found.count) == (0, 0, 25)


class TestSummary:
    def test_by_hand(self) -> None:
        rewards = ([1.0, 2.0], [5.0])
        episodes = [
            data.Episode(
                np.full((len(reward) + 1, 2), number, np.float32),
                np.full(len(reward), 2 + number),
                np.array(reward),
                np.arange(len(reward)) == len(reward) - 1,
                np.zeros(len(reward), bool),
            )
            for number, reward in enumerate(rewards)
        ]
        found = data.summarise(data.from_episodes(episodes, OBS, CHOICE))
        assert found.returns.tolist() == [3.0, 5.0] and found.lengths.tolist() == [2, 1]
        assert (found.terminated, found.truncated) == (2, 0)
        assert found.actions is not None and found.actions.tolist() == [2, 1, 0]
        assert found.coverage is not None and found.coverage.tolist() == pytest.approx([2 / 3])
        assert found.ranges["obs"].mean.tolist() == [0.4, 0.4]  # 3 rows of 0, 2 of 1
        facts = found.to_json()
        assert facts["return"]["mean"] == 4.0 and facts["steps"] == 3

    def test_a_box_is_covered_by_bins(self) -> None:
        one = play(np.random.default_rng(0), OBS, THRUST, 10)
        action = np.tile(np.array([-2.0, 0.0], np.float32), (10, 1))
        action[:, 1] = np.linspace(0, 1, 10)
        found = data.summarise(
            data.from_episodes([dataclasses.replace(one, action=action)], OBS, THRUST)
        )
        assert found.coverage is not None and found.coverage.tolist() == [0.05, 0.5]


class TestMaking:
    @pytest.mark.parametrize("count", [0, 1])
    def test_from_transitions_of_few_rows(self, count: int) -> None:
        rows, off = np.zeros((count, 2)), np.zeros(count, bool)
        table = (rows, off + 2, off, rows, off, off)
        if not count:
            with pytest.raises(DataError, match="holds no episodes"):
                data.from_transitions(*table, observation_space=OBS, action_space=CHOICE)
            return
        made = data.from_transitions(*table, observation_space=OBS, action_space=CHOICE)
        assert made.lengths.tolist() == [1] and made.episode(0).truncated.tolist() == [True]

    def test_from_transitions_finds_the_episodes(self) -> None:
        obs = np.array([[0, 0], [1, 1], [5, 5], [6, 6], [9, 9]], np.float32)
        after = np.array([[1, 1], [2, 2], [6, 6], [7, 7], [10, 10]], np.float32)
        terminated = np.array([0, 1, 0, 0, 0])
        made = data.from_transitions(
            obs, np.full(5, 2), np.arange(5.0), after, terminated, np.zeros(5),
            observation_space=OBS, action_space=CHOICE,
        )  # fmt: skip
        assert made.lengths.tolist() == [2, 2, 1]
        assert made.episode(0).obs[:, 0].tolist() == [0, 1, 2]
        assert made.episode(1).obs[:, 0].tolist() == [5, 6, 7]
        assert [one.terminated[-1] for one in made.episodes()] == [True, False, False]
        assert [one.truncated[-1] for one in made.episodes()] == [False, True, True]
        rows = made.transitions(np.arange(5))
        np.testing.assert_array_equal(rows["next_obs"], after)

    def test_flags_are_true_or_false(self) -> None:
        obs = np.zeros((2, 2), np.float32)
        with pytest.raises(DataError, match=r"Row 1 of 'terminated' .* 7"):
            data.from_transitions(
                obs, np.full(2, 2), np.zeros(2), obs, np.array([0, 7]), np.zeros(2),
                observation_space=OBS, action_space=CHOICE,
            )  # fmt: skip

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"obs": np.zeros((3, 2), np.float32)}, r"'obs' of episode 1 .* 3 rows; expected 5"),
            ({"action": np.zeros(4)}, r"'action' of episode 1 .* type float64; expected int64"),
            ({"terminated": np.zeros(3, bool)}, r"'terminated' of episode 1 .* 3 rows"),
            ({"extras": {}}, r"episode 1 of the sample lacks extra/log_prob"),
        ],
    )
    def test_an_episode_that_does_not_fit(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            changed(1, **fields)

    def test_no_episodes_and_empty_ones(self) -> None:
        with pytest.raises(DataError, match="holds no episodes"):
            data.from_episodes([], OBS, CHOICE)
        none = np.zeros(0)
        empty = data.Episode(
            np.zeros((1, 2), np.float32), none.astype(int), none, none > 0, none > 0
        )
        with pytest.raises(DataError, match=r"Episode 1 of the dataset is empty"):
            data.from_episodes([sample().episode(0), empty], OBS, CHOICE)

    def test_collected_is_the_same_and_leaves_nothing(self, tmp_path: Path) -> None:
        with data.collected(sample().episodes(), OBS, CHOICE, directory=tmp_path) as made:
            assert_same(made, sample())
            data.save(made, tmp_path / "a.npz")
        assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
        assert data.load(tmp_path / "a.npz").content_hash == sample().content_hash

    def test_a_directory_that_cannot_be_written_to(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with (
            pytest.raises(RunError, match="Cannot collect episodes"),
            data.collected(sample().episodes(), OBS, CHOICE, directory=tmp_path / "file" / "x"),
        ):
            pass


class TestCombining:
    def test_merged(self, tmp_path: Path) -> None:
        one, two = sample(2), sample(3, seed=1)
        both = data.merge([one, two])
        assert both.num_episodes == 5 and len(both) == len(one) + len(two)
        assert_same(data.load(data.save(both, tmp_path / "a.npz")), both)
        np.testing.assert_array_equal(both.episode(3).obs, two.episode(1).obs)
        rows = both.transitions(np.arange(len(both)))
        np.testing.assert_array_equal(rows["reward"][: len(one)], one._flat()["reward"])

    def test_of_other_spaces(self) -> None:
        with pytest.raises(DataError, match=r"The spaces of .* differ"):
            data.merge([sample(), sample(2, OBS, spaces.Discrete(4))])

    def test_split_by_whole_episodes(self) -> None:
        whole = sample(10)
        first, second = data.split(whole, 0.7, seed=3)
        assert (first.num_episodes, second.num_episodes) == (7, 3)
        assert sorted([*first.lengths, *second.lengths]) == whole.lengths.tolist()
        again, _ = data.split(whole, 0.7, seed=3)
        assert again.content_hash == first.content_hash
        other, _ = data.split(whole, 0.7, seed=4)
        assert other.content_hash != first.content_hash

    @pytest.mark.parametrize("fraction", [0.0, 1.0, 0.01, -1, float("nan")])
    def test_a_split_without_episodes(self, fraction: float) -> None:
        with pytest.raises(ConfigError, match="leaves episodes in both parts"):
            data.split(sample(), fraction)
