"""What the runs of a study yielded, read from the ledger alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.study.files.base import Phase
from assay.study.record.kinds import ENDED, MEASURED, MOST_LOST, PREPARED
from assay.study.record.ledger import Event

if TYPE_CHECKING:
    from assay.study.judge.gate import Scores


@dataclass(frozen=True, slots=True)
class Run:
    """One run that is over.

    Attributes:
        id: Its name.
        candidate: What was tried.
        phase: What for.
        seed: The training seed.
        protocol: Hash of how it was measured.
        registration: Hash that its candidate was frozen by.
        outcome: `done`, `failed`, `killed` or `lost`.
        reason: Why, if it is not done.
        hours: How long it ran.
        metrics: What was extracted, by name.
    """

    id: str
    candidate: str
    phase: Phase
    seed: int
    protocol: str
    registration: str
    outcome: str
    reason: str
    hours: float
    metrics: dict[str, float | None]


def runs(events: Iterable[Event]) -> list[Run]:
    """Return all runs that are over, in the order in which they were prepared."""
    prepared: dict[str, Event] = {}
    measured: dict[str, dict[str, float | None]] = {}
    ended: dict[str, Event] = {}
    for event in events:
        if event.kind == PREPARED:
            prepared[event.data["run"]] = event
        elif event.kind == MEASURED:
            measured[event.data["run"]] = dict(event.data["metrics"])
        elif event.kind == ENDED:
            ended[event.data["run"]] = event
    return [
        Run(
            id=name,
            candidate=start.data["candidate"],
            phase=start.data["phase"],
            seed=int(start.data["seed"]),
            protocol=start.data["protocol"],
            registration=start.data["registration"],
            outcome=ended[name].data["outcome"],
            reason=ended[name].data["reason"],
            hours=float(ended[name].data["hours"]),
            metrics=measured.get(name, {}),
        )
        for name, start in prepared.items()
        if name in ended
    ]


def arm(done: Sequence[Run], candidate: str, phase: Phase, metric: str) -> Scores:
    """Return a candidate's score for every seed of a phase; None where its last attempt failed.

    A run that was lost to a crash of the machine is no result of the candidate's; the seed is then
    missing until it is run again.
    """
    scores: dict[int, float | None] = {}
    for run in done:
        if (run.candidate, run.phase) != (candidate, phase) or run.outcome == "lost":
            continue
        scores[run.seed] = run.metrics.get(metric) if run.outcome == "done" else None
    return dict(sorted(scores.items()))


def exhausted(done: Sequence[Run], candidate: str, phase: Phase) -> set[int]:
    """Return the seeds that were lost as often as they may be run: they have no result for good."""
    lost = Counter(
        run.seed
        for run in done
        if (run.candidate, run.phase, run.outcome) == (candidate, phase, "lost")
    )
    return {seed for seed, times in lost.items() if times >= MOST_LOST}


def selected(done: Sequence[Run], candidate: str, phase: Phase) -> list[Run]:
    """Return the last attempt at every seed of a candidate's phase."""
    last = {run.seed: run for run in done if (run.candidate, run.phase) == (candidate, phase)}
    return [last[seed] for seed in sorted(last)]
