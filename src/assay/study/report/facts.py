"""What a report is told: everything that a study's ledger and artifacts say, read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from assay.core.errors import AssayError
from assay.study.agree import approvals
from assay.study.files.base import Phase
from assay.study.files.contract import Contract
from assay.study.measure.extractors import Point
from assay.study.record import kinds
from assay.study.record.book import Book
from assay.study.record.history import History
from assay.study.record.ledger import Event
from assay.study.record.study import Study
from assay.study.steps import advice

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on record."""

    event: Event  # what the ledger says
    candidate: str  # who was judged
    phase: Phase  # in which phase
    rival: str  # whom it was compared with
    metric: str  # what decided
    minimum: float | None  # the effect that was to be reached
    margins: Mapping[str, float | None]  # how much worse each guardrail could get

    @property
    def comparison(self) -> Mapping[str, Any]:
        """Return the numbers of the primary metric, if there are any."""
        return self.event.data.get("comparison") or {}


@dataclass(slots=True)
class Facts:
    """All that the report says, as it was read."""

    study: Study
    agreed: Contract | None
    problems: list[str]
    events: list[Event]
    history: History
    judgements: list[Judgement]
    baseline: str
    unapproved: dict[str, str]
    next_step: advice.Advice | None
    series: dict[str, list[Point]] = field(default_factory=dict)  # by run, once it was read


def read(study: Study) -> Facts:
    """Read everything, the ledger in one pass.

    Raises:
        LedgerError: A line of the ledger is damaged, so that nothing can be said.
    """
    reading = study.examine()
    events = reading.events
    if reading.problems:
        for _ in study.ledger.events():  # refuses a damaged line; anchors are another matter
            pass
    problems = [f"The books are not in order: {problem}." for problem in reading.problems]
    agreed: Contract | None = None
    unapproved: dict[str, str] = {}
    history = History.read(events)
    try:
        agreed = study.contract()
        unapproved = approvals.unapproved(agreed, history.approvals)
    except AssayError as error:
        problems.append(f"The contract cannot be used: {error.message}")
    try:
        study.label(history)
        step = advice.advise(study, history, reading.problems)
    except AssayError as error:
        step = None
        problems.append(f"What comes next cannot be told: {error.message}")
    baseline = next((name for name, kind in history.kind.items() if kind == "baseline"), "")
    return Facts(
        study=study,
        agreed=agreed,
        problems=problems,
        events=events,
        history=history,
        judgements=_judgements(events, baseline, agreed),
        baseline=baseline,
        unapproved=unapproved,
        next_step=step,
    )


def _judgements(events: Sequence[Event], baseline: str, agreed: Contract | None) -> list[Judgement]:
    """Return all verdicts, each with what it was judged by when it was given.

    Verdicts say so themselves; of older ones it is what the contract and the incumbent were.
    """
    metrics = agreed.metrics if agreed else None
    found, book = [], Book()
    for event in events:
        book.add(event)
        data = event.data
        if event.kind != kinds.GIVEN:
            continue
        limits = data.get("limits")
        if limits is None:
            limits = {g.name: {"margin": g.margin} for g in metrics.guardrails} if metrics else {}
        judgement = Judgement(
            event=event,
            candidate=str(data["candidate"]),
            phase=cast("Phase", data["phase"]),
            rival=str(data.get("rival", book.incumbent or baseline)),
            metric=str(data.get("metric", metrics.primary.name if metrics else "")),
            minimum=data.get("minimum_effect", metrics.primary.minimum_effect if metrics else None),
            margins={name: limit.get("margin") for name, limit in limits.items()},
        )
        found.append(judgement)
    return found


def readable(read_one: Callable[[str], T], name: str) -> T | None:
    """Return a document of the study, or None if its file is missing or cannot be read."""
    try:
        return read_one(name)
    except AssayError:
        return None
