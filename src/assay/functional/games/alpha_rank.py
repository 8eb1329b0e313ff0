"""Alpha-rank: strategies ranked by the chain of mutations that take over populations.

Omidshafiei et al. 2019, arXiv:1903.01373. Each population plays one strategy at a time. A mutant
appears, and takes over with the probability rho; where a population of m stands the longest, in the
long run, is its rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.functional.games.normal_form import is_symmetric
from assay.functional.games.tree import Floats

_RAREST = 1e-60  # no mutant is without any chance, so that the chain has one stationary state


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """What alpha-rank found.

    Attributes:
        profiles: The strategy of each population, in each state of the chain: one number in a
            symmetric game, which has one population.
        mass: [S] the stationary distribution.
        chance: [S, S] from row to column: the probability that a mutant takes over; 0 where more
            than one population would have to change.
        neutral: What that probability is for a mutant that is as good as the rest: 1 / m.
        single: Whether there is one population.
    """

    profiles: tuple[tuple[int, ...], ...]
    mass: Floats
    chance: Floats
    neutral: float
    single: bool


def alpha_rank(table: Floats, *, alpha: float = 100.0, population: int = 50) -> Ranking:
    """Rank the strategies of a pay-off table [P, A_1, ..., A_P].

    In a symmetric game of two there is one population, whose members meet each other; else there is
    one for each player.

    Args:
        table: What each player gets.
        alpha: The intensity of selection: how much a better pay-off helps.
        population: m, how many members a population has.
    """
    single = is_symmetric(table)
    shape = table.shape[1:2] if single else table.shape[1:]
    profiles = tuple(tuple(int(i) for i in one) for one in np.ndindex(*shape))
    chance = np.zeros((len(profiles), len(profiles)))
    for row, old in enumerate(profiles):
        for column, new in enumerate(profiles):
            changed = [k for k in range(len(shape)) if old[k] != new[k]]
            if len(changed) != 1:
                continue
            if single:  # the mutant and the resident meet
                advantage = table[0, new[0], old[0]] - table[0, old[0], new[0]]
            else:
                k = changed[0]
                advantage = table[k][new] - table[k][old]
            chance[row, column] = fixation(alpha * float(advantage), population)
    mutants = sum(size - 1 for size in shape)
    mass = stationary(chance / max(1, mutants))
    return Ranking(profiles, mass, chance, 1.0 / population, single)


def fixation(u: float, population: int) -> float:
    """Return rho = (1 - exp(-u)) / (1 - exp(-m u)), without overflow."""
    if abs(u) < 1e-14:
        return 1.0 / population
    if u > 0:
        return max(_RAREST, float(np.expm1(-u) / np.expm1(-population * u)))
    # The same, both sides of the fraction times exp(m u).
    share = np.exp((population - 1) * u) * np.expm1(u) / np.expm1(population * u)
    return max(_RAREST, float(share))


def stationary(chance: Floats) -> Floats:
    """Return the stationary distribution [S] of a chain with these probabilities to move on.

    The diagonal is not read. By Grassmann, Taksar and Heyman's elimination, which never subtracts:
    eigenvectors lose all digits where some moves are very rare.
    """
    weights = chance.copy()
    np.fill_diagonal(weights, 0.0)
    size = len(weights)
    for last in range(size - 1, 0, -1):
        weights[:last, last] /= weights[last, :last].sum()
        weights[:last, :last] += np.outer(weights[:last, last], weights[last, :last])
    mass = np.zeros(size)
    mass[0] = 1.0
    for state in range(1, size):
        mass[state] = mass[:state] @ weights[:state, state]
    return mass / mass.sum()
