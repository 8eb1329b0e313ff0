"""What a contract can see: its power over both phases, and the seeds that an effect takes."""

from __future__ import annotations

import math

from assay.core.wording import counted
from assay.evaluation import statistics
from assay.study.agree.spending import spend
from assay.study.files.contract import Evaluation
from assay.study.record import kinds

MOST_SEEDS = 10_000
SHOWN = (1.0, 2.0, 3.0)  # true effects, in standard deviations over seeds
WANTED = 2.0  # the one that a contract should see


def seeds_needed(
    effect: float, spread: float, alpha: float, power: float, *, paired: bool = False
) -> int | None:
    """Return the seeds per arm that find `effect` at this noise with the wanted power.

    Args:
        effect: The true difference of means.
        spread: Standard deviation over seeds; of the differences, where the test is paired.
        alpha: One-sided error rate.
        power: Wanted chance.
        paired: Whether the test is.

    Returns:
        None for more than anyone will run (`MOST_SEEDS`).
    """
    if spread == 0:
        return kinds.MINIMUM_SEEDS
    size = effect / spread
    chance = statistics.power_paired if paired else statistics.power_two_sample
    if chance(size, MOST_SEEDS, 2 * alpha) < power:
        return None
    found = statistics.sample_size(size, power, alpha=2 * alpha, paired=paired)
    return max(kinds.MINIMUM_SEEDS, found)


def seeds_for(evaluation: Evaluation, effect: float, spread: float) -> int | None:
    """Return the seeds per arm that promotion needs for an effect, by the contract's test.

    How far arms correlate by seed is not known beforehand: pairs are taken to be independent.
    """
    paired = evaluation.test == "paired"
    noise = spread * math.sqrt(2) if paired else spread
    return seeds_needed(effect, noise, spend(evaluation, 0), evaluation.power, paired=paired)


def power(evaluation: Evaluation, effect: float, seeds: int | None = None) -> float:
    """Return the chance that a true effect is accepted in promotion and in validation.

    Early looks are left out: they end clear cases sooner and cost a little of the last level.

    Args:
        evaluation: The protocol.
        effect: In standard deviations over seeds.
        seeds: Per arm in both phases; those of the pools if None.
    """
    paired = evaluation.test == "paired"
    chance, size = statistics.power_two_sample, effect
    if paired:  # whether arms correlate is not known beforehand
        chance, size = statistics.power_paired, effect / math.sqrt(2)
    pools = evaluation.pools
    levels = ((pools.promotion, spend(evaluation, 0)), (pools.validation, evaluation.alpha))
    return math.prod(chance(size, seeds or len(pool), 2 * alpha) for pool, alpha in levels)


def shown(evaluation: Evaluation) -> str:
    """Say what a contract can see, and what it would take where that is too little."""
    chances = ", ".join(f"{power(evaluation, effect):.0%} at {effect:g} sd" for effect in SHOWN)
    pools = evaluation.pools
    said = (
        f"Chance to accept a true improvement, over both phases with {len(pools.promotion)} and "
        f"{len(pools.validation)} seeds: {chances} (sd: standard deviation over seeds; "
        f"alpha {evaluation.alpha:g} over {counted(evaluation.expected_candidates, 'candidate')})."
    )
    if power(evaluation, WANTED) >= evaluation.power:
        return said
    counts = range(kinds.MINIMUM_SEEDS, 200)
    enough = next((n for n in counts if power(evaluation, WANTED, n) >= evaluation.power), None)
    fewer = [
        n
        for n in range(1, evaluation.expected_candidates)
        if power(evaluation.model_copy(update={"expected_candidates": n}), WANTED)
        >= evaluation.power
    ]
    ways = [f"{enough} seeds in each pool"] if enough else []
    ways += [f"expected_candidates: {fewer[-1]}"] if fewer else []
    takes = f" {evaluation.power:.0%} at {WANTED:g} sd takes {' or '.join(ways)}." if ways else ""
    return said + takes
