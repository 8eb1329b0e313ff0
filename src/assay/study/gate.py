"""The evidence gate: when a change may be called better.

The replication unit is the training seed. The decision rests on a t-test over seeds (paired where
both arms trained on the same ones) or a permutation test, at a share of the study's one error rate
that the ledger records as spent; a bootstrap is never asked, because with few seeds its intervals
are too narrow. Significance alone is not enough: the effect must be worth having.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from assay.evaluation import statistics
from assay.study import kinds
from assay.study.layout import StudyError
from assay.study.models import Direction, Evaluation, Guardrail, PrimaryMetric

Outcome = Literal["accept", "reject", "inconclusive", "harmful", "invalid"]
Scores = Mapping[int, float | None]

MINIMUM_SEEDS = kinds.MINIMUM_SEEDS
MOST_SEEDS = 10_000
GUARD_LEVEL = 0.95  # one-sided confidence of guardrails and of futility
_REPLICATES = 20_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms over seeds; positive numbers favour the candidate, whatever the direction.

    Attributes:
        test: What was computed: `welch`, `paired t` or a permutation test.
        seeds: Seeds of the baseline and of the candidate.
        effect: Difference of means, in the metric's unit.
        low: One-sided lower limit of the effect at `GUARD_LEVEL`.
        high: One-sided upper limit at the same level.
        p_better: One-sided p-value of "no better".
        p_worse: One-sided p-value of "no worse".
        standardised: Hedges' g.
        improvement: Share of pairs of runs in which the candidate wins.
        worst: The candidate's worst seed, and its score.
        failures: Share of the candidate's seeds without a result.
    """

    test: str
    seeds: tuple[int, int]
    effect: float
    low: float
    high: float
    p_better: float
    p_worse: float
    standardised: float
    improvement: float
    worst: tuple[int, float]
    failures: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the evidence allows to say.

    Attributes:
        outcome: Of the gate.
        reasons: Why, in sentences, the deciding one first.
        comparison: Of the primary metric; None if the evidence is invalid.
        guardrails: Of each guardrail, by name.
        alpha: The error rate this decision was made at.
        seeds_needed: Seeds per arm to see the minimum effect, at this noise and rate; None where
            they are too many to say.
    """

    outcome: Outcome
    reasons: tuple[str, ...]
    comparison: Comparison | None = None
    guardrails: Mapping[str, Comparison] = field(default_factory=dict)
    alpha: float = math.nan
    seeds_needed: int | None = None


def spend(evaluation: Evaluation, decided: int) -> float:
    """Return the error rate of the next decision, `decided` having been made before it.

    The study's alpha is split evenly over the candidates that the contract expects (Bonferroni),
    so that over all of them together at most alpha is spent, whatever they have in common.

    Raises:
        StudyError: All of it is spent.

    Example:
        >>> from assay.study.models import Pools
        >>> pools = Pools(development=(0,), promotion=range(1, 6), validation=range(6, 11))
        >>> spend(Evaluation(episodes=10, pools=pools, expected_candidates=20), decided=3)
        0.0025
    """
    if decided >= evaluation.expected_candidates:
        raise StudyError(
            f"The study's error rate of {evaluation.alpha:g} is spent: {decided} candidates were "
            f"decided, and the contract expects {evaluation.expected_candidates}.",
            "Close this study with its report, and begin a new one for further candidates.",
        )
    return evaluation.alpha / evaluation.expected_candidates


def compare(
    baseline: Scores,
    candidate: Scores,
    *,
    direction: Direction,
    test: Literal["auto", "welch", "paired", "permutation"] = "auto",
    seed: int = 0,
) -> Comparison:
    """Compare two arms seed by seed.

    A candidate's seed without a result counts as the worst score that either arm saw: a change
    that makes runs crash must not look better for it.

    Args:
        baseline: Score of every training seed.
        candidate: Score of every training seed; None where the run failed.
        direction: Which way is better.
        test: `auto` pairs where the seeds are the same.
        seed: Of the permutation test's draws.

    Raises:
        StudyError: An arm has too few seeds, or the baseline has failed ones.
    """
    sign = 1.0 if direction == "maximize" else -1.0
    lost = sorted(s for s, score in baseline.items() if score is None or not math.isfinite(score))
    if lost:
        raise StudyError(
            f"The baseline has no result for seeds {lost}.",
            "Run them again: candidates are held against a whole baseline.",
        )
    for name, arm in (("baseline", baseline), ("candidate", candidate)):
        if len(arm) < 2:
            raise StudyError(f"The {name} has {len(arm)} seeds; expected at least 2.")
    before = {s: sign * float(score) for s, score in baseline.items() if score is not None}
    good = {
        s: sign * float(score)
        for s, score in candidate.items()
        if score is not None and math.isfinite(score)
    }
    floor = min([*before.values(), *good.values()])
    after = {s: good.get(s, floor) for s in candidate}
    paired = test == "paired" or (test == "auto" and before.keys() == after.keys())
    if paired and before.keys() != after.keys():
        raise StudyError(
            f"A paired test needs the same seeds in both arms; the baseline has "
            f"{sorted(before)}, the candidate {sorted(after)}.",
            "Run the missing seeds, or use test: welch.",
        )
    order = sorted(before)
    x = np.array([after[s] for s in (order if paired else sorted(after))])
    y = np.array([before[s] for s in order])
    level = 2 * GUARD_LEVEL - 1  # a two-sided interval whose ends are one-sided limits
    found = statistics.paired_test(x, y, level=level) if paired else (
        statistics.welch_test(x, y, level=level)
    )  # fmt: skip
    interval = found.interval
    low, high = (-math.inf, math.inf) if interval is None else (interval.low, interval.high)
    if test == "permutation" or math.isnan(found.p_value):
        found = statistics.permutation_test(x, y, rng=seed, paired=paired, reps=_REPLICATES)
    effect = float(x.mean() - y.mean())
    if math.isnan(low) or math.isnan(high):  # no spread at all: the difference is what it is
        low = high = effect
    half = found.p_value / 2
    worst = min(after, key=lambda s: after[s])
    return Comparison(
        test=found.test,
        seeds=(len(y), len(x)),
        effect=effect,
        low=low,
        high=high,
        p_better=half if effect > 0 else 1 - half,
        p_worse=half if effect < 0 else 1 - half,
        standardised=statistics.hedges_g(x, y),
        improvement=float((np.sign(x[:, None] - y[None, :]) / 2 + 0.5).mean()),
        worst=(worst, sign * after[worst]),
        failures=1 - len(good) / len(after),
    )


def decide(
    metric: PrimaryMetric,
    baseline: Scores,
    candidate: Scores,
    *,
    alpha: float,
    evaluation: Evaluation,
    guardrails: Sequence[tuple[Guardrail, Scores, Scores]] = (),
    noise_floor: float | None = None,
) -> Verdict:
    """Say what the evidence allows.

    Args:
        metric: The primary metric.
        baseline: Its score for every training seed of the baseline.
        candidate: The same of the candidate.
        alpha: Error rate of this decision, from `spend`.
        evaluation: The protocol.
        guardrails: Each with the scores of baseline and candidate.
        noise_floor: Standard deviation over seeds of the baseline, for the power advice; that of
            the given baseline if None.

    Raises:
        StudyError: An arm has too few seeds, or the baseline has failed ones.
    """
    for name, arm in (("baseline", baseline), ("candidate", candidate)):
        if len(arm) < MINIMUM_SEEDS:
            raise StudyError(
                f"The {name} has {len(arm)} seeds; a decision needs at least {MINIMUM_SEEDS}.",
                "Run more seeds of the promotion pool.",
            )
    found = compare(baseline, candidate, direction=metric.direction, test=evaluation.test)
    spread = noise_floor
    if spread is None:
        spread = float(np.std([s for s in baseline.values() if s is not None], ddof=1))
    needed = seeds_needed(metric.minimum_effect, spread, alpha, evaluation.power)
    checks = {
        guard.name: (guard, compare(before, after, direction=guard.direction), after)
        for guard, before, after in guardrails
    }
    breaches, open_questions = [], []
    for guard, seen, after in checks.values():
        breach, unproven = _guarded(guard, seen, after)
        breaches += breach
        open_questions += unproven
    unit = f" {metric.unit}" if metric.unit else ""
    shown = (
        f"{metric.name}: {found.effect:+.4g}{unit} "
        f"[{found.low:.4g}, {found.high:.4g}], p = {found.p_better:.2g} ({found.test}, "
        f"{found.seeds[0]} and {found.seeds[1]} seeds)"
    )
    least = f"the minimum effect of {metric.minimum_effect:g}{unit}"
    significant = found.p_better < alpha
    outcome: Outcome
    if found.p_worse < 1 - GUARD_LEVEL and found.effect <= -metric.minimum_effect:
        outcome, why = "harmful", "It is worse, by more than the minimum effect."
    elif breaches:
        outcome, why = "reject", breaches[0]
    elif significant and found.effect >= metric.minimum_effect and not open_questions:
        outcome, why = "accept", f"It is better at alpha {alpha:.2g}, by at least {least}."
    elif found.high < metric.minimum_effect:
        outcome, why = "reject", f"Even the upper limit of the effect is below {least}."
    elif significant and found.effect >= metric.minimum_effect:
        outcome, why = "inconclusive", open_questions[0]
    elif significant:
        outcome, why = "inconclusive", f"It is better, but by less than {least} so far."
    else:
        count = f"more than {MOST_SEEDS:,}" if needed is None else f"{needed}"
        advice = f"With this noise {count} seeds per arm see {least}."
        outcome, why = "inconclusive", f"p is not below alpha {alpha:.2g}. {advice}"
    reasons = [why, shown, *breaches, *open_questions]
    if found.failures:
        reasons.append(f"{found.failures:.0%} of the candidate's seeds failed and count as worst.")
    return Verdict(
        outcome,
        tuple(dict.fromkeys(reasons)),
        found,
        {name: seen for name, (_, seen, _) in checks.items()},
        alpha,
        needed,
    )


def _guarded(guard: Guardrail, seen: Comparison, after: Scores) -> tuple[list[str], list[str]]:
    """Return breaches of a guardrail, and what is not proven about it."""
    breaches, unproven = [], []
    scores = [s for s in after.values() if s is not None]
    mean = float(np.mean(scores)) if scores else math.nan
    if guard.bound is not None:
        inside = mean >= guard.bound if guard.direction == "maximize" else mean <= guard.bound
        if not inside:
            breaches.append(f"Guardrail {guard.name}: {mean:.4g} is beyond {guard.bound:g}.")
    if guard.margin is not None:
        if seen.high < -guard.margin:
            breaches.append(
                f"Guardrail {guard.name} got worse by {-seen.effect:.4g}; "
                f"{guard.margin:g} is allowed."
            )
        elif seen.low < -guard.margin:
            unproven.append(
                f"Guardrail {guard.name} may be worse by up to {-seen.low:.4g}; "
                f"{guard.margin:g} is allowed. More seeds would tell."
            )
    return breaches, unproven


def seeds_needed(effect: float, spread: float, alpha: float, power: float) -> int | None:
    """Return the seeds per arm that find `effect` at this noise with the wanted power.

    None stands for more than anyone will run (`MOST_SEEDS`).
    """
    if spread == 0:
        return MINIMUM_SEEDS
    size = effect / spread
    if statistics.power_two_sample(size, MOST_SEEDS, 2 * alpha) < power:
        return None
    return max(MINIMUM_SEEDS, statistics.sample_size(size, power, alpha=2 * alpha))


def noise_floor(first: Scores, second: Scores, direction: Direction) -> tuple[float, Comparison]:
    """Judge an A/A test: the baseline against itself, on two sets of seeds.

    Returns:
        The standard deviation over all its seeds, and the comparison of the halves, whose
        p-values should be nothing special.
    """
    found = compare(first, second, direction=direction, test="welch")
    scores = [s for arm in (first, second) for s in arm.values() if s is not None]
    return float(np.std(scores, ddof=1)), found
