"""What to do next, from files alone: the first thing that stands in the way, and why.

It is asked often, of studies with a thousand candidates, so it reads the books and the contract
and nothing else; see `Study.book` for what it therefore takes on trust.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.core.errors import AssayError
from assay.core.wording import counted
from assay.study.agree import approvals, rules, spending
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.record import kinds
from assay.study.record.book import Book
from assay.study.record.ledger import Problem
from assay.study.record.study import Study
from assay.study.steps import agenda

STUDY = "assay study"
UNSAFE = ("run", *agenda.PERSONAL)
_COMMANDS: dict[agenda.Action, str] = {
    "baseline": "baseline",
    "validate": "validate {name}",
    "run": "run {name} --phase {phase} --seed {seed}",
    "audit": "audit-result {name} --phase {phase}",
    "judge": "verdict {name} --phase {phase}",
    "summarise": "probe summarise {name}",
    "promote": "queue promote",
    "discard": "discard {name} --why TEXT",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """One next step."""

    action: str  # what kind of step: `approve`, `propose`, `validate`, `run`, `audit`, `judge`,
    reason: str  # why this one
    command: str = ""  # what to type, or "" where a person has to think first
    safe: bool = True  # whether an agent may do it without asking; starting a run is not

    @property
    def asks(self) -> str:
        """Return what a step needs of a person, for one that is not safe."""
        if self.action in ("run", "baseline"):
            return "It starts runs; an agent asks a person first."
        return "A person has to decide this."


def next_step(study: Study) -> Advice:
    """Return the next safe action and the reason for it; before a launch, what stands in its way.

    Raises:
        StudyError: It is a launch, and the GPUs that the contract asks for are not there.
    """
    book, damage = study.book()
    seen = advise(study, book, damage)
    if seen.action not in ("run", "baseline"):
        return seen
    agreed = study.contract()
    try:
        rules.refuse_dirty(study.root, agreed)
    except StudyError as error:
        return Advice("commit", f"{error.message} {error.fix}", "git status", False)
    if agreed.hardware.kind == "gpu":
        from assay.study.run import gpus  # which looks at the machine

        if len(book.held) >= gpus.at_once(agreed, gpus.usable(agreed)):
            return _watch(book)
    return seen


def advise(study: Study, book: Book, damage: list[Problem]) -> Advice:
    """Return the next safe action for a study whose books were read."""
    if damage:
        return Advice("verify", f"the ledger is damaged, {damage[0]}", f"{STUDY} verify", False)
    if (study.path / kinds.STOP).exists():
        return Advice("wait", "the kill switch is on; a person has to take it off", "", False)
    try:
        agreed = study.contract()
    except AssayError as error:
        return Advice("contract", f"the contract is not ready: {error.message}")
    unapproved = approvals.unapproved(agreed, book.approvals)
    if unapproved:
        item, reason = next(iter(unapproved.items()))
        command = f"{STUDY} contract approve {item} --by NAME"
        return Advice(
            "approve", f"{counted(len(unapproved), 'approval')} missing: {reason}", command, False
        )
    void = agenda.voided(study, book, agreed)
    if void is not None:
        return Advice(void.action, void.reason, "", False)
    if len(book.held) >= agreed.budget.parallel:
        return _watch(book)
    for step in agenda.steps_of(book, agreed):
        if step.action == "run" and book.launched >= agreed.budget.runs:
            return Advice("report", "the budget of runs is used up", f"{STUDY} report")
        command, reason = _command(step), step.reason
        failed = [run for run in book.of(step.candidate) if run.outcome in ("failed", "killed")]
        if step.action == "debug" and failed:
            reason += f"; the log of the last one: {study.path / 'runs' / failed[-1].id}/stdout.log"
        if step.action in ("baseline", "run") and agreed.experiment.mode != "manual":
            command = f"{STUDY} loop --execute --confirm RUN_CANDIDATE"
        return Advice(step.action, reason, command, step.action not in UNSAFE)
    if book.held:
        run = next(iter(book.held))
        return Advice("monitor", f"nothing else is left until {run} ends", f"{STUDY} monitor {run}")
    return _nothing_left(book, agreed)


def _nothing_left(book: Book, agreed: Contract) -> Advice:
    decided = "everything that was proposed is decided"
    spent = spending.exhausted(book, agreed)
    if spent:
        reason = f"{decided}. {spent}; further candidates need a new study"
        return Advice("report", reason, f"{STUDY} report")
    return Advice("propose", decided, f"{STUDY} propose --set KEY=VALUE")


def _watch(book: Book) -> Advice:
    run = next(iter(book.held))
    return Advice("monitor", f"{run} is under way", f"{STUDY} monitor {run}")


def _command(step: agenda.Step) -> str:
    """Return what to type for a step, or "" where a person has to think first."""
    form = _COMMANDS.get(step.action)
    if form is None:
        return ""
    seed = step.seeds[0] if step.seeds else ""
    return f"{STUDY} " + form.format(name=step.candidate, phase=step.phase, seed=seed)
