"""What a study may spend: reserved before a launch, settled after it, read from the ledger.

A run's reservation is what its candidate asked for; when the run is over, however it ended, what
it really used takes its place. Nothing else is kept, so there is nothing that can disagree.
"""

from __future__ import annotations

from assay.study.files.candidate import BudgetRequest
from assay.study.files.contract import Budget, Contract
from assay.study.files.documents import StudyError
from assay.study.record import kinds
from assay.study.record.history import Transaction, Usage

WARN_AT = 0.8


class OverBudget(StudyError):
    """A run would bring the study beyond what is approved."""


class Busy(StudyError):
    """As many runs as the contract allows are under way; it can be tried again."""


def refuse_small(agreed: Contract, trial: float | None = None) -> None:
    """Refuse a budget that does not suffice for the baseline, or for one run.

    Args:
        agreed: The contract.
        trial: How many seconds a trial run took, if there was one.

    Raises:
        StudyError: Names the field, what it takes, and how to change it.
    """
    limits, pools = agreed.budget, agreed.evaluation.pools
    baseline = len(pools.promotion) + len(pools.validation)
    if limits.runs < baseline:
        raise StudyError(
            f"budget.runs is {limits.runs}, and the baseline alone takes {baseline} "
            f"({len(pools.promotion)} seeds of the promotion pool and {len(pools.validation)} of "
            "the validation pool).",
            _approve(f"budget.runs={baseline + of_candidate(agreed)}"),
        )
    allowed = limits.wall_clock_hours / limits.runs * agreed.experiment.stop.overrun * 3600
    if trial is not None and trial > allowed:
        hours = 2 * trial * limits.runs / 3600
        raise StudyError(
            f"A run would be stopped after {allowed:.3g} s, and the trial took {trial:.3g} s: each "
            f"of {limits.runs} runs (budget.runs) has an even share of "
            f"{limits.wall_clock_hours:g} h (budget.wall_clock_hours), times "
            f"{agreed.experiment.stop.overrun:g} (experiment.stop.overrun).",
            _approve(f"budget.wall_clock_hours={hours:.2g}"),
        )


def of_candidate(agreed: Contract) -> int:
    """Return how many runs a candidate takes that is accepted."""
    pools = agreed.evaluation.pools
    smoke = len(pools.development) if "smoke" in agreed.baseline.shortened else 0
    return smoke + sum(map(len, (pools.development, pools.promotion, pools.validation)))


def warning(agreed: Contract) -> str:
    """Return that no candidate can be accepted within the budget, or ""."""
    pools = agreed.evaluation.pools
    baseline, one = len(pools.promotion) + len(pools.validation), of_candidate(agreed)
    if agreed.budget.runs >= baseline + one:
        return ""
    return (
        f"budget.runs is {agreed.budget.runs}: the baseline takes {baseline} and a candidate that "
        f"is accepted {one}, so that none can be. {_approve(f'budget.runs={baseline + one}')}"
    )


def _approve(change: str) -> str:
    return (
        f"Have more approved: assay study contract set {change}, assay study contract approve "
        "budget --by NAME"
    )


def reserve(
    transaction: Transaction, budget: Budget, run: str, request: BudgetRequest, actor: str
) -> None:
    """Hold back what a run asks for; at `WARN_AT` a warning is put on record.

    Raises:
        OverBudget: It would exceed a limit; nothing is reserved.
        Busy: As many runs as allowed are under way.
        StudyError: The run has a reservation.
    """
    before = transaction.history.usage
    if run in transaction.history.reserved:
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
    transaction.append(kinds.RESERVED, {"run": run, **request.model_dump()}, actor=actor)
    if before.share(budget) < WARN_AT <= after.share(budget):
        share = {"share": round(after.share(budget), 4)}
        transaction.append(kinds.WARNED, share, actor="assay")


def settle(transaction: Transaction, run: str, wall_clock_hours: float, gpu_hours: float) -> None:
    """Replace a run's reservation by what it used; settling twice changes nothing."""
    if run not in transaction.history.reserved:
        raise StudyError(f"Run '{run}' has no reservation to settle.")
    if run not in transaction.history.settled:
        used = {
            "run": run,
            "wall_clock_hours": max(0.0, wall_clock_hours),
            "gpu_hours": max(0.0, gpu_hours),
        }
        transaction.append(kinds.SETTLED, used, actor="assay")
