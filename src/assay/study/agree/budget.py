"""What a study may spend: reserved before a launch, settled after it, read from the ledger.

A run's reservation is what its candidate asked for; when the run is over, however it ended, what
it really used takes its place. Nothing else is kept, so there is nothing that can disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from assay.study.files.candidate import BudgetRequest
from assay.study.files.contract import Budget
from assay.study.files.documents import StudyError
from assay.study.record import kinds
from assay.study.record.ledger import Event, Writer

WARN_AT = 0.8


class OverBudget(StudyError):
    """A run would bring the study beyond what is approved."""


class Busy(StudyError):
    """As many runs as the contract allows are under way; it can be tried again."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What is spent and held back.

    Attributes:
        wall_clock_hours: Of settled runs, and reserved by open ones.
        gpu_hours: Alike.
        runs: Launched in all, crashed ones included.
        open: Runs that are reserved and not settled.
    """

    wall_clock_hours: float = 0.0
    gpu_hours: float = 0.0
    runs: int = 0
    open: tuple[str, ...] = ()

    def share(self, budget: Budget) -> float:
        """Return the largest share of the budget that is used, over its three limits."""
        shares = [self.wall_clock_hours / budget.wall_clock_hours, self.runs / budget.runs]
        if budget.gpu_hours:
            shares.append(self.gpu_hours / budget.gpu_hours)
        return max(shares)


def usage(events: Iterable[Event]) -> Usage:
    """Add up what the ledger says."""
    held: dict[str, tuple[float, float]] = {}
    used: list[tuple[float, float]] = []
    runs = 0
    for event in events:
        if event.kind == kinds.RESERVED:
            runs += 1
            amounts = (float(event.data["wall_clock_hours"]), float(event.data["gpu_hours"]))
            held[str(event.data["run"])] = amounts
        elif event.kind == kinds.SETTLED and held.pop(str(event.data["run"]), None) is not None:
            used.append((float(event.data["wall_clock_hours"]), float(event.data["gpu_hours"])))
    used += held.values()
    wall, gpu = (math.fsum(amounts[i] for amounts in used) for i in (0, 1))
    return Usage(wall, gpu, runs, tuple(held))


def reserve(writer: Writer, budget: Budget, run: str, request: BudgetRequest, actor: str) -> Usage:
    """Hold back what a run asks for, while the ledger is held.

    Returns:
        The usage with this run in it; at `WARN_AT` a warning is on record.

    Raises:
        OverBudget: It would exceed a limit; nothing is reserved.
        Busy: As many runs as allowed are under way.
        StudyError: The run has a reservation.
    """
    events = list(writer.events())
    before = usage(events)
    if any(e.kind == kinds.RESERVED and e.data["run"] == run for e in events):
        raise StudyError(f"Run '{run}' has been launched before; a run is launched once.")
    if len(before.open) >= budget.parallel:
        raise Busy(
            f"{len(before.open)} runs are under way, and the contract allows {budget.parallel}.",
            "Wait for one to end, or have a larger budget.parallel approved.",
        )
    after = Usage(
        before.wall_clock_hours + request.wall_clock_hours,
        before.gpu_hours + request.gpu_hours,
        before.runs + 1,
        (*before.open, run),
    )
    limits = (
        ("wall-clock hours", after.wall_clock_hours, budget.wall_clock_hours),
        ("GPU-hours", after.gpu_hours, budget.gpu_hours),
        ("runs", after.runs, budget.runs),
    )
    for name, wanted, allowed in limits:
        if wanted > allowed * (1 + 1e-9):
            raise OverBudget(
                f"Run '{run}' would bring the study to {wanted:.4g} {name}; {allowed:.4g} are "
                "approved.",
                "Ask for less, or have a larger budget approved.",
            )
    request_values = {"run": run, **request.model_dump()}
    writer.append(kinds.RESERVED, request_values, actor=actor)
    if before.share(budget) < WARN_AT <= after.share(budget):
        writer.append(kinds.WARNED, {"share": round(after.share(budget), 4)}, actor="assay")
    return usage(writer.events())


def settle(writer: Writer, run: str, wall_clock_hours: float, gpu_hours: float) -> None:
    """Replace a run's reservation by what it used; settling twice changes nothing.

    Raises:
        StudyError: The run was never reserved.
    """
    events = list(writer.events())
    if not any(e.kind == kinds.RESERVED and e.data["run"] == run for e in events):
        raise StudyError(f"Run '{run}' has no reservation to settle.")
    if any(e.kind == kinds.SETTLED and e.data["run"] == run for e in events):
        return
    used = {
        "run": run,
        "wall_clock_hours": max(0.0, wall_clock_hours),
        "gpu_hours": max(0.0, gpu_hours),
    }
    writer.append(kinds.SETTLED, used, actor="assay")
