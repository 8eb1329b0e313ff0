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
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError
from assay.study.agree import approvals, protocol
from assay.study.agree.protocol import artifacts, fingerprints
from assay.study.files.base import Status
from assay.study.files.contract import Contract, Guardrail
from assay.study.files.documents import ROOT, StudyError, read_json_document
from assay.study.files.records import ResultAudit
from assay.study.judge import adopt, gate, verdict
from assay.study.measure import extractors, probe, reflection
from assay.study.record import kinds, results, states
from assay.study.record.book import Book
from assay.study.record.ledger import Event, Problem, digest
from assay.study.record.study import Study, is_flat, open_study

_FROZEN_BY = ("metrics", "evaluation", "experiment")  # parts that a registration's hash covers
_TOLERANCE = 1e-6  # between machines, of numbers that were computed from the same values


def studies(root: Path) -> list[Study]:
    """Return every study below a directory that holds `.rlxp`.

    Raises:
        StudyError: There is none.
    """
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
    events = reading.events
    agreed, damage = _agreement(study, events)
    past = _past(events)
    return [
        *reading.problems,
        *_names(study, events),
        *damage,
        *_lives(events),
        *_candidates(study, events, agreed, past),
        *_runs(study, events, agreed, past),
        *_verdicts(events, agreed),
        *_audits(study, events),
        *_documents(study, events),
        *adopt.problems(study, events),
    ]


@dataclass(frozen=True, slots=True)
class _Past:
    """What was approved when: who approved which hash last, by the part of the contract.

    Attributes:
        runs: When a run was prepared.
        candidates: When a candidate was last held against the contract: registered, or launched.
    """

    runs: dict[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    candidates: dict[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)


def _past(events: Sequence[Event]) -> _Past:
    past, words = _Past(), dict[str, tuple[str, str]]()
    for event in events:
        if event.kind == kinds.APPROVED:
            words = words | approvals.last_words([event])
        elif event.kind in (kinds.PREPARED, kinds.REGISTERED):
            past.candidates[str(event.data["candidate"])] = words
            if event.kind == kinds.PREPARED:
                past.runs[str(event.data["run"])] = words
    return past


def _unchanged(
    agreed: Contract, words: Mapping[str, tuple[str, str]], items: Sequence[str]
) -> bool:
    """Return whether parts of the contract are still what was approved then."""
    return all(item in words and words[item][1] == digest(agreed.part(item)) for item in items)


def _names(study: Study, events: Sequence[Event]) -> list[Problem]:
    """Hold the study's name against the one that it was begun under."""
    found = []
    for event in events:
        if event.kind in (kinds.CREATED, kinds.MIGRATED):
            begun = f"{event.data.get('task')}/{event.data.get('study')}"
            if begun != f"{study.task}/{study.name}":
                reason = f"it was begun as {begun}, and this is {study.task}/{study.name}"
                found.append(Problem(event.seq, reason))
    return found


def _agreement(study: Study, events: Sequence[Event]) -> tuple[Contract | None, list[Problem]]:
    """Return the contract, and what of it is not as it was last approved."""
    if not any(event.kind in (kinds.APPROVED, kinds.REGISTERED) for event in events):
        return None, []  # it is still being written
    try:
        agreed = study.contract()
    except AssayError as error:
        return None, [Problem(0, f"the contract cannot be read: {error.message}")]
    words = approvals.last_words(events)
    reasons = approvals.unapproved(agreed, words)
    return agreed, [Problem(0, f"contract: {reasons[item]}") for item in words if item in reasons]


# ---------------------------------------------------------------------- candidates


def _lives(events: Sequence[Event]) -> list[Problem]:
    """Hold how candidates moved on against what may follow what, and what has to come before."""
    found: list[Problem] = []
    now: dict[str, Status] = {}
    registered: set[str] = set()
    owners: dict[str, str] = {}
    over: set[str] = set()
    given: dict[tuple[str, str], Mapping[str, Any]] = {}
    for event in events:
        name = str(event.data.get("candidate", ""))
        reason = ""
        if event.kind == kinds.REGISTERED:
            registered.add(name)
        elif event.kind == kinds.PREPARED:
            owners[str(event.data["run"])] = name
            if name not in registered:
                reason = f"run {event.data['run']} is of {name}, which was not registered"
        elif event.kind == kinds.ENDED:
            over.add(owners.get(str(event.data["run"]), ""))
        elif event.kind == kinds.GIVEN:
            given[name, str(event.data["phase"])] = event.data
        elif event.kind == kinds.STATE:
            before, to = now.get(name), event.data["to"]
            legal = states.TRANSITIONS.get(before, ()) if before else ("draft",)
            if to not in legal or event.data.get("from") != before:
                reason = f"{name} is {before or 'new'} and cannot become {to}"
            elif to == "launched" and name not in owners.values():
                reason = f"{name} is called launched, and no run of it was prepared"
            elif to == "completed" and name not in over:
                reason = f"{name} is called completed, and no run of it has ended"
            elif to == "accepted":
                reason = _unearned(name, given)
            now[name] = to
        if reason:
            found.append(Problem(event.seq, reason))
    return found


def _unearned(name: str, given: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Return which verdict a candidate lacks that is called accepted, or ""."""
    for phase in kinds.DECIDING:
        outcome = given.get((name, phase), {}).get("outcome", "none")
        if outcome != "accept":
            return f"{name} is called accepted, and its verdict in {phase} is: {outcome}"
    rivals = {given[name, phase].get("rival") for phase in kinds.DECIDING}
    if len(rivals) > 1:
        return f"{name} is called accepted, and was held against different rivals"
    return ""


def _candidates(
    study: Study, events: Sequence[Event], agreed: Contract | None, past: _Past
) -> list[Problem]:
    """Hold the file of every candidate against its registration."""
    found = []
    last = {str(e.data["candidate"]): e for e in events if e.kind == kinds.STATE}
    frozen = {str(e.data["candidate"]): e for e in events if e.kind == kinds.REGISTERED}
    for name, event in last.items():
        try:
            candidate = study.candidate(name)
        except AssayError as error:
            found.append(Problem(event.seq, f"candidate {name} cannot be read: {error.message}"))
            continue
        if name not in frozen or event.data["to"] in ("draft", "debug"):
            continue  # it may still be edited
        told = frozen[name].data
        mine = (candidate.kind, candidate.probe, candidate.change.parameters)
        kept = {key: told["parameters"].get(key) for key in candidate.change.parameters}
        changed = mine != (told["kind"], told["probe"], kept)
        if agreed is not None and _unchanged(agreed, past.candidates[name], _FROZEN_BY):
            hashed = protocol.registration_hash(candidate, agreed, told["protocol"])
            changed = changed or hashed != told["hash"]
        if changed:
            reason = f"candidate {name} was edited after it was registered"
            found.append(Problem(frozen[name].seq, reason))
    return found


# ---------------------------------------------------------------------- runs


def _runs(
    study: Study, events: Sequence[Event], agreed: Contract | None, past: _Past
) -> list[Problem]:
    """Hold the record and the files of every run that is over against the ledger."""
    measured = {e.data["run"]: e.data["metrics"] for e in events if e.kind == kinds.MEASURED}
    orders = {e.data["run"]: e.data for e in events if e.kind == kinds.PREPARED}
    exits = {e.data["run"]: e.data for e in events if e.kind == kinds.EXITED}
    found = []
    for event in events:
        if event.kind != kinds.ENDED:
            continue
        run = str(event.data["run"])
        reasons = _run(study, event, measured.get(run))
        if (study.path / "runs" / run).is_dir():
            reasons += _orders(study, run, orders.get(run, {}), exits.get(run, {}))
            if agreed is not None and _unchanged(agreed, past.runs.get(run, {}), ("metrics",)):
                reasons += _metrics(study, agreed, run, measured.get(run, {}))
        found += [Problem(event.seq, reason) for reason in reasons]
    return found


def _orders(
    study: Study, run: str, orders: Mapping[str, Any], left: Mapping[str, Any]
) -> list[str]:
    """Hold what a run was to do and what it printed against the ledger."""
    place = study.path / "runs" / run
    reasons = []
    if "environment" in orders:
        try:
            given = fingerprints(json.loads((place / "plan.json").read_bytes())["env"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            given = {}
        if given != orders["environment"]:
            reasons.append(f"the plan of run {run} (plan.json) is not what it was given")
    if "log" in left:
        log = place / "stdout.log"
        now = protocol.fingerprint(log) if log.is_file() else ""
        if now != left["log"]:
            reasons.append(f"what run {run} printed (stdout.log) was changed after it had ended")
    return reasons


def _metrics(
    study: Study, agreed: Contract, run: str, measured: Mapping[str, float | None]
) -> list[str]:
    """Extract the metrics of a run again."""
    place = study.path / "runs" / run
    reasons = []
    for metric in agreed.metrics.all():
        value: float | None = None
        try:
            value = extractors.extract(metric, place / "out", place / "stdout.log")
        except StudyError:
            value = None
        told = measured.get(metric.name)
        if value != told:
            reasons.append(f"{metric.name} of run {run} is {value} by its files, not {told}")
    return reasons


def _run(study: Study, event: Event, measured: object) -> list[str]:
    name = str(event.data["run"])
    if not (study.path / "runs" / name).is_dir():
        return [f"the files of run {name} are gone"]
    try:
        record = study.run(name)
    except AssayError as error:
        return [f"the record of run {name} cannot be read: {error.message}"]
    reasons = []
    if digest(record.model_dump(mode="json")) != event.data.get("record"):
        reasons.append(f"the record of run {name} (run.json) was edited after it ended")
    if record.metrics != measured:
        reasons.append(f"the metrics in the record of run {name} are not those that were measured")
    now = artifacts(study.path / "runs" / name / "out")
    for path in sorted(now.keys() | record.artifacts.keys()):
        if path not in now:
            reasons.append(f"'{path}' of run {name} is gone")
        elif path not in record.artifacts:
            reasons.append(f"'{path}' of run {name} appeared after the run had ended")
        elif now[path] != record.artifacts[path]:
            reasons.append(f"'{path}' of run {name} was changed after the run had ended")
    return reasons


# ---------------------------------------------------------------------- what was made of them


def _verdicts(events: Sequence[Event], agreed: Contract | None) -> list[Problem]:
    """Weigh every verdict again, by the standard that it names and the runs before it."""
    found = []
    book = Book()
    for i, event in enumerate(events):
        if event.kind == kinds.GIVEN and event.data["outcome"] != "invalid":
            reason = ""
            if book.incumbent and event.data["rival"] != book.incumbent:
                reason = f"it was held against {event.data['rival']}, not {book.incumbent}"
            elif agreed is not None:
                reason = _unfounded(event.data, events[:i], agreed)
            if reason:
                what = f"the verdict on {event.data['candidate']} in {event.data['phase']}"
                found.append(Problem(event.seq, f"{what} does not follow: {reason}"))
        book.add(event)
    return found


def _unfounded(told: Mapping[str, Any], before: Sequence[Event], agreed: Contract) -> str:
    """Return why a verdict is not what the runs come to, or ""."""
    done = results.runs(before)
    arms = (told["rival"], told["candidate"])
    standard = {key: told[key] for key in ("direction", "minimum_effect")}
    metric = agreed.metrics.primary.model_copy(update={"name": told["metric"], **standard})
    guards = [
        Guardrail(name=name, source=metric.source, **limits)
        for name, limits in told["limits"].items()
    ]

    def scores(name: str) -> tuple[gate.Scores, gate.Scores]:
        one, other = (results.arm(done, arm, told["phase"], name) for arm in arms)
        return one, other

    try:
        seen = gate.decide(
            metric,
            *scores(metric.name),
            alpha=told["alpha"],
            evaluation=agreed.evaluation.model_copy(update={"test": told["test"]}),
            guardrails=[(guard, *scores(guard.name)) for guard in guards],
            noise_floor=told["noise_floor"],
        )
    except StudyError as error:
        return error.message
    if seen.outcome != told["outcome"]:
        return f"the runs come to {seen.outcome}, and {told['outcome']} was given"
    again = verdict.as_data(seen)["comparison"]
    assert isinstance(again, dict)
    for key in ("effect", "low", "high", "p_better"):
        one, other = again[key], told["comparison"][key]
        alike = one == other if None in (one, other) else math.isclose(
            one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE
        )  # fmt: skip
        if not alike:
            return f"its {key} is {one} by the runs, and {other} was given"
    return ""


def _audits(study: Study, events: Sequence[Event]) -> list[Problem]:
    """Hold the file of every candidate's last audit against the ledger."""
    last = {str(e.data["candidate"]): e for e in events if e.kind == kinds.AUDITED}
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


def _documents(study: Study, events: Sequence[Event]) -> list[Problem]:
    """Hold reward reflections and probe summaries against the hashes on record."""
    found = []
    reflected = {str(e.data["run"]): e for e in events if e.kind == kinds.REFLECTED}
    summarised = {str(e.data["plan"]): e for e in events if e.kind == kinds.SUMMARISED}
    for name, event in reflected.items():
        try:
            reflection.named(study, name)
        except AssayError as error:
            found.append(Problem(event.seq, error.message))
    for name, event in summarised.items():
        try:
            probe.named(study, name)
        except AssayError as error:
            found.append(Problem(event.seq, error.message))
    return found
