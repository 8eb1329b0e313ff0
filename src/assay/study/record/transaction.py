"""Decide on what a ledger says and append to it in one go, while nobody else can.

A candidate's state is that of its last `candidate.state` event; which one may follow which is
checked here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, get_args

from assay.study.files.base import Status
from assay.study.files.documents import StudyError
from assay.study.record import kinds
from assay.study.record.history import History
from assay.study.record.ledger import Event, Writer

TRANSITIONS: dict[Status, frozenset[Status]] = {
    "draft": frozenset({"validated", "rejected"}),
    "validated": frozenset({"draft", "launched", "rejected"}),
    "launched": frozenset({"completed", "debug"}),
    "debug": frozenset({"draft", "launched", "rejected"}),
    "completed": frozenset({"launched", "accepted", "rejected", "inconclusive", "no-effect"}),
    "inconclusive": frozenset({"launched", "rejected"}),
    "accepted": frozenset({"reverted"}),
    "rejected": frozenset(),
    "no-effect": frozenset(),
    "reverted": frozenset(),
}

OVER = "It is decided, and that is final; for another change: assay study propose"


class Transaction:
    """A ledger that is held alone; made by `Study.transaction`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @functools.cached_property
    def history(self) -> History:
        """Return all that happened, what is appended here included."""
        return History.read(self._writer.events())

    def append(self, kind: str, data: Mapping[str, Any], *, actor: str) -> Event:
        """Add one event and wait until it is on the disk."""
        event = self._writer.append(kind, data, actor=actor)
        if "history" in vars(self):
            self.history.add(event)
        return event

    def move(self, candidate: str, to: Status, *, actor: str, why: str, **data: Any) -> Event:
        """Bring a candidate into another state, if that is legal from where it is.

        Raises:
            StudyError: It is not; the legal ones are named.
        """
        now = self.history.status.get(candidate)
        legal: frozenset[Status] = TRANSITIONS[now] if now else frozenset({"draft"})
        if to not in legal:
            options = ", ".join(state for state in get_args(Status) if state in legal)
            raise StudyError(
                f"Candidate '{candidate}' is {now or 'new'} and cannot become {to}.",
                f"From {now or 'new'} it can become: {options}." if options else OVER,
            )
        payload = {"candidate": candidate, "from": now, "to": to, "why": why, **data}
        return self.append(kinds.STATE, payload, actor=actor)
