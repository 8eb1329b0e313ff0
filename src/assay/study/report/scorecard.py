"""All metrics of one candidate on one card: what decides, what must not get worse, what explains.

Effects and limits are those of a verdict on record. Before a verdict the card shows the means of
both arms alone: whoever sees more could stop where it pleases.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.core.errors import nearest
from assay.evaluation.formatting import signed
from assay.study.files.base import Phase
from assay.study.files.contract import Contract, Guardrail, Metric
from assay.study.files.documents import StudyError
from assay.study.judge import verdict
from assay.study.measure.extractors import READERS
from assay.study.measure.reflection import DOMINANT
from assay.study.record.history import History
from assay.study.record.study import Study
from assay.study.report.standings import PHASES


@dataclass(frozen=True, slots=True)
class Line:
    """One metric of a candidate."""

    role: str  # primary, guardrail, component, diagnostic, training reward or honeypot
    metric: str
    seeds: int  # that wrote it
    mean: float | None
    rival_mean: float | None
    better: float | None  # by how much the mean is better than the rival's; negative is worse
    state: str  # a word: `accept`, `kept`, `violated`, `not written`, ...
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Scorecard:
    """A candidate's metrics in a phase, beside those of its rival on the same seeds."""

    candidate: str
    phase: Phase
    rival: str  # "" where nothing can be compared with
    lines: tuple[Line, ...]

    @property
    def violated(self) -> list[str]:
        """Return the guardrails that do not hold."""
        return [line.metric for line in self.lines if line.state == "violated"]


def scorecard(study: Study, history: History, name: str, phase: Phase | None = None) -> Scorecard:
    """Return the card of a candidate, by default of the last phase in which it has scores.

    Raises:
        StudyError: The candidate is unknown, or has no finished run there.
    """
    if name not in history.status:
        known = nearest(name, history.status) if history.status else "There are none yet."
        raise StudyError(f"There is no candidate '{name}' in study {study.name}.", known)
    agreed = study.contract()
    found = phase or next((p for p in PHASES if history.selected(name, p)), None)
    if found is None or not history.selected(name, found):
        where = f" in the {found} phase" if found else ""
        raise StudyError(
            f"Candidate '{name}' has no run that is over{where}.",
            "`assay study next` says what to run; `assay study status` lists what has run.",
        )
    judged = history.verdict(name, found)
    given = judged.data if judged else {}
    other = str(given.get("rival") or _rival(study, history, name))
    seeds: Container[int] = given.get("seeds") or history.arm(
        name, found, agreed.metrics.primary.name
    )
    lines = tuple(_lines(agreed, history, (name, other), found, seeds, given))
    return Scorecard(name, found, other, lines)


def _rival(study: Study, history: History, name: str) -> str:
    try:
        other = verdict.rival(study, history)
    except StudyError:
        return ""
    return "" if other == name else other


def _lines(
    agreed: Contract,
    history: History,
    names: tuple[str, str],
    phase: Phase,
    seeds: Container[int],
    given: Mapping[str, Any],
) -> Iterator[Line]:
    metrics = agreed.metrics
    arms = {
        metric.name: [_values(history, who, phase, metric.name, seeds) for who in names]
        for metric in metrics.all()
    }
    total = sum(abs(statistics.fmean(arms[m.name][0] or [0.0])) for m in metrics.components)
    for role, metric in _roles(agreed):
        mine, theirs = arms[metric.name]
        mean = statistics.fmean(mine) if mine else None
        before = statistics.fmean(theirs) if theirs else None
        better = None
        if mean is not None and before is not None:
            better = (mean - before) * (1.0 if metric.direction == "maximize" else -1.0)
        state, detail = "shown", ""
        if mean is None:
            source = metric.source
            place = source.path or READERS.get(source.kind, (None, "stdout"))[1]
            state, detail = "not written", f"looked for {source.key} in {place}"
        elif role == "primary":
            state, detail = _decided(given)
        elif isinstance(metric, Guardrail):
            state, detail = _kept(metric, mean, given)
        elif role == "component" and total:
            share = abs(mean) / total
            dominant = share > DOMINANT and len(metrics.components) > 1
            state, detail = ("dominant" if dominant else "shown"), f"{share:.0%} of the reward"
        yield Line(role, metric.name, len(mine), mean, before, better, state, detail)


def _roles(agreed: Contract) -> Iterator[tuple[str, Metric]]:
    metrics = agreed.metrics
    yield "primary", metrics.primary
    yield from (("guardrail", metric) for metric in metrics.guardrails)
    yield from (("component", metric) for metric in metrics.components)
    yield from (("diagnostic", metric) for metric in metrics.diagnostics)
    if metrics.training_reward is not None:
        yield "training reward", metrics.training_reward
    if metrics.honeypot is not None:
        yield "honeypot", metrics.honeypot


def _values(
    history: History, name: str, phase: Phase, metric: str, seeds: Container[int]
) -> Sequence[float]:
    """Return what the seeds of an arm say of a metric, where they say a number."""
    arm = history.arm(name, phase, metric) if name else {}
    scores = (score for seed, score in arm.items() if seed in seeds)
    return [score for score in scores if score is not None and math.isfinite(score)]


def _decided(given: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a verdict says of the primary metric."""
    if not given:
        return "not judged", "means alone, until a verdict is on record"
    seen = given.get("comparison") or {}
    if seen.get("effect") is None:
        return str(given["outcome"]), " ".join(map(str, given["reasons"][:1]))
    limits = ", ".join("-" if v is None else signed(v) for v in (seen["low"], seen["high"]))
    return str(given["outcome"]), f"effect {signed(seen['effect'])} [{limits}]"


def _kept(guard: Guardrail, mean: float, given: Mapping[str, Any]) -> tuple[str, str]:
    """Hold a guardrail against its bound, and against its margin by the limits of a verdict."""
    if guard.bound is not None:
        inside = mean >= guard.bound if guard.direction == "maximize" else mean <= guard.bound
        if not inside:
            return "violated", f"beyond the bound {guard.bound:g}"
    if guard.margin is None:
        return "kept", f"inside the bound {guard.bound:g}"
    seen = given.get("guardrails", {}).get(guard.name) or {}
    allowed = f"margin {guard.margin:g}"
    if seen.get("low") is None or seen.get("high") is None:
        return "not judged", f"{allowed}; its limits come with a verdict"
    if seen["high"] < -guard.margin:
        return "violated", f"worse by more than the {allowed}"
    if seen["low"] < -guard.margin:
        return "not shown", f"may be worse by {-seen['low']:.4g}, {allowed}"
    return "kept", f"at worst {signed(seen['low'])}, {allowed}"
