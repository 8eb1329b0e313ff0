"""Answers: how they are kept, the oracle, and what is said about annotators."""

from __future__ import annotations

from pathlib import Path

import pytest
from preference_samples import episodes, source

from assay.core.errors import ConfigError, DataError
from assay.preferences.files import LABELS, UNDO, Label, PreferenceSet
from assay.preferences.inspection import inspect
from assay.preferences.oracle import ask_oracle, true_returns
from assay.preferences.sample import sample


@pytest.fixture
def found(tmp_path: Path) -> PreferenceSet:
    sample(tmp_path, [source()], pairs=40, length=4)
    return PreferenceSet.open(tmp_path)


class TestFiles:
    def test_the_last_answer_counts_and_one_can_be_taken_back(self, found: PreferenceSet) -> None:
        found.add_labels([("1-0", "left", "a"), ("1-1", "right", "a"), ("1-0", "equal", "b")])
        found.add_labels([("1-0", "unsure", "a"), ("1-1", UNDO, "a")])
        assert found.labels() == [Label("1-0", "unsure", "a"), Label("1-0", "equal", "b")]
        assert [pair.id for pair in found.unlabelled("a")][:2] == ["1-1", "1-2"]

    def test_a_torn_line_is_left_out_and_the_next_one_is_whole(self, found: PreferenceSet) -> None:
        found.add_labels([("1-0", "left", "a")])
        with open(found.path / LABELS, "ab") as file:
            file.write(b'{"pair": "1-1", "cho')
        found.add_labels([("1-2", "right", "a")])
        assert [one.pair for one in found.labels()] == ["1-0", "1-2"]

    def test_unknown_pairs_and_choices_leave_nothing_behind(self, found: PreferenceSet) -> None:
        with pytest.raises(DataError, match="There is no pair '7-1'"):
            found.add_labels([("1-0", "left", "a"), ("7-1", "left", "a")])
        with pytest.raises(DataError, match="choice='up' of the pair '1-0'"):
            found.add_labels([("1-0", "up", "a")])
        assert not (found.path / LABELS).exists()

    def test_the_digest_is_of_pairs_and_of_answers_that_count(self, found: PreferenceSet) -> None:
        empty = found.digest()
        found.add_labels([("1-0", "left", "a")])
        assert found.digest() != empty
        found.add_labels([("1-0", UNDO, "a")])
        assert found.digest() == empty

    def test_episodes_that_were_exchanged_are_noticed(self, found: PreferenceSet) -> None:
        found.verify()
        sample(found.path, [source()], pairs=4, length=4, seed=5)
        other = found.path / "other"
        sample(other, [source(episodes(seed=3))], pairs=4, length=4)
        (other / "batch-0001.npz").replace(found.path / "batch-0001.npz")
        with pytest.raises(DataError, match=r"batch-0001\.npz' are not those"):
            PreferenceSet.open(found.path).verify()

    def test_there_must_be_a_set(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="There are no preferences at"):
            PreferenceSet.open(tmp_path / "nowhere")


class TestOracle:
    def test_it_answers_by_the_environments_rewards_and_only_once(
        self, found: PreferenceSet
    ) -> None:
        assert (ask_oracle(found), ask_oracle(found)) == (40, 0)
        pairs = found.pairs()
        for label in found.labels():
            left, right = true_returns(found, pairs[label.pair])
            assert label.choice == ("left" if left > right else "right")

    def test_mistakes_are_as_many_as_asked_for_and_the_same_after_a_stop(
        self, found: PreferenceSet
    ) -> None:
        ask_oracle(found, annotator="right")
        ask_oracle(found, noise=1.0, annotator="wrong")
        ask_oracle(found, noise=0.3, seed=4, annotator="some")
        said = {
            who: [label.choice for label in found.labels() if label.annotator == who]
            for who in ("right", "wrong", "some")
        }
        assert all(a != b for a, b in zip(said["right"], said["wrong"], strict=True))
        differ = sum(a != b for a, b in zip(said["right"], said["some"], strict=True))
        assert 4 <= differ <= 20  # 12 are expected of 40
        found.add_labels([("1-3", UNDO, "some"), ("1-7", UNDO, "some")])
        ask_oracle(found, noise=0.3, seed=4, annotator="some")
        again = [label.choice for label in found.labels() if label.annotator == "some"]
        assert again == said["some"]

    def test_returns_that_hardly_differ_are_equal(self, found: PreferenceSet) -> None:
        ask_oracle(found, equal=1e9)
        assert {label.choice for label in found.labels()} == {"equal"}
        with pytest.raises(ConfigError, match="noise=2"):
            ask_oracle(found, noise=2.0)


class TestInspection:
    def test_one_who_always_clicks_left_is_flagged(self, found: PreferenceSet) -> None:
        ask_oracle(found)
        found.add_labels([(pair, "left", "lefty") for pair in found.pairs()])
        seen = inspect(found)
        assert [flag for flag in seen.flags if "'lefty' favours the left: 40 of 40" in flag]
        assert not [flag for flag in seen.flags if "'oracle' favours" in flag]
        # Agreement with somebody who always says the same is what chance would give.
        assert seen.agreements[0].kappa == pytest.approx(0.0)
        assert [flag for flag in seen.flags if "hardly agree" in flag]

    def test_kappa_by_hand(self, found: PreferenceSet) -> None:
        one = ["left", "left", "right", "right", "unsure"]
        two = ["left", "right", "right", "right", "left"]
        pairs = list(found.pairs())
        found.add_labels((pair, choice, "a") for pair, choice in zip(pairs, one, strict=False))
        found.add_labels((pair, choice, "b") for pair, choice in zip(pairs, two, strict=False))
        [both] = inspect(found).agreements
        # They agree on 3 of 4; by chance on 2/4 * 1/4 + 2/4 * 3/4 = 0.5.
        assert (both.pairs, both.share, both.kappa) == (4, 0.75, pytest.approx(0.5))

    def test_coverage_is_of_what_was_answered(self, found: PreferenceSet) -> None:
        assert inspect(found).coverage == [] and inspect(found).episodes == (12, 0)
        found.add_labels([("1-0", "left", "a")])
        few = inspect(found)
        found.add_labels([(pair, "left", "a") for pair in found.pairs()])
        many = inspect(found)
        assert few.episodes[1] <= 2 < many.episodes[1]
        assert all(a < b <= 1 for a, b in zip(few.coverage, many.coverage, strict=True))
        assert (few.labelled, many.labelled, many.pairs) == (1, 40, 40)
