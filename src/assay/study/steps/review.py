"""Review a candidate before it is frozen: does its change have a scale, and a signal to learn from?

The audit of results looks for reward hacking after the runs. What can be known beforehand is looked
at here, from the contract, the candidate's file and what earlier runs say of the reward. Nothing is
written, and no run is needed.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from assay.core.errors import AssayError
from assay.study.agree import rules, scope
from assay.study.files.base import Phase
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.records import RewardReflection
from assay.study.measure import reflection
from assay.study.measure.monitor import Finding, Level
from assay.study.measure.reflection import DOMINANT
from assay.study.record import kinds
from assay.study.record.history import History
from assay.study.record.study import Study
from assay.study.steps import candidates

LARGE = 10.0  # times; a larger step of a setting is two experiments in one
FAINT = 0.01  # share of the reward below which a component says nothing
_PHASES: tuple[Phase, ...] = (*kinds.DECIDING, "short", "smoke")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.])")


def review(study: Study, name: str) -> list[Finding]:
    """Return what can be said of a candidate before its first run.

    The level `stop` is of what validation or the audit would refuse.

    Raises:
        StudyError: There is no such candidate.
    """
    agreed, candidate = study.contract(), study.candidate(name)
    history = study.history()
    seen, shares = _reward(study, agreed, history, candidate)
    return [
        *_admissible(study, agreed, candidate),
        *_evidence(candidate, seen),
        *_scale(study, agreed, history, candidate),
        *_signal(agreed, candidate, shares, seen, _standing(study, agreed, history)),
        *_prediction(agreed, candidate),
    ]


def _standing(study: Study, agreed: Contract, history: History) -> Mapping[str, Any]:
    """Return the settings that the change is laid over."""
    try:
        standing = candidates.standing(study, history, agreed)[1]
        return {**agreed.baseline.parameters, **standing}  # some may have been said since
    except AssayError:  # an incumbent whose code is gone: validation says so
        return agreed.baseline.parameters


def _admissible(study: Study, agreed: Contract, candidate: Candidate) -> Iterator[Finding]:
    """Ask the rules of validation that need no run, and report instead of refusing."""
    try:
        scope.refuse_scope(study, agreed, candidate)
        rules.refuse_unreflected(study, agreed, candidate)
        if candidate.change.patch:
            base, _ = candidates.standing(study, study.history(), agreed)
            scope.refuse_unfit(study.root, candidate.change.patch, base)
    except AssayError as error:
        yield Finding("inside the contract", "stop", error.message)
        return
    yield Finding("inside the contract", "ok", "its change is inside the contract's scope")


def _reward(
    study: Study, agreed: Contract, history: History, candidate: Candidate
) -> tuple[RewardReflection | None, dict[str, float]]:
    """Return the reflection that it builds on, and each component's share of the reward.

    Without a reflection the shares are those of the finished runs of the incumbent or baseline.
    """
    if candidate.reflection:
        try:
            seen = reflection.named(study, candidate.reflection)
            return seen, {one.name: one.share for one in seen.components}
        except AssayError:
            return None, {}
    holder = history.incumbent or next(iter(history.baselines()), "")
    for phase in _PHASES:
        runs = [r for r in history.selected(holder, phase) if r.outcome == "done"] if holder else []
        values = {
            metric.name: reflection.values_of(metric, runs) for metric in agreed.metrics.components
        }
        sizes = {name: abs(statistics.fmean(found)) for name, found in values.items() if found}
        if sizes and sum(sizes.values()):
            return None, {name: size / sum(sizes.values()) for name, size in sizes.items()}
    return None, {}


def _evidence(candidate: Candidate, seen: RewardReflection | None) -> Iterator[Finding]:
    name = "reward reflection"
    if candidate.reflection and seen is None:
        yield Finding(
            name, "stop", f"'{candidate.reflection}' is not one of this study, or was edited"
        )
    elif seen is not None:
        level: Level = "warn" if seen.hacking_risk != "low" else "ok"
        told = f": {seen.findings[0]}" if seen.findings and level == "warn" else ""
        yield Finding(
            name, level, f"the risk of hacking in {seen.run} is {seen.hacking_risk}{told}"
        )
    elif candidate.kind.startswith("reward"):
        yield Finding(name, "warn", f"none; {candidate.why_none or 'no reason is given'}")


def _scale(
    study: Study, agreed: Contract, history: History, candidate: Candidate
) -> Iterator[Finding]:
    """Compare every number that changes with what it was."""
    before = _standing(study, agreed, history)
    changes = [(key, before.get(key), value) for key, value in candidate.change.parameters.items()]
    changes += [(f"'{line}'", old, new) for line, old, new in literals(candidate.change.patch)]
    for what, old, new in changes:
        if not (_is_number(old) and _is_number(new)):
            if what in candidate.change.parameters and old is None:
                detail = (
                    f"{what} is set to {new!r}, and baseline.parameters does not say what it was"
                )
                yield Finding("scale", "warn", detail)
            continue
        yield _step(what, old, new)


def _step(what: str, old: float, new: float) -> Finding:
    told = f"{what}: {old:g} to {new:g}"
    if old == new:
        return Finding("scale", "warn", f"{told} changes nothing")
    if old * new < 0:
        return Finding("scale", "warn", f"{told} changes the sign: a reward becomes a penalty")
    if 0.0 in (old, new):
        return Finding("scale", "warn", f"{told} turns it {'on' if old == 0 else 'off'}")
    times = new / old
    if not 1 / LARGE <= times <= LARGE:
        detail = f"{told} is {times:.3g} times; beyond {LARGE:g} times it is another experiment"
        return Finding("scale", "warn", detail)
    return Finding("scale", "ok", f"{told} is {times:.3g} times")


def literals(patch: str) -> Iterator[tuple[str, float, float]]:
    """Yield the numbers that a diff changes, where a line differs in its numbers alone.

    Example:
        >>> list(literals(chr(10).join(["-  r = 0.5 * speed", "+  r = 2.0 * speed"])))
        [('r = 2.0 * speed', 0.5, 2.0)]
    """
    removed: list[str] = []
    for line in patch.splitlines():
        if line.startswith("-") and not line.startswith("---"):
            removed.append(line[1:])
            continue
        if not line.startswith("+") or line.startswith("+++"):
            removed.clear()
            continue
        new = line[1:]
        old = next((o for o in removed if _NUMBER.sub("#", o) == _NUMBER.sub("#", new)), None)
        if old is None:
            continue
        removed.remove(old)
        for a, b in zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True):
            if float(a) != float(b):
                yield new.strip()[:60], float(a), float(b)


def _signal(
    agreed: Contract,
    candidate: Candidate,
    shares: Mapping[str, float],
    seen: RewardReflection | None,
    before: Mapping[str, Any],
) -> Iterator[Finding]:
    """Predict the shares of the components whose weights change, and say what carries no signal."""
    weighed = _weights(shares, candidate, before)
    if not weighed:
        if candidate.kind.startswith("reward") and not agreed.metrics.components:
            detail = "metrics.components is empty: no part of the reward is measured"
            yield Finding("signal", "warn", detail)
        return
    scaled = {name: share * weighed.get(name, 1.0) for name, share in shares.items()}
    total = sum(scaled.values())
    states = {one.name: one for one in seen.components} if seen else {}
    for name, times in weighed.items():
        share = scaled[name] / total if total else 0.0
        told = f"{name} goes from {shares[name]:.0%} to about {share:.0%} of the reward"
        if states and states[name].saturated and times > 1:
            yield Finding(
                "signal", "warn", f"{told}, and it is saturated: more of it teaches nothing"
            )
        elif share > DOMINANT and shares[name] <= DOMINANT and len(shares) > 1:
            yield Finding(
                "signal", "stop", f"{told}: the audit rejects what takes over ({DOMINANT:.0%})"
            )
        elif share < FAINT:
            yield Finding("signal", "warn", f"{told}: below {FAINT:.0%} it says nothing")
        else:
            yield Finding("signal", "ok", told)


def _weights(
    shares: Mapping[str, float], candidate: Candidate, before: Mapping[str, Any]
) -> dict[str, float]:
    """Return by how much the change scales each component: those whose name a setting holds."""
    found = {}
    for key, new in candidate.change.parameters.items():
        old = before.get(key)
        words = set(re.split(r"[^a-z0-9]+", key.lower()))
        for name in shares:
            parts = set(re.split(r"[^a-z0-9]+", name.lower())) - {"reward", "rewards", "rew", ""}
            if parts and parts <= words and _is_number(old) and _is_number(new) and old:
                found[name] = abs(new / old)
    return found


def _prediction(agreed: Contract, candidate: Candidate) -> Iterator[Finding]:
    """Look for a prediction that the evidence can contradict."""
    names = [metric.name for metric in agreed.metrics.all()]
    told = [name for name in names if name.lower() in candidate.expected.lower()]
    if told:
        yield Finding("prediction", "ok", f"it says what happens to {', '.join(told)}")
    else:
        detail = f"'expected' names no metric of the contract ({', '.join(names[:6])})"
        yield Finding("prediction", "warn", detail)
    if candidate.kind.startswith("reward") and not candidate.guardrails:
        known = ", ".join(g.name for g in agreed.metrics.guardrails) or "none in the contract"
        yield Finding("guardrails", "warn", f"it names none that could get worse ({known})")


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
