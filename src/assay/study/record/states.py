"""The life of a candidate: which states may follow which, and where each one is.

The ledger is the truth: a candidate's state is that of its last `candidate.state` event. A
transition is checked and appended while the ledger is held alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from assay.study.files.base import Status
from assay.study.files.documents import StudyError
from assay.study.record import kinds
from assay.study.record.kinds import REGISTERED
from assay.study.record.ledger import Event, Writer

TRANSITIONS: dict[Status, frozenset[Status]] = {
    "draft": frozenset({"validated", "rejected"}),
    "validated": frozenset({"draft", "launched", "rejected"}),
    "launched": frozenset({"completed", "debug"}),
    "debug": frozenset({"draft", "launched", "rejected"}),
    "completed": frozenset({"launched", "accepted", "rejected", "inconclusive"}),
    "inconclusive": frozenset({"launched", "rejected"}),
    "accepted": frozenset({"reverted"}),
    "rejected": frozenset(),
    "reverted": frozenset(),
}


def current(events: Iterable[Event]) -> dict[str, Status]:
    """Return the state of every candidate that the ledger knows."""
    return {
        event.data["candidate"]: event.data["to"] for event in events if event.kind == kinds.STATE
    }


def move(writer: Writer, candidate: str, to: Status, *, actor: str, why: str, **data: Any) -> Event:
    """Bring a candidate into another state, if that is legal from where it is.

    Raises:
        StudyError: It is not; the legal ones are named.
    """
    now = current(writer.events()).get(candidate)
    if now is None:
        legal = to == "draft"
        options = "draft"
    else:
        legal = to in TRANSITIONS[now]
        options = ", ".join(s for s in get_args(Status) if s in TRANSITIONS[now]) or "nothing"
    if not legal:
        raise StudyError(
            f"Candidate '{candidate}' is {now or 'new'} and cannot become {to}.",
            f"From {now or 'new'} it can become: {options}.",
        )
    payload = {"candidate": candidate, "from": now, "to": to, "why": why, **data}
    return writer.append(kinds.STATE, payload, actor=actor)


def registration(events: Sequence[Event], name: str) -> Event:
    """Return the event by which a candidate was frozen.

    Raises:
        StudyError: It was not.
    """
    for event in reversed(events):
        if event.kind == REGISTERED and event.data["candidate"] == name:
            return event
    raise StudyError(
        f"Candidate '{name}' is not registered.", "Validate it first: assay study validate."
    )
