"""Keep a study going until it is decided, its budget is used up, or a stop rule ends it.

The loop takes the steps of the agenda: it validates drafts, launches runs through the queue, ranks
short trials, audits, judges, and asks a proposer for more. It starts nothing itself (the runner
does), keeps nothing in memory that matters, and can be killed and begun again at any time.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from assay.core.errors import AssayError
from assay.study.agree import approvals, budget, spending
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.record import kinds
from assay.study.record.book import DECIDED
from assay.study.record.history import History
from assay.study.record.study import Study
from assay.study.run import gpus, planning, recovery, switch
from assay.study.run.queue import Lease, Queue, Refused
from assay.study.steps import agenda

Proposer = Callable[[Study], Sequence[str]]
Say = Callable[[str], None]
BUSY_SECONDS = 2.0  # after which a launch that found no room is tried again


class Ending(NamedTuple):
    """Why a loop ended."""

    reason: str
    done: bool  # whether all that was asked for is done; if not, a person has to decide something


@dataclass
class Loop:
    """One process that works on a study; several may share it."""

    study: Study  # whose
    confirm: str  # what a launch is confirmed with
    actor: str  # in whose name
    proposer: Proposer | None = None  # makes new candidates when all are decided, or None
    say: Say = lambda line: None  # told what happens, line by line
    wait: Callable[[float], None] = time.sleep  # how to wait between two looks, in seconds
    _running: dict[str, Lease] = field(default_factory=dict, init=False)
    _stuck: dict[str, str] = field(default_factory=dict, init=False)
    _gpus: tuple[gpus.Gpu, ...] = field(default=(), init=False)

    def run(self) -> Ending:
        """Go on until nothing is left to do; return why it ended.

        Raises:
            StudyError: The contract does not allow a loop, or is not approved.
        """
        if self.confirm != planning.CONFIRM:
            raise StudyError(
                f"'{self.confirm}' does not confirm a loop.",
                f"It launches one candidate after another: pass --confirm {planning.CONFIRM}.",
            )
        agreed = self.study.contract()
        approvals.require_approved(self.study, agreed)
        if agreed.experiment.mode == "manual":
            raise StudyError(
                "The contract's experiment.mode is 'manual': a person starts every run.",
                "Have 'supervised' approved (runs what was proposed), or 'autonomous' (proposes).",
            )
        if self.proposer is not None and agreed.experiment.mode != "autonomous":
            raise StudyError(
                f"The contract's experiment.mode is '{agreed.experiment.mode}', which proposes "
                "nothing by itself.",
                "Leave the proposer out, or have 'autonomous' approved.",
            )
        self._gpus = gpus.usable(agreed)
        queue = Queue(self.study)
        ending = self._work(queue)
        facts = {"reason": ending.reason, "stuck": self._stuck}
        self.study.ledger.append(kinds.LOOPED, facts, actor=self.actor)
        return ending

    def _work(self, queue: Queue) -> Ending:
        """Take steps until none is left and nothing runs; return why it ended."""
        ending: Ending | None = None
        while True:
            self._collect(queue)
            halted = self._halted()
            if not halted:
                agreed, history = self.study.contract(), self.study.history()
                steps = agenda.steps_of(history, agreed, self._stuck)
                safe = [s for s in steps if s.action not in ("run", *agenda.PERSONAL)]
                if safe:
                    self._take(safe[0])
                    continue
                ending = ending or stop_rule(history, agreed)
                ending = ending or self._advance(queue, steps, agreed, history)
            last = halted or ending
            if last and not self._running:
                return last
            self.wait(recovery.POLL_SECONDS)

    def _halted(self) -> Ending | None:
        """Return what forbids every step from now on, if anything does."""
        try:
            switch.refuse_stopped(self.study)
            approvals.require_approved(self.study)
        except AssayError as error:
            return Ending(error.message, done=False)
        void = agenda.voided(self.study, self.study.history(), self.study.contract())
        return _asking(void) if void else None

    def _advance(
        self, queue: Queue, steps: Sequence[agenda.Step], agreed: Contract, history: History
    ) -> Ending | None:
        """Launch what there is room for, or have more proposed; return why to end, if so."""
        runs = [step for step in steps if step.action == "run"]
        # A run that is ending may be one of the two.
        under_way = {*history.under_way, *history.held}
        if under_way - set(self._running):
            queue.reap()  # another loop's, or what a killed one left behind
        free = gpus.at_once(agreed, self._gpus) - len(under_way)
        if runs and free > 0:
            return self._launch(queue, runs, free)
        if runs or under_way:
            return None
        spent = spending.exhausted(history, agreed)
        if spent and self.proposer is not None:
            return Ending(spent, done=True)
        return self._propose(steps, history.baselines())

    def _collect(self, queue: Queue) -> None:
        for run, lease in list(self._running.items()):
            record = queue.poll(lease, run)
            if record is None:
                continue
            del self._running[run]
            name = self.study.contract().metrics.primary.name
            value = record.metrics.get(name)
            seen = f"{name} {value:.4g}" if value is not None else ""
            self.say(f"{run}: {record.outcome}, {record.reason or seen}")
            if record.outcome == "failed":
                self.say(recovery.log_tail(self.study.path / "runs" / run))

    def _take(self, step: agenda.Step) -> None:
        try:
            self.say(agenda.take(self.study, step, self.actor))
        except StudyError as error:
            # Another loop may have been faster, which is no fault of the candidate.
            if step in agenda.steps_of(self.study.history(), self.study.contract()):
                self._leave(step.candidate, error)

    def _leave(self, candidate: str, error: AssayError) -> None:
        why = self._stuck[candidate] = " ".join(filter(None, (error.message, error.fix)))
        self.say(f"{candidate or 'the baseline'} is left alone: {why}")

    def _launch(self, queue: Queue, runs: Sequence[agenda.Step], free: int) -> Ending | None:
        for step in runs:
            assert step.phase is not None
            queue.add(step.candidate, step.phase, step.seeds)
        for _ in range(free):
            try:
                begun = queue.start(actor=self.actor)
            except budget.OverBudget as error:
                return Ending(error.message, done=True)
            except budget.Busy:
                self.wait(BUSY_SECONDS)  # for a GPU that another study uses
                return None
            except Refused as error:
                queue.cancel(error.candidate)
                # What was discarded while its runs waited is nobody's concern any more.
                if self.study.history().status.get(error.candidate) not in DECIDED:
                    self._leave(error.candidate, error)
                return None
            if begun is None:
                return None
            self._running[begun[1]] = begun[0]
        return None

    def _propose(self, steps: Sequence[agenda.Step], baselines: Sequence[str]) -> Ending | None:
        """Ask for more, or say why nothing is left to do."""
        personal = [step for step in steps if step.action in agenda.PERSONAL]
        # A proposer goes on beside a candidate that waits for a person, but not without a baseline.
        asked = [step for step in personal if not self.proposer or step.candidate in baselines]
        if asked:
            return _asking(asked[0])
        if self.proposer is None or not baselines:
            if self._stuck:
                why = next(iter(self._stuck.values()))
                return Ending(f"nothing is left but what was refused: {why}", done=False)
            return Ending("everything that was proposed is decided", done=True)
        with open(self.study.path / "propose.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            agreed = self.study.contract()
            book = self.study.history()
            now = agenda.steps_of(book, agreed, self._stuck)
            if book.under_way or any(step.action not in agenda.PERSONAL for step in now):
                return None  # another loop has proposed in the meantime
            pools = agreed.evaluation.pools
            most = sum(map(len, (pools.development, pools.promotion, pools.validation)))
            left = agreed.budget.runs - book.launched
            if left < most:
                reason = f"{left} runs of the budget are left, and a candidate may take {most}"
                return Ending(reason, done=True)
            try:
                made = self.proposer(self.study)
            except AssayError as error:
                return Ending(error.message, done=False)
        if not made:
            return Ending("the proposer has no more candidates", not personal and not self._stuck)
        self.say(f"proposed {', '.join(made)}")
        return None


def _asking(step: agenda.Step) -> Ending:
    return Ending(f"a person is needed: {step.reason}", done=False)


def stop_rule(history: History, agreed: Contract) -> Ending | None:
    """Return the ending by a stop rule of the contract, if one applies."""
    rules = agreed.experiment.stop
    runs = sorted(history.over(), key=lambda run: run.ended.seq if run.ended else 0)
    last = [run.outcome for run in runs if run.outcome != "lost"][-rules.failures :]
    if len(last) == rules.failures and all(outcome != "done" for outcome in last):
        return Ending(f"the last {rules.failures} runs failed", done=False)
    over = (*DECIDED, "inconclusive")
    decided = [n for n, s in history.status.items() if s in over and history.kind[n] != "baseline"]
    if rules.candidates is not None and len(decided) >= rules.candidates:
        reason = f"{len(decided)} candidates are decided, as many as the contract asks for"
        return Ending(reason, done=True)
    if history.launched >= agreed.budget.runs and not history.held:
        return Ending(f"all {agreed.budget.runs} runs of the budget are used", done=True)
    return None
