"""All that happened in a study, folded out of its whole ledger, and what may happen next.

A candidate's state is that of its last `candidate.state` event; which one may follow which is
checked by the `Transaction` that appends it.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from assay.study.files.base import Phase, Status
from assay.study.files.contract import Budget
from assay.study.files.documents import StudyError
from assay.study.record import kinds
from assay.study.record.book import Book, never_started
from assay.study.record.ledger import Event, Writer

Scores = Mapping[int, float | None]  # of every training seed; None where its run failed
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


@dataclass(slots=True)
class Run:
    """One run, from its launch on."""

    id: str  # its name
    candidate: str  # what is tried
    phase: Phase  # what for
    seed: int  # the training seed
    prepared: Event  # the event of its launch
    protocol: str  # hash of how it is measured
    registration: str  # hash that its candidate was frozen by
    host: str = ""  # where its process was started
    exit: Mapping[str, Any] | None = None  # how its process ended, as that was first put on record
    metrics: dict[str, float | None] = field(default_factory=dict)  # what was extracted, by name
    ended: Event | None = None  # the event that closed it; None while it is under way
    outcome: str = ""  # `done`, `failed`, `killed` or `lost`; "" while it is under way
    reason: str = ""  # why, if it is not done
    hours: float = 0.0  # how long it ran


@dataclass(frozen=True, slots=True)
class Usage:
    """What is spent and held back."""

    wall_clock_hours: float = 0.0  # of settled runs, and reserved by open ones
    gpu_hours: float = 0.0  # alike
    runs: int = 0  # launched in all, crashed ones included
    open: tuple[str, ...] = ()  # runs that are reserved and not settled

    def share(self, budget: Budget) -> float:
        """Return the largest share of the budget that is used, over its three limits."""
        shares = [self.wall_clock_hours / budget.wall_clock_hours, self.runs / budget.runs]
        if budget.gpu_hours:
            shares.append(self.gpu_hours / budget.gpu_hours)
        return max(shares)


class History(Book):
    """All that the events so far come to."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: dict[str, Event] = {}  # the event that brought each candidate to where it is
        self.runs: dict[str, Run] = {}  # every run that was prepared, in that order
        self._runs_of: dict[str, list[Run]] = {}  # by candidate
        self.registered: dict[str, Event] = {}  # the event by which each candidate was last frozen
        # The commit that the first candidate was registered on; None where there is none yet.
        self.base: str | None = None
        # The commit that each part of the contract was last approved with; "" where none was noted.
        self.approved_code: dict[str, str] = {}
        # Wall-clock and GPU-hours that each run asked for.
        self.reserved: dict[str, tuple[float, float]] = {}
        self.settled: dict[str, tuple[float, float]] = {}  # those that it used
        self.verdicts: list[Event] = []  # events, the oldest first
        # What measures, by the hash of the protocol: short hashes by field or file.
        self.protocols: dict[str, Mapping[str, str]] = {}
        self.audits: dict[tuple[str, str], Event] = {}  # the last event, by candidate and phase
        self.stopped: str | None = None  # why the kill switch is on; None if it is off
        self.stop = 0  # the number of the event that turned it on last
        self.plans: dict[str, Event] = {}  # events of probes
        self.summaries: dict[str, Event] = {}  # those of their results
        self.reflections: dict[str, Event] = {}  # events, by run
        # Results from elsewhere that count now: events, by candidate and seed.
        self.adopted: dict[tuple[str, int], Event] = {}
        # What was last shown of them, by candidate, rival and metric.
        self.shown: dict[tuple[str, str, str], Event] = {}

    def add(self, event: Event) -> None:
        """Take one more event in."""
        super().add(event)
        data = event.data
        run = self.runs.get(str(data.get("run")))
        match event.kind:
            case kinds.APPROVED:
                self.approved_code[str(data["item"])] = str(data.get("commit", ""))
            case kinds.STATE:
                self.moved[str(data["candidate"])] = event
            case kinds.REGISTERED:
                self.registered[str(data["candidate"])] = event
                self.base = str(data["base"]) if self.base is None else self.base
                self.protocols[str(data["protocol"])] = data.get("measures", {})
            case kinds.RESERVED:
                self.reserved[str(data["run"])] = _hours(data)
            case kinds.SETTLED:
                if str(data["run"]) in self.reserved:
                    self.settled.setdefault(str(data["run"]), _hours(data))
            case kinds.PREPARED:
                place = (data["run"], data["candidate"], data["phase"], int(data["seed"]))
                measured, frozen = (data.get(key, "") for key in ("protocol", "registration"))
                started = self.runs[str(data["run"])] = Run(*place, event, measured, frozen)
                self._runs_of.setdefault(started.candidate, []).append(started)
            case kinds.LAUNCHED if run:
                run.host = str(data.get("host", ""))
            case kinds.EXITED if run:
                run.exit = run.exit or data
            case kinds.MEASURED if run:
                run.metrics = dict(data["metrics"])
            case kinds.ENDED if run:
                run.ended, run.hours = event, float(data["hours"])
                run.outcome, run.reason = str(data["outcome"]), str(data["reason"])
            case kinds.GIVEN:
                self.verdicts.append(event)
            case kinds.AUDITED:
                self.audits[str(data["candidate"]), str(data["phase"])] = event
            case kinds.STOPPED:
                self.stop = event.seq if self.stopped is None else self.stop
                self.stopped = str(data["reason"])
            case kinds.RESUMED:
                self.stopped = None
            case kinds.PLANNED:
                self.plans[str(data["plan"])] = event
            case kinds.SUMMARISED:
                self.summaries[str(data["plan"])] = event
            case kinds.REFLECTED:
                self.reflections[str(data["run"])] = event
            case kinds.ADOPTED:
                self.adopted[str(data["candidate"]), int(data["seed"])] = event
            case kinds.WITHDRAWN:
                self.adopted.pop((str(data["candidate"]), int(data["seed"])), None)
            case kinds.SHOWN:
                key = (str(data["candidate"]), str(data["rival"]), str(data["metric"]))
                self.shown[key] = event

    # ------------------------------------------------------------------ questions

    @property
    def usage(self) -> Usage:
        """Return what was spent, and what is held back for open runs."""
        used = [self.settled.get(run, asked) for run, asked in self.reserved.items()]
        wall, gpu = (math.fsum(amounts[i] for amounts in used) for i in (0, 1))
        return Usage(wall, gpu, self.launched, tuple(self.held))

    def registration(self, name: str) -> Event:
        """Return the event by which a candidate was frozen."""
        if name not in self.registered:
            raise StudyError(
                f"Candidate '{name}' is not registered.", "Validate it first: assay study validate."
            )
        return self.registered[name]

    def verdict(self, name: str, phase: Phase) -> Event | None:
        """Return the last verdict on a candidate in a phase, or None if there is none."""
        given = [event for event in self.verdicts if event.data["candidate"] == name]
        return next((event for event in reversed(given) if event.data["phase"] == phase), None)

    def shown_state(self, name: str) -> str:
        """Return a candidate's state in the word for people: what nobody judged is discarded."""
        data = self.moved[name].data
        # Events of earlier versions do not say it; no verdict and no ranking leads from these.
        unjudged = data["from"] in ("draft", "validated", "debug")
        discarded = data["to"] == "rejected" and data.get("discarded", unjudged)
        return "discarded" if discarded else self.status[name]

    def over(self, candidate: str = "", phase: Phase | None = None) -> list[Run]:
        """Return the runs that are over, of a candidate and phase where they are named."""
        runs = self.of_candidate(candidate) if candidate else self.runs.values()
        return [run for run in runs if run.ended and phase in (None, run.phase)]

    def of_candidate(self, name: str) -> list[Run]:
        """Return all runs of a candidate, also those that are under way."""
        return self._runs_of.get(name, [])

    def arm(self, candidate: str, phase: Phase, metric: str) -> Scores:
        """Return a candidate's score for every seed of a phase; None where its last attempt failed.

        A run that was lost to a crash of the machine is not a result of the candidate; the seed is
        then missing until it is run again.
        """
        scores = {
            run.seed: run.metrics.get(metric) if run.outcome == "done" else None
            for run in self.over(candidate, phase)
            if run.outcome != "lost"
        }
        return dict(sorted(scores.items()))

    def arms(
        self, names: tuple[str, str], phase: Phase, metric: str, seeds: Container[int]
    ) -> tuple[Scores, Scores]:
        """Return the scores of two candidates on some seeds of a phase."""
        first, second = (
            {s: score for s, score in self.arm(name, phase, metric).items() if s in seeds}
            for name in names
        )
        return first, second

    def exhausted(self, candidate: str, phase: Phase) -> set[int]:
        """Return the seeds that were lost as often as they may be run: they have no result."""
        over = (run for run in self.over(candidate, phase) if not never_started(run))
        lost = Counter(run.seed for run in over if run.outcome == "lost")
        return {seed for seed, times in lost.items() if times >= kinds.MOST_LOST}

    def selected(
        self, candidate: str, phase: Phase, seeds: Container[int] | None = None
    ) -> list[Run]:
        """Return the last attempt at every seed of a candidate's phase, or at some of them."""
        last = {run.seed: run for run in self.over(candidate, phase)}
        return [last[seed] for seed in sorted(last) if seeds is None or seed in seeds]


def _hours(data: Mapping[str, Any]) -> tuple[float, float]:
    return float(data["wall_clock_hours"]), float(data["gpu_hours"])


class Transaction:
    """A ledger that is held alone, to decide on what it says and append in one go."""

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
