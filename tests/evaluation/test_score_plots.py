"""Profiles, probabilities of improvement and ranks: the numbers, the files and the refusals."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import assay.evaluation.ranks
from assay.core.errors import ConfigError, RunError
from assay.evaluation.ranks import average_ranks
from assay.evaluation.score_plots import Kind, _scaled, plot_scores, read_ranks, read_scores

METRIC = "eval/return_mean"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def arms(make_run: Any, tmp_path: Path) -> list[Path]:
    """Two arms on two environments with three seeds each; the second is better by 5."""
    for arm, gain in (("low", 0.0), ("high", 5.0)):
        for env, level in (("CartPole-v1", 10.0), ("Pendulum-v1", -500.0)):
            for seed in (1, 2, 3):
                returns = {500: [level + gain + 50], 1000: [level + gain + seed]}
                make_run(f"{arm}/{env}-{seed}", returns, seed=seed, env=env)
    return [tmp_path / "runs" / "low", tmp_path / "runs" / "high"]


class TestRanks:
    def test_critical_difference_of_the_paper(self) -> None:
        """Demšar (2006), section 3.2.2: 4 classifiers on 14 data sets have CD = 1.25."""
        rng = np.random.default_rng(0)
        found = average_ranks({name: rng.random(14).tolist() for name in "abcd"})
        assert found.critical == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), abs=1e-3)

    def test_ranks_by_hand(self) -> None:
        scores = {"a": [1, 1, 1, 5, 2], "b": [2, 2, 1, 4, 3], "c": [3, 3, 3, 3, 1]}
        found = average_ranks(scores)
        # Ranks, 1 is best: a 3 3 2.5 1 2 = 11.5, b 2 2 2.5 2 1 = 9.5, c 1 1 1 3 3 = 9.
        assert found.names == ("c", "b", "a")
        assert found.average.tolist() == pytest.approx([1.8, 1.9, 2.3])
        # Q = 2 (1.5^2 + 0.5^2 + 1) / (69.5 - 60) = 7 / 9.5, p = exp(-Q / 2)
        assert found.p == pytest.approx(np.exp(-3.5 / 9.5))
        assert found.cliques == ((0, 2),)  # nothing is told apart

    def test_what_is_told_apart_is_not_joined(self) -> None:
        steps = np.arange(40)
        scores = {"worst": steps * 0.0, "good": steps + 2.0 + steps % 2, "best": steps + 2.5}
        found = average_ranks({name: list(map(float, v)) for name, v in scores.items()})
        assert found.names[-1] == "worst" and found.cliques == ((0, 1),)
        assert found.p < 1e-6

    def test_equal_scores_have_equal_ranks(self) -> None:
        found = average_ranks({"a": [1.0] * 6, "b": [1.0] * 6})
        assert found.average.tolist() == [1.5, 1.5] and found.p == 1.0

    @pytest.mark.parametrize(
        ("scores", "message"),
        [
            ({"a": [1.0] * 9}, "at least two arms"),
            ({"a": [1.0] * 4, "b": [2.0] * 4}, "There are 4 blocks"),
            ({"a": [1.0] * 5, "b": [2.0] * 6}, "different numbers of blocks"),
            ({"a": [1.0] * 5, "b": [np.nan] * 5}, "not finite"),
        ],
    )
    def test_refused(self, scores: dict[str, list[float]], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            average_ranks(scores)

    def test_example(self) -> None:
        assert doctest.testmod(assay.evaluation.ranks).failed == 0


class TestScores:
    def test_scores_by_arm_and_environment(self, arms: list[Path]) -> None:
        scores = read_scores(arms, METRIC)
        assert scores["low"]["CartPole-v1"].tolist() == [11.0, 12.0, 13.0]
        assert scores["high"]["Pendulum-v1"].tolist() == [-494.0, -493.0, -492.0]
        best = read_scores(arms, METRIC, "best")
        assert best["low"]["CartPole-v1"].tolist() == [60.0] * 3

    def test_environments_are_scaled_alike(self, arms: list[Path]) -> None:
        scaled = _scaled(read_scores(arms, METRIC))
        for env in ("CartPole-v1", "Pendulum-v1"):
            assert scaled["low"][env].tolist() == pytest.approx([0, 1 / 7, 2 / 7])
            assert scaled["high"][env].tolist() == pytest.approx([5 / 7, 6 / 7, 1])

    def test_blocks_are_environments_and_seeds(self, arms: list[Path]) -> None:
        found = read_ranks(arms, METRIC)
        assert (found.blocks, found.names) == (6, ("high", "low"))
        assert found.average.tolist() == [1.0, 2.0] and found.cliques == ()

    def test_unlike_arms_are_refused(self, arms: list[Path], make_run: Any) -> None:
        make_run("odd/seed-1", {1000: [1.0]}, env="Acrobot-v1")
        odd = arms[0].parent / "odd"
        with pytest.raises(ConfigError, match="'low' has no run of Acrobot-v1"):
            read_scores([arms[0], odd], METRIC)
        with pytest.raises(ConfigError, match="There are 0 blocks"):
            read_ranks([arms[0], odd], METRIC)
        with pytest.raises(RunError, match="no metric 'train/x'"):
            read_scores(arms, "train/x")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_they_become_files(arms: list[Path], tmp_path: Path, kind: Any) -> None:
    png = plot_scores(arms, kind, tmp_path / "new" / "x.png", metric=METRIC)
    assert png.read_bytes().startswith(PNG)
    svg = plot_scores(arms, kind, tmp_path / "x.svg", metric=METRIC).read_text()
    wanted = {
        "profiles": ("high (6 runs)", "share of runs above"),
        "improvement": ("low &gt; high", "0.00", "probability of improvement"),
        "ranks": ("high (1.00)", "low (2.00)", "critical difference 0.80"),
    }[kind]
    for text in wanted:
        assert text in svg
    with pytest.raises(ConfigError, match=r"expected \.png or \.svg"):
        plot_scores(arms, kind, tmp_path / "x.pdf", metric=METRIC)
