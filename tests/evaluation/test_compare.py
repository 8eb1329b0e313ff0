"""Comparisons give numbers worked out by hand, and refuse what cannot be compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.core.errors import ConfigError, RunError
from assay.evaluation import statistics
from assay.evaluation.compare import Comparison, compare
from assay.evaluation.formatting import number
from assay.evaluation.run_scores import arm_names, read_curve
from assay.runs.metrics import MetricsWriter, Record

LOW = [10.0, 12.0, 14.0, 16.0, 18.0]
HIGH = [60.0, 62.0, 64.0, 66.0, 68.0]


def log(run: Any, metric: str, points: list[tuple[int, float]]) -> None:
    writer = MetricsWriter(run.metrics_path)
    for env_steps, value in points:
        writer.write(Record(env_steps, 0, 0, 0.0, {metric: value}))
    writer.close()


def test_arms_and_pairs_have_the_numbers_of_their_seeds(make_group: Any) -> None:
    low, high = make_group("low", LOW, lr=0.1), make_group("high", HIGH, lr=0.2)
    result = compare([low, high])
    base, arm = result.arms
    assert (base.name, arm.name) == ("low", "high")
    assert base.scores.tolist() == LOW
    assert base.seeds == (1, 2, 3, 4, 5)
    assert base.runs[0] == "low/seed-1"
    assert base.mean == 14.0
    assert base.iqm.point == 14.0  # of 12, 14, 16
    assert 10.0 <= base.iqm.low < 14.0 < base.iqm.high <= 18.0
    assert (result.unit, result.total) == ("env_steps", 1000)
    assert result.warnings == ()

    (pair,) = result.pairs
    assert pair.difference.point == 50.0
    # Both arms have variance 10, so the error is sqrt(10/5 + 10/5) = 2 with 8 degrees of freedom.
    assert pair.difference.high == pytest.approx(50 + 2.306004 * 2, abs=1e-5)
    assert pair.permutation_p == pytest.approx(2 / 252)
    assert pair.welch_p == pytest.approx(statistics.welch_test(HIGH, LOW).p_value)
    assert pair.effect == pytest.approx(50 / math.sqrt(10) * (1 - 3 / 31), rel=1e-3)
    assert (pair.improvement.point, pair.improvement.low) == (1.0, 1.0)
    assert pair.outcome == "better"
    assert pair.verdict.startswith("better: 50.00 higher than 'low'")
    assert "5 and 5 seeds" in pair.verdict
    assert pair.changes == {"lr": (0.1, 0.2)}


def test_the_order_of_the_arms_decides_the_direction(make_group: Any) -> None:
    result = compare([make_group("high", HIGH), make_group("low", LOW)])
    (pair,) = result.pairs
    assert pair.outcome == "worse"
    assert pair.difference.point == -50.0
    assert pair.improvement.point == 0.0
    assert pair.verdict.startswith("worse: 50.00 lower than 'high'")


def test_with_too_few_seeds_the_verdict_names_how_many_it_takes(make_group: Any) -> None:
    # One standard deviation apart (variance 10): a t-test needs 17 runs per arm for a power of 0.8.
    shifted = [score + math.sqrt(10) for score in LOW]
    result = compare([make_group("a", LOW), make_group("b", shifted)])
    (pair,) = result.pairs
    assert pair.outcome == "not shown"
    assert statistics.sample_size(1.0) == 17
    assert "5 and 5 seeds are too few" in pair.verdict
    assert "difference of 3.16 you would need about 17 seeds per arm" in pair.verdict
    # 2.02 standard deviations is what five runs per arm find with a power of 0.8.
    assert "only one of about 6.4" in pair.verdict


@pytest.mark.parametrize(("seeds", "least_p"), [(2, 2 / 6), (3, 2 / 20)])
def test_three_seeds_can_never_show_anything(make_group: Any, seeds: int, least_p: float) -> None:
    low, high = [0.0, 1.0, 2.0][:seeds], [50.0, 51.0, 52.0][:seeds]
    (pair,) = compare([make_group("a", low), make_group("b", high)]).pairs
    assert pair.welch_p < 0.001
    assert pair.permutation_p == pytest.approx(least_p)
    assert pair.outcome == "not shown"
    assert "about 4 seeds per arm" in pair.verdict
    assert f"p is < 0.001 by Welch, {least_p:.3f} by permutation" in pair.verdict


def test_an_arm_with_an_outlier_is_not_judged_by_permutation_alone(make_group: Any) -> None:
    even, uneven = [500.0, 500.1, 500.2, 500.3, 500.4], [100.0, 490.0, 491.0, 492.0, 493.0]
    (pair,) = compare([make_group("a", even), make_group("b", uneven)]).pairs
    assert pair.permutation_p < 0.05 < pair.welch_p
    assert pair.outcome == "not shown"
    assert pair.difference.low < 0 < pair.difference.high


def test_arms_without_any_spread_are_judged_where_they_can_be(make_group: Any) -> None:
    solved, also = make_group("solved", [500.0] * 5), make_group("also", [500.0] * 5)
    less, few = make_group("less", [480.0] * 5), make_group("few", [400.0] * 2)
    result = compare([solved, also, less, few])
    same, worse, unclear = result.pairs
    assert same.outcome == "not shown"
    assert same.verdict == "no difference shown (every seed of both scored 500.0)."
    assert worse.outcome == "worse"
    assert math.isnan(worse.welch_p)
    assert unclear.outcome == "not shown"
    assert "at least 5 per arm" in unclear.verdict  # 2 / C(10, 5) <= 0.05 / 3 < 2 / C(8, 4)
    json.dumps(result.to_json(), allow_nan=False)


def test_a_negligible_difference_does_not_ask_for_more_seeds(make_group: Any) -> None:
    shifted = [score + 0.001 for score in LOW]
    (pair,) = compare([make_group("a", LOW), make_group("b", shifted)]).pairs
    assert "observed: +0.001" in pair.verdict
    assert "too few" not in pair.verdict


def test_several_arms_are_corrected_after_holm(make_group: Any) -> None:
    middle = [20.0, 22.0, 15.0, 24.0, 19.0]
    result = compare([make_group("a", LOW), make_group("b", HIGH), make_group("c", middle)])
    raw = [statistics.permutation_test(x, LOW, rng=0).p_value for x in (HIGH, middle)]
    assert raw[0] < raw[1]
    assert result.pairs[0].permutation_p == pytest.approx(2 * raw[0])
    assert result.pairs[1].permutation_p == pytest.approx(max(2 * raw[0], raw[1]))
    welch = [statistics.welch_test(x, LOW).p_value for x in (HIGH, middle)]
    assert result.pairs[0].welch_p == pytest.approx(2 * welch[0])
    assert result.pairs[1].welch_p == pytest.approx(max(2 * welch[0], welch[1]))
    assert [pair.baseline for pair in result.pairs] == ["a", "a"]


def test_one_seed_is_allowed_and_has_no_interval(make_group: Any, make_run: Any) -> None:
    alone = make_run("alone", {1000: [90.0]}, seed=9)
    result = compare([make_group("a", LOW), alone.path])
    assert math.isnan(result.arms[1].iqm.low)
    (pair,) = result.pairs
    assert pair.outcome == "unknown"
    assert pair.difference.point == 76.0
    assert "cannot tell" in pair.verdict and "'alone'" in pair.verdict
    assert any("'alone' has one seed, so no interval" in warning for warning in result.warnings)
    content = result.to_json()
    assert content["pairs"][0]["welch_p"] is None
    assert content["arms"][1]["iqm"] == {"point": 90.0, "low": None, "high": None}


def test_how_a_curve_becomes_a_score(make_run: Any) -> None:
    # Between 200 and 800, which both cover: a rises from 1 to 7, b is 6 until 600 and falls to 4.
    a = make_run("a", {0: [-1.0], 800: [7.0]})
    b = make_run("b", {200: [6.0], 600: [6.0], 1000: [2.0]})

    def scores(at: Any) -> list[float]:
        return [float(arm.scores[0]) for arm in compare([a.path, b.path], at=at).arms]

    assert scores("final") == [7.0, 2.0]
    assert scores("best") == [7.0, 6.0]
    # b: (400 * 6 + 200 * 5) / 600
    assert scores("auc") == pytest.approx([4.0, 17 / 3])


def test_metrics_come_from_the_episodes_or_from_the_log(make_run: Any) -> None:
    a = make_run("a", {500: [0.0], 1000: [0.0, 2.0, 4.0, 10.0]})
    assert read_curve(a, "eval/return_mean")[1].tolist() == [0.0, 4.0]
    assert read_curve(a, "eval/return_iqm")[1].tolist() == [0.0, 3.0]
    assert read_curve(a, "eval/length_mean")[1].tolist() == [1.0, 4.25]
    log(a, "train/loss", [(10, 3.0), (20, 2.0), (20, 1.0)])
    steps, values = read_curve(a, "train/loss")
    assert (steps.tolist(), values.tolist()) == ([10, 20], [3.0, 1.0])
    with pytest.raises(RunError, match=r"(?s)no metric 'train/los'.*Did you mean 'train/loss'"):
        read_curve(a, "train/los")


def test_labels_distinguish_evaluations(make_run: Any) -> None:
    a = make_run("a", {1000: [5.0]}, label="manual")
    with pytest.raises(RunError, match="runs/a' has no evaluation labelled 'training'"):
        read_curve(a, "eval/return_mean")
    assert read_curve(a, "eval/return_mean", label="manual")[1].tolist() == [5.0]


@pytest.mark.parametrize("status", ["failed", "running", "interrupted"])
def test_runs_that_are_not_done_are_refused_by_name(
    make_group: Any, make_run: Any, status: str
) -> None:
    group = make_group("b", [1.0, 2.0])
    make_run("b/seed-3", {500: [1.0]}, seed=3, status=status)
    # Its process is gone, so "running" is not believed.
    shown = "interrupted" if status == "running" else status
    with pytest.raises(ConfigError, match=rf"b/seed-3' \({shown}\)"):
        compare([make_group("a", LOW), group])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"env": "Acrobot-v1"}, r"more than one environment: Acrobot-v1 \(.*CartPole-v1 \("),
        ({"env_steps": 2000}, r"more than one env_steps budget: 1000 \(.*2000 \("),
    ],
)
def test_different_tasks_or_budgets_are_not_compared(
    make_group: Any, other: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compare([make_group("a", LOW), make_group("b", HIGH, **other)])


def test_an_arm_is_one_algorithm_and_counts_a_seed_once(make_group: Any, make_run: Any) -> None:
    a, mixed, double = make_group("a", LOW), make_group("mixed", [1.0]), make_group("double", [1.0])
    make_run("mixed/dqn", {1000: [3.0]}, seed=2, algorithm="dqn")
    with pytest.raises(ConfigError, match="'mixed' mixes runs of more than one algorithm: dqn"):
        compare([a, mixed])
    make_run("double/again", {1000: [3.0]}, seed=1)
    with pytest.raises(ConfigError, match="'double' has several runs with seed 1"):
        compare([a, double])
    with pytest.raises(ConfigError, match=r"belongs to two arms: .*a/seed-1"):
        compare([a, a / "seed-1"])


def test_a_missing_or_broken_score_names_the_run(make_group: Any, make_run: Any) -> None:
    a = make_group("a", LOW)
    empty = make_run("empty", {})
    with pytest.raises(RunError, match="runs/empty' has no evaluation"):
        compare([a, empty.path])
    fine, diverged = make_run("fine", {}), make_run("diverged", {})
    log(fine, "train/loss", [(1000, 1.0)])
    log(diverged, "train/loss", [(500, 1.0), (1000, math.nan)])
    with pytest.raises(ConfigError, match="runs/diverged' has the score nan in train/loss"):
        compare([fine.path, diverged.path], metric="train/loss")


def test_what_limits_a_comparison_is_reported(make_group: Any, make_run: Any) -> None:
    a = make_group("a", LOW)
    odd = make_group("odd", HIGH[:2], lr=0.1)
    make_run("odd/other", {1000: [1.0, 2.0]}, seed=3, lr=0.2)
    early = make_run("early", {900: [1.0]}, seed=1)
    warnings = compare([a, odd, early.path]).warnings
    assert len(warnings) == 4
    assert "'odd' differ in more than their seed (lr)" in warnings[0]
    assert "between 900 and 1,000 environment steps" in warnings[1]
    assert "different numbers of episodes (1, 2)" in warnings[2]
    assert "'early' has one seed" in warnings[3]


def test_unusable_arguments_are_refused(make_group: Any, tmp_path: Path) -> None:
    a, b = make_group("a", LOW), make_group("b", HIGH)
    with pytest.raises(ConfigError, match="expected at least two"):
        compare([a])
    with pytest.raises(ConfigError, match="given twice"):
        compare([a, a])
    with pytest.raises(ConfigError, match="expected one of final, best, auc"):
        compare([a, b], at="mean")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="level"):
        compare([a, b], level=95)
    with pytest.raises(RunError, match="nowhere"):
        compare([a, tmp_path / "nowhere"])


def test_the_result_is_reproducible_and_independent_of_other_arms(make_group: Any) -> None:
    a, b, c = make_group("a", LOW), make_group("b", HIGH), make_group("c", [1.0, 9.0, 20.0])

    def intervals(result: Comparison) -> list[float]:
        return [result.arms[1].iqm.low, result.pairs[0].improvement.high]

    assert compare([a, b]).to_json() == compare([a, b]).to_json()
    assert intervals(compare([a, b])) == intervals(compare([a, b, c]))
    wide = compare([a, b], level=0.99).arms[0].iqm
    narrow = compare([a, b], level=0.5).arms[0].iqm
    assert wide.low < narrow.low < narrow.high < wide.high


def test_names_are_the_shortest_that_differ(tmp_path: Path) -> None:
    paths = [tmp_path / "x" / "ppo", tmp_path / "y" / "ppo"]
    assert arm_names(paths) == ["x/ppo", "y/ppo"]
    assert arm_names([paths[0], tmp_path / "dqn"]) == ["ppo", "dqn"]


def test_numbers_have_the_digits_a_reader_can_use() -> None:
    values = [12345.6, 499.96, -1.2345, 0.01234, 0.0, np.nan, -99.999, None]
    expected = ["12,346", "500.0", "-1.23", "0.0123", "0", "-", "-100.00", "-"]
    assert [number(x) for x in values] == expected
