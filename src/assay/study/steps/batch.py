"""What can run now, as one plan for several at once: a worktree, a GPU and a rule for each job.

The plan is derived from the same agenda that `next` and the loop follow. Nothing is started.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.core.wording import counted
from assay.study.agree.scope import pinned
from assay.study.files.base import Phase
from assay.study.files.contract import Contract
from assay.study.record.book import Book
from assay.study.record.study import Study
from assay.study.run import gpus
from assay.study.steps import agenda


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a batch."""

    wave: int  # jobs of one wave run at the same time
    candidate: str
    phase: Phase
    seed: int
    worktree: str  # where it runs, relative to the repository
    gpus: tuple[str, ...]  # by nvidia-smi's numbers, if all are free; the runner leases them
    output: tuple[str, ...]  # where its metrics are looked for, relative to the repository
    rule: str  # what its result leads to
    hours: float  # that it may take


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs that wait for nothing but a machine."""

    at_once: int  # how many the contract and the GPUs allow
    jobs: tuple[Job, ...]
    left_out: int  # jobs that the budget does not hold

    @property
    def hours(self) -> float:
        """Return the wall-clock hours that all runs may take together."""
        return sum(job.hours for job in self.jobs)


def plan(study: Study, limit: int | None = None) -> Batch:
    """Plan the runs that the agenda waits for now, most urgent first.

    Args:
        study: Whose.
        limit: The most jobs; by default all that the budget holds.

    Raises:
        StudyError: The contract is not ready, the books are damaged, or GPUs are missing.
    """
    agreed = study.contract()
    book, damage = study.book()
    study.refuse_damage(damage, "Run `assay study verify`; nothing is planned on it.")
    devices = gpus.usable(agreed)
    width = gpus.at_once(agreed, devices)
    steps = [step for step in agenda.steps_of(book, agreed) if step.action == "run"]
    wanted = [(step.candidate, step.phase, seed) for step in steps for seed in step.seeds]
    room = max(0, agreed.budget.runs - book.launched)
    most = min(room, len(wanted) if limit is None else limit)
    jobs = []
    for number, (name, phase, seed) in enumerate(wanted[:most]):
        assert phase is not None  # of a step that is a run
        jobs.append(_job(study, agreed, book, devices, (number, width), name, phase, seed))
    return Batch(width, tuple(jobs), max(0, len(wanted) - room))


def _job(
    study: Study,
    agreed: Contract,
    book: Book,
    devices: tuple[gpus.Gpu, ...],
    place: tuple[int, int],
    name: str,
    phase: Phase,
    seed: int,
) -> Job:
    number, width = place
    run = f"{name}-{phase}-{seed}"
    where = study.path.relative_to(study.root)
    wanted = agreed.hardware
    slot = number % width * wanted.gpus // wanted.runs_per_gpu if devices else 0
    given = [devices[(slot + i) % len(devices)]["index"] for i in range(wanted.gpus)]
    sources = dict.fromkeys(m.source.path or "stdout.log" for m in agreed.metrics.all())
    outputs = [
        str(where / "runs" / run / ("stdout.log" if path == "stdout.log" else f"out/{path}"))
        for path in sources
    ]
    return Job(
        wave=number // width + 1,
        candidate=name,
        phase=phase,
        seed=seed,
        worktree=str(where / "worktrees" / run) if pinned(study.root) else ".",
        gpus=tuple(given) if devices else (),
        output=tuple(outputs),
        rule=_rule(agreed, book, name, phase),
        hours=study.candidate(name).budget.wall_clock_hours,
    )


def _rule(agreed: Contract, book: Book, name: str, phase: Phase) -> str:
    """Return what the result of a run leads to, by the contract."""
    evaluation, metric = agreed.evaluation, agreed.metrics.primary
    if book.kind[name] == "baseline":
        return "the noise floor and the A/A test; candidates are compared with it"
    if book.kind[name] == "dr-probe":
        return "summarised with the other values of its probe; nothing is promoted"
    if phase == "smoke":
        return "goes on to a short trial if it ends without an error"
    if phase == "short":
        return f"the best {agreed.experiment.keep:.0%} of the trials by mean {metric.name} go on"
    seeds = counted(len(evaluation.stage(phase, book.looked.get((name, phase), 0))), "seed")
    what = f"judged on {seeds}: better at its share of alpha {evaluation.alpha:g}, by at least "
    what += f"{metric.minimum_effect:g}, guardrails kept"
    return what if phase == "promotion" else f"{what}; then it is the incumbent"
