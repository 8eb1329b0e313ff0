"""What the rules of a diagnosis read: curves and facts of one run, ours or a foreign log."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.schedules import Schedule
from assay.core.types import Unit
from assay.diagnosis.probe import Probe
from assay.evaluation.formatting import number
from assay.runs.metrics import Series

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

RETURN, LENGTH, EVALUATION = "rollout/return_mean", "rollout/length_mean", "eval/return_mean"
ENTROPY, KL, CLIPPED = "train/entropy", "train/approx_kl", "train/clip_fraction"
_LEARNING_RATE = re.compile(r"(^|_)lr$")
CLEAR_GAIN = 0.25  # of the return at the start, from which on a gain counts
_STEADY_GAIN = 0.05  # likewise, for evaluations that rise most of the time
_STEADY = 0.7  # rank correlation with time
_WINDOW = 100  # episodes in the mean that is logged; the first ones to end are short ones
_LEAST_RETURNS = 5  # log lines, to say how returns went
FEW_TO_JUDGE = 8  # points of the longest curve: nothing found in fewer says little
FEW_POINTS = 3  # of a metric of updates, each the mean of many


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a rule found.

    Attributes:
        name: Of the rule.
        severity: "error": the run cannot be used as it is. "warning": it probably suffers. "info":
            worth knowing.
        evidence: The metric, where and how much, in words.
        cause: What it is likely to come from.
        step: What to do next.
        command: What to type for it, or None where that depends on somebody else's program.
        metric: The evidence's metric, or the setting.
        at: How far the run was, in its unit; None where it holds for all of it.
        value: The number that was found.
    """

    name: str
    severity: Severity
    evidence: str
    cause: str
    step: str
    command: str | None = None
    metric: str | None = None
    at: int | None = None
    value: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Progress:
    """How a curve of returns went."""

    metric: str  # which
    start: float  # the mean of the first values
    end: float  # the mean of the last fifth
    best: float  # the highest mean of a fifth
    noise: float  # how far values lie apart that ought to be alike
    improved: bool  # whether some stretch was clearly better than the start


@dataclass
class Case:
    """One run, as far as it is known."""

    source: Path  # the run directory, or the file
    kind: str  # "assay", or the format of a foreign log
    series: dict[str, Series]  # curves by Assay's names of metrics
    # Assay's name -> the foreign log's, where one was recognised.
    columns: dict[str, str] = field(default_factory=dict)
    unit: Unit | Literal["rows"] = "env_steps"  # what is counted
    # How far the run is; `updates` and `episodes` likewise, None where that is not known.
    count: int = 0
    total: int | None = None  # how far it was to go
    updates: int | None = None
    episodes: int | None = None
    # [records, 4]: count, updates, seconds and episodes at each log line.
    clock: NDArray[np.float64] | None = None
    status: str | None = None  # as in `run.json`, with `error` why it failed
    error: str | None = None
    algorithm: str | None = None  # its name; `env` that of the environment
    env: str | None = None
    # Hyperparameters by name; `run` the settings of the run.
    settings: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    made_by_id: bool = True
    # Of the stored evaluations: (count, episodes).
    evaluations: list[tuple[int, list[dict[str, Any]]]] = field(default_factory=list)
    probe: Probe | None = None  # what the last checkpoint's networks and normalisers are like
    # The return from which on the environment counts as solved, if somebody says so.
    threshold: float | None = None

    def get(self, name: str, least: int = 1) -> Series | None:
        """Return the finite part of a curve, or None if it has fewer than `least` points."""
        if name not in self.series:
            return None
        counts, values = self.series[name]
        finite = np.isfinite(values)
        return (counts[finite], values[finite]) if finite.sum() >= least else None

    def late(self, name: str, share: float = 1 / 3) -> float | None:
        """Return the median of the last values of a curve, or None if it has too few."""
        found = self.get(name, FEW_POINTS)
        return None if found is None else float(np.median(tail(found[1], share)))

    def matching(self, pattern: str) -> list[str]:
        """Return the names of the curves that match a pattern."""
        return sorted(name for name in self.series if re.search(pattern, name))

    def number(self, name: str) -> float | None:
        """Return a hyperparameter that is a number, or None."""
        value = self.settings.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value)

    @property
    def learning_rates(self) -> dict[str, Schedule]:
        """Return the schedules of the learning rates that the run was configured with."""
        found = {}
        for name, value in self.settings.items():
            if _LEARNING_RATE.search(name) and isinstance(value, (int, float, str)):
                try:
                    found[name] = Schedule.parse(value)
                except ConfigError:
                    continue
        return found

    @cached_property
    def progress(self) -> list[Progress]:
        """Return how the returns of training and of evaluations went, where there are enough."""
        trained = _progress(RETURN, self._returns())
        first = None if trained is None else trained.start
        evaluated = _progress(EVALUATION, self.get(EVALUATION, 3), first)
        return [one for one in (evaluated, trained) if one is not None]

    def _returns(self) -> Series | None:
        """Return the returns of training, without the first: short episodes end before others."""
        found = self.get(RETURN, _LEAST_RETURNS)
        if found is None or self.clock is None or self.run.get("num_envs", 1) == 1:
            return found
        counts, values = found
        episodes = np.interp(counts, self.clock[:, 0], self.clock[:, 3])
        skipped = min(int((episodes < _WINDOW).sum()), len(values) // 5)
        return counts[skipped:], values[skipped:]

    @property
    def improved(self) -> bool | None:
        """Return whether returns rose clearly above their start; None if too little is known."""
        return any(one.improved for one in self.progress) if self.progress else None

    @property
    def solved(self) -> bool:
        """Return whether the environment counts as solved at the end."""
        if self.threshold is None:
            return False
        slack = 0.05 * abs(self.threshold)
        return any(one.end >= self.threshold - slack for one in self.progress)

    @property
    def rivals(self) -> bool:
        """Return whether what some agents get is what others lose, in all evaluated episodes."""
        shares = [
            one["agents"].values() for _, e in self.evaluations for one in e if "agents" in one
        ]
        sizes = [sum(map(abs, each)) for each in shares]
        return sum(sizes) > 0 and all(
            abs(sum(each)) <= 1e-4 * size for each, size in zip(shares, sizes, strict=True)
        )

    def retrain(self, *settings: str) -> str | None:
        """Return the command that trains again with other settings; None for a foreign log."""
        if self.kind != "assay":
            return None
        if not self.made_by_id:
            given = ", ".join(_as_python(setting) for setting in settings)
            return f'assay.train("{self.algorithm}", env, {given})'
        return " ".join(["assay train --config", str(self.source / "config.yaml"), *settings])

    def check_env(self) -> str | None:
        """Return the command that checks the environment, where it has an id."""
        known = self.env is not None and self.made_by_id
        return f"assay envs check {self.env}" if known else None


def tail(values: NDArray[np.float64], share: float = 1 / 3) -> NDArray[np.float64]:
    """Return the last values, at least one."""
    return values[-max(1, round(len(values) * share)) :]


def binned(found: Series, bins: int = 100) -> Series:
    """Return the means of a curve over stretches of equally many points, where it is long."""
    counts, values = found
    if len(values) <= bins:
        return found
    parts = np.array_split(values, bins)
    ends = np.cumsum([len(part) for part in parts]) - 1
    return counts[ends], np.array([part.mean() for part in parts])


def _progress(metric: str, found: Series | None, first: float | None = None) -> Progress | None:
    """Judge a curve; `first` is a return at the start that another curve knows."""
    if found is None:
        return None
    _, values = binned(found)
    fifths = np.array_split(values, min(5, len(values)))
    start = float(values[: max(1, len(values) // 10)].mean())
    if first is not None:
        start = min(start, first)
    means = [float(part.mean()) for part in fifths]
    noise = min(float(part.std()) for part in fifths)
    best = max(means)
    gain = max(CLEAR_GAIN * abs(start), 3 * noise, 1e-9)
    improved = best - start > gain
    if metric == EVALUATION and len(values) >= 8 and not improved:
        improved = best - start > _STEADY_GAIN * abs(start) and _rises(values) > _STEADY
    return Progress(metric, start, means[-1], best, noise, improved)


def _as_python(setting: str) -> str:
    """Return a setting of the command line as an argument of a function."""
    name, _, value = setting.partition("=")
    if value in ("true", "false"):
        return f"{name}={value.title()}"
    return setting if re.fullmatch(r"[\d.e+-]+", value) else f'{name}="{value}"'


def _rises(values: NDArray[np.float64]) -> float:
    """Return the rank correlation of a curve with time."""
    ranks = values.argsort().argsort()
    return 0.0 if np.ptp(values) == 0 else float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])


# What rules share: findings with their evidence, and readings of a case


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
    where = f"{case.columns[metric]} ({metric})" if metric in case.columns else metric
    evidence = f"{where} is {exact(value)} at {case.unit}={count:,}" + (f"; {more}" if more else "")
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
