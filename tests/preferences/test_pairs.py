"""Which segments are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from preference_samples import ACTION, OBS, episodes, linear, source

from assay.core.errors import ConfigError, DataError, SpaceError
from assay.preferences.files import PreferenceSet
from assay.preferences.pairs import _spread, choose_pairs, make_buffer, segment_sums
from assay.preferences.sample import sample


class TestChoice:
    def test_by_chance_all_segments_are_met_and_none_with_itself(self) -> None:
        dataset = episodes(3, steps=6)
        found = choose_pairs(dataset, 4, 2000, np.random.default_rng(0))
        segments = {(int(e), int(s)) for e, s in zip(*map(np.ravel, found), strict=True)}
        assert segments == {(e, s) for e in range(3) for s in range(3)}
        same = (found.episode[:, 0] == found.episode[:, 1]) & (
            found.start[:, 0] == found.start[:, 1]
        )
        assert not same.any()

    def test_disagreement_takes_the_pairs_on_which_members_differ_most(self) -> None:
        dataset, rng = episodes(), np.random.default_rng(1)
        # Two members that say the opposite about the first number, and nothing about the rest.
        model = linear(OBS, ACTION, ([1.0, 0.0, 0.0], 0.0), ([-1.0, 0.0, 0.0], 0.0))
        chosen = choose_pairs(dataset, 4, 20, rng, by="disagreement", model=model)
        by_chance = choose_pairs(dataset, 4, 20, rng)

        def gap(places) -> float:  # type: ignore[no-untyped-def]
            sums = segment_sums(model, make_buffer(dataset), places, 4)[0]
            return float(np.abs(sums[:, 0] - sums[:, 1]).min())

        assert gap(chosen) > gap(by_chance) + 1.0

    def test_sums_of_segments_are_those_of_their_steps(self) -> None:
        dataset = episodes(2, steps=6)
        model = linear(OBS, ACTION, ([1.0, 0.0, -1.0], 0.0))  # the reward that was recorded
        places = choose_pairs(dataset, 4, 5, np.random.default_rng(0))
        found = segment_sums(model, make_buffer(dataset), places, 4)[0]
        for row, side in np.ndindex(5, 2):
            start = places.start[row, side]
            reward = dataset.episode(int(places.episode[row, side])).reward[start : start + 4]
            assert found[row, side] == pytest.approx(reward.sum(), abs=1e-5)

    def test_coverage_takes_pairs_that_are_far_apart(self) -> None:
        points = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [9.0]])
        found = _spread(points, 3, np.random.default_rng(0))
        near = {round(float(points[one, 0])) for one in found}
        assert near == {0, 5, 9}  # one of each heap
        dataset = episodes()

        def spread(by: Any) -> float:
            """Return how far the means of what was seen lie from each other, in both segments."""
            places = choose_pairs(dataset, 4, 20, np.random.default_rng(0), by=by)
            means = [
                dataset.episode(int(e)).obs[s : s + 4].mean(0)
                for e, s in zip(*map(np.ravel, places), strict=True)
            ]
            return float(np.stack(means).reshape(20, -1).std(0).mean())

        assert spread("coverage") > 1.2 * spread("chance")

    def test_what_cannot_be_is_refused(self) -> None:
        with pytest.raises(DataError, match=r"No two segments of 50 steps .* has 20"):
            choose_pairs(episodes(), 50, 3, np.random.default_rng(0))
        with pytest.raises(ConfigError, match="--by disagreement needs a reward model"):
            choose_pairs(episodes(), 4, 3, np.random.default_rng(0), by="disagreement")
        other = linear(ACTION, ACTION, ([1.0, 0.0], 0.0))
        with pytest.raises(SpaceError, match="was learned with"):
            choose_pairs(episodes(), 4, 3, np.random.default_rng(0), by="disagreement", model=other)


class TestSample:
    def test_held_out_pairs_share_no_episode_with_the_others(self, tmp_path: Path) -> None:
        batch, new = sample(tmp_path, [source()], pairs=100, length=4, held_out=0.2)
        assert new and sum(pair.held_out for pair in batch.pairs) == 20
        held = {s.episode for p in batch.pairs if p.held_out for s in (p.left, p.right)}
        rest = {s.episode for p in batch.pairs if not p.held_out for s in (p.left, p.right)}
        assert held and rest and not held & rest

    def test_the_same_again_is_the_same_batch_and_another_seed_adds_one(
        self, tmp_path: Path
    ) -> None:
        first, _ = sample(tmp_path, [source()], pairs=5, length=4)
        again, new = sample(tmp_path, [source()], pairs=5, length=4)
        assert (again.number, new) == (first.number, False)
        more, new = sample(tmp_path, [source()], pairs=5, length=4, seed=1)
        assert (more.number, new) == (2, True)
        assert list(PreferenceSet.open(tmp_path).pairs()) == [
            f"{batch}-{number}" for batch in (1, 2) for number in range(5)
        ]

    def test_segments_of_different_environments_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"of 'A-v0' .* of 'B-v0' .* cannot be compared"):
            sample(tmp_path, [source(env="A-v0"), source(env="B-v0")], pairs=5, length=4)
        assert not list(tmp_path.iterdir())
        sample(tmp_path, [source(env="A-v0")], pairs=5, length=4)
        with pytest.raises(DataError, match="holds pairs with env=A-v0"):
            sample(tmp_path, [source(env="B-v0")], pairs=5, length=4)
        with pytest.raises(DataError, match="holds pairs with length=4"):
            sample(tmp_path, [source(env="A-v0")], pairs=5, length=3)
