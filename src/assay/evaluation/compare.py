"""Test whether one set of runs is better than another, with intervals.

An arm is a run, or a group of runs that differ only in their seed. Each seed gives one score; the
first arm is the baseline that every other arm is compared with. A difference counts as shown where
Welch's test and the permutation test both find it, corrected after Holm if there are several
comparisons. Either alone can mislead: Welch's test assumes normal scores, and the permutation test
assumes equal spread in both arms (with five seeds each and a tenfold spread in one arm its error
rate is twice the nominal one, with four against ten seeds five times).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.seeding import derive_rng
from assay.core.types import Unit
from assay.evaluation import statistics
from assay.evaluation.evaluate import TRAINING
from assay.evaluation.formatting import bounds, number, p_value, signed
from assay.evaluation.run_scores import (
    At,
    arm_names,
    changes,
    flatten,
    odd_settings,
    read_curve,
    refuse_broken,
    refuse_unlike,
    seed_scores,
    uneven_evaluations,
)
from assay.evaluation.statistics import Interval
from assay.runs.directory import group_runs
from assay.runs.metrics import Series

Outcome = Literal["better", "worse", "not shown", "unknown"]

DEFAULT_METRIC = "eval/return_mean"
POWER = 0.8
_MANY_SEEDS = 1000  # an exact number beyond this is of no use


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """One side of a comparison: the same settings under several seeds.

    Attributes:
        name: What the arm is called in tables and plots.
        path: The run or group.
        algorithm: The algorithm of its runs.
        runs: The name of each run.
        seeds: The seed of each run.
        scores: `[runs]`.
        mean: Of the scores.
        iqm: Of the scores, with a bootstrap interval whose bounds are NaN for a single seed.
        curves: The metric over the counts of the run's unit, per run.
    """

    name: str
    path: Path
    algorithm: str
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    scores: NDArray[np.float64]
    mean: float
    iqm: Interval
    curves: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """One arm against the baseline. Numbers that one seed cannot give are NaN.

    Attributes:
        name: The arm.
        baseline: The arm that it is compared with.
        difference: Of the mean scores, arm minus baseline, with Welch's interval.
        improvement: Probability that a run of the arm beats one of the baseline.
        effect: Hedges' g: the difference in standard deviations, unbiased in small samples.
        welch_p: Two-sided; corrected after Holm if there are more than two arms.
        permutation_p: The same from the permutation test.
        outcome: Whether the arm is better, worse, not shown to differ, or cannot be judged.
        verdict: The outcome in a sentence, with the numbers behind it.
        changes: Settings that differ: name -> (baseline's value, the arm's).
    """

    name: str
    baseline: str
    difference: Interval
    improvement: Interval
    effect: float
    welch_p: float
    permutation_p: float
    outcome: Outcome
    verdict: str
    changes: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms, how each compares with the first, and what limits the comparison.

    Attributes:
        env: The environment all runs were trained in.
        unit: What the training of all runs is counted in.
        total: Their budget, or None where none is set.
        metric: What the scores are values of.
        at: How a curve became a score: its last value, its best, or its mean over the steps.
        level: Confidence of all intervals; a verdict allows a chance of error of 1 - level.
        arms: The baseline first.
        pairs: Every other arm against the baseline.
        warnings: What limits the comparison, in sentences.
    """

    env: str
    unit: Unit
    total: int | None
    metric: str
    at: At
    level: float
    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with None for numbers that are undefined."""
        return {
            "env": self.env,
            self.unit: self.total,
            "metric": self.metric,
            "at": self.at,
            "level": self.level,
            "arms": [
                {
                    "name": arm.name,
                    "path": str(arm.path),
                    "algorithm": arm.algorithm,
                    "n": len(arm.scores),
                    "runs": list(arm.runs),
                    "seeds": list(arm.seeds),
                    "scores": arm.scores.tolist(),
                    "mean": arm.mean,
                    "iqm": arm.iqm.to_json(),
                }
                for arm in self.arms
            ],
            "pairs": [
                {
                    "name": pair.name,
                    "baseline": pair.baseline,
                    "outcome": pair.outcome,
                    "verdict": pair.verdict,
                    "difference": pair.difference.to_json(),
                    "probability_of_improvement": pair.improvement.to_json(),
                    "hedges_g": _or_none(pair.effect),
                    "welch_p": _or_none(pair.welch_p),
                    "permutation_p": _or_none(pair.permutation_p),
                    "changes": {key: list(values) for key, values in pair.changes.items()},
                }
                for pair in self.pairs
            ],
            "warnings": list(self.warnings),
        }


def compare(
    paths: Sequence[Path],
    *,
    metric: str = DEFAULT_METRIC,
    at: At = "final",
    label: str = TRAINING,
    level: float = 0.95,
    reps: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare runs or groups of runs with the first of them; higher scores are better.

    Args:
        paths: Runs or groups; the first one is the baseline.
        metric: `eval/return_mean`, another number of the stored evaluations (`eval/return_iqm`,
            `eval/length_mean`, ...), or the name of any logged metric.
        at: `final` takes the last value of each run; `best` the highest, which favours noisy runs;
            `auc` the mean of the curve over the steps that all runs cover.
        label: Which evaluations to read, see `save_evaluation`.
        level: Confidence of the intervals; a verdict allows an error of 1 - level.
        reps: Bootstrap replicates.
        seed: Of the bootstrap.

    Raises:
        ConfigError: The runs cannot be compared: another environment or budget, a run that is not
            done, a seed that counts twice. All such runs are named.
        RunError: A run cannot be read, or has no such metric.
    """
    if len(paths) < 2:
        raise ConfigError(
            f"Number of arms to compare: {len(paths)}; expected at least two.",
            "Give two or more runs or groups; the first is the baseline.",
        )
    if at not in get_args(At):
        raise ConfigError(f"at={at!r}: expected one of {', '.join(get_args(At))}.")
    groups = {name: group_runs(path) for name, path in zip(arm_names(paths), paths, strict=True)}
    configs = {run.path: flatten(run.config) for runs in groups.values() for run in runs}
    env, unit, total = refuse_unlike(groups)
    warnings = odd_settings(groups, configs)

    curves = {
        name: tuple(read_curve(run, metric, label=label) for run in runs)
        for name, runs in groups.items()
    }
    scores = seed_scores(curves, at)
    refuse_broken(groups, scores, metric)
    warnings += uneven_evaluations(groups, curves, unit, total, metric, label)
    warnings += [
        f"'{name}' has one seed, so no interval can be given and its spread is unknown."
        for name in groups
        if len(scores[name]) == 1
    ]

    arms = tuple(
        Arm(
            name=name,
            path=path,
            algorithm=str(groups[name][0].info["algorithm"]),
            runs=tuple(run.name for run in groups[name]),
            seeds=tuple(int(run.info["seed"]) for run in groups[name]),
            scores=scores[name],
            mean=float(scores[name].mean()),
            iqm=statistics.stratified_bootstrap(
                scores[name], reps=reps, level=level, rng=derive_rng(seed, "compare", "iqm", name)
            ),
            curves=curves[name],
        )
        for name, path in zip(groups, paths, strict=True)
    )
    settings = [configs[runs[0].path] for runs in groups.values()]
    pairs = _pairs(arms, settings, level=level, reps=reps, seed=seed)
    return Comparison(env, unit, total, metric, at, level, arms, pairs, tuple(warnings))


# From scores to verdicts


def _pairs(
    arms: tuple[Arm, ...], settings: list[dict[str, Any]], *, level: float, reps: int, seed: int
) -> tuple[Pair, ...]:
    base = arms[0]
    welch = [_welch(arm, base, level) for arm in arms[1:]]
    permutation = [_permutation_p(arm, base, seed) for arm in arms[1:]]
    welch_p = _holm([p for _, p in welch])
    permutation_p = _holm(permutation)
    pairs = []
    for i, arm in enumerate(arms[1:]):
        difference = welch[i][0]
        both = welch_p[i], permutation_p[i]
        judged = not math.isnan(both[1])
        # Welch's test is undefined where no seed differs from the others of its arm.
        p = float(np.nanmax(both)) if judged else math.nan
        outcome = _outcome(difference.point, p, level)
        pairs.append(
            Pair(
                name=arm.name,
                baseline=base.name,
                difference=difference,
                improvement=statistics.probability_of_improvement(
                    arm.scores,
                    base.scores,
                    reps=reps,
                    level=level,
                    rng=derive_rng(seed, "compare", "improvement", arm.name),
                ),
                effect=statistics.hedges_g(arm.scores, base.scores) if judged else math.nan,
                welch_p=welch_p[i],
                permutation_p=permutation_p[i],
                outcome=outcome,
                verdict=_sentence(outcome, arm, base, difference, both, len(arms) - 1),
                changes=changes(settings[0], settings[i + 1]),
            )
        )
    return tuple(pairs)


def _welch(arm: Arm, base: Arm, level: float) -> tuple[Interval, float]:
    if min(len(arm.scores), len(base.scores)) < 2:
        return Interval(arm.mean - base.mean, math.nan, math.nan, level), math.nan
    test = statistics.welch_test(arm.scores, base.scores, level)
    assert test.interval is not None
    return test.interval, test.p_value


def _permutation_p(arm: Arm, base: Arm, seed: int) -> float:
    if min(len(arm.scores), len(base.scores)) < 2:
        return math.nan
    rng = derive_rng(seed, "compare", "permutation", arm.name)
    return statistics.permutation_test(arm.scores, base.scores, rng=rng).p_value


def _holm(p_values: list[float]) -> list[float]:
    """Correct the p-values that exist for their number."""
    corrected = list(p_values)
    there = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    if there:
        for i, p in zip(there, statistics.holm([p_values[i] for i in there]), strict=True):
            corrected[i] = float(p)
    return corrected


def _outcome(difference: float, p: float, level: float) -> Outcome:
    if math.isnan(p):
        return "unknown"
    if p > 1 - level:
        return "not shown"
    return "better" if difference > 0 else "worse"


def _sentence(
    outcome: Outcome,
    arm: Arm,
    base: Arm,
    difference: Interval,
    p_values: tuple[float, float],
    comparisons: int,
) -> str:
    sizes = f"{len(arm.scores)} and {len(base.scores)} seeds"
    if outcome == "unknown":
        single = " and ".join(f"'{side.name}'" for side in (arm, base) if len(side.scores) == 1)
        return (
            f"cannot tell: the difference is {signed(difference.point)}, but with one seed of "
            f"{single} it is unknown what another seed would give."
        )
    if outcome == "not shown":
        reason = _what_it_takes(arm, base, difference, sizes, comparisons)
        if min(p_values) <= 1 - difference.level < max(p_values):
            welch_p, permutation_p = map(p_value, p_values)
            reason += (
                f"; the tests disagree: p is {welch_p} by Welch, {permutation_p} by permutation"
            )
        return f"no difference shown ({reason})."
    way = "higher" if outcome == "better" else "lower"
    p = p_value(float(np.nanmax(p_values)))
    return (
        f"{outcome}: {number(abs(difference.point))} {way} than '{base.name}' "
        f"({100 * difference.level:g}% interval {bounds(difference)}, "
        f"p {p if p.startswith('<') else f'= {p}'}, {sizes})."
    )


def _what_it_takes(arm: Arm, base: Arm, difference: Interval, sizes: str, comparisons: int) -> str:
    """Return which difference these seeds can show, and how many seeds the observed one needs."""
    n, m = len(arm.scores), len(base.scores)
    alpha = (1 - difference.level) / comparisons
    spread = _pooled_deviation(arm.scores, base.scores)
    gap = abs(difference.point)
    if spread == 0.0 and gap == 0.0:
        return f"every seed of both scored {number(base.mean)}"
    least = next(k for k in count(2) if 2 / math.comb(2 * k, k) <= alpha)
    if spread == 0.0:
        return f"{sizes} are too few: at this level it takes at least {least} per arm"
    equal = max(2, int(2 * n * m / (n + m)))  # as many seeds as two arms of one size would have
    visible = (
        f"only one of about {number(_visible(equal, alpha) * spread)} or more is likely to show"
    )
    effect = gap / spread
    if effect == 0.0 or statistics.power_two_sample(effect, _MANY_SEEDS, alpha) < POWER:
        return f"observed: {signed(difference.point)}; with {sizes} {visible}"
    needed = max(statistics.sample_size(effect, POWER, alpha), least, min(n, m) + 1)
    return (
        f"{sizes} are too few: to see the observed difference of {number(gap)} you would need "
        f"about {needed} seeds per arm; with these {visible}"
    )


def _visible(n: int, alpha: float) -> float:
    """Return the effect that n runs per arm show with probability `POWER`, to one percent."""
    low, high = 1e-3, 1e3
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        if statistics.power_two_sample(middle, n, alpha) < POWER:
            low = middle
        else:
            high = middle
    return high


def _pooled_deviation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    squares = ((x - x.mean()) ** 2).sum() + ((y - y.mean()) ** 2).sum()
    deviation = math.sqrt(squares / (len(x) + len(y) - 2))
    # Equal scores have a spread from rounding only, not from seeds.
    largest = max(float(np.abs(x).max()), float(np.abs(y).max()))
    return deviation if deviation > 1e-12 * largest else 0.0


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
