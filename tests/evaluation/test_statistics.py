"""Cross-checks against published values, SciPy and numbers worked out by hand."""

from __future__ import annotations

import doctest
import itertools
import math
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from scipy import stats

from assay.core.errors import AssayError, ConfigError
from assay.evaluation import statistics
from assay.evaluation.statistics import (
    cohens_d,
    hedges_g,
    holm,
    iqm,
    paired_test,
    performance_profile,
    permutation_test,
    power_two_sample,
    probability_of_improvement,
    sample_size,
    stratified_bootstrap,
    t_interval,
    welch_test,
)

# Student 1908 (Cushny and Peebles): extra hours of sleep under two drugs, ten patients.
SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
# Darwin 1876: heights of crossed and self-fertilised maize in eighths of an inch; the example of
# Fisher's "Design of Experiments".
CROSSED = [188, 96, 168, 176, 153, 172, 177, 163, 146, 173, 186, 168, 177, 184, 96]
SELFED = [139, 163, 160, 160, 147, 149, 149, 122, 132, 144, 130, 144, 102, 124, 144]


def test_the_examples_in_the_docstrings_are_true() -> None:
    results = doctest.testmod(statistics)
    assert results.attempted >= 7
    assert results.failed == 0


def test_importing_loads_neither_torch_nor_scipy() -> None:
    code = (
        "import sys, assay.evaluation.statistics;"
        "print([m for m in ('torch', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class TestAggregates:
    @pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 23, 100])
    def test_iqm_trims_as_scipy_does(self, n: int) -> None:
        scores = np.random.default_rng(n).normal(size=n)
        assert iqm(scores) == pytest.approx(stats.trim_mean(scores, 0.25), rel=1e-12)

    def test_iqm_pools_runs_and_tasks(self) -> None:
        # 12 scores: three fall off either end of 1..12, and the mean of 4..9 is 6.5. Averaging the
        # columns' own IQMs would weigh the outlier.
        matrix = np.array([[1, 5, 9], [2, 6, 10], [3, 7, 11], [4, 8, 1000]])
        assert iqm(matrix) == 6.5
        # Along the first axis each column of four loses one at either end.
        assert iqm(matrix, axis=0).tolist() == [2.5, 6.5, 10.5]


class TestBootstrap:
    scores = np.random.default_rng(3).gamma(2.0, size=25)

    @pytest.mark.parametrize("statistic", [np.mean, np.median, iqm])
    def test_one_task_agrees_with_scipy(self, statistic) -> None:
        mine = stratified_bootstrap(self.scores, statistic, reps=20_000, rng=0)
        theirs = stats.bootstrap(
            (self.scores,), statistic, n_resamples=20_000, method="percentile", rng=1,
            vectorized=True,
        ).confidence_interval  # fmt: skip
        # Two independent sets of 20,000 replicates: their quantiles differ by a few percent of
        # the width at most.
        width = theirs.high - theirs.low
        assert mine.point == pytest.approx(float(statistic(self.scores, axis=-1)))
        assert mine.low == pytest.approx(theirs.low, abs=0.05 * width)
        assert mine.high == pytest.approx(theirs.high, abs=0.05 * width)

    def test_runs_stay_in_their_task(self) -> None:
        # Within a task nothing varies, so neither does a stratified replicate; an unstratified
        # one would mix 0 and 100.
        matrix = np.tile([0.0, 100.0], (5, 1))
        interval = stratified_bootstrap(matrix, np.mean, rng=0)
        assert (interval.low, interval.point, interval.high) == (50.0, 50.0, 50.0)

    def test_every_resample_of_two_runs_by_hand(self) -> None:
        # [0, 1] resamples to a mean of 0, 1/2, 1 with chances 1/4, 1/2, 1/4.
        wide = stratified_bootstrap([0, 1], np.mean, level=0.6, reps=4000, rng=0)
        narrow = stratified_bootstrap([0, 1], np.mean, level=0.4, reps=4000, rng=0)
        assert (wide.low, wide.high) == (0.0, 1.0)  # quantiles 0.2 and 0.8
        assert (narrow.low, narrow.high) == (0.5, 0.5)  # quantiles 0.3 and 0.7

    def test_covers_the_truth_about_as_often_as_it_says(self) -> None:
        rng = np.random.default_rng(0)
        data = rng.normal(10.0, 2.0, size=(400, 20))
        intervals = [stratified_bootstrap(row, np.mean, reps=500, rng=rng) for row in data]
        covered = np.mean([i.low <= 10.0 <= i.high for i in intervals])
        # Percentile bootstrap on n = 20 normal values: 1.96 sqrt(19/20) = 1.91 covers
        # about 93 % of t_19. Three standard errors of 400 trials are 3.8 %.
        assert abs(covered - 0.93) < 0.038
        covered = np.mean([i.low <= 10.0 <= i.high for i in map(t_interval, data)])
        assert abs(covered - 0.95) < 0.033

    def test_accepts_ragged_tasks_and_agrees_with_the_matrix(self) -> None:
        matrix = np.arange(12.0).reshape(4, 3)
        by_task = {"a": matrix[:, 0], "b": matrix[:, 1], "c": matrix[:, 2]}
        assert stratified_bootstrap(by_task, rng=5) == stratified_bootstrap(matrix, rng=5)
        ragged = stratified_bootstrap({"a": [1, 2, 3], "b": [4, 5]}, np.mean, rng=5)
        assert ragged.point == 3.0
        assert 2.0 < ragged.low < 3.0 < ragged.high < 4.0

    @pytest.mark.parametrize(
        "scores", [[7.0], [[7.0, 8.0]], {"a": [1.0, 2.0, 3.0], "b": [4.0]}], ids=str
    )
    def test_a_single_run_has_no_interval(self, scores) -> None:
        interval = stratified_bootstrap(scores, np.mean, rng=0)
        assert math.isfinite(interval.point)
        assert math.isnan(interval.low)
        assert math.isnan(interval.high)

    def test_constant_scores_give_their_value(self) -> None:
        interval = stratified_bootstrap([500.0] * 5, rng=0)
        assert (interval.low, interval.point, interval.high) == (500.0, 500.0, 500.0)

    def test_same_seed_same_numbers_whatever_the_block(self, monkeypatch) -> None:
        whole = stratified_bootstrap(self.scores, rng=11)
        assert whole == stratified_bootstrap(self.scores, rng=np.random.default_rng(11))
        assert whole != stratified_bootstrap(self.scores, rng=12)
        monkeypatch.setattr(statistics, "_BLOCK", 70)
        assert stratified_bootstrap(self.scores, rng=11) == whole

    def test_takes_a_statistic_with_parameters(self) -> None:
        low = stratified_bootstrap([0.5, 1.5, 0.7], partial(np.quantile, q=0.0), rng=0)
        assert low.point == 0.5

    def test_refuses_a_statistic_that_does_not_reduce_the_axis(self) -> None:
        with pytest.raises(ConfigError, match=r"statistic returned shape \(\)"):
            stratified_bootstrap([1, 2, 3], lambda scores, axis: scores.mean(), rng=0)


class TestImprovement:
    def test_by_hand(self) -> None:
        # 3 beats 1 and ties 3; 4 beats both: (1 + 1/2 + 1 + 1) / 4.
        assert probability_of_improvement([3, 4], [1, 3], rng=0).point == 0.875
        # Over tasks the probabilities are averaged: (1 + 0 + 1/2) / 3.
        x = np.array([[2, 0, 5], [3, 1, 5]])
        y = np.array([[0, 2, 5], [1, 3, 5]])
        assert probability_of_improvement(x, y, rng=0).point == pytest.approx(0.5)

    def test_is_the_mann_whitney_u_over_nm(self) -> None:
        rng = np.random.default_rng(1)
        x, y = rng.integers(0, 6, size=9), rng.integers(1, 7, size=14)
        u = stats.mannwhitneyu(x, y).statistic
        assert probability_of_improvement(x, y, rng=0).point == pytest.approx(u / (9 * 14))

    def test_interval_agrees_with_a_plain_bootstrap(self) -> None:
        rng = np.random.default_rng(2)
        x, y = rng.normal(0.5, 1, size=(8, 3)), rng.normal(0, 1, size=(6, 3))
        mine = probability_of_improvement(x, y, reps=20_000, rng=0)
        replicates = []
        for _ in range(4000):
            per_task = [
                np.mean(rng.choice(a, a.size)[:, None] > rng.choice(b, b.size))
                for a, b in zip(x.T, y.T, strict=True)
            ]
            replicates.append(np.mean(per_task))
        low, high = np.quantile(replicates, [0.025, 0.975])
        assert mine.low == pytest.approx(low, abs=0.02)
        assert mine.high == pytest.approx(high, abs=0.02)

    def test_tasks_are_matched_by_name(self) -> None:
        x = {"a": [1, 2, 3], "b": [10, 20]}
        y = {"b": [0, 1, 2], "a": [7, 8]}
        assert probability_of_improvement(x, y, rng=0).point == 0.5
        with pytest.raises(ConfigError, match=r"different tasks \(b, c\)"):
            probability_of_improvement(x, {"a": [1, 2], "c": [1, 2]}, rng=0)
        with pytest.raises(ConfigError, match="different tasks"):
            probability_of_improvement(np.ones((3, 2)), np.ones((3, 3)), rng=0)

    @pytest.mark.parametrize(("x", "y"), [([1.0], [0.0, 2.0, 3.0]), ([0.0, 2.0, 3.0], [1.0])])
    def test_a_single_run_on_either_side_has_no_interval(self, x, y) -> None:
        interval = probability_of_improvement(x, y, rng=0)
        assert math.isfinite(interval.point)
        assert math.isnan(interval.low)
        assert math.isnan(interval.high)


class TestProfile:
    def test_by_hand(self) -> None:
        # Strictly above, so that a score at the threshold does not count.
        profile = performance_profile([[0, 2], [1, 3]], [-1, 0, 1, 2, 3], rng=0)
        assert profile.fraction.tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]
        # Ragged: each task counts alike, (2/2 + 1/4) / 2.
        ragged = performance_profile({"a": [5, 6], "b": [0, 0, 0, 5]}, [1], rng=0)
        assert ragged.fraction.tolist() == [0.625]

    def test_band_is_the_binomial_one(self) -> None:
        # Of 20 runs 8 lie above 0: a bootstrap count is Binomial(20, 0.4).
        scores = np.r_[np.arange(-11, 1), np.arange(1, 9)]
        profile = performance_profile(scores, [0, 100], reps=20_000, rng=0)
        assert profile.low[0] == stats.binom.ppf(0.025, 20, 0.4) / 20
        assert profile.high[0] == stats.binom.ppf(0.975, 20, 0.4) / 20
        assert (profile.low[1], profile.high[1]) == (0.0, 0.0)

    def test_band_is_stratified(self) -> None:
        profile = performance_profile(np.tile([0.0, 2.0], (5, 1)), [1.0], rng=0)
        assert profile.low[0] == profile.fraction[0] == profile.high[0] == 0.5

    def test_a_single_run_has_no_band(self) -> None:
        profile = performance_profile([[1.0, 2.0]], [0, 1.5], rng=0)
        assert profile.fraction.tolist() == [1.0, 0.5]
        assert np.isnan([profile.low, profile.high]).all()


class TestStudent:
    def test_sleep_paired(self) -> None:
        # R: t.test(extra ~ group, data = sleep, paired = TRUE)
        result = paired_test(SLEEP_1, SLEEP_2)
        assert result.statistic == pytest.approx(-4.0621, abs=5e-5)
        assert result.p_value == pytest.approx(0.002833, abs=5e-7)
        assert result.df == 9
        assert result.interval is not None
        assert result.interval.point == pytest.approx(-1.58)
        assert result.interval.low == pytest.approx(-2.4598858, abs=5e-8)
        assert result.interval.high == pytest.approx(-0.7001142, abs=5e-8)
        # Cohen's d_z = t / sqrt(n)
        assert result.effect == pytest.approx(-4.0621 / math.sqrt(10), abs=5e-5)

    def test_sleep_welch(self) -> None:
        # R: t.test(extra ~ group, data = sleep)
        result = welch_test(SLEEP_1, SLEEP_2)
        assert result.statistic == pytest.approx(-1.8608, abs=5e-5)
        assert result.df == pytest.approx(17.776, abs=5e-4)
        assert result.p_value == pytest.approx(0.07939, abs=5e-6)
        assert result.interval is not None
        assert result.interval.low == pytest.approx(-3.3654832, abs=5e-8)
        assert result.interval.high == pytest.approx(0.2054832, abs=5e-8)

    def test_darwins_maize(self) -> None:
        # Fisher 1935: t = 2.148 on 14 degrees of freedom, just beyond 5 % (2.145).
        result = paired_test(CROSSED, SELFED)
        assert result.statistic == pytest.approx(2.148, abs=5e-4)
        assert 0.049 < result.p_value < 0.05

    @pytest.mark.parametrize("seed", range(5))
    def test_agree_with_scipy(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        x, y = rng.normal(0, 1, size=4 + seed), rng.normal(1, 5, size=12)
        mine, theirs = welch_test(x, y, 0.9), stats.ttest_ind(x, y, equal_var=False)
        assert mine.statistic == pytest.approx(theirs.statistic, rel=1e-10)
        assert mine.p_value == pytest.approx(theirs.pvalue, rel=1e-10)
        assert mine.df == pytest.approx(theirs.df, rel=1e-10)
        bounds = theirs.confidence_interval(0.9)
        assert mine.interval is not None
        assert mine.interval.low == pytest.approx(bounds.low, rel=1e-10)
        assert mine.interval.high == pytest.approx(bounds.high, rel=1e-10)

        paired, expected = paired_test(y[: x.size], x), stats.ttest_rel(y[: x.size], x)
        assert paired.statistic == pytest.approx(expected.statistic, rel=1e-10)
        assert paired.p_value == pytest.approx(expected.pvalue, rel=1e-10)

    def test_t_interval(self) -> None:
        # Mean 3, s = sqrt(2.5), t_{0.975, 4} = 2.776445 from the table.
        interval = t_interval([1, 2, 3, 4, 5])
        assert interval.point == 3.0
        assert interval.high - 3.0 == pytest.approx(2.776445 * math.sqrt(2.5 / 5), abs=1e-6)
        assert 3.0 - interval.low == pytest.approx(interval.high - 3.0)
        # t_{0.95, 4} = 2.131847
        assert t_interval([1, 2, 3, 4, 5], 0.9).high == pytest.approx(
            3 + 2.131847 * math.sqrt(0.5), abs=1e-6
        )

    def test_undefined_where_nothing_varies(self) -> None:
        for x, y, effect in [([500] * 5, [500] * 5, 0.0), ([500] * 5, [480] * 5, math.inf)]:
            result = welch_test(x, y)
            assert math.isnan(result.statistic)
            assert math.isnan(result.p_value)
            assert result.effect == effect
            assert result.interval is not None
            assert result.interval.point == x[0] - y[0]

    def test_rounding_is_not_variance(self) -> None:
        # [0.1] * 3 has a computed variance of 3e-34, and x + 0.1 - x varies in its last bits.
        assert math.isnan(welch_test([0.1] * 3, [0.2] * 3).statistic)
        x = np.random.default_rng(0).uniform(1000, 9000, size=8)
        assert math.isnan(paired_test(x + 0.1, x).p_value)
        assert paired_test(x + 0.1, x).effect == math.inf
        # Small against their size is still real: 1e6 + {0, 1e-6, 2e-6}.
        assert welch_test([1e6, 1e6 + 1e-6, 1e6 + 2e-6], [1e6 + 1e-5] * 3).p_value < 0.05


class TestPermutation:
    def test_unpaired_by_hand(self) -> None:
        # {4, 5, 6} against {1, 2, 3}: of C(6, 3) = 20 deals only the two extreme ones reach 3.
        result = permutation_test([4, 5, 6], [1, 2, 3], rng=0)
        assert (result.statistic, result.p_value, result.exact) == (3.0, 2 / 20, True)
        # All equal: every deal reaches the observed 0.
        assert permutation_test([500] * 4, [500] * 4, rng=0).p_value == 1.0

    @pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 7), (5, 6)])
    def test_exact_agrees_with_scipy(self, n: int, m: int) -> None:
        rng = np.random.default_rng(n)
        x, y = rng.normal(1, 1, size=n).round(1), rng.normal(size=m).round(1)
        mine = permutation_test(x, y, rng=0)
        theirs = stats.permutation_test(
            (x, y),
            lambda a, b, axis: np.abs(a.mean(axis=axis) - b.mean(axis=axis)),
            alternative="greater",
            n_resamples=np.inf,
            vectorized=True,
        )
        assert mine.exact
        assert mine.p_value == pytest.approx(theirs.pvalue, rel=1e-12)

    def test_monte_carlo_agrees_with_the_exact_value(self) -> None:
        rng = np.random.default_rng(4)
        x, y = rng.normal(0.8, 1, size=10), rng.normal(size=10)
        exact = permutation_test(x, y, reps=200_000, rng=0)
        drawn = permutation_test(x, y, reps=1000, rng=0)
        assert exact.exact
        assert not drawn.exact
        # Four standard errors of 1,000 draws.
        error = 4 * math.sqrt(exact.p_value * (1 - exact.p_value) / 1000)
        assert drawn.p_value == pytest.approx(exact.p_value, abs=error)

    def test_monte_carlo_of_unequal_sizes_by_hand(self) -> None:
        # One nonzero value among 43: the difference is as large as 1/3 only if it falls among
        # the three of x, with chance 3/43. Four standard errors of 5,000 draws are 0.0144.
        result = permutation_test([1, 0, 0], np.zeros(40), reps=5000, rng=0)
        assert not result.exact
        assert result.p_value == pytest.approx(3 / 43, abs=0.0144)

    def test_monte_carlo_is_never_zero(self) -> None:
        x, y = np.arange(40) + 1000.0, np.arange(40) % 7 + 0.0
        result = permutation_test(x, y, reps=199, rng=0)
        assert result.p_value == 1 / 200

    def test_rounding_does_not_lose_the_observed_deal(self) -> None:
        # 0.1 + 0.2 and 0.3: sums of the same numbers in another order differ in the last bit.
        x, y = [0.1, 0.2, 0.3, 0.7], [0.6, 0.9, 1.1, 1.3]
        scaled = permutation_test(np.multiply(x, 10).round(), np.multiply(y, 10).round(), rng=0)
        assert permutation_test(x, y, rng=0).p_value == scaled.p_value

    def test_same_seed_same_numbers_whatever_the_block(self, monkeypatch) -> None:
        x, y = np.random.default_rng(0).normal(size=(2, 15))
        before = permutation_test(x, y, reps=500, rng=1)
        monkeypatch.setattr(statistics, "_BLOCK", 70)
        assert before == permutation_test(x, y, reps=500, rng=1)


class TestEffects:
    def test_cohens_d_by_hand(self) -> None:
        # Means 4 and 2, variances 4 and 1, df 2 and 2: (8 + 2) / 4 = 2.5.
        assert cohens_d([2, 4, 6], [1, 2, 3]) == pytest.approx(2 / math.sqrt(2.5))
        # Unequal sizes: variances 4 and 2/3, df 2 and 3: (8 + 2) / 5 = 2.
        assert cohens_d([2, 4, 6], [1, 2, 3, 2]) == pytest.approx(2 / math.sqrt(2))
        assert cohens_d([3, 3], [3, 3]) == 0.0
        assert cohens_d([2, 2], [3, 3]) == -math.inf

    def test_hedges_g(self) -> None:
        # df = 4: J = Gamma(2) / (sqrt(2) Gamma(1.5)) = 1 / (sqrt(2) sqrt(pi) / 2) = sqrt(2 / pi)
        x, y = [2, 4, 6], [1, 2, 3]
        assert hedges_g(x, y) == pytest.approx(cohens_d(x, y) * math.sqrt(2 / math.pi))
        # Large samples: the familiar 1 - 3 / (4 df - 1).
        x, y = np.random.default_rng(0).normal(size=(2, 100))
        assert hedges_g(x, y) / cohens_d(x, y) == pytest.approx(1 - 3 / (4 * 198 - 1), rel=1e-6)


class TestPower:
    @pytest.mark.parametrize(
        ("alpha", "sizes"),
        [(0.01, (586, 95, 38)), (0.05, (393, 64, 26)), (0.10, (310, 50, 20))],
    )
    def test_cohens_table(self, alpha, sizes) -> None:
        # Cohen 1992, "A Power Primer", table 2, first row: small, medium and large effects at
        # power 0.80. His approximation is one short in places.
        for effect, n in zip((0.2, 0.5, 0.8), sizes, strict=True):
            assert sample_size(effect, 0.8, alpha) in (n, n + 1)

    @pytest.mark.parametrize(("effect", "n"), [(0.2, 394), (0.5, 64), (0.8, 26)])
    def test_exact_sample_sizes(self, effect, n) -> None:
        # G*Power, two-sided 0.05 and power 0.80.
        assert sample_size(effect) == sample_size(-effect) == n
        assert power_two_sample(effect, n) >= 0.8 > power_two_sample(effect, n - 1)

    def test_examples_of_r(self) -> None:
        # power.t.test(n = 20, delta = 1), without the 2e-7 of the opposite tail; and
        # power.t.test(power = .90, delta = 1), whose answer is 22.02.
        assert power_two_sample(1.0, 20) == pytest.approx(0.8689528, abs=5e-7)
        assert sample_size(1.0, power=0.9) == 23

    def test_agrees_with_the_noncentral_t(self) -> None:
        compared = 0
        for effect, n, alpha in itertools.product(
            [0.0, 0.1, 0.5, 1.0, 2.0, 100.0], [2, 3, 5, 10, 30, 1000], [1e-4, 0.05, 0.5]
        ):
            df, delta = 2 * n - 2, effect * math.sqrt(n / 2)
            critical = stats.t.ppf(1 - alpha / 2, df)
            expected = stats.nct.sf(critical, df, delta) + stats.nct.cdf(-critical, df, delta)
            # SciPy's noncentral t is NaN at scattered points.
            if math.isfinite(expected):
                compared += 1
                assert power_two_sample(effect, n, alpha) == pytest.approx(expected, abs=1e-11)
        assert compared > 70

    def test_without_an_effect_it_is_the_false_alarm_rate(self) -> None:
        assert power_two_sample(0.0, 10, 0.05) == pytest.approx(0.05, abs=1e-12)

    def test_is_what_welch_achieves(self) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.normal(1.0, 1, size=(2000, 17)), rng.normal(0, 1, size=(2000, 17))
        rejected = np.mean(stats.ttest_ind(x, y, axis=1, equal_var=False).pvalue < 0.05)
        assert rejected == pytest.approx(power_two_sample(1.0, 17), abs=0.03)

    def test_extremes(self) -> None:
        assert sample_size(50.0) == 2
        assert power_two_sample(20.0, 50) == pytest.approx(1.0)
        # n = 2 (z_{0.975} + z_{0.8})^2 / d^2 = 15.697 / d^2 for a small effect
        assert sample_size(1e-3) == pytest.approx(15.697e6, rel=1e-3)
        with pytest.raises(ConfigError, match="effect is 1e-09"):
            sample_size(1e-9)


class TestHolm:
    def test_by_hand(self) -> None:
        # Sorted 0.005 0.01 0.03 0.04 times 4 3 2 1: 0.02 0.03 0.06 0.04, made monotone.
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
        assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]
        assert holm([0.2]).tolist() == [0.2]

    def test_lies_between_the_raw_and_the_bonferroni_values(self) -> None:
        p = np.random.default_rng(0).uniform(size=30) ** 3
        adjusted = holm(p)
        assert (adjusted >= p).all()
        assert (adjusted <= np.minimum(30 * p, 1) + 1e-15).all()
        assert adjusted.min() == pytest.approx(30 * p.min())


NAN = math.nan
BAD_CALLS = {
    "empty iqm": (lambda: iqm([]), r"scores is empty"),
    "nan iqm": (lambda: iqm([[1, 2], [3, NAN]]), r"scores\[1, 1\] is nan: expected finite"),
    "words": (lambda: iqm(["high", "low"]), r"scores is not an array of numbers"),
    "ragged list": (lambda: iqm([[1, 2], [3]]), r"scores is not an array of numbers"),
    "empty bootstrap": (lambda: stratified_bootstrap([], rng=0), r"scores is empty"),
    "no tasks": (lambda: stratified_bootstrap({}, rng=0), r"scores has no tasks"),
    "empty task": (lambda: stratified_bootstrap({"a": [1], "b": []}, rng=0), r"scores\['b'\] is e"),
    "inf in task": (
        lambda: stratified_bootstrap({"a": [1, math.inf]}, rng=0),
        r"scores\['a'\]\[1\] is inf",
    ),
    "cube": (lambda: stratified_bootstrap(np.ones((2, 2, 2)), rng=0), r"shape \(2, 2, 2\)"),
    "level": (lambda: stratified_bootstrap([1, 2], level=95, rng=0), r"level is 95"),
    "reps": (lambda: stratified_bootstrap([1, 2], reps=0, rng=0), r"reps is 0"),
    "float reps": (lambda: permutation_test([1, 2], [3, 4], reps=1e4, rng=0), r"reps is 10000.0"),
    "rng": (lambda: stratified_bootstrap([1, 2], rng=None), r"rng is None"),
    "negative seed": (lambda: stratified_bootstrap([1, 2], rng=-1), r"rng is -1"),
    "nan improvement": (lambda: probability_of_improvement([1], [NAN], rng=0), r"y\[0\] is nan"),
    "no thresholds": (lambda: performance_profile([1], [], rng=0), r"thresholds is empty"),
    "one for t": (lambda: t_interval([1.0]), r"x has 1 value: expected at least 2"),
    "matrix for t": (lambda: t_interval([[1, 2], [3, 4]]), r"x has shape \(2, 2\)"),
    "one for welch": (lambda: welch_test([1, 2], [3]), r"y has 1 value: expected at least 2"),
    "nan for welch": (lambda: welch_test([1, NAN], [3, 4]), r"x\[1\] is nan"),
    "unequal pairs": (lambda: paired_test([1, 2, 3], [1, 2]), r"x has 3 values and y has 2"),
    "one for d": (lambda: cohens_d([1], [2, 3]), r"x has 1 value"),
    "one for g": (lambda: hedges_g([1, 2], [3]), r"y has 1 value"),
    "power n": (lambda: power_two_sample(0.5, 1), r"n is 1: expected"),
    "power float n": (lambda: power_two_sample(0.5, 2.5), r"n is 2.5: expected"),
    "power alpha": (lambda: power_two_sample(0.5, 10, alpha=0), r"alpha is 0"),
    "power effect": (lambda: power_two_sample(NAN, 10), r"effect is nan"),
    "size effect": (lambda: sample_size(0.0), r"effect is 0"),
    "size power": (lambda: sample_size(0.5, power=1.0), r"power is 1.0"),
    "holm range": (lambda: holm([0.1, 1.2]), r"p_values\[1\] is 1.2"),
    "holm nan": (lambda: holm([0.1, NAN]), r"p_values\[1\] is nan"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_named(name: str) -> None:
    call, message = BAD_CALLS[name]
    with pytest.raises(ConfigError, match=message) as caught:
        call()
    assert isinstance(caught.value, AssayError)
    assert "expected" in str(caught.value)
