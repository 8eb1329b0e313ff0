"""What rules share: findings with their evidence, and readings of a case."""

from __future__ import annotations

import math

import numpy as np

from assay.diagnosis.case import (
    ENTROPY,
    EVALUATION,
    LENGTH,
    RETURN,
    Case,
    Finding,
    Progress,
    Severity,
)
from assay.evaluation.formatting import number


def _at(case: Case, metric: str, count: int, value: float) -> str:
    where = f"{case.columns[metric]} ({metric})" if metric in case.columns else metric
    return f"{where} is {exact(value)} at {case.unit}={count:,}"


def exact(value: float) -> str:
    """Return a number as evidence shows it."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1e-2 or abs(value) >= 1e6 else number(value)


def curve(
    case: Case, name: str, severity: Severity, metric: str, value: float, cause: str, step: str,
    command: str | None = None, *, at: int | None = None, more: str = "",
) -> Finding:  # fmt: skip
    """Return a finding whose evidence is a point of a curve."""
    count = case.count if at is None else at
    evidence = _at(case, metric, count, value) + (f"; {more}" if more else "")
    return Finding(name, severity, evidence, cause, step, command, metric, count, value)


def of_setting(
    case: Case, name: str, severity: Severity, setting: str, value: float, cause: str, step: str,
    command: str | None,
) -> Finding:  # fmt: skip
    """Return a finding whose evidence is a setting."""
    evidence = f"{setting}={case.settings[setting]} (config.yaml)"
    return Finding(name, severity, evidence, cause, step, command, setting, None, value)


def lower_rates(case: Case) -> tuple[str, ...]:
    """Return settings with a tenth of each learning rate, at most what usually works."""
    rates = case.learning_rates
    if not rates:
        return ("lr=1e-4",)
    return tuple(f"{name}={min(rate.start / 10, 3e-4) or 3e-4:g}" for name, rate in rates.items())


def too_high(case: Case, rate: float) -> Severity:
    """Return how bad a learning rate is that is far too high; some runs learn all the same."""
    return "error" if rate >= 1 and not case.improved else "warning"


def falling_rates(case: Case) -> tuple[str, ...]:
    """Return settings by which each learning rate falls to 0 over the run."""
    starts = {name: rate.start for name, rate in case.learning_rates.items()} or {"lr": 3e-4}
    return tuple(f"{name}=linear:{start or 3e-4:g}:0" for name, start in starts.items())


def is_discrete(case: Case, entropy: np.ndarray) -> bool:
    """Return whether actions are choices, by the probe or by an entropy that is never negative."""
    if case.probe is not None and case.probe.choices is not None:
        return True
    if case.kind == "assay" and case.probe is not None:
        return False
    return bool((entropy >= 0).all())


def largest_entropy(case: Case, values: np.ndarray) -> float:
    """Return the entropy of uniform actions, or the largest at the start where that is unknown."""
    if case.probe is not None and case.probe.choices is not None:
        return math.log(case.probe.choices)
    return float(values[: max(1, len(values) // 5)].max())


def largest_value(case: Case) -> float | None:
    """Return a bound of what a state can be worth, by the returns that were collected."""
    found, lengths = case.get(RETURN), case.get(LENGTH)
    evaluated, eval_lengths = case.get(EVALUATION), case.get("eval/length_mean")
    gamma = case.number("gamma") or 0.99
    ahead = 1 / (1 - gamma) if gamma < 1 else 0.0  # without a discount, the return is the bound
    bounds = [1.0]
    for returns, steps in ((found, lengths), (evaluated, eval_lengths)):
        if returns is None:
            continue
        largest = float(np.abs(returns[1]).max())
        bounds.append(largest)
        if steps is not None:
            shortest = max(1.0, float(np.median(steps[1])))
            bounds.append(largest / shortest * ahead)
    if len(bounds) == 1:
        return None
    bonus = 0.0
    alpha, entropy = case.get("train/alpha"), case.get(ENTROPY)
    if alpha is not None and entropy is not None:
        bonus = float(np.median(alpha[1])) * float(np.abs(entropy[1]).max()) * ahead
    return max(bounds) + bonus


def main_curve(case: Case) -> Progress | None:
    """Return how returns went by the curve that has more to say."""
    for one in case.progress:
        if one.metric == RETURN or case.get(EVALUATION, 8) is not None:
            return one
    return case.progress[0] if case.progress else None


def moved(values: np.ndarray) -> float:
    """Return how far a curve moved from its first to its last quarter, in its own deviations."""
    quarter = max(1, len(values) // 4)
    first, last = values[:quarter], values[-quarter:]
    spread = max(float(first.std()), float(last.std()), 1e-9)
    moved = float(last.mean() - first.mean())
    return moved / spread if abs(moved) > 1e-9 else 0.0
