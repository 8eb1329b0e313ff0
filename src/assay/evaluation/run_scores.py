"""Read runs into one score per seed, and reject runs that cannot be compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError, RunError, nearest
from assay.core.types import Unit
from assay.evaluation.evaluate import TRAINING, EvaluationResult, load_evaluations
from assay.evaluation.formatting import few
from assay.runs.directory import RunDirectory
from assay.runs.metrics import Series, read_metrics

At = Literal["final", "best", "auc"]

UNITS: dict[Unit, str] = {"env_steps": "environment steps", "updates": "updates"}

_BUDGET_TOLERANCE = 0.05
_PER_RUN = ("seed", "name")  # settings in which the runs of an arm may differ

# Metrics that are taken from the stored episodes, which hold more than the logged ones.
_FROM_EPISODES: dict[str, Callable[[EvaluationResult], float]] = {
    "eval/return_mean": lambda result: result.mean,
    "eval/return_iqm": lambda result: result.iqm,
    "eval/return_std": lambda result: result.std,
    "eval/return_min": lambda result: float(result.returns.min()),
    "eval/return_max": lambda result: float(result.returns.max()),
    "eval/length_mean": lambda result: float(result.lengths.mean()),
}


def read_curve(run: RunDirectory, metric: str, *, label: str = TRAINING) -> Series:
    """Return `(counts, values)` of a metric of one run, with growing counts.

    Raises:
        RunError: The run has no value of this metric.
    """
    if metric in _FROM_EPISODES:
        evaluations = load_evaluations(run, label=label)
        if not evaluations:
            raise RunError(
                f"The run '{run.path}' has no evaluation labelled '{label}'.",
                f"Evaluate it: assay evaluate {run.path}",
            )
        steps = np.array([count for count, _ in evaluations], np.int64)
        values = np.array([_FROM_EPISODES[metric](result) for _, result in evaluations])
        return steps, values
    logged = read_metrics(run.metrics_path)
    if metric not in logged:
        hint = nearest(metric, {*logged, *_FROM_EPISODES})
        raise RunError(f"The run '{run.path}' has no metric '{metric}'.", hint)
    steps, values = logged[metric]
    last = np.append(np.diff(steps) > 0, True)  # of several values at one step, the last one counts
    return steps[last], values[last]


def arm_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest path endings that are unique.

    Raises:
        ConfigError: A path is given twice.
    """
    parts = [path.resolve().parts for path in paths]
    for i, path in enumerate(paths):
        if parts[i] in parts[:i]:
            raise ConfigError(f"'{path}' is given twice.", "Give each run or group once.")
    for depth in count(1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("unreachable: whole paths differ")


def refuse_unlike(groups: Mapping[str, list[RunDirectory]]) -> tuple[str, Unit, int | None]:
    """Return the environment, unit and budget that all runs share, or say which runs do not."""
    everything = [run for runs in groups.values() for run in runs]
    unfinished = [run for run in everything if run.effective_status != "done"]
    if unfinished:
        listed = ", ".join(f"'{run.path}' ({run.effective_status})" for run in unfinished)
        raise ConfigError(
            f"Not every run is done: {listed}. Leaving such runs out would favour an arm that "
            "fails.",
            "Finish them (assay resume RUN), or delete them and name those left in the report.",
        )
    paths = [run.path.resolve() for run in everything]
    twice = sorted({str(path) for path in paths if paths.count(path) > 1})
    if twice:
        raise ConfigError(f"A run belongs to two arms: {', '.join(twice)}.", "Give it once.")
    for name, runs in groups.items():
        _same({run.name: run.info["algorithm"] for run in runs}, f"The arm '{name}'", "algorithm")
        seeds = [run.info["seed"] for run in runs]
        double = sorted({str(seed) for seed in seeds if seeds.count(seed) > 1})
        if double:
            raise ConfigError(
                f"The arm '{name}' has several runs with seed {', '.join(double)}: the same seed "
                "gives the same run, which would count twice.",
                "Give each run of a group a different seed.",
            )
    where = "The comparison"
    env = _same({str(run.path): run.info["env"] for run in everything}, where, "environment")
    budgets = {str(run.path): run.budget for run in everything}
    unit = _same({path: unit for path, (unit, _) in budgets.items()}, where, "unit of the budget")
    total = _same({path: total for path, (_, total) in budgets.items()}, where, f"{unit} budget")
    return str(env), unit, total


def _same(values: Mapping[str, Any], where: str, what: str) -> Any:
    """Return the one value that all have."""
    by_value: dict[Any, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(value, []).append(name)
    if len(by_value) > 1:
        listed = "; ".join(
            f"{value} ({few(names)})" for value, names in sorted(by_value.items(), key=str)
        )
        raise ConfigError(
            f"{where} mixes runs of more than one {what}: {listed}.",
            f"Compare runs of one {what}; an arm is one setting under several seeds.",
        )
    return next(iter(by_value))


def odd_settings(
    groups: Mapping[str, list[RunDirectory]], configs: Mapping[Path, dict[str, Any]]
) -> list[str]:
    """Return a warning for every arm whose runs differ in more than their seed."""
    warnings = []
    for name, runs in groups.items():
        first = configs[runs[0].path]
        odd = sorted({key for run in runs for key in changes(first, configs[run.path])})
        if odd:
            warnings.append(
                f"The runs of '{name}' differ in more than their seed ({few(odd)}), so its spread "
                "is not that of the seed alone."
            )
    return warnings


def uneven_evaluations(
    groups: Mapping[str, list[RunDirectory]],
    curves: Mapping[str, tuple[Series, ...]],
    unit: Unit,
    total: int | None,
    metric: str,
    label: str,
) -> list[str]:
    """Return warnings where runs were evaluated at different steps or with different episodes."""
    warnings = []
    last = {name: [int(steps[-1]) for steps, _ in series] for name, series in curves.items()}
    ends = [end for per_run in last.values() for end in per_run]
    budget, what = total or max(ends), UNITS[unit]
    # Loops may overshoot the budget by part of a rollout; that much is no difference.
    if max(ends) - min(ends) > _BUDGET_TOLERANCE * budget:
        warnings.append(
            f"The last values of {metric} are from different moments: between {min(ends):,} and "
            f"{max(ends):,} {what}."
        )
    elif budget - min(ends) > _BUDGET_TOLERANCE * budget:
        warnings.append(f"The last value of {metric} is from {min(ends):,} of {budget:,} {what}.")
    if metric in _FROM_EPISODES:
        sizes = {
            len(load_evaluations(run, label=label)[-1][1].returns)
            for runs in groups.values()
            for run in runs
        }
        if len(sizes) > 1:
            warnings.append(
                "The evaluations have different numbers of episodes "
                f"({', '.join(map(str, sorted(sizes)))}): fewer episodes are noisier."
            )
    return warnings


def seed_scores(curves: Mapping[str, tuple[Series, ...]], at: At) -> dict[str, NDArray[np.float64]]:
    """Return one score per seed of every arm."""
    series = [one for per_run in curves.values() for one in per_run]
    start = max(int(steps[0]) for steps, _ in series)
    end = min(int(steps[-1]) for steps, _ in series)
    if at == "auc" and end <= start:
        raise ConfigError(
            "at='auc' needs curves that overlap; all runs together cover no common stretch.",
            "Evaluate more often in training, or use at='final'.",
        )

    def score(steps: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        if at == "final":
            return float(values[-1])
        if at == "best":
            return float(values.max())
        inside = steps[(steps > start) & (steps < end)]
        grid = np.concatenate([[start], inside, [end]]).astype(np.float64)
        return float(np.trapezoid(np.interp(grid, steps, values), grid) / (end - start))

    return {name: np.array([score(*one) for one in per_run]) for name, per_run in curves.items()}


def refuse_broken(
    groups: Mapping[str, list[RunDirectory]], scores: Mapping[str, NDArray[np.float64]], metric: str
) -> None:
    """Refuse a run whose score is not a finite number."""
    for name, runs in groups.items():
        for run, score in zip(runs, scores[name], strict=True):
            if not math.isfinite(score):
                raise ConfigError(
                    f"The run '{run.path}' has the score {score} in {metric}: expected a finite "
                    "number.",
                    "Find out what broke it (assay runs show), or compare another metric.",
                )


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return all settings of a configuration in one namespace."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if not prefix and key in ("run", "hyperparameters"):
            flat.update(flatten(value))  # one namespace, as on the command line
        elif isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, with both values."""
    keys = [key for key in {**old, **new} if key not in _PER_RUN]
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}
