"""The evidence gate: when a change may be called better.

The replication unit is the training seed. The decision rests on Welch's t-test over seeds (a paired
one where the contract says so, because its arms correlate by seed) or a permutation test, at a
share of the study's one error rate that the ledger records as spent; a bootstrap is never asked,
because with few seeds its intervals are too narrow. Significance alone is not enough: the effect
must be worth having, and no seed may have collapsed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt

from assay.core.wording import counted
from assay.evaluation import statistics
from assay.study.files.base import Direction
from assay.study.files.contract import Evaluation, Guardrail, PrimaryMetric
from assay.study.files.documents import StudyError
from assay.study.judge.power import MOST_SEEDS, seeds_needed
from assay.study.record import kinds
from assay.study.record.history import Scores

# "continue" is what an early look says that is not clear; "open" is not a verdict: it is what a
# rehearsal says of evidence that could be judged.
Outcome = Literal[
    "accept", "reject", "inconclusive", "harmful", "no effect", "invalid", "continue", "open"
]
Floats = npt.NDArray[np.float64]

AA_LEVEL = 0.01  # at which two halves of one baseline are said to differ
PERMUTATION = "permutation"
GUARD_LEVEL = 0.95  # one-sided confidence of guardrails and of futility
COLLAPSED = 3.0  # deviations below the baseline's worst seed
_REPLICATES = 20_000  # relabellings up to which all are counted, and beyond which so many drawn
_BLOCK = 1_000  # relabellings that are held in memory at once


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms over seeds; positive numbers favour the candidate, whatever the direction."""

    test: str  # what was computed: `welch`, `paired t` or a permutation test
    seeds: tuple[int, int]  # seeds of the baseline and of the candidate that were compared
    effect: float  # difference of means, in the metric's unit
    low: float  # one-sided lower limit of the effect at `GUARD_LEVEL`
    high: float  # one-sided upper limit at the same level
    p_better: float  # one-sided p-value of "no better"
    p_worse: float  # one-sided p-value of "no worse"
    standardised: float  # Hedges' g
    improvement: float  # share of pairs of runs in which the candidate wins
    correlation: float  # of the arms' scores by seed; NaN where they share too few seeds
    worst: tuple[int, float]  # the candidate's worst seed, and its score
    failures: float  # share of the candidate's seeds without a result

    def plain(self) -> dict[str, Any]:
        """Return it as plain data for the ledger; what is not a number becomes None."""
        found = dataclasses.asdict(self)
        for key, value in found.items():
            if isinstance(value, tuple):
                found[key] = list(value)
            elif isinstance(value, float) and not math.isfinite(value):
                found[key] = None
        return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the evidence allows to say."""

    outcome: Outcome  # of the gate
    reasons: tuple[str, ...]  # why, in sentences, the deciding one first
    comparison: Comparison | None = None  # of the primary metric; None if the evidence is invalid
    guardrails: Mapping[str, Comparison] = field(default_factory=dict)  # of each guardrail, by name
    alpha: float = math.nan  # the error rate this decision was made at
    # Seeds per arm to see the minimum effect, at this noise and rate; None where they are too
    # many to say.
    seeds_needed: int | None = None
    seeds_for_seen: int | None = None  # the same for the effect that was seen, if it is one
    final: bool = False  # of invalid evidence: whether nothing can be put right


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
    that makes runs crash must not look better for it. A baseline's seed without a result says
    nothing and is left out, in pairs from both arms.

    Args:
        baseline: Score of every training seed; None where the run failed.
        candidate: The same of the candidate.
        direction: Which way is better.
        test: `auto` is `welch`; only `paired` pairs by seed.
        seed: Of the permutation test's draws.

    Raises:
        StudyError: An arm has too few seeds.
    """
    sign = 1.0 if direction == "maximize" else -1.0
    before, good = (
        {s: sign * float(score) for s, score in arm.items() if _is_result(score)}
        for arm in (baseline, candidate)
    )
    for name, arm in (("baseline", before), ("candidate", candidate)):
        if len(arm) < 2:
            raise StudyError(f"The {name} has {counted(len(arm), 'seed')}; expected at least 2.")
    if test == "paired" and baseline.keys() != candidate.keys():
        raise StudyError(
            f"A paired test needs the same seeds in both arms; the baseline has "
            f"{sorted(baseline)}, the candidate {sorted(candidate)}.",
            "Run the missing seeds, or use test: welch.",
        )
    paired = test == "paired"
    floor = min([*before.values(), *good.values()])
    after = {s: good.get(s, floor) for s in candidate if s in before or not paired}
    x = np.array([after[s] for s in sorted(after)])
    y = np.array([before[s] for s in sorted(before)])
    effect = float(x.mean() - y.mean())
    level = 2 * GUARD_LEVEL - 1  # a two-sided interval whose ends are one-sided limits
    found = statistics.paired_test(x, y, level=level) if paired else (
        statistics.welch_test(x, y, level=level)
    )  # fmt: skip
    interval = found.interval
    low, high = (-math.inf, math.inf) if interval is None else (interval.low, interval.high)
    if math.isnan(low) or math.isnan(high):  # no spread at all: the difference is what it is
        low = high = effect
    if test == "permutation" or math.isnan(found.p_value):
        computed = f"paired {PERMUTATION}" if paired else PERMUTATION
        p_better, p_worse = _permute(x, y, paired=paired, seed=seed)
    else:
        computed, half = found.test, found.p_value / 2  # t-tests are symmetric
        p_better = half if effect > 0 else 1 - half
        p_worse = half if effect < 0 else 1 - half
    worst = min(after, key=lambda s: after[s])
    return Comparison(
        test=computed,
        seeds=(len(y), len(x)),
        effect=effect,
        low=low,
        high=high,
        p_better=p_better,
        p_worse=p_worse,
        standardised=statistics.hedges_g(x, y),
        improvement=float((np.sign(x[:, None] - y[None, :]) / 2 + 0.5).mean()),
        correlation=_correlation(before, good),
        worst=(worst, sign * after[worst]),
        failures=_lost_share(candidate),
    )


def _correlation(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return how the scores of the seeds that both arms have correlate; NaN for fewer than 4."""
    seeds = sorted(before.keys() & after.keys())
    pairs = np.array([[arm[seed] for seed in seeds] for arm in (before, after)])
    if len(seeds) < 4 or not all(np.ptp(pairs, axis=1)):
        return math.nan
    return float(np.corrcoef(pairs)[0, 1])


def _is_result(score: float | None) -> TypeGuard[float]:
    return score is not None and math.isfinite(score)


def _lost_share(arm: Scores) -> float:
    return sum(not _is_result(score) for score in arm.values()) / len(arm)


def _ways(x: int, y: int, paired: bool) -> int:
    return 2**x if paired else math.comb(x + y, x)


def _permute(x: Floats, y: Floats, *, paired: bool, seed: int) -> tuple[float, float]:
    """Return the one-sided p-values of "x is no higher" and "x is no lower", by relabelling.

    Each side is counted for itself: with arms of unequal size the differences that relabelling
    makes are not symmetric, and half a two-sided p-value is neither.
    """
    ways = _ways(x.size, y.size, paired)
    exact = ways <= _REPLICATES
    draws = ways if exact else _REPLICATES
    rng = np.random.default_rng(seed)
    pooled = np.concatenate([x, y])
    observed = float(x.mean() - y.mean())
    close = 1e-12 * (1 + float(np.abs(pooled).max()))  # sums of the same numbers in another order
    dealt = itertools.combinations(range(pooled.size), x.size)
    higher = lower = 0
    for start in range(0, draws, _BLOCK):
        rows = min(_BLOCK, draws - start)
        if paired:
            bits = (
                np.arange(start, start + rows)[:, None] >> np.arange(x.size) & 1
                if exact
                else rng.integers(0, 2, size=(rows, x.size))
            )
            seen = (1.0 - 2.0 * bits) @ (x - y) / x.size
        else:
            if exact:
                index = np.array(list(itertools.islice(dealt, rows)))
            else:
                every = np.broadcast_to(np.arange(pooled.size), (rows, pooled.size))
                index = rng.permuted(every, axis=1)[:, : x.size]
            sums = pooled[index].sum(axis=1)
            seen = sums / x.size - (pooled.sum() - sums) / y.size
        higher += int(np.count_nonzero(seen >= observed - close))
        lower += int(np.count_nonzero(seen <= observed + close))
    if exact:
        return higher / ways, lower / ways
    return (1 + higher) / (1 + draws), (1 + lower) / (1 + draws)


def _least_p(x: int, y: int, paired: bool) -> float:
    """Return the smallest p-value that relabelling so many seeds can give."""
    ways = _ways(x, y, paired)
    return 1 / ways if ways <= _REPLICATES else 1 / (1 + _REPLICATES)


def _out_of_reach(found: Comparison, alpha: float) -> str:
    """Say that no evidence could bring a permutation test of so few seeds below alpha, or ""."""
    if PERMUTATION not in found.test:
        return ""
    paired = found.test != PERMUTATION
    least = _least_p(found.seeds[1], found.seeds[0], paired)
    if least < alpha:
        return ""
    counts = range(max(found.seeds), 100)
    enough = next((n for n in counts if _least_p(n, n, paired) < alpha), None)
    instead = (
        f"{enough} per arm can."
        if enough is not None
        else "no number of them can; use a t-test, or expect fewer candidates."
    )
    return (
        f"By permutation {found.seeds[1]} seeds cannot reach alpha {alpha:.2g}, whatever their "
        f"scores: the smallest p is {least:.2g}; {instead}"
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
    advise: bool = True,
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
        advise: Whether to work out how many seeds it would take, which takes longest.

    Raises:
        StudyError: An arm has too few seeds.
    """
    if len(candidate) < kinds.MINIMUM_SEEDS:
        raise StudyError(
            f"The candidate has {counted(len(candidate), 'seed')}; a decision needs at least "
            f"{kinds.MINIMUM_SEEDS}.",
            "Run more seeds of the promotion pool.",
        )
    known = [score for score in baseline.values() if _is_result(score)]
    if len(known) < kinds.MINIMUM_SEEDS:
        raise StudyError(
            f"The baseline has {counted(len(known), 'seed')} with a result; a decision needs "
            f"at least {kinds.MINIMUM_SEEDS}.",
            "Run more seeds of the promotion pool; if they failed, discard the baseline and run "
            "another.",
        )
    found = compare(baseline, candidate, direction=metric.direction, test=evaluation.test)
    spread = float(np.std(known, ddof=1)) if noise_floor is None else noise_floor
    needed, for_seen = None, None
    if advise:
        needed, for_seen = _seeds_to_run(
            metric, found, baseline, candidate, spread, alpha, evaluation
        )
    breaches, open_questions = _failing(baseline, candidate), []
    if found.high >= metric.minimum_effect:  # else it is worse in plainer words
        breaches += _collapsed(metric, known, candidate, spread)
    guarded: dict[str, Comparison] = {}
    finished = [s for s, score in candidate.items() if _is_result(score)]
    for guard, before, after in guardrails:
        missing = [s for s in finished if not _is_result(after.get(s))]
        if missing:
            breaches.append(
                f"Guardrail {guard.name} was not measured for seeds {missing}, so it counts as "
                "violated."
            )
        if sum(map(_is_result, before.values())) >= 2 and len(after) >= 2:
            guarded[guard.name] = compare(
                before, after, direction=guard.direction, test=evaluation.test
            )
        breach, unproven = _guarded(guard, guarded.get(guard.name), after)
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
    if found.p_worse < alpha and found.effect <= -metric.minimum_effect:
        outcome = "harmful"
        why = f"It is worse at alpha {alpha:.2g}, by more than the minimum effect."
    elif breaches:
        outcome, why = "reject", breaches[0]
    elif significant and found.effect >= metric.minimum_effect and not open_questions:
        outcome = "accept"
        why = f"It is better at alpha {alpha:.2g}, and its mean effect is no less than {least}."
    elif found.high < metric.minimum_effect:
        outcome, why = "reject", f"Even the upper limit of the effect is below {least}."
    elif significant and found.effect >= metric.minimum_effect:
        outcome, why = "inconclusive", open_questions[0]
    elif significant:
        outcome, why = "inconclusive", f"It is better, but its mean effect is below {least} so far."
    else:
        advice = f"With this noise {_count(needed)} seeds per arm see {least}"
        if for_seen is not None or found.effect >= metric.minimum_effect:
            advice += f", and {_count(for_seen)} the effect of {found.effect:+.4g} that was seen"
        advice = _out_of_reach(found, alpha) or f"{advice}."
        outcome, why = "inconclusive", f"p is not below alpha {alpha:.2g}. {advice}"
    reasons = [why, shown, *breaches, *open_questions]
    if found.failures:
        reasons.append(f"{found.failures:.0%} of the candidate's seeds failed and count as worst.")
    return Verdict(outcome, tuple(dict.fromkeys(reasons)), found, guarded, alpha, needed, for_seen)


def _count(seeds: int | None) -> str:
    return f"more than {MOST_SEEDS:,}" if seeds is None else f"{seeds}"


def _seeds_to_run(
    metric: PrimaryMetric,
    found: Comparison,
    baseline: Scores,
    candidate: Scores,
    floor: float,
    alpha: float,
    evaluation: Evaluation,
) -> tuple[int | None, int | None]:
    """Return the seeds per arm that the minimum effect takes, and those of the effect seen.

    Both are for the test that decides: of a paired one the noise is that of the differences, of
    another the baseline's, over all its seeds, and the candidate's own.
    """
    paired = found.test.startswith("paired")
    both = [s for s in candidate if _is_result(candidate[s]) and _is_result(baseline.get(s))]
    if paired:
        pairs = [float(candidate[s] or 0.0) - float(baseline[s] or 0.0) for s in both]
        spread = float(np.std(pairs, ddof=1)) if len(pairs) > 1 else floor
    else:
        own = [score for score in candidate.values() if _is_result(score)]
        spread = math.sqrt((floor**2 + float(np.var(own, ddof=1))) / 2) if len(own) > 1 else floor
    wanted, chance = metric.minimum_effect, evaluation.power
    needed = seeds_needed(wanted, spread, alpha, chance, paired=paired)
    if found.effect < wanted:
        return needed, None
    return needed, seeds_needed(found.effect, spread, alpha, chance, paired=paired)


def _collapsed(
    metric: PrimaryMetric, baseline: Sequence[float], candidate: Scores, spread: float
) -> list[str]:
    """Return the breach of a candidate with seeds that are far worse than any of the baseline's.

    A change that is better on most seeds and collapses on a few may have a fine mean, and few seeds
    show few of its collapses: one that is seen counts.
    """
    sign = 1.0 if metric.direction == "maximize" else -1.0
    limit, source = metric.seed_bound, "metrics.primary.seed_bound"
    if limit is None and not spread:
        return []
    if limit is None:
        limit = sign * (min(sign * score for score in baseline) - COLLAPSED * spread)
        source = f"the baseline's worst seed less {COLLAPSED:g} standard deviations"
    fell = [s for s, v in candidate.items() if _is_result(v) and sign * (v - limit) < 0]
    if not fell:
        return []
    side = "below" if metric.direction == "maximize" else "above"
    seeds = ", ".join(f"{seed} ({candidate[seed]:.4g})" for seed in fell)
    return [f"It collapsed on seed {seeds}: {side} {limit:.4g}, which is {source}."]


def _failing(baseline: Scores, candidate: Scores) -> list[str]:
    """Return the breach of a candidate whose runs fail more often than those of the baseline.

    The worst score that anyone saw stands in for a failed seed, and may be far better than what the
    run would have ended with. So no score makes up for failing more often.
    """
    before, after = _lost_share(baseline), _lost_share(candidate)
    if after <= before:
        return []
    return [f"{after:.0%} of its seeds failed, and {before:.0%} of the baseline's."]


def _guarded(
    guard: Guardrail, seen: Comparison | None, after: Scores
) -> tuple[list[str], list[str]]:
    """Return breaches of a guardrail, and what is not shown about it.

    A bound limits the mean over seeds, a margin the limits of the difference.
    """
    breaches, unproven = [], []
    scores = [s for s in after.values() if _is_result(s)]
    if guard.bound is not None and scores:
        mean = float(np.mean(scores))
        inside = mean >= guard.bound if guard.direction == "maximize" else mean <= guard.bound
        if not inside:
            breaches.append(
                f"Guardrail {guard.name}: the mean of {mean:.4g} is beyond {guard.bound:g}."
            )
    if guard.margin is not None:
        if seen is None:
            unproven.append(f"Guardrail {guard.name} was not measured in both arms.")
        elif seen.high < -guard.margin:
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


def noise_floor(first: Scores, second: Scores, direction: Direction) -> tuple[float, Comparison]:
    """Judge an A/A test: the baseline against itself, on two sets of seeds.

    Seeds without a result are left out.

    Returns:
        The standard deviation over seeds, pooled from within the two sets (a shift between them is
        no noise), and the comparison of the sets, whose p-values should be nothing special.
    """
    halves = [
        {s: score for s, score in arm.items() if _is_result(score)} for arm in (first, second)
    ]
    found = compare(halves[0], halves[1], direction=direction, test="welch")
    squares = sum(float(np.var(list(half.values()))) * len(half) for half in halves)
    return math.sqrt(squares / (sum(map(len, halves)) - 2)), found


def differ(first: Scores, second: Scores, direction: Direction) -> float | None:
    """Return the two-sided p-value of an A/A test if it is below `AA_LEVEL`, else None."""
    found = noise_floor(first, second, direction)[1]
    p = 2 * min(found.p_better, found.p_worse)
    return p if p < AA_LEVEL else None
