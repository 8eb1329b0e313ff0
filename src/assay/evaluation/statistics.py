"""Estimate how good a set of runs is, with intervals, and test whether one set beats another.

The unit of evidence is a run (one seed), never an episode: the episodes of one run share its
weights and are not independent. Scores come as `[runs]` for one task, as a matrix `[runs, tasks]`,
or as a mapping from task to the scores of its runs, which may differ in number.

What to keep in mind with few runs:

* An interval from one run does not exist: a bootstrap returns NaN bounds, never a width of zero.
  From two runs it exists but is meaningless; three is the minimum, ten is better.
* The percentile bootstrap is too narrow below about ten runs per task, because resampling n values
  underestimates the spread by a factor sqrt((n - 1) / n). `t_interval` is the better choice for
  the mean of few runs on one task.
* All tests are two-sided. With n runs each, an exact permutation test cannot give a p-value below
  2 / C(2n, n): three against three runs can never reach 0.05.

References:
    Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
    (arXiv:2108.13264): interquartile mean, stratified bootstrap, probability of improvement,
    performance profiles.
    Colas et al. 2018, "How Many Random Seeds?" (arXiv:1806.08295): Welch and power.
    Phipson and Smyth 2010: the +1 in a Monte Carlo permutation test.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.core.errors import ConfigError

Floats = NDArray[np.float64]
Scores = ArrayLike | Mapping[str, ArrayLike]
Rng = np.random.Generator | int

# Resampled blocks are processed in pieces of this many numbers (16 MB).
_BLOCK = 2_000_000
# Differences below this fraction of the largest value are rounding, not data: 0.3 - 0.1 and 0.2
# must tie, and x - (x + 0.1) must count as constant.
_ROUNDING = 64 * float(np.finfo(np.float64).eps)
_LARGEST_SAMPLE = 2**30


class Statistic(Protocol):
    """A vectorised statistic: `np.mean`, `np.median`, `iqm`.

    It is called with `axis=-1` on `[reps, scores]` and returns `[reps]`.
    """

    def __call__(self, scores: Floats, /, *, axis: int) -> Any:
        """Reduce `axis` of `scores`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its confidence interval (NaN where there is none)."""

    point: float
    low: float
    high: float
    level: float

    def to_json(self, name: str = "point") -> dict[str, float | None]:
        """Return plain values, with None for numbers that are undefined."""
        numbers = {name: self.point, "low": self.low, "high": self.high}
        return {key: value if math.isfinite(value) else None for key, value in numbers.items()}


@dataclass(frozen=True, slots=True)
class SignificanceTest:
    """The outcome of a two-sided test of x against y.

    Attributes:
        test: `welch`, `paired t` or `permutation`.
        statistic: t, or the difference of means.
        p_value: Two-sided; NaN where the test is undefined.
        effect: Standardised size, positive where x is larger; its kind is in the test's docstring.
        df: Degrees of freedom of a t-test.
        interval: Of the mean difference x - y, for a t-test.
        exact: Whether the p-value comes from the whole null distribution, without approximation.
    """

    test: str
    statistic: float
    p_value: float
    effect: float
    df: float | None = None
    interval: Interval | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PerformanceProfile:
    """The fraction of runs above each threshold, with a pointwise band; all `[thresholds]`."""

    thresholds: Floats
    fraction: Floats
    low: Floats
    high: Floats
    level: float


# Aggregates


@overload
def iqm(scores: ArrayLike, axis: None = None) -> float: ...
@overload
def iqm(scores: ArrayLike, axis: int) -> Floats: ...
def iqm(scores: ArrayLike, axis: int | None = None) -> float | Floats:
    """Return the interquartile mean: the mean without the lowest and the highest quarter.

    A quarter is `floor(n / 4)` scores, as in `scipy.stats.trim_mean(scores, 0.25)` and rliable, so
    that with fewer than four scores it is the mean.

    Args:
        scores: Any shape; pooled over everything unless `axis` is given.
        axis: The one axis to reduce.

    Example:
        >>> iqm([0, 1, 2, 3, 100])
        2.0
    """
    values = _finite(scores, "scores")
    if axis is None:
        values, axis = values.reshape(-1), -1
    ordered = np.sort(np.moveaxis(values, axis, -1), axis=-1)
    n = ordered.shape[-1]
    return _float_or_array(ordered[..., n // 4 : n - n // 4].mean(axis=-1))


# Intervals


def stratified_bootstrap(
    scores: Scores, statistic: Statistic = iqm, *, rng: Rng, reps: int = 2000, level: float = 0.95
) -> Interval:
    """Return a statistic of all scores with its bootstrap interval.

    Runs are drawn with replacement within each task, so that every replicate holds as many runs of
    each task as the data; for one task this is the ordinary bootstrap. The statistic sees the
    scores of all tasks pooled: normalise them first, and note that a task with more runs weighs
    more. With fewer than three runs per task the interval is not meaningful; where a task has a
    single run the bounds are NaN, because its spread is unknown.

    Args:
        scores: `[runs]`, `[runs, tasks]`, or task -> `[runs]`.
        statistic: What to estimate; see `Statistic`.
        rng: A generator, or a seed for one.
        reps: Number of replicates; 2,000 for a quick look, 50,000 for a paper.
        level: Confidence, for example 0.95.
    """
    tasks = list(_by_task(scores, "scores").values())
    _check_open_unit(level, "level")
    _check_reps(reps)
    generator = _generator(rng)
    pooled = np.concatenate(tasks)
    sizes = np.array([len(task) for task in tasks])
    point = float(_apply(statistic, pooled[None])[0])
    if sizes.min() < 2:
        return Interval(point, math.nan, math.nan, level)

    # A replicate's entry i is a run of the task that entry i of the data belongs to.
    ends = np.repeat(np.cumsum(sizes), sizes)
    starts = ends - np.repeat(sizes, sizes)
    replicates = np.empty(reps)
    for block in _blocks(reps, pooled.size):
        drawn = generator.integers(starts, ends, size=(len(block), pooled.size))
        replicates[block.start : block.stop] = _apply(statistic, pooled[drawn])

    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return Interval(point, float(low), float(high), level)


def t_interval(x: ArrayLike, level: float = 0.95) -> Interval:
    """Return the mean of `x` with Student's t interval.

    Example:
        >>> interval = t_interval([1, 2, 3, 4, 5])
        >>> round(interval.low, 4), round(interval.high, 4)
        (1.0368, 4.9632)
    """
    values = _sample(x, "x", at_least=2)
    _check_open_unit(level, "level")
    error = _deviation(values) / math.sqrt(values.size)
    return _student_interval(float(values.mean()), error, values.size - 1, level)


def probability_of_improvement(
    x: Scores, y: Scores, *, rng: Rng, reps: int = 2000, level: float = 0.95
) -> Interval:
    """Return the probability that a run of x beats a run of y on a task drawn at random.

    P(X > Y) + P(X = Y) / 2 per task (the Mann-Whitney U over n m), averaged over tasks. The
    interval is a percentile bootstrap that draws the runs of x and of y independently within each
    task; its bounds are NaN where x or y has a single run of some task.

    Scores are `[runs]`, `[runs, tasks]`, or task -> `[runs]`; the number of runs may differ.

    Example:
        >>> probability_of_improvement([3, 4], [1, 3], rng=0).point
        0.875
    """
    tasks_x, tasks_y = _by_task(x, "x"), _by_task(y, "y")
    if tasks_x.keys() != tasks_y.keys():
        odd = ", ".join(sorted(map(str, tasks_x.keys() ^ tasks_y.keys())))
        raise ConfigError(
            f"x and y cover different tasks ({odd}): expected the same tasks in both.",
            "Compare on the tasks that both have been run on.",
        )
    _check_open_unit(level, "level")
    _check_reps(reps)
    generator = _generator(rng)
    total, replicates, fewest = 0.0, np.zeros(reps), math.inf
    for task, a in tasks_x.items():
        b = tasks_y[task]
        wins = _wins(a, b)  # [runs of x, runs of y]
        total += float(wins.mean())
        draws_a, draws_b = (
            _draw_counts(a.size, reps, generator),
            _draw_counts(b.size, reps, generator),
        )
        replicates += ((draws_a @ wins) * draws_b).sum(axis=1) / wins.size
        fewest = min(fewest, a.size, b.size)
    point = total / len(tasks_x)
    if fewest < 2:
        return Interval(point, math.nan, math.nan, level)
    low, high = np.quantile(replicates / len(tasks_x), [(1 - level) / 2, (1 + level) / 2])
    return Interval(point, float(low), float(high), level)


def performance_profile(
    scores: Scores, thresholds: ArrayLike, *, rng: Rng, reps: int = 2000, level: float = 0.95
) -> PerformanceProfile:
    """Return the fraction of runs that score above each threshold, averaged over tasks.

    The band is a stratified percentile bootstrap at each threshold by itself, not for the whole
    curve at once; it is NaN where a task has a single run.

    Scores are `[runs]`, `[runs, tasks]`, or task -> `[runs]`.
    """
    tasks = list(_by_task(scores, "scores").values())
    taus = _sample(thresholds, "thresholds", at_least=1)
    _check_open_unit(level, "level")
    _check_reps(reps)
    generator = _generator(rng)
    fraction = np.zeros(taus.size)
    replicates = np.zeros((reps, taus.size))
    for runs in tasks:
        above = (runs[:, None] > taus).astype(np.float64)  # [runs, thresholds]
        fraction += above.mean(axis=0) / len(tasks)
        replicates += _draw_counts(runs.size, reps, generator) @ above / (runs.size * len(tasks))
    if min(runs.size for runs in tasks) < 2:
        low = high = np.full(taus.size, math.nan)
    else:
        low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return PerformanceProfile(taus, fraction, low, high, level)


# Tests


def welch_test(x: ArrayLike, y: ArrayLike, level: float = 0.95) -> SignificanceTest:
    """Test whether two independent samples have the same mean, without assuming equal variances.

    The effect is `hedges_g`. Where neither sample varies (every seed solved the task) the test is
    undefined: its statistic, p-value and df are NaN, and `permutation_test` is the one to use.
    """
    a, b = _sample(x, "x", at_least=2), _sample(y, "y", at_least=2)
    _check_open_unit(level, "level")
    # Welch-Satterthwaite: df = (u + v)^2 / (u^2 / (n - 1) + v^2 / (m - 1))
    u, v = _deviation(a) ** 2 / a.size, _deviation(b) ** 2 / b.size
    difference, error = float(a.mean() - b.mean()), math.sqrt(u + v)
    effect = hedges_g(a, b)
    if error == 0.0:
        return _undefined_t("welch", difference, effect, level)
    # Shares instead of squares: u^2 underflows where u does not.
    share = u / (u + v)
    df = 1.0 / (share**2 / (a.size - 1) + (1 - share) ** 2 / (b.size - 1))
    interval = _student_interval(difference, error, df, level)
    t = difference / error
    return SignificanceTest("welch", t, _student_p(t, df), effect, df, interval)


def paired_test(x: ArrayLike, y: ArrayLike, level: float = 0.95) -> SignificanceTest:
    """Test whether paired differences x - y centre on zero (the same seed or task in both).

    This is Student's paired test. Its effect is the mean difference over the standard deviation of
    the differences. Where all differences are equal it is undefined: statistic and p-value are NaN.
    """
    a, b = _pairs(x, y)
    _check_open_unit(level, "level")
    differences, noise = a - b, _noise(a, b)
    mean, deviation = float(differences.mean()), _deviation(differences, noise)
    effect = _standardise(mean, deviation, noise)
    if deviation == 0.0:
        return _undefined_t("paired t", mean, effect, level)
    error, df = deviation / math.sqrt(a.size), a.size - 1
    interval = _student_interval(mean, error, df, level)
    t = mean / error
    return SignificanceTest("paired t", t, _student_p(t, df), effect, df, interval)


def permutation_test(
    x: ArrayLike, y: ArrayLike, *, rng: Rng, reps: int = 20_000
) -> SignificanceTest:
    """Test the difference of means against all possible assignments of the labels.

    If there are no more than `reps` ways to reassign runs between x and y, all are counted and the
    p-value is exact; otherwise `reps` random ones are drawn and p = (1 + hits) / (1 + reps), which
    is never zero. A hit is an absolute difference at least as large as the observed one. The effect
    is `hedges_g`. Where the test is exact, `rng` is not drawn from.
    """
    _check_reps(reps)
    generator = _generator(rng)
    a, b = _sample(x, "x", at_least=2), _sample(y, "y", at_least=2)
    observed = float(a.mean() - b.mean())
    ways = math.comb(a.size + b.size, a.size)
    exact = ways <= reps
    null = _relabellings(a, b, None if exact else reps, generator)
    hits = int(np.count_nonzero(np.abs(null) >= abs(observed) - _noise(a, b)))
    p_value = hits / ways if exact else (1 + hits) / (1 + reps)
    return SignificanceTest("permutation", observed, p_value, hedges_g(a, b), exact=exact)


def holm(p_values: ArrayLike) -> Floats:
    """Return Holm's adjusted p-values, in the order given.

    Rejecting where they are at most alpha keeps the chance of any false rejection among all of
    them below alpha, whatever their dependence.

    Example:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    p = _sample(p_values, "p_values", at_least=1)
    outside = np.flatnonzero((p < 0) | (p > 1))
    if outside.size:
        i = int(outside[0])
        raise ConfigError(f"p_values[{i}] is {p[i]:g}: expected a probability between 0 and 1.")
    order = np.argsort(p, kind="stable")
    # adjusted_(i) = max_{j <= i} (m - j + 1) p_(j), at most 1
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


# Effect sizes and power


def cohens_d(x: ArrayLike, y: ArrayLike) -> float:
    """Return the difference of means over the pooled standard deviation.

    Where neither sample varies it is 0 for equal means and infinite for different ones.
    """
    a, b = _sample(x, "x", at_least=2), _sample(y, "y", at_least=2)
    squares = (a.size - 1) * _deviation(a) ** 2 + (b.size - 1) * _deviation(b) ** 2
    pooled = math.sqrt(squares / (a.size + b.size - 2))
    return _standardise(float(a.mean() - b.mean()), pooled, _noise(a, b))


def hedges_g(x: ArrayLike, y: ArrayLike) -> float:
    """Return Cohen's d times the exact factor that makes it unbiased in small samples."""
    d = cohens_d(x, y)
    half = (np.size(x) + np.size(y) - 2) / 2
    # J = Gamma(df / 2) / (sqrt(df / 2) Gamma((df - 1) / 2))
    return d * math.exp(math.lgamma(half) - math.lgamma(half - 0.5)) / math.sqrt(half)


def power_two_sample(effect: float, n: int, alpha: float = 0.05) -> float:
    """Return the chance that a two-sided t-test with n runs each finds a difference of this size.

    Holds for equal variances, where Welch's test has almost the power of Student's.

    `effect` is the true difference of means in standard deviations (Cohen's d).

    Example:
        >>> round(power_two_sample(0.5, 64), 4)
        0.8015
    """
    _check_power(effect, n, alpha, "runs per set")
    return _power_t(abs(effect) * math.sqrt(n / 2), 2 * int(n) - 2, alpha)


def power_paired(effect: float, n: int, alpha: float = 0.05) -> float:
    """Return the chance that a two-sided paired t-test with n pairs finds a difference.

    `effect` is the true mean of the differences in standard deviations of the differences.

    Example:
        >>> round(power_paired(0.5, 34), 4)
        0.8078
    """
    _check_power(effect, n, alpha, "pairs")
    return _power_t(abs(effect) * math.sqrt(n), int(n) - 1, alpha)


def _check_power(effect: float, n: int, alpha: float, what: str) -> None:
    _finite(effect, "effect", ndim=0)
    _check_open_unit(alpha, "alpha")
    if not isinstance(n, int | np.integer) or n < 2:
        raise ConfigError(f"n is {n!r}: expected a whole number of at least 2 {what}.")


def _power_t(delta: float, df: int, alpha: float) -> float:
    """Return the power of a two-sided t-test with noncentrality `delta`."""
    special = _special()
    critical = float(special.stdtrit(df, 1 - alpha / 2))
    # |T| > c for noncentral T = (Z + delta) / S with S = sqrt(chi2_df / df), so power is
    # E_S[Phi(delta - c S) + Phi(-delta - c S)]. Integrated here, because SciPy's noncentral t gives
    # NaN at scattered points. Beyond nine standard deviations of S nothing is left; the integrand
    # may step within eight widths 1 / c of S = delta / c, so the range is cut there.
    reach = 9 / math.sqrt(2 * df)
    step = delta / critical - 1 + np.array([-8.0, 0.0, 8.0]) / critical
    cuts = np.unique(np.clip(np.r_[-reach, step, reach], max(1e-9 - 1, -reach), reach))
    u, weights = _gauss_legendre(cuts)  # u = S - 1
    # log density of S up to a constant, in u so that a large df does not cancel it away
    log_density = df * (np.log1p(u) - u - u * u / 2) - np.log1p(u)
    mass = weights * np.exp(log_density - log_density.max())
    rejected = special.ndtr(delta - critical * (1 + u)) + special.ndtr(-delta - critical * (1 + u))
    return float((mass * rejected).sum() / mass.sum())


def sample_size(
    effect: float, power: float = 0.8, alpha: float = 0.05, *, paired: bool = False
) -> int:
    """Return the smallest number of runs per set with which a t-test has this power.

    `effect` is the true difference of means in standard deviations (Cohen's d); of a paired test,
    in standard deviations of the differences.

    Example:
        >>> sample_size(0.5)
        64
    """
    if float(_finite(effect, "effect", ndim=0)) == 0.0:
        raise ConfigError(
            "effect is 0: expected a difference other than 0.",
            "Give the difference of means in standard deviations, for example 0.5.",
        )
    _check_open_unit(power, "power")
    _check_open_unit(alpha, "alpha")
    chance = power_paired if paired else power_two_sample
    enough = 2
    while chance(effect, enough, alpha) < power:
        enough *= 2
        if enough > _LARGEST_SAMPLE:
            raise ConfigError(
                f"effect is {effect:g}: expected one that at most {_LARGEST_SAMPLE:,} runs "
                "per set can find.",
                "Ask for an effect that would matter in practice.",
            )
    short = enough // 2
    while enough - short > 1:
        middle = (short + enough) // 2
        if chance(effect, middle, alpha) < power:
            short = middle
        else:
            enough = middle
    return enough


def _gauss_legendre(cuts: Floats) -> tuple[Floats, Floats]:
    """Return nodes and weights of a quadrature with 64 nodes between any two cuts."""
    nodes, weights = _unit_nodes()
    half = np.diff(cuts)[:, None] / 2
    return (cuts[:-1, None] + half * (nodes + 1)).reshape(-1), (half * weights).reshape(-1)


@functools.cache
def _unit_nodes() -> tuple[Floats, Floats]:
    return np.polynomial.legendre.leggauss(64)


# Resampling


def _apply(statistic: Statistic, scores: Floats) -> Floats:
    result = np.asarray(statistic(scores, axis=-1), dtype=np.float64)
    if result.shape != scores.shape[:1]:
        raise ConfigError(
            f"statistic returned shape {result.shape} for scores of shape {scores.shape}: "
            f"expected {scores.shape[:1]}.",
            "Reduce the axis that is passed, as np.mean(scores, axis=axis) does.",
        )
    return result


def _blocks(rows: int, columns: int) -> list[range]:
    size = max(1, _BLOCK // columns)
    return [range(start, min(start + size, rows)) for start in range(0, rows, size)]


def _draw_counts(n: int, reps: int, rng: np.random.Generator) -> Floats:
    """Return how often each of n runs is drawn in each of `reps` bootstrap samples: [reps, n]."""
    return rng.multinomial(n, np.full(n, 1 / n), size=reps).astype(np.float64)


def _relabellings(a: Floats, b: Floats, rows: int | None, rng: np.random.Generator) -> Floats:
    """Return the difference of means under all (None), or `rows` random, ways to assign a and b."""
    pooled = np.concatenate([a, b])
    pooled -= pooled.mean()
    if rows is None:
        ways = itertools.combinations(range(pooled.size), a.size)
        index = np.fromiter(itertools.chain.from_iterable(ways), dtype=np.intp)
        sums = pooled[index.reshape(-1, a.size)].sum(axis=1)
    else:
        sums = np.empty(rows)
        for block in _blocks(rows, pooled.size):
            dealt = rng.permuted(np.broadcast_to(pooled, (len(block), pooled.size)), axis=1)
            sums[block.start : block.stop] = dealt[:, : a.size].sum(axis=1)
    # The pooled values sum to zero, so the sum over y is minus the sum over x.
    return np.asarray(sums * (1 / a.size + 1 / b.size), dtype=np.float64)


# Shared maths


def _special() -> Any:
    """Return scipy.special, loaded at the first use: importing this module stays cheap."""
    return importlib.import_module("scipy.special")


def _float_or_array(value: Any) -> float | Floats:
    return float(value) if np.ndim(value) == 0 else np.asarray(value, dtype=np.float64)


def _noise(*samples: Floats) -> float:
    """Return the difference between these values that rounding alone can make."""
    return _ROUNDING * max(float(np.abs(sample).max()) for sample in samples)


def _deviation(values: Floats, noise: float | None = None) -> float:
    """Return the sample standard deviation, exactly 0 where the values differ by rounding only."""
    if float(np.ptp(values)) <= (_noise(values) if noise is None else noise):
        return 0.0
    return float(values.std(ddof=1))


def _standardise(difference: float, deviation: float, noise: float) -> float:
    if deviation > 0:
        return difference / deviation
    return 0.0 if abs(difference) <= noise else math.copysign(math.inf, difference)


def _wins(x: Floats, y: Floats) -> Floats:
    """Return 1 where x[i] > y[j], 1/2 where they are equal, 0 elsewhere."""
    return np.asarray((x[:, None] > y) + 0.5 * (x[:, None] == y), dtype=np.float64)


def _student_p(t: float, df: float) -> float:
    return 2.0 * float(_special().stdtr(df, -abs(t)))


def _student_interval(point: float, error: float, df: float, level: float) -> Interval:
    margin = float(_special().stdtrit(df, (1 + level) / 2)) * error
    return Interval(point, point - margin, point + margin, level)


def _undefined_t(test: str, difference: float, effect: float, level: float) -> SignificanceTest:
    interval = Interval(difference, difference, difference, level)
    return SignificanceTest(test, math.nan, math.nan, effect, math.nan, interval)


# Checks


def _finite(values: ArrayLike, name: str, ndim: int | None = None) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} is not an array of numbers ({error}): expected a rectangular array of "
            "finite numbers."
        ) from error
    if array.size == 0:
        raise ConfigError(f"{name} is empty: expected at least one number.")
    if ndim is not None and array.ndim != ndim:
        wanted = "one number" if ndim == 0 else "a flat list of numbers"
        raise ConfigError(f"{name} has shape {array.shape}: expected {wanted}.")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        where = f"{name}[{', '.join(map(str, at))}]" if at else name
        raise ConfigError(
            f"{where} is {array[at]}: expected finite numbers.",
            "Leave out runs that failed, or give them the score that a failure is worth.",
        )
    return array


def _sample(values: ArrayLike, name: str, at_least: int) -> Floats:
    array = _finite(values, name, ndim=1)
    if array.size < at_least:
        raise ConfigError(
            f"{name} has {array.size} value: expected at least {at_least}, since one value "
            "has no variance.",
            "Run more seeds.",
        )
    return array


def _pairs(x: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    a, b = _sample(x, "x", at_least=2), _sample(y, "y", at_least=2)
    if a.size != b.size:
        raise ConfigError(
            f"x has {a.size} values and y has {b.size}: expected pairs.",
            "Pair the scores by seed or task, or use an unpaired test.",
        )
    return a, b


def _by_task(scores: Scores, name: str) -> dict[str, Floats]:
    """Return the scores of each task's runs."""
    if isinstance(scores, Mapping):
        if not scores:
            raise ConfigError(f"{name} has no tasks: expected at least one.")
        return {task: _sample(runs, f"{name}[{task!r}]", 1) for task, runs in scores.items()}
    array = _finite(scores, name)
    if array.ndim not in (1, 2):
        raise ConfigError(
            f"{name} has shape {array.shape}: expected [runs], [runs, tasks], or a mapping from "
            "task to scores."
        )
    matrix = array[:, None] if array.ndim == 1 else array
    return {f"task {i}": matrix[:, i] for i in range(matrix.shape[1])}


def _generator(rng: Rng) -> np.random.Generator:
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, int | np.integer) and rng >= 0:
        return np.random.default_rng(rng)
    raise ConfigError(f"rng is {rng!r}: expected a numpy Generator or a seed of at least 0.")


def _check_reps(reps: int) -> None:
    if not isinstance(reps, int | np.integer) or reps < 1:
        raise ConfigError(f"reps is {reps!r}: expected a whole number of at least 1.")


def _check_open_unit(value: float, name: str) -> None:
    if not isinstance(value, SupportsFloat) or not 0 < float(value) < 1:
        raise ConfigError(f"{name} is {value!r}: expected a number between 0 and 1, exclusive.")
