"""Candidate answers: joined where they are equal, and the best first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from assay.study.files.records import Answer

EVIDENCE = 5
THRESHOLD = 0.5


@dataclass(frozen=True)
class Found:
    """A candidate answer, before it is ranked."""

    value: Any
    place: str
    confidence: float
    note: str = ""


def place_key(place: str) -> tuple[bool, int, str, int]:
    """Order places: the repository's own before examples and copies, shallow before deep."""
    aside = {"examples", "example", "third_party", "legacy", "deprecated", "old", "benchmarks"}
    path, _, line = (
        place.rpartition(":") if place.rpartition(":")[2].isdigit() else (place, "", "0")
    )
    return bool(aside & set(path.split("/"))), path.count("/"), path, int(line)


def ranked(
    found: Iterable[Found], limit: int, *, key: Any = None, noted: Any = ()
) -> tuple[Answer, ...]:
    """Join equal values, drop what is too unsure, and put the best first."""
    groups: dict[str, list[Found]] = {}
    for item in found:
        groups.setdefault(str(item.value), []).append(item)
    answers = []
    for value, items in groups.items():
        items = sorted(items, key=lambda item: -item.confidence)
        best = items[0]
        if best.confidence < THRESHOLD:
            continue
        note = best.note if noted is True or (noted and value in noted) else ""
        answer = Answer(
            value=best.value,
            confidence=round(min(best.confidence, 1.0), 2),
            evidence=tuple(dict.fromkeys(item.place for item in items))[:EVIDENCE],
            note=note,
        )
        rank = key(value, best.confidence) if key else 0
        answers.append((rank, -best.confidence, place_key(best.place), answer))
    answers.sort(key=lambda item: item[:3])
    return tuple(item[-1] for item in answers[:limit])
