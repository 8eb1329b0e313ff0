"""What a run says about its reward: which parts moved it, and whether the task moved with it.

A reward candidate builds on such a reflection. It is written to
`runs/<run>/reward_reflection.json`, and its hash to the ledger, so that one that was edited later,
or that another study made, is not taken for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from assay.study.files.contract import Contract, Metric
from assay.study.files.documents import (
    StudyError,
    digest_of,
    read_json_document,
    write_json_document,
)
from assay.study.files.records import ReflectionComponent, RewardReflection
from assay.study.measure import extractors, monitor
from assay.study.measure.extractors import Point
from assay.study.record import kinds
from assay.study.record.history import History, Run
from assay.study.record.study import Study

FILE = "reward_reflection.json"
DOMINANT = 0.8  # share of the summed magnitude at which one component is said to dominate
SATURATED = 0.02  # share of its range within which a component stands still
FLAT = 0.05  # share of its magnitude below which a change is none
FEWEST = 8  # points that a trend needs

Trend = Literal["rising", "falling", "flat", "unknown"]
Risk = Literal["low", "medium", "high"]


def reflect(study: Study, run: str, actor: str = "assay") -> RewardReflection:
    """Look back on the reward of a run that is over; write the reflection and record it.

    Raises:
        StudyError: The run is unknown or under way, or the contract names no reward components.
    """
    agreed = study.contract()
    if not agreed.metrics.components:
        raise StudyError(
            "The contract names no reward components, so there is nothing to reflect on.",
            "List the parts of the reward under metrics.components, and have it approved.",
        )
    with study.transaction() as transaction:
        mine = transaction.history.runs.get(run)
        if mine is None or not mine.ended:
            raise StudyError(
                f"Run '{run}' is {'still under way' if mine else 'not on record'}.",
                "Reflect on a run that is over; `assay study status` lists them.",
            )
        place = study.path / "runs" / mine.id
        found = _reflection(agreed, place, mine, _rivals(study, transaction.history, mine))
        write_json_document(place / FILE, found)
        facts = {
            "run": run, "candidate": mine.candidate, "hash": digest_of(found),
            "hacking_risk": found.hacking_risk, "findings": list(found.findings),
        }  # fmt: skip
        transaction.append(kinds.REFLECTED, facts, actor=actor)
    return found


def named(study: Study, name: str) -> RewardReflection:
    """Return the reflection that a candidate names, if this study made it and nobody edited it.

    Args:
        study: The candidate's study.
        name: A run, or the path of its reflection below the study's directory.

    Raises:
        StudyError: There is none by that name, or it is not the one on record.
    """
    parts = PurePosixPath(name).parts
    run = parts[1] if len(parts) == 3 and (parts[0], parts[2]) == ("runs", FILE) else name
    recorded = study.history().reflections
    if run not in recorded:
        known = ", ".join(f"runs/{name}/{FILE}" for name in sorted(recorded)) or "none"
        raise StudyError(
            f"'{name}' is not a reward reflection of {study.task}/{study.name} (known: {known}).",
            "Make one with `assay study reflect RUN`; studies share none.",
        )
    found = read_json_document(study.path / "runs" / run / FILE, RewardReflection)
    if digest_of(found) != recorded[run].data["hash"]:
        raise StudyError(
            f"'runs/{run}/{FILE}' is not what was recorded: it was edited.",
            f"Make it again with `assay study reflect {run}`.",
        )
    return found


def _rivals(study: Study, history: History, mine: Run) -> list[Run]:
    """Return the runs to hold this one against: those of the incumbent or baseline, same phase."""
    holder = history.incumbent
    names = [holder] if holder else [
        name for name in study.candidates() if study.candidate(name).kind == "baseline"
    ]  # fmt: skip
    others = [run for name in names for run in history.selected(name, mine.phase)]
    return [run for run in others if run.outcome == "done" and run.candidate != mine.candidate]


def _reflection(
    agreed: Contract, place: Path, mine: Run, rivals: Sequence[Run]
) -> RewardReflection:
    metrics = agreed.metrics
    series = {metric.name: monitor.points_of(metric, place) for metric in metrics.all()}
    sizes = {m.name: _size(series[m.name], mine.metrics.get(m.name)) for m in metrics.components}
    total = sum(sizes.values())
    components = []
    findings = []
    for metric in metrics.components:
        share = sizes[metric.name] / total if total else 0.0
        one = ReflectionComponent(
            name=metric.name,
            share=min(1.0, share),
            trend=trend(series[metric.name]),
            saturated=saturated(metric, series[metric.name]),
            dominant=share > DOMINANT and len(metrics.components) > 1,
        )
        components.append(one)
        if one.dominant:
            findings.append(f"{metric.name} makes up {share:.0%} of the reward.")
        elif total and share < 0.01:
            findings.append(f"{metric.name} makes up {share:.1%} of the reward: it says nothing.")
        if one.saturated:
            findings.append(f"{metric.name} is saturated: it no longer tells better from worse.")
        if one.trend == "unknown":
            findings.append(
                f"{metric.name} has fewer than {FEWEST} points in the run's files; its trend is "
                "unknown."
            )
    risk, reasons = _risk(agreed, series, components, mine, rivals)
    judged = [metrics.primary, *metrics.guardrails]
    if metrics.training_reward is not None:
        judged.append(metrics.training_reward)
    values = {metric.name: mine.metrics.get(metric.name) for metric in judged}
    return RewardReflection(
        run=mine.id,
        task_metrics={name: value for name, value in values.items() if value is not None},
        components=tuple(components),
        hacking_risk=risk,
        findings=(*reasons, *findings),
    )


def _size(points: Sequence[Point], recorded: float | None) -> float:
    """Return how much a component weighs: its mean magnitude over the run, or at its end."""
    values = extractors.finite(points)
    if values.size:
        return float(np.mean(np.abs(values)))
    return abs(recorded) if recorded is not None and math.isfinite(recorded) else 0.0


def trend(points: Sequence[Point]) -> Trend:
    """Say which way a series went, from its first to its last quarter.

    Example:
        >>> trend([(float(i), float(i)) for i in range(20)])
        'rising'
        >>> trend([(0.0, 1.0)])
        'unknown'
    """
    values = extractors.finite(points)
    if values.size < FEWEST:
        return "unknown"
    quarter = values.size // 4
    change = float(values[-quarter:].mean() - values[:quarter].mean())
    # Differences of neighbours show the noise of single points, whatever the trend is.
    noise = float(np.std(np.diff(values))) / math.sqrt(quarter)
    if abs(change) <= max(2 * noise, FLAT * float(np.mean(np.abs(values)))):
        return "flat"
    return "rising" if change > 0 else "falling"


def saturated(metric: Metric, points: Sequence[Point]) -> bool:
    """Return whether a component has stood at the best value it ever had for half of the run."""
    sign = 1.0 if metric.direction == "maximize" else -1.0
    values = sign * extractors.finite(points)
    if values.size < FEWEST:
        return False
    span = float(np.ptp(values))
    tail = values[values.size // 2 :]
    still = float(np.ptp(tail)) <= SATURATED * span
    return span > 1e-9 and still and float(tail.mean()) >= float(values.max()) - SATURATED * span


def _risk(
    agreed: Contract,
    series: Mapping[str, Sequence[Point]],
    components: Sequence[ReflectionComponent],
    mine: Run,
    rivals: Sequence[Run],
) -> tuple[Risk, list[str]]:
    """Hold the reward that was trained on against the task, inside the run and against rivals."""
    primary, reward = agreed.metrics.primary, agreed.metrics.training_reward
    if primary.training_reward:
        return "medium", [
            f"{primary.name} is the reward that is trained on: nothing independent speaks for it."
        ]
    task = _better(primary, trend(series[primary.name]))
    if reward is not None:
        name, trained = reward.name, _better(reward, trend(series[reward.name]))
        gained, task_gained = (
            gain(metric, values_of(metric, [mine]), values_of(metric, rivals))
            for metric in (reward, primary)
        )
        if gained > 2 and task_gained <= 0:
            return "high", [f"{name} beats the rival's runs by far, and {primary.name} does not."]
    else:
        summed = _summed([series[metric.name] for metric in agreed.metrics.components])
        name, trained = "the sum of the components", trend(summed)
    if trained == "unknown" or task == "unknown":
        missing = primary.name if task == "unknown" else name
        note = f"{missing} has fewer than {FEWEST} points in the run's files to compare with."
        lowest: Risk = "medium" if any(one.dominant for one in components) else "low"
        return lowest, [note]
    seen = f"{name} is {trained} while {primary.name} is {task}"
    if trained == "rising" and task == "falling":
        return "high", [f"{seen} (rising is better)."]
    if task != "rising" and (trained == "rising" or any(one.dominant for one in components)):
        return "medium", [f"{seen} (rising is better)."]
    return "low", []


def _better(metric: Metric, seen: Trend) -> Trend:
    """Turn a trend so that rising is better."""
    if metric.direction == "maximize" or seen in ("flat", "unknown"):
        return seen
    return "falling" if seen == "rising" else "rising"


def gain(metric: Metric, after: Sequence[float], before: Sequence[float]) -> float:
    """Return how much better some seeds are than the rival's, in standard deviations of those."""
    if not after or len(before) < 2:
        return math.nan
    sign = 1.0 if metric.direction == "maximize" else -1.0
    mean = float(np.mean(before))
    spread = float(np.std(before, ddof=1)) or abs(mean) * 1e-3 or 1e-9
    return sign * (float(np.mean(after)) - mean) / spread


def values_of(metric: Metric, runs: Sequence[Run]) -> list[float]:
    """Return what runs say of a metric, where they say anything."""
    found = (run.metrics.get(metric.name) for run in runs)
    return [value for value in found if value is not None]


def _summed(parts: Sequence[Sequence[Point]]) -> list[Point]:
    """Add up series that were logged at the same steps; nothing if they were not."""
    steps = [[step for step, _ in points] for points in parts]
    if any(other != steps[0] for other in steps):
        return []
    return [(step, sum(points[i][1] for points in parts)) for i, step in enumerate(steps[0])]
