"""How far strategies are from equilibria, and what a pay-off table says about them.

All figures are exact. They are plain values, so that a report can hold them: see
`assay.evaluation.equilibria_report`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.errors import ConfigError, DataError, RunError
from assay.envs.games.strategies import read_strategy
from assay.evaluation.payoffs import PayoffTable
from assay.functional.games.alpha_rank import Ranking, alpha_rank
from assay.functional.games.best_response import exploitation
from assay.functional.games.normal_form import (
    coarse_correlated_gap,
    correlated_gap,
    deviation_gains,
    expected_payoffs,
    is_symmetric,
    is_zero_sum,
    joint,
    replicator_path,
    spread,
    zero_sum_nash,
)
from assay.functional.games.tree import Floats, GameTree, normalized
from assay.functional.games.welfare import welfare
from assay.runs import checkpoint
from assay.runs.directory import RUN_FILE, RunDirectory

UNIFORM = "uniform"
MOST_PROFILES = 400  # of alpha-rank, whose chain has one state for each


def read_policy(tree: GameTree, text: str, place: Path) -> Floats:
    """Return a strategy [I, A]: "uniform", a run of CFR, or a strategy file.

    Args:
        tree: The game.
        text: What the user wrote.
        place: Where a run or a file of that name is.

    Raises:
        AssayError: There is no such thing, or it is of another game.
    """
    if text == UNIFORM:
        return tree.uniform()
    if (place / RUN_FILE).is_file():
        return _of_run(tree, place)
    if not place.is_file():
        raise DataError(
            f"'{text}' is neither a run nor a file.",
            "Give 'uniform', the path or name of a run, or a strategy file in JSON.",
        )
    return read_strategy(tree, place)


def _of_run(tree: GameTree, place: Path) -> Floats:
    """Return the average strategy of a run of CFR; it is read without torch."""
    run = RunDirectory.open(place)
    config = run.config
    if config.get("algorithm") != "cfr":
        raise RunError(
            f"The run '{place}' is one of {config.get('algorithm')}, which learns no table.",
            "Give a run of cfr.",
        )
    latest = checkpoint.latest(run.checkpoints_path)
    if latest is None:
        raise run.no_checkpoint()
    table = checkpoint.read_checkpoint(latest, ("normalisers",))["normalisers"]["table"]
    if not np.array_equal(table["vectors"], tree.vectors):
        raise RunError(
            f"The run '{place}' learned '{config.get('env')}', and the game is '{tree.name}'.",
            "Name the game of the run.",
        )
    return normalized(np.asarray(table["average"]), tree.legal)


def measure_strategy(tree: GameTree, strategy: Floats) -> dict[str, Any]:
    """Return the figures of one strategy that all players follow."""
    found = exploitation(tree, strategy)
    return {
        "values": found.values.tolist(),
        "best_response_values": found.best.tolist(),
        "gains": np.maximum(found.gains, 0.0).tolist(),
        "nash_conv": max(0.0, found.nash_conv),
        "exploitability": max(0.0, found.exploitability),
        "decisions_per_game": tree.expected_length(strategy),
        "welfare": welfare(found.values),
    }


def measure_table(
    payoffs: PayoffTable,
    *,
    alpha: float = 100.0,
    population: int = 50,
    profile: Sequence[Floats] | None = None,
) -> dict[str, Any]:
    """Return the figures of a pay-off table.

    Besides the uniform profile, that of an equilibrium is judged where there are two players and
    the sum is zero, and `profile`, if it is given.

    Args:
        payoffs: The table.
        alpha: The intensity of selection of alpha-rank.
        population: How many members its populations have.
        profile: A distribution of each player over its strategies.

    Raises:
        ConfigError: A number is out of range.
    """
    if alpha <= 0 or population < 2:
        raise ConfigError(
            f"alpha={alpha:g} and population={population}: expected a positive alpha, and at "
            "least two members."
        )
    table = payoffs.table
    uniform = [np.full(size, 1.0 / size) for size in table.shape[1:]]
    profiles: dict[str, Sequence[Floats]] = {UNIFORM: uniform}
    if is_zero_sum(table):
        first, second, _ = zero_sum_nash(table[0])
        profiles["nash"] = [first, second]
    if profile is not None:
        profiles["given"] = profile
    path = replicator_path(table / spread(table), near(uniform), steps=800, dt=0.5)
    profiles["replicator_average"] = [own.mean(axis=0) for own in path]
    total = table.sum(axis=0)
    best = tuple(int(k) for k in np.unravel_index(int(total.argmax()), total.shape))
    most = np.array([own[best] for own in table])
    found: dict[str, Any] = {
        "name": payoffs.name,
        "strategies": [list(own) for own in payoffs.strategies],
        "payoffs": table.tolist(),
        "zero_sum": is_zero_sum(table),
        "symmetric": is_symmetric(table),
        "profiles": {name: _of_profile(table, each) for name, each in profiles.items()},
        "best_welfare": {
            "profile": payoffs.profile_name(best),
            "returns": most.tolist(),
            "welfare": welfare(most),
        },
        "replicator_end": [own[-1].tolist() for own in path],
    }
    if payoffs.errors is not None:
        found["standard_errors"] = payoffs.errors.tolist()
    ranking = rank(payoffs, alpha=alpha, population=population)
    if ranking is not None:
        order = np.argsort(-ranking.mass, kind="stable")
        found["alpha_rank"] = {
            "alpha": alpha,
            "population": population,
            "populations": 1 if ranking.single else len(table),
            "ranking": [
                {
                    "profile": payoffs.profile_name(ranking.profiles[k]),
                    "mass": float(ranking.mass[k]),
                }
                for k in order
            ],
        }
    return found


def rank(payoffs: PayoffTable, *, alpha: float, population: int) -> Ranking | None:
    """Return alpha-rank of a table, or None where there are too many profiles."""
    table = payoffs.table
    count = table.shape[1] if is_symmetric(table) else int(np.prod(table.shape[1:]))
    return None if count > MOST_PROFILES else alpha_rank(table, alpha=alpha, population=population)


def near(profile: Sequence[Floats]) -> list[Floats]:
    """Return distributions near uniform ones, which the replicator dynamics would never leave."""
    moved = [own * (1.0 + 0.1 * np.cos(np.arange(len(own)) + 1.0)) for own in profile]
    return [own / own.sum() for own in moved]


def _of_profile(table: Floats, profile: Sequence[Floats]) -> dict[str, Any]:
    weights = joint(profile)
    returns = expected_payoffs(table, weights)
    gains = deviation_gains(table, profile)
    return {
        "strategies": [own.tolist() for own in profile],
        "returns": returns.tolist(),
        "nash_conv": max(0.0, float(gains.sum())),
        "ce_gap": max(0.0, correlated_gap(table, weights)),
        "cce_gap": coarse_correlated_gap(table, weights),
        "welfare": welfare(returns),
    }


def measure_game(tree: GameTree, strategies: Mapping[str, Floats]) -> dict[str, Any]:
    """Return the figures of strategies that all players of a game follow, by name."""
    return {
        "game": tree.name,
        "players": tree.num_players,
        "histories": len(tree.parent),
        "information_sets": tree.num_infosets,
        "policies": {name: measure_strategy(tree, one) for name, one in strategies.items()},
    }
