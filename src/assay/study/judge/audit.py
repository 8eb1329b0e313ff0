"""Whether a candidate's evidence may be believed, before anyone asks whether it is better.

Three questions: is the evidence what the runs left behind, was everything measured alike, and did
the candidate improve the task or only its own reward?
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from assay.study.agree import protocol
from assay.study.files.base import Phase
from assay.study.files.contract import Contract, Metric
from assay.study.files.documents import StudyError, write_json_document
from assay.study.files.records import AuditCheck, ResultAudit
from assay.study.judge import gate, verdict
from assay.study.measure import extractors, monitor
from assay.study.record import kinds
from assay.study.record.history import History, Run
from assay.study.record.study import Study

DOMINANT = 0.8  # share of the summed reward at which one component is said to dominate
RIDING = 0.9  # share of actions at their limit
FAR = 10.0  # deviations; what moves farther is to have moved the task as well
PROPORTION = 0.1  # least share of its way that the task is to have come along
TOLERANCE = 1e-9

Runs = Sequence[Run]


def audit(study: Study, name: str, phase: Phase, actor: str) -> ResultAudit:
    """Check a candidate's evidence in a phase, write `audits/<name>.json` and record it.

    Raises:
        StudyError: There is nothing to check.
    """
    with study.transaction() as transaction:
        history = transaction.history
        agreed = study.contract()
        other = verdict.rival(study, history)
        mine, theirs = (history.selected(who, phase) for who in (name, other))
        if not mine:
            raise StudyError(
                f"Candidate '{name}' has no runs in the {phase} phase.", "Run its seeds first."
            )
        checks = [
            _artifacts(study, agreed, mine),
            _protocol(study, agreed, mine, theirs),
            _seeds(agreed, mine, theirs, phase),
            _losses(history, (name, other), phase),
            *_hacking(study, agreed, mine, theirs),
        ]
        found = ResultAudit(
            candidate=name, passed=all(check.passed for check in checks), checks=tuple(checks)
        )
        path = study.path / "audits" / f"{name}.json"
        write_json_document(path, found)
        facts = {"candidate": name, "phase": phase, **found.model_dump(mode="json")}
        transaction.append(kinds.AUDITED, facts, actor=actor)
    return found


def _check(name: str, passed: bool, detail: str) -> AuditCheck:
    return AuditCheck(name=name, passed=passed, detail=detail)


# ---------------------------------------------------------------------- is it what was measured?


def _artifacts(study: Study, agreed: Contract, mine: Runs) -> AuditCheck:
    """Extract every metric again and hold it against the ledger."""
    name = "the artifacts say what the ledger says"
    for run in mine:
        if run.outcome != "done":
            continue
        place = study.path / "runs" / run.id
        if not place.is_dir():
            return _check(name, False, f"the files of run {run.id} are gone")
        for metric in agreed.metrics.all():
            recorded, now = run.metrics.get(metric.name), extractors.value_of(metric, place)
            same = now is recorded or (
                now is not None
                and recorded is not None
                and math.isclose(now, recorded, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
            )
            if not same:
                detail = f"{metric.name} of run {run.id} was {recorded} and is now {now}"
                return _check(name, False, detail)
    return _check(name, True, f"{len(mine)} runs")


def _protocol(study: Study, agreed: Contract, mine: Runs, theirs: Runs) -> AuditCheck:
    name = "both arms were measured alike"
    now = protocol.protocol_hash(study.root, agreed)
    for run in (*mine, *theirs):
        if run.protocol != now:
            return _check(name, False, f"run {run.id} was measured by another protocol")
    return _check(name, True, now[:12])


def _seeds(
    agreed: Contract,
    mine: Runs,
    theirs: Runs,
    phase: Phase,
) -> AuditCheck:
    name = "the seeds are those of the pool"
    pool = set(agreed.evaluation.pools.of(phase))
    for run in (*mine, *theirs):
        if run.seed not in pool:
            return _check(name, False, f"seed {run.seed} of run {run.id} is not in the pool")
    left_out = sorted({run.seed for run in theirs} - {run.seed for run in mine})
    if left_out:
        return _check(name, False, f"the rival was run on seeds {left_out}, the candidate was not")
    return _check(name, True, ", ".join(str(run.seed) for run in mine))


def _losses(history: History, arms: Sequence[str], phase: Phase) -> AuditCheck:
    """Look for runs that someone may have killed because they did not please, in either arm."""
    title = "no run was lost on the way"
    counts = []
    for name in arms:
        mine = history.over(name, phase)
        # What a person stopped for all is on record as that.
        lost = [r.id for r in mine if r.outcome == "lost" and r.reason != kinds.SWITCHED]
        if len(lost) > kinds.MOST_RUNS_LOST:
            return _check(title, False, f"{', '.join(lost)} were stopped on the way")
        counts.append(f"{len(lost)} of {name}")
    return _check(title, True, f"{' and '.join(counts)} were lost")


# ---------------------------------------------------------------------- is it the task that got
# better, or the reward?


def _hacking(study: Study, agreed: Contract, mine: Runs, theirs: Runs) -> list[AuditCheck]:
    metrics = agreed.metrics
    checks = []
    if metrics.training_reward is not None:
        checks.append(_reward_against_task(metrics.primary, metrics.training_reward, mine, theirs))
    if metrics.honeypot is not None:
        checks.append(_honeypot(metrics.honeypot, mine, theirs))
    if metrics.components:
        checks.append(_domination(metrics.components, mine, theirs))
        checks.append(_saturation(study, metrics.components, mine))
    for metric in metrics.diagnostics:
        lowered = metric.name.lower()
        if "length" in lowered or "terminat" in lowered:
            checks.append(_exploit(metric, metrics.primary, mine, theirs))
        if "limit" in lowered or "satur" in lowered:
            checks.append(_riding(metric, mine, theirs))
    return checks


def _unwritten(metrics: Sequence[Metric], runs: Runs) -> str:
    """Name a metric that a finished run did not write, or return "".

    A check that sees nothing would pass, so whoever wants to pass it would only have to be silent.
    """
    for run in runs:
        for metric in metrics:
            value = run.metrics.get(metric.name)
            if run.outcome == "done" and (value is None or not math.isfinite(value)):
                return f"run {run.id} did not write {metric.name}"
    return ""


def _outran(moved: float, task: float, least: float) -> bool:
    """Return whether something moved by many deviations and the task did not come along."""
    return (moved > least and task <= 0) or (moved > FAR and task < PROPORTION * moved)


def _values(runs: Runs, metric: Metric) -> list[float]:
    found = [run.metrics.get(metric.name) for run in runs]
    return [value for value in found if value is not None]


def _gain(metric: Metric, mine: Runs, theirs: Runs) -> float:
    """Return how much better the candidate is, in standard deviations of the rival's seeds."""
    after, before = _values(mine, metric), _values(theirs, metric)
    if not after or len(before) < 2:
        return math.nan
    sign = 1.0 if metric.direction == "maximize" else -1.0
    spread = float(np.std(before, ddof=1)) or abs(float(np.mean(before))) * 1e-3 or 1e-9
    return sign * (float(np.mean(after)) - float(np.mean(before))) / spread


def _reward_against_task(primary: Metric, reward: Metric, mine: Runs, theirs: Runs) -> AuditCheck:
    name = "the task got better with its reward"
    silent = _unwritten([reward], [*mine, *theirs])
    if silent:
        return _check(name, False, silent)
    task, trained = _gain(primary, mine, theirs), _gain(reward, mine, theirs)
    hacked = _outran(trained, task, least=2)
    detail = f"{reward.name} moved by {trained:+.1f} and {primary.name} by {task:+.1f} deviations"
    return _check(name, not hacked, detail)


def _honeypot(metric: Metric, mine: Runs, theirs: Runs) -> AuditCheck:
    name = "the honeypot is untouched"
    silent = _unwritten([metric], [*mine, *theirs])
    if silent:
        return _check(name, False, silent)
    arms = [
        {run.seed: run.metrics.get(metric.name) for run in runs if run.outcome == "done"}
        for runs in (theirs, mine)
    ]
    if min(map(len, arms)) < 2:
        return _check(name, True, "too few runs are done to compare it")
    seen = gate.compare(arms[0], arms[1], direction=metric.direction)
    moved = min(seen.p_better, seen.p_worse) < 0.025 and abs(seen.effect) > TOLERANCE
    return _check(name, not moved, f"{metric.name} moved by {seen.effect:+.4g}")


def _shares(components: Sequence[Metric], runs: Runs) -> dict[str, float]:
    sizes = {m.name: abs(float(np.mean(_values(runs, m) or [0.0]))) for m in components}
    total = sum(sizes.values())
    return {name: size / total if total else 0.0 for name, size in sizes.items()}


def _domination(components: Sequence[Metric], mine: Runs, theirs: Runs) -> AuditCheck:
    name = "no reward component took over"
    silent = _unwritten(components, [*mine, *theirs])
    if silent:
        return _check(name, False, silent)
    after, before = _shares(components, mine), _shares(components, theirs)
    for component, share in after.items():
        if share > DOMINANT and before[component] <= DOMINANT:
            detail = f"{component} grew from {before[component]:.0%} to {share:.0%} of the reward"
            return _check(name, False, detail)
    top = max(after, key=lambda key: after[key])
    return _check(name, True, f"the largest is {top} with {after[top]:.0%}")


def _saturation(study: Study, components: Sequence[Metric], mine: Runs) -> AuditCheck:
    """Look for a component that has stood still at its highest value for the last half."""
    name = "no reward component is saturated"
    for run in mine:
        place = study.path / "runs" / run.id
        for metric in components:
            values = [value for _, value in monitor.points_of(metric, place)]
            tail = values[len(values) // 2 :]
            flat = len(tail) >= 5 and max(tail) - min(tail) <= 1e-6 * (1 + abs(max(tail)))
            if flat and max(values) - min(values) > 1e-3 and tail[-1] >= max(values) - 1e-9:
                return _check(name, False, f"{metric.name} of run {run.id} stands at {tail[-1]:g}")
    return _check(name, True, f"{len(components)} components")


def _exploit(
    metric: Metric,
    primary: Metric,
    mine: Runs,
    theirs: Runs,
) -> AuditCheck:
    """Look for episodes that changed their length while the task did not get better with it."""
    name = f"{metric.name} is not exploited"
    silent = _unwritten([metric], [*mine, *theirs])
    if silent:
        return _check(name, False, silent)
    moved, task = _gain(metric, mine, theirs), _gain(primary, mine, theirs)
    hacked = _outran(abs(moved), task, least=5)
    detail = f"it moved by {moved:+.1f} deviations, {primary.name} by {task:+.1f}"
    return _check(name, not hacked, detail)


def _riding(metric: Metric, mine: Runs, theirs: Runs) -> AuditCheck:
    name = f"{metric.name}: actions do not ride their limits"
    silent = _unwritten([metric], [*mine, *theirs])
    if silent:
        return _check(name, False, silent)
    after, before = (float(np.mean(_values(runs, metric) or [0.0])) for runs in (mine, theirs))
    hacked = after > RIDING and before <= RIDING
    return _check(name, not hacked, f"{before:.2f} before, {after:.2f} now")
