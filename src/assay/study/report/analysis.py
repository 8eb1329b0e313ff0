"""One run in one step: extract its metrics, compare them, diagnose it, classify it.

One seed decides nothing. The class says what to look at next, never whether a change is better.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from assay.core.errors import nearest
from assay.study.files.contract import Contract, Metric
from assay.study.files.documents import StudyError
from assay.study.judge import verdict
from assay.study.measure import extractors, monitor
from assay.study.measure.monitor import Finding
from assay.study.measure.reflection import gain, trend, values_of
from assay.study.record.history import History, Run
from assay.study.record.study import Study
from assay.study.run.recovery import log_tail

Class = Literal[
    "blocked", "lost", "crashed", "incomplete", "unstable", "exploiting", "not learning", "worse",
    "like the rival", "better",
]  # fmt: skip
FAR = 2.0  # deviations over the rival's seeds, from which a single seed is remarkable
# What a log says where the machine, not the change, is the obstacle.
_BLOCKERS = {
    "GPU missing": re.compile(
        r"no CUDA GPUs are available|CUDA driver version is insufficient|"
        r"Torch not compiled with CUDA|No NVIDIA GPU|GPU missing",
        re.IGNORECASE,
    ),
    "GPU memory": re.compile(r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY", re.IGNORECASE),
    "W&B missing": re.compile(
        r"wandb.*(not logged in|No API key|api_key not configured)|No module named 'wandb'",
        re.IGNORECASE,
    ),
    "disk full": re.compile(r"No space left on device", re.IGNORECASE),
}
_NEXT: Mapping[Class, str] = {
    "blocked": "Remove the obstacle of the machine, and run the seed again; the candidate did not "
    "fail.",
    "lost": "Run the seed again: what ended it came from outside.",
    "crashed": "Read its log, correct the candidate, and propose it again.",
    "incomplete": "Look for the metric with `assay study metrics --out DIR`, and correct its source"
    " in the contract.",
    "unstable": "Lower the step size or clip, as a new candidate; the findings name the metric.",
    "exploiting": "Reflect on its reward (`assay study reflect RUN`) before another reward change.",
    "not learning": "Compare its settings and its log with a run that learns; a longer run is not "
    "the first thing to try.",
    "worse": "One seed: let the phase finish before it is given up.",
    "like the rival": "One seed: let the phase finish; the minimum effect may need more seeds.",
    "better": "One seed: the promotion pool decides, not this run.",
}


@dataclass(frozen=True, slots=True)
class Compared:
    """A metric of a run, beside the rival's runs of the same phase."""

    metric: str
    value: float | None  # read from the files again
    recorded: float | None  # what the ledger says
    rival_mean: float | None
    deviations: float | None  # how much better, in standard deviations over the rival's seeds


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is to be known of one run."""

    run: str
    candidate: str
    phase: str
    seed: int
    outcome: str
    rival: str
    kind: Class
    why: str
    next: str
    metrics: tuple[Compared, ...]
    findings: tuple[Finding, ...]
    log: str = field(default="")  # the end of its log, where it failed


def analyze(study: Study, name: str) -> Analysis:
    """Look at one run that is over or under way. Writes nothing.

    Raises:
        StudyError: There is no such run.
    """
    history, agreed = study.history(), study.contract()
    run = history.runs.get(name)
    if run is None:
        known = nearest(name, history.runs) if history.runs else "There are none yet."
        raise StudyError(f"There is no run '{name}' in study {study.name}.", known)
    place = study.path / "runs" / run.id
    rival = _rival(study, history, run.candidate)
    rivals = _rivals(history, run, rival)
    metrics = tuple(_compared(study, metric, run, rivals) for metric in agreed.metrics.all())
    findings = tuple(monitor.learning(agreed, place, over=run.ended is not None))
    log = log_tail(place, 20) if run.outcome in ("failed", "killed", "lost") else ""
    kind, why = _classified(study, agreed, run, rivals, metrics, findings, log)
    return Analysis(
        run=run.id, candidate=run.candidate, phase=run.phase, seed=run.seed,
        outcome=run.outcome or "under way", rival=rival, kind=kind, why=why,
        next=_NEXT[kind].replace("RUN", run.id), metrics=metrics, findings=findings, log=log,
    )  # fmt: skip


def _rival(study: Study, history: History, name: str) -> str:
    """Return whom a candidate is compared with; an incumbent, with whom it was when it won."""
    try:
        rival = verdict.rival(study, history)
    except StudyError:
        return ""
    if rival != name:
        return rival
    before = (event.data for event in reversed(history.verdicts))
    return next((str(data["rival"]) for data in before if data["candidate"] == name), rival)


def _rivals(history: History, run: Run, rival: str) -> list[Run]:
    """Return the rival's finished runs of the phase; the other seeds of a baseline's own."""
    others = history.selected(rival, run.phase) if rival else []
    return [other for other in others if other.outcome == "done" and other.id != run.id]


def _compared(study: Study, metric: Metric, run: Run, rivals: Sequence[Run]) -> Compared:
    value = extractors.value_of(metric, study.path / "runs" / run.id)
    theirs = values_of(metric, rivals)
    far = gain(metric, [value], theirs) if value is not None else math.nan
    return Compared(
        metric=metric.name,
        value=value,
        recorded=run.metrics.get(metric.name),
        rival_mean=statistics.fmean(theirs) if theirs else None,
        deviations=far if math.isfinite(far) else None,
    )


def _classified(
    study: Study,
    agreed: Contract,
    run: Run,
    rivals: Sequence[Run],
    metrics: Sequence[Compared],
    findings: Sequence[Finding],
    log: str,
) -> tuple[Class, str]:
    """Return the first class that fits: what ended the run comes before what it scored."""
    if run.outcome in ("failed", "killed", "lost"):
        for word, pattern in _BLOCKERS.items():
            seen = pattern.search(f"{run.reason}\n{log}")
            if seen:
                return "blocked", f"{word}: {seen[0]}"
        if run.outcome == "lost":
            return "lost", run.reason or "it was ended from outside"
        return "crashed", run.reason or "it ended with an error"
    primary = metrics[0]
    if run.outcome == "done" and (primary.value is None or not math.isfinite(primary.value)):
        return "incomplete", f"{primary.metric} cannot be read from its files"
    unstable = [f for f in findings if f.name in ("numbers", "divergence", "collapse", "entropy")]
    odd = next((finding for finding in unstable if finding.level != "ok"), None)
    if odd is not None:
        return "unstable", f"{odd.name}: {odd.detail}"
    reward, task = agreed.metrics.training_reward, primary.deviations
    if reward is not None and task is not None:
        trained = next(m for m in metrics if m.metric == reward.name).deviations
        if trained is not None and trained > FAR and task <= 0:
            moved = f"{reward.name} changed by {trained:+.1f} standard deviations"
            return "exploiting", f"{moved}, {primary.metric} by {task:+.1f}"
    course = trend(monitor.points_of(agreed.metrics.primary, study.path / "runs" / run.id))
    if course == "flat" and (task is None or task < -FAR):
        behind = f", {task:+.1f} standard deviations from the rival" if task is not None else ""
        return "not learning", f"{primary.metric} is flat over the run{behind}"
    if task is not None and abs(task) > FAR:
        why = f"{primary.metric} is {task:+.1f} deviations from {len(rivals)} seeds of the rival"
        return ("better" if task > 0 else "worse"), why
    if task is None:
        return "like the rival", "there are fewer than two finished runs to compare it with"
    return "like the rival", f"{primary.metric} is {task:+.1f} deviations from the rival's seeds"
