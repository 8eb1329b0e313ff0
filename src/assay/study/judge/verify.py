"""Check a whole study: that what is on record is what the files say, and that it follows.

The ledger's own chain, its anchors and state.json; the contract as it was approved; how every
candidate came to be where it is, and its file; every file that a run wrote, its record, and its
metrics, extracted again; every verdict, weighed again; the audits, reflections and probe summaries;
and the evidence that was adopted from elsewhere. Nothing is written, and a study that is still
running can be checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError
from assay.study.agree import approvals, protocol, spending
from assay.study.files.contract import Contract, Guardrail
from assay.study.files.documents import ROOT, StudyError, digest, digest_of, read_json_document
from assay.study.files.records import ResultAudit
from assay.study.judge import adopt, gate, verdict
from assay.study.measure import extractors, probe, reflection
from assay.study.record import kinds
from assay.study.record.history import TRANSITIONS, History, Run
from assay.study.record.ledger import Event, Problem
from assay.study.record.opening import is_flat, open_study
from assay.study.record.study import Study

_FROZEN_BY = ("metrics", "evaluation", "experiment")  # parts that a registration's hash covers
CLOCKS = timedelta(minutes=5)  # by which the clocks of machines that share a study may differ


def studies(root: Path) -> list[Study]:
    """Return every study below a directory that holds `.rlxp`."""
    if is_flat(root):
        return [open_study(root)]
    paths = sorted((root / ROOT / "tasks").glob("*/studies/*/"))
    if not paths:
        raise StudyError(
            f"There is no study in '{root}'.", "Name a directory that holds .rlxp with studies."
        )
    return [Study(root, path.parent.parent.name, path.name) for path in paths]


def verify(study: Study) -> list[Problem]:
    """Find everything that is not as it was recorded, or does not follow from what was.

    Returns:
        Problems, each with the ledger's line where there is one; none if all is well.
    """
    reading = study.examine()
    history = History.read(reading.events)
    agreed, damage = _agreement(study, history)
    past, names, lives, verdicts = _replayed(study, reading.events, agreed)
    return [
        *reading.problems,
        *names,
        *damage,
        *approvals.standing(study, reading.events)[1],
        *lives,
        *_candidates(study, history, agreed, past),
        *_runs(study, history, agreed, past),
        *verdicts,
        *_audits(study, history),
        *_documents(study, history),
        *adopt.problems(study, history),
    ]


@dataclass(frozen=True, slots=True)
class _Past:
    """What was approved when: who approved which hash last, by the part of the contract."""

    runs: dict[str, approvals.Recorded] = field(default_factory=dict)  # when a run was prepared
    # When a candidate was last checked by the contract: registered, or launched.
    candidates: dict[str, approvals.Recorded] = field(default_factory=dict)


def _replayed(
    study: Study, events: Sequence[Event], agreed: Contract | None
) -> tuple[_Past, list[Problem], list[Problem], list[Problem]]:
    """Take the events in again one by one, and hold each against all that was before it.

    Returns:
        What was approved when; and what is wrong with names, with how candidates moved on, and
        with verdicts.
    """
    past, before = _Past(), History()
    names = _backwards(events)
    lives: list[Problem] = []
    verdicts: list[Problem] = []
    for event in events:
        for found, reason in (
            (names, _misnamed(study, event)),
            (lives, _unlawful(event, before)),
            (verdicts, _unfounded(study, event, before, agreed)),
        ):
            if reason:
                found.append(Problem(event.seq, reason))
        before.add(event)
        if event.kind in (kinds.PREPARED, kinds.REGISTERED):
            words = dict(before.approvals)
            past.candidates[str(event.data["candidate"])] = words
            if event.kind == kinds.PREPARED:
                past.runs[str(event.data["run"])] = words
    return past, names, lives, verdicts


def _backwards(events: Sequence[Event]) -> list[Problem]:
    """Find events that are dated before the one that they follow: somebody set the clock."""
    found, last = [], None
    for event in events:
        try:
            time = datetime.fromisoformat(event.time)
        except ValueError:
            found.append(Problem(event.seq, f"its time, {event.time!r}, is none"))
            continue
        if last is not None and last - time > CLOCKS:
            reason = f"it is dated {event.time}, before the event that it follows"
            found.append(Problem(event.seq, f"{reason} ({last.isoformat()}): a clock was set back"))
        last = time
    return found


def _unchanged(agreed: Contract, words: approvals.Recorded, items: Sequence[str]) -> bool:
    """Return whether parts of the contract are still what was approved then."""
    return all(item in words and words[item][1] == digest(agreed.part(item)) for item in items)


def _misnamed(study: Study, event: Event) -> str:
    """Return how the study's name is not the one that it was begun under, or ""."""
    begun = f"{event.data.get('task')}/{event.data.get('study')}"
    here = f"{study.task}/{study.name}"
    if event.kind not in (kinds.CREATED, kinds.MIGRATED) or begun == here:
        return ""
    return f"it was begun as {begun}, and this is {here}"


def _agreement(study: Study, history: History) -> tuple[Contract | None, list[Problem]]:
    """Return the contract, and what of it is not as it was last approved."""
    if not history.approvals and not history.registered:
        return None, []  # it is still being written
    try:
        agreed = study.contract()
    except AssayError as error:
        return None, [Problem(0, f"the contract cannot be read: {error.message}")]
    reasons = approvals.unapproved(agreed, history.approvals)
    said = [reasons[item] for item in history.approvals if item in reasons]
    return agreed, [Problem(0, f"contract: {reason}") for reason in said]


def is_pending(problem: str) -> bool:
    """Return whether a problem is only that a changed part of the contract is not approved yet."""
    return "contract: " in problem and " was changed after " in problem


# ---------------------------------------------------------------------- candidates


def _unlawful(event: Event, before: History) -> str:
    """Return why a candidate could not have come to where an event brings it, or ""."""
    name = str(event.data.get("candidate", ""))
    if event.kind == kinds.PREPARED and name not in before.registered:
        return f"run {event.data['run']} is of {name}, which was not registered"
    if event.kind == kinds.ENDED and event.data["run"] not in before.runs:
        return f"run {event.data['run']} has ended, and was never prepared"
    if event.kind != kinds.STATE:
        return ""
    now, to = before.status.get(name), event.data["to"]
    legal = TRANSITIONS.get(now, ()) if now else ("draft",)
    if to not in legal or event.data.get("from") != now:
        return f"{name} is {now or 'new'} and cannot become {to}"
    runs = before.of_candidate(name)
    if to == "launched" and not runs:
        return f"{name} is called launched, and no run of it was prepared"
    if to == "completed" and not any(run.ended for run in runs):
        return f"{name} is called completed, and no run of it has ended"
    return _unearned(name, before) if to == "accepted" else ""


def _unearned(name: str, before: History) -> str:
    """Return which verdict a candidate lacks that is called accepted, or ""."""
    given = {e.data["phase"]: e.data for e in before.verdicts if e.data["candidate"] == name}
    for phase in kinds.DECIDING:
        outcome = given.get(phase, {}).get("outcome", "none")
        if outcome != "accept":
            return f"{name} is called accepted, and its verdict in {phase} is: {outcome}"
    if len({given[phase].get("rival") for phase in kinds.DECIDING}) > 1:
        return f"{name} is called accepted, and was compared with different rivals"
    return ""


def _candidates(
    study: Study, history: History, agreed: Contract | None, past: _Past
) -> list[Problem]:
    """Hold the file of every candidate against its registration."""
    found = []
    for name, event in history.moved.items():
        try:
            candidate = study.candidate(name)
        except AssayError as error:
            found.append(Problem(event.seq, f"candidate {name} cannot be read: {error.message}"))
            continue
        frozen = history.registered.get(name)
        if frozen is None or event.data["to"] in ("draft", "debug"):
            continue  # it may still be edited
        told = frozen.data
        mine = (candidate.kind, candidate.probe, candidate.change.parameters)
        kept = {key: told["parameters"].get(key) for key in candidate.change.parameters}
        changed = mine != (told["kind"], told["probe"], kept)
        if agreed is not None and _unchanged(agreed, past.candidates[name], _FROZEN_BY):
            hashed = protocol.registration_hash(candidate, agreed, told["protocol"])
            changed = changed or hashed != told["hash"]
        if changed:
            reason = f"candidate {name} was edited after it was registered"
            found.append(Problem(frozen.seq, reason))
    return found


# ---------------------------------------------------------------------- runs


def _runs(study: Study, history: History, agreed: Contract | None, past: _Past) -> list[Problem]:
    """Hold the record and the files of every run that is over against the ledger."""
    found = []
    for run in sorted(history.over(), key=lambda run: run.ended.seq if run.ended else 0):
        assert run.ended is not None
        reasons = _record(study, run)
        if (study.path / "runs" / run.id).is_dir():
            reasons += _orders(study, run)
            if agreed is not None and _unchanged(agreed, past.runs[run.id], ("metrics",)):
                reasons += _metrics(study, agreed, run)
        found += [Problem(run.ended.seq, reason) for reason in reasons]
    return found


def _orders(study: Study, run: Run) -> list[str]:
    """Hold what a run was to do and what it printed against the ledger."""
    place = study.path / "runs" / run.id
    reasons = []
    if "environment" in run.prepared.data:
        try:
            given = protocol.fingerprints(json.loads((place / "plan.json").read_bytes())["env"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            given = {}
        if given != run.prepared.data["environment"]:
            reasons.append(f"the plan of run {run.id} (plan.json) is not what it was given")
    for found in (run.exit or {}).get("tampered", ()):
        reasons.append(f"while run {run.id} was under way: {found}")
    if run.exit and "log" in run.exit:
        log = place / "stdout.log"
        now = protocol.fingerprint(log) if log.is_file() else ""
        if now != run.exit["log"]:
            reasons.append(f"what run {run.id} printed (stdout.log) was changed after it had ended")
    return reasons


def _metrics(study: Study, agreed: Contract, run: Run) -> list[str]:
    """Extract the metrics of a run again."""
    place = study.path / "runs" / run.id
    reasons = []
    for metric in agreed.metrics.all():
        value, told = extractors.value_of(metric, place), run.metrics.get(metric.name)
        if value != told:
            reasons.append(f"{metric.name} of run {run.id} is {value} by its files, not {told}")
    return reasons


def _record(study: Study, run: Run) -> list[str]:
    """Hold the record of a run, and the files that it names, against the ledger."""
    name = run.id
    assert run.ended is not None
    if not (study.path / "runs" / name).is_dir():
        return [f"the files of run {name} are gone"]
    try:
        record = study.run(name)
    except AssayError as error:
        return [f"the record of run {name} cannot be read: {error.message}"]
    reasons = []
    if digest_of(record) != run.ended.data.get("record"):
        reasons.append(f"the record of run {name} (run.json) was edited after it ended")
    if record.metrics != run.metrics:
        reasons.append(f"the metrics in the record of run {name} are not those that were measured")
    now = protocol.artifacts(study.path / "runs" / name / "out")
    for path in sorted(now.keys() | record.artifacts.keys()):
        if path not in now:
            reasons.append(f"'{path}' of run {name} is gone")
        elif path not in record.artifacts:
            reasons.append(f"'{path}' of run {name} appeared after the run had ended")
        elif now[path] != record.artifacts[path]:
            reasons.append(f"'{path}' of run {name} was changed after the run had ended")
    return reasons


# ---------------------------------------------------------------------- what was made of them


def _unfounded(study: Study, event: Event, before: History, agreed: Contract | None) -> str:
    """Return why a verdict does not follow from what was before it, or ""."""
    told = event.data
    if event.kind != kinds.GIVEN or told["outcome"] == "invalid":
        return ""
    reason = ""
    if before.incumbent and told["rival"] != before.incumbent:
        reason = f"it was compared with {told['rival']}, not {before.incumbent}"
    elif agreed is not None and told["outcome"] == "no effect":
        arms = (told["candidate"], told["rival"])
        if not verdict.no_effect(study, before, agreed, *arms, told["phase"]):
            reason = "its runs loaded what it changes, and their scores differ"
    elif agreed is not None:
        reason = _overdrawn(told, before) or _weighed(told, before, agreed)
    what = f"the verdict on {told['candidate']} in {told['phase']}"
    return f"{what} does not follow: {reason}" if reason else ""


def _overdrawn(told: Mapping[str, Any], before: History) -> str:
    """Return how a verdict was given more of the error rate, or fewer runs audited, or ""."""
    name, phase = told["candidate"], told["phase"]
    if "share" not in told:
        return ""  # of an older version, which put neither on record
    share = before.share(name)
    if phase == "promotion" and share is not None and share.alpha != told["share"]:
        return f"its share of the error rate is {share.alpha:g}, and {told['share']:g} was used"
    spent = spending.spent(before) + (told["share"] if share is None else 0.0)
    if phase == "promotion" and spent > told["error_rate"] * (1 + 1e-9):
        return f"{spent:g} of the error rate of {told['error_rate']:g} are spent with it"
    used = spending.used(before, name, phase)
    level = spending.level(told["share"], used, len(told["seeds"]), told["pool"])
    if not math.isclose(level, told["alpha"], rel_tol=1e-9):
        return f"its alpha is {level:g} by its share, and {told['alpha']:g} was used"
    arms = (name, told["rival"])
    runs = [run.id for who in arms for run in before.selected(who, phase, told["seeds"])]
    unseen = verdict.unaudited(before.audits.get((name, phase)), runs)
    return f"its audit has not seen {', '.join(unseen)}" if unseen else ""


def _weighed(told: Mapping[str, Any], before: History, agreed: Contract) -> str:
    """Weigh a verdict again, by the standard that it names; return what differs, or ""."""
    arms = (told["rival"], told["candidate"])
    standard = {key: told.get(key) for key in ("direction", "minimum_effect", "seed_bound")}
    test, computed = told["test"], str(told["comparison"]["test"])
    if test == "auto" or "seeds" not in told:  # of an older version, which paired by default
        paired = computed.startswith("paired")
        test = "paired" if paired else "permutation" if "permutation" in computed else "welch"
    every = agreed.evaluation.pools.of(told["phase"])
    seeds, pool = told.get("seeds", every), told.get("pool", len(every))
    metric = agreed.metrics.primary.model_copy(update={"name": told["metric"], **standard})
    guards = [
        Guardrail(name=name, source=metric.source, **limits)
        for name, limits in told["limits"].items()
    ]
    try:
        seen = gate.decide(
            metric,
            *before.arms(arms, told["phase"], metric.name, seeds),
            alpha=told["alpha"],
            evaluation=agreed.evaluation.model_copy(update={"test": test}),
            guardrails=[(g, *before.arms(arms, told["phase"], g.name, seeds)) for g in guards],
            noise_floor=told["noise_floor"],
            advise=False,
        )
        seen = verdict.early(seen, len(seeds), pool)
    except StudyError as error:
        return error.message
    if seen.outcome != told["outcome"]:
        return f"the runs come to {seen.outcome}, and {told['outcome']} was given"
    again = verdict.as_data(seen)["comparison"]
    assert isinstance(again, dict)
    for key in ("effect", "low", "high", "p_better"):
        one, other = again[key], told["comparison"][key]
        if not adopt.alike(one, other):
            return f"its {key} is {one} by the runs, and {other} was given"
    return ""


def _audits(study: Study, history: History) -> list[Problem]:
    """Hold the file of every candidate's last audit against the ledger."""
    ordered = sorted(history.audits.values(), key=lambda event: event.seq)
    last = {str(event.data["candidate"]): event for event in ordered}
    found = []
    for name, event in last.items():
        path = study.path / "audits" / f"{name}.json"
        try:
            told = read_json_document(path, ResultAudit).model_dump(mode="json")
        except AssayError as error:
            found.append(Problem(event.seq, f"the audit of {name} cannot be read: {error.message}"))
            continue
        if any(event.data.get(key) != told[key] for key in ("candidate", "passed", "checks")):
            found.append(Problem(event.seq, f"the audit of {name} was edited after it was made"))
    return found


def _documents(study: Study, history: History) -> list[Problem]:
    """Hold reward reflections and probe summaries against the hashes on record."""
    found = []
    for named, events in (
        (reflection.named, history.reflections),
        (probe.named, history.summaries),
    ):
        for name, event in events.items():
            try:
                named(study, name)
            except AssayError as error:
                found.append(Problem(event.seq, error.message))
    return found
