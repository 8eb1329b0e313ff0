"""Whether a candidate's evidence can be trusted, before anyone asks whether it is better.

Three questions: is the evidence what the runs left behind, was everything measured alike, and did
the candidate improve the task or only its own reward?
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from assay.core.wording import counted
from assay.study.agree import protocol
from assay.study.files.base import Phase
from assay.study.files.contract import Contract, Metric
from assay.study.files.documents import StudyError, digest, write_json_document
from assay.study.files.records import AuditCheck, ResultAudit, RunRecord
from assay.study.judge import gate, verdict
from assay.study.measure import extractors, monitor
from assay.study.measure.reflection import DOMINANT, gain, values_of
from assay.study.record import kinds
from assay.study.record.book import losses
from assay.study.record.history import History, Run
from assay.study.record.study import Study

RIDING = 0.9  # share of actions at their limit
FAR = 10.0  # deviations; what moves farther is to have moved the task as well
PROPORTION = 0.1  # least share of its way that the task is to have come along
TOLERANCE = 1e-9

Runs = Sequence[Run]
Seen = tuple[bool, str]  # whether a check passed, and what was seen


def audit(study: Study, name: str, phase: Phase, actor: str) -> ResultAudit:
    """Check a candidate's evidence in a phase, write `audits/<name>.json` and record it.

    Raises:
        StudyError: There is nothing to check, or nobody to compare with.
    """
    with study.transaction() as transaction:
        history = transaction.history
        agreed = study.contract()
        other = verdict.rival(study, history)
        if other == name:
            raise StudyError(
                f"'{name}' is what candidates are compared with; it is not audited itself.",
                "The audits that it passed are in the report: assay study report.",
            )
        mine, theirs = (history.selected(who, phase) for who in (name, other))
        if not mine:
            raise StudyError(
                f"Candidate '{name}' has no runs in the {phase} phase.", "Run its seeds first."
            )
        checks = [
            _artifacts(study, agreed, mine),
            _protocol(study, history, agreed, mine, theirs),
            _seeds(agreed, mine, theirs, phase, history.stage(agreed, name, phase)),
            _losses(history, (name, other), phase),
            _baselines(history, agreed),
            _machines(study, mine, theirs),
            _files(study, agreed, mine, theirs),
            *_hacking(study, agreed, mine, theirs),
        ]
        found = ResultAudit(
            candidate=name, passed=all(check.passed for check in checks), checks=tuple(checks)
        )
        path = study.path / "audits" / f"{name}.json"
        write_json_document(path, found)
        runs = [run.id for run in (*mine, *theirs)]
        facts = {"candidate": name, "phase": phase, "runs": runs, **found.model_dump(mode="json")}
        transaction.append(kinds.AUDITED, facts, actor=actor)
    return found


def _check(name: str, passed: bool, detail: str, *, final: bool = False) -> AuditCheck:
    return AuditCheck(name=name, passed=passed, detail=detail, final=final)


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
    done = [study.path / "runs" / run.id for run in mine if run.outcome == "done"]
    doubts = [extractors.doubt(agreed.metrics.primary, p / "out", p / "stdout.log") for p in done]
    return _check(name, True, "; ".join([counted(len(mine), "run"), *filter(None, doubts[:1])]))


def _protocol(
    study: Study, history: History, agreed: Contract, mine: Runs, theirs: Runs
) -> AuditCheck:
    name = "both arms were measured alike"
    parts = protocol.measures(study.root, agreed)
    now = digest(parts)
    for run in (*mine, *theirs):
        if run.protocol != now:
            odd = protocol.differing(history.protocols.get(run.protocol, {}), parts)
            detail = f"run {run.id} was measured by another protocol: {', '.join(odd)} changed"
            return _check(name, False, detail)
    return _check(name, True, now[:12])


def _seeds(
    agreed: Contract,
    mine: Runs,
    theirs: Runs,
    phase: Phase,
    wanted: Sequence[int],
) -> AuditCheck:
    name = "the seeds are those of the pool"
    pool = set(agreed.evaluation.pools.of(phase))
    for run in (*mine, *theirs):
        if run.seed not in pool:
            return _check(name, False, f"seed {run.seed} of run {run.id} is not in the pool")
    left_out = sorted({r.seed for r in theirs if r.seed in wanted} - {r.seed for r in mine})
    if left_out:
        return _check(name, False, f"the rival was run on seeds {left_out}, the candidate was not")
    return _check(name, True, ", ".join(str(run.seed) for run in mine))


def _losses(history: History, arms: Sequence[str], phase: Phase) -> AuditCheck:
    """Look for runs that someone may have killed because they did not please, in either arm."""
    title = "no run was stopped before its end"
    counts = []
    for name in arms:
        # The kill switch counts as well: whoever may turn it off again could run a seed twice.
        occasions = losses(history.over(name, phase))
        lost = [run for together in occasions for run in together]
        if len(occasions) > kinds.MOST_RUNS_LOST:
            return _check(title, False, f"{', '.join(lost)} were stopped before their end")
        at_once = ", in one stop of the study," if len(lost) > 1 else ""
        counts.append(f"{counted(len(lost), 'run')} of {name}{at_once}")
    return _check(title, True, f"stopped: {' and '.join(counts)}")


def _baselines(history: History, agreed: Contract) -> AuditCheck:
    """Show the baselines that were discarded after their scores were known."""
    title = "the baseline was not chosen among several"
    found = verdict.discarded(history, agreed.metrics.primary.name)
    waived = "discarded-baselines" in agreed.experiment.exceptions
    passed = len(found) <= kinds.MOST_BASELINES or waived
    return _check(title, passed, "; ".join(found) or "no baseline was discarded")


def _machines(study: Study, mine: Runs, theirs: Runs) -> AuditCheck:
    """Look for an arm that ran with other packages, or on other GPUs, than its rival."""
    title = "both arms ran with the same packages and hardware"
    done = (run.id for run in (*theirs, *mine) if run.outcome == "done")
    # A record that was deleted is named by `verify`, which knows its hash.
    records = [study.run(run) for run in done if (study.path / "runs" / run / "run.json").exists()]
    for record in records[1:]:
        first = records[0]
        names = sorted({*first.versions, *record.versions})
        odd = next((n for n in names if first.versions.get(n) != record.versions.get(n)), None)
        if odd is not None:
            now, then = record.versions.get(odd), first.versions.get(odd)
            return _check(title, False, f"{odd} is {now} in {record.id} and {then} in {first.id}")
        here, there = _hardware(record), _hardware(first)
        if record.gpu != first.gpu or (record.gpus and first.gpus and here != there):
            now, then = here or "no GPU", there or "no GPU"
            return _check(title, False, f"{record.id} ran on {now}, {first.id} on {then}")
    hosts = sorted({record.host for record in records})
    return _check(title, True, f"{counted(len(records), 'run')} on {', '.join(hosts) or 'no host'}")


def _hardware(record: RunRecord) -> str:
    """Return what a run was given, whichever of several GPUs of a kind; or what there was."""
    return ", ".join(gpu.partition(": ")[2] for gpu in record.gpus) or record.gpu


def _files(study: Study, agreed: Contract, mine: Runs, theirs: Runs) -> AuditCheck:
    """Look for an arm that wrote more files for the deciding metric than its rival."""
    title = "both arms wrote the primary metric to the same number of files"
    source = agreed.metrics.primary.source
    counts = {}
    for run in (*theirs, *mine):
        if run.outcome == "done":
            counts[run.id] = len(extractors.files_of(source, study.path / "runs" / run.id / "out"))
    first, usual = next(iter(counts.items()), ("", 0))
    odd = next((name for name, count in counts.items() if count != usual), None)
    if odd is not None:
        detail = f"{odd} wrote {counted(counts[odd], 'file')}, {first} wrote {usual}"
        return _check(title, False, detail)
    return _check(title, True, f"{counted(usual, 'file')} per run")


def _hacking(study: Study, agreed: Contract, mine: Runs, theirs: Runs) -> list[AuditCheck]:
    metrics, arms = agreed.metrics, (mine, theirs)
    primary, reward, honeypot = metrics.primary, metrics.training_reward, metrics.honeypot
    checks: list[AuditCheck] = []

    def look(name: str, needed: Sequence[Metric], seen: Callable[[], Seen]) -> None:
        """Look at what the metrics say; one that was not written fails its check."""
        silent = _unwritten(needed, [*mine, *theirs])
        passed, detail = (False, silent) if silent else seen()
        checks.append(_check(name, passed, detail, final=not passed))

    if reward is not None:
        title = "the task got better with its reward"
        look(title, [reward], lambda: _reward_against_task(primary, reward, *arms))
    if honeypot is not None:
        look("the honeypot is untouched", [honeypot], lambda: _honeypot(honeypot, *arms))
    if metrics.components:
        parts = metrics.components
        look("no reward component dominates", parts, lambda: _domination(parts, *arms))
        look("no reward component is saturated", (), lambda: _saturation(study, parts, mine))
    for metric in metrics.diagnostics:
        lowered = metric.name.lower()
        if "length" in lowered or "terminat" in lowered:
            title = f"{metric.name} is not exploited"
            look(title, [metric], functools.partial(_exploit, metric, primary, *arms))
        if "limit" in lowered or "satur" in lowered:
            title = f"{metric.name}: actions are not at their limits"
            look(title, [metric], functools.partial(_riding, metric, *arms))
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


class _Gain(NamedTuple):
    """How much better an arm is than its rival."""

    deviations: float  # over the rival's seeds
    share: float  # of the rival's mean


def _outran(moved: _Gain, task: _Gain, least: float) -> bool:
    """Return whether something moved by many deviations and the task did not come along.

    It has come along by its deviations or by its share: a mean over a whole run hardly differs
    between seeds, and so moves by more deviations than a few episodes of the task can.
    """
    if moved.deviations > least and task.deviations <= 0:
        return True
    behind = (mine < PROPORTION * its for mine, its in zip(task, moved, strict=True))
    return moved.deviations > FAR and all(behind)


def _gained(metric: Metric, mine: Runs, theirs: Runs) -> _Gain:
    after, before = values_of(metric, mine), values_of(metric, theirs)
    deviations = gain(metric, after, before)
    if math.isnan(deviations):
        return _Gain(math.nan, math.nan)
    level = float(np.mean(before))
    share = abs(float(np.mean(after)) - level) / (abs(level) or 1e-9)
    return _Gain(deviations, math.copysign(share, deviations))


def _reward_against_task(primary: Metric, reward: Metric, mine: Runs, theirs: Runs) -> Seen:
    task, trained = _gained(primary, mine, theirs), _gained(reward, mine, theirs)
    hacked = _outran(trained, task, least=2)
    moved = f"{reward.name} changed by {trained.deviations:+.1f} standard deviations over seeds"
    return not hacked, f"{moved}, {primary.name} by {task.deviations:+.1f}"


def _honeypot(metric: Metric, mine: Runs, theirs: Runs) -> Seen:
    arms = [
        {run.seed: run.metrics.get(metric.name) for run in runs if run.outcome == "done"}
        for runs in (theirs, mine)
    ]
    if min(map(len, arms)) < 2:
        return True, "too few runs are done to compare it"
    seen = gate.compare(arms[0], arms[1], direction=metric.direction)
    moved = min(seen.p_better, seen.p_worse) < 0.025 and abs(seen.effect) > TOLERANCE
    return not moved, f"{metric.name} changed by {seen.effect:+.4g}"


def _shares(components: Sequence[Metric], runs: Runs) -> dict[str, float]:
    sizes = {m.name: abs(float(np.mean(values_of(m, runs) or [0.0]))) for m in components}
    total = sum(sizes.values())
    return {name: size / total if total else 0.0 for name, size in sizes.items()}


def _domination(components: Sequence[Metric], mine: Runs, theirs: Runs) -> Seen:
    after, before = _shares(components, mine), _shares(components, theirs)
    for component, share in after.items():
        if share > DOMINANT and before[component] <= DOMINANT:
            grew = f"{component} grew from {before[component]:.0%} to {share:.0%} of the reward"
            return False, grew
    top = max(after, key=lambda key: after[key])
    return True, f"the largest is {top} with {after[top]:.0%}"


def _saturation(study: Study, components: Sequence[Metric], mine: Runs) -> Seen:
    """Look for a component that has stood still at its highest value for the last half."""
    for run in mine:
        place = study.path / "runs" / run.id
        for metric in components:
            values = [value for _, value in monitor.points_of(metric, place)]
            tail = values[len(values) // 2 :]
            flat = len(tail) >= 5 and max(tail) - min(tail) <= 1e-6 * (1 + abs(max(tail)))
            if flat and max(values) - min(values) > 1e-3 and tail[-1] >= max(values) - 1e-9:
                return False, f"{metric.name} of run {run.id} stays at its maximum, {tail[-1]:g}"
    return True, counted(len(components), "component")


def _exploit(metric: Metric, primary: Metric, mine: Runs, theirs: Runs) -> Seen:
    """Look for episodes that changed their length while the task did not get better with it."""
    moved, task = _gained(metric, mine, theirs), _gained(primary, mine, theirs)
    hacked = _outran(_Gain(abs(moved.deviations), abs(moved.share)), task, least=5)
    changed = f"it changed by {moved.deviations:+.1f} standard deviations over seeds"
    return not hacked, f"{changed}, {primary.name} by {task.deviations:+.1f}"


def _riding(metric: Metric, mine: Runs, theirs: Runs) -> Seen:
    after, before = (float(np.mean(values_of(metric, runs) or [0.0])) for runs in (mine, theirs))
    hacked = after > RIDING and before <= RIDING
    return not hacked, f"{before:.2f} before, {after:.2f} now"
