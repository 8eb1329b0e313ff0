"""Adopt results that were measured before the study, or elsewhere: shown, never decided.

An adopted result names the file that holds it, the file's hash and the place inside it, so that
anyone can check that the evidence is still there and still says the same. It was not registered
before it was measured, so it proves less than a run of the study: it can be compared with other
adopted results and reported, always under the name of adopted, but no event here is one that the
gate, the budget or the incumbent know.

A file that is measured again gets new events which supersede the old ones; nothing is edited.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from assay.evaluation import statistics
from assay.study.files.base import Direction
from assay.study.files.documents import StudyError
from assay.study.judge import gate
from assay.study.record import kinds
from assay.study.record.history import History
from assay.study.record.ledger import Event, Problem
from assay.study.record.study import Study

VERDICT = "adopted: shown, not decided"

Relation = Literal[">", ">=", "<", "<="]
Key = tuple[str, int]  # candidate and seed
_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TOLERANCE = 1e-6  # between machines, of numbers that were computed from the same values


@dataclass(frozen=True, slots=True)
class Source:
    """Where one result is."""

    candidate: str  # what was tried
    seed: int  # the training seed
    path: str  # the file, relative to the study's repository, in POSIX form
    # The number inside it, as a JSON pointer (RFC 6901). JSON Lines (.jsonl) are a list of lines.
    pointer: str
    metric: str  # what the number measures
    config: str  # hash of the settings that it was trained with
    # How it was measured, in words and numbers.
    protocol: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """What adopted results are to show."""

    candidate: str  # about whom
    metric: str  # by what
    direction: Direction = "maximize"  # which way is better
    rival: str = ""  # whom it is compared with, or ""
    relation: Relation = ">="  # how the interquartile mean over seeds is to stand to the threshold
    threshold: float | None = None  # the goal, or None


def adopt(
    study: Study, sources: Iterable[Source], claims: Iterable[Claim], actor: str
) -> list[Event]:
    """Adopt all results that the study rests on, and put down what they say to the claims.

    What is on record as it is now is passed over, so that doing it twice adds nothing. A result
    that changed is adopted again and supersedes what it was; one that is not among the sources any
    more is withdrawn.

    Returns:
        The events that this took.

    Raises:
        StudyError: A file is missing, or does not hold a number where it should, or a claim is
            about nobody; nothing is written then.
    """
    read, said = list(sources), list(claims)
    with study.transaction() as transaction:
        missing = due(study, transaction.history, read, said)
        return [transaction.append(kind, facts, actor=actor) for kind, facts in missing]


def due(
    study: Study, history: History, sources: Iterable[Source], claims: Iterable[Claim]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the events that `adopt` would append: their kinds and what they would say."""
    wanted: dict[Key, dict[str, Any]] = {}
    for source in sources:
        key = (source.candidate, source.seed)
        if key in wanted:
            raise StudyError(f"Seed {source.seed} of '{source.candidate}' has two sources.")
        wanted[key] = _facts(study, source)
    known = history.adopted
    found: list[tuple[str, dict[str, Any]]] = []
    for key, facts in wanted.items():
        old = known.get(key)
        if old is None or {k: v for k, v in old.data.items() if k != "supersedes"} != facts:
            found.append((kinds.ADOPTED, {**facts, "supersedes": None if old is None else old.seq}))
    for key, old in known.items():
        if key not in wanted:
            gone = {"candidate": key[0], "seed": key[1], "supersedes": old.seq}
            found.append((kinds.WITHDRAWN, gone))
    for claim in claims:
        facts = _weigh(claim, wanted)
        before = history.shown.get((claim.candidate, claim.rival, claim.metric))
        if before is None or not alike(before.data, facts):
            found.append((kinds.SHOWN, facts))
    return found


def _facts(study: Study, source: Source) -> dict[str, Any]:
    data = _bytes(study.root, source.path)
    value = _pointed(data, source.path, source.pointer)
    if value is None:
        raise StudyError(
            f"'{source.path}' has no number at '{source.pointer}', where seed {source.seed} of "
            f"'{source.candidate}' should be."
        )
    hashed = hashlib.sha256(data).hexdigest()
    return {**dataclasses.asdict(source), "sha256": hashed, "value": value}


def _bytes(root: Path, path: str) -> bytes:
    """Return what an evidence file holds."""
    place = root / path
    if PurePosixPath(path).is_absolute() or not place.is_file():
        raise StudyError(
            f"There is no evidence file '{path}' below or beside '{root}'.",
            "Name it relative to the directory that holds .rlxp.",
        )
    return place.read_bytes()


def _pointed(data: bytes, path: str, pointer: str) -> float | None:
    """Return the number that a JSON pointer leads to, or None where it leads to none."""
    try:
        value = _parsed(data, path.endswith(".jsonl"))
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None


@functools.lru_cache(maxsize=1)  # the results of one file come one after the other
def _parsed(data: bytes, lines: bool) -> Any:
    return [json.loads(line) for line in data.splitlines()] if lines else json.loads(data)


def arm(adopted: Mapping[Key, Mapping[str, Any]], candidate: str, metric: str) -> dict[int, float]:
    """Return a candidate's score for every seed, from what adopted results say."""
    return {
        seed: float(facts["value"])
        for (name, seed), facts in sorted(adopted.items())
        if name == candidate and facts["metric"] == metric
    }


def _weigh(claim: Claim, adopted: Mapping[Key, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the adopted results say to a claim, as plain data."""
    mine = arm(adopted, claim.candidate, claim.metric)
    if not mine:
        raise StudyError(f"No result of '{claim.candidate}' in {claim.metric} has been adopted.")
    values = np.array(list(mine.values()))
    middle = float(statistics.iqm(values))
    facts: dict[str, Any] = {
        **dataclasses.asdict(claim),
        "verdict": VERDICT,
        "seeds": len(mine),
        "mean": float(values.mean()),
        "iqm": middle,
        "reached": None,
        "comparison": None,
    }
    if claim.threshold is not None:
        facts["reached"] = _RELATIONS[claim.relation](middle, claim.threshold)
    if claim.rival:
        theirs = arm(adopted, claim.rival, claim.metric)
        # Seeds of different algorithms share nothing, so that they are not paired.
        seen = gate.compare(theirs, mine, direction=claim.direction, test="welch")
        facts["comparison"] = seen.plain()
    return facts


def alike(one: Any, other: Any) -> bool:
    """Return whether two plain values are the same, up to the last digits of their numbers."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return bool(one == other)


def problems(study: Study, history: History) -> list[Problem]:
    """Find adopted evidence that is gone, was changed, or does not say what was adopted.

    The line of a problem is that of the event which adopted it.
    """
    found: list[Problem] = []
    files: dict[str, bytes | None] = {}
    named: set[tuple[str, str]] = set()  # a file that changed is named once, not once per seed
    for (candidate, seed), event in history.adopted.items():
        path, recorded = str(event.data["path"]), str(event.data["sha256"])
        if path not in files:
            try:
                files[path] = _bytes(study.root, path)
            except (StudyError, OSError):
                files[path] = None
        data = files[path]
        reason = _difference(data, event)
        if reason and (path, recorded) not in named:
            where = f"'{path}', adopted for seed {seed} of {candidate},"
            found.append(Problem(event.seq, f"{where} {reason}"))
            named.add((path, recorded))
    adopted = {key: event.data for key, event in history.adopted.items()}
    for (candidate, _, _), event in history.shown.items():
        reason = _unfounded(event, adopted)
        if reason:
            found.append(Problem(event.seq, f"what is shown of {candidate} {reason}"))
    return found


def _difference(data: bytes | None, event: Event) -> str:
    """Return how a file differs from what was adopted from it, or ""."""
    if data is None:
        return "is gone"
    now = hashlib.sha256(data).hexdigest()
    if now != event.data["sha256"]:
        return (
            f"was changed since: its SHA-256 is {now[:12]}..., and {event.data['sha256'][:12]}... "
            "was adopted"
        )
    value = _pointed(data, str(event.data["path"]), str(event.data["pointer"]))
    if value != event.data["value"]:
        return f"says {value} at {event.data['pointer']}, and {event.data['value']} was adopted"
    return ""


def _unfounded(event: Event, adopted: Mapping[Key, Mapping[str, Any]]) -> str:
    """Return why what is shown does not follow from what is adopted, or ""."""
    names = [entry.name for entry in dataclasses.fields(Claim)]
    try:
        facts = _weigh(Claim(**{name: event.data[name] for name in names}), adopted)
    except (StudyError, KeyError, TypeError) as error:
        return f"cannot be derived again: {error}"
    return "" if alike(event.data, facts) else "is not what the adopted results come to"
