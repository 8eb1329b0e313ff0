"""Average ranks of several arms, and which of them cannot be told apart (Demšar, 2006)."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError

LEAST_BLOCKS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """How arms rank over blocks, where 1 is best.

    Attributes:
        names: The arms, from the best average rank on.
        average: Their average ranks.
        blocks: Over how many blocks.
        p: Of Friedman's test that all arms are alike.
        critical: Nemenyi's critical difference: averages that differ by less are not told apart.
        cliques: The longest runs of `names` that are not told apart, as (first, last); none where
            every arm is told apart from every other.
        level: One less the error rate.
    """

    names: tuple[str, ...]
    average: NDArray[np.float64]
    blocks: int
    p: float
    critical: float
    cliques: tuple[tuple[int, int], ...]
    level: float


def average_ranks(scores: Mapping[str, Sequence[float]], *, level: float = 0.95) -> Ranks:
    """Rank arms in every block and average, with Friedman's and Nemenyi's tests.

    Args:
        scores: Of each arm, one score per block, higher is better. A block is what all arms were
            run on: an environment, or a seed of one.
        level: One less the error rate.

    Raises:
        ConfigError: There are fewer than two arms or five blocks, or an arm lacks a block.

    Example:
        >>> found = average_ranks({"a": [1, 2, 3, 4, 5], "b": [9, 9, 9, 9, 9]})
        >>> found.names, found.average.tolist()
        (('b', 'a'), [1.0, 2.0])
    """
    names = list(scores)
    sizes = {name: len(values) for name, values in scores.items()}
    if len(names) < 2:
        raise ConfigError("Ranks need at least two arms.", "Give another run or group.")
    if len(set(sizes.values())) > 1:
        raise ConfigError(f"The arms have different numbers of blocks: {sizes}.")
    blocks = next(iter(sizes.values()))
    if blocks < LEAST_BLOCKS:
        raise ConfigError(
            f"There are {blocks} blocks (environment and seed) that all arms were run on; ranks "
            f"need {LEAST_BLOCKS}.",
            "Train more seeds or environments, the same for every arm.",
        )
    table = np.array([scores[name] for name in names], np.float64)  # [arms, blocks]
    if not np.isfinite(table).all():
        raise ConfigError("A score is not finite.")
    stats = importlib.import_module("scipy.stats")
    ranks = stats.rankdata(-table, axis=0)  # ties share the mean of their ranks
    average = ranks.mean(axis=1)
    k, n = len(names), blocks
    # CD = q sqrt(k (k + 1) / (6 n)), q of the studentised range over sqrt(2)
    q = float(stats.studentized_range.ppf(level, k, np.inf)) / math.sqrt(2)
    critical = q * math.sqrt(k * (k + 1) / (6 * n))
    order = np.argsort(average, kind="stable")
    return Ranks(
        tuple(names[i] for i in order),
        average[order],
        blocks,
        _friedman(ranks, stats),
        critical,
        _cliques(average[order], critical),
        level,
    )


def _friedman(ranks: NDArray[np.float64], stats: object) -> float:
    """Return Friedman's p-value, corrected for ties; also for two arms, unlike SciPy's."""
    k, n = ranks.shape
    # Q = (k - 1) sum_j (R_j - n (k + 1) / 2)^2 / (sum r^2 - n k (k + 1)^2 / 4)
    spread = float(np.square(ranks).sum()) - n * k * (k + 1) ** 2 / 4
    if spread <= 0:
        return 1.0  # all scores of every block are equal
    moved = float(np.square(ranks.sum(axis=1) - n * (k + 1) / 2).sum())
    statistic = (k - 1) * moved / spread
    return float(stats.chi2.sf(statistic, k - 1))  # type: ignore[attr-defined]


def _cliques(average: NDArray[np.float64], critical: float) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for first in range(len(average)):
        last = int(np.searchsorted(average, average[first] + critical, side="left")) - 1
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return tuple(found)
