"""A whole study in about a minute: real training, four candidates, and a gate that sees through.

A small repository that trains a policy on CartPole is written out with a contract and candidates
that a coding agent might propose: one is truly better, one truly worse, one looked better on the
one seed that it was tried on, and one pays itself for something else than the task. What the gate
says about them is not written here: `Outcome.as_expected` compares it with what is true.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.core.wording import counted
from assay.runs.git import git
from assay.study.agree.approvals import approve
from assay.study.agree.setup import initialise
from assay.study.files.contract import APPROVALS
from assay.study.files.documents import StudyError, write_text
from assay.study.judge.gate import noise_floor
from assay.study.record import kinds
from assay.study.record.history import History
from assay.study.record.study import Study
from assay.study.report import pages
from assay.study.run import planning
from assay.study.run.queue import Queue
from assay.study.steps import candidates, proposers
from assay.study.steps.loop import Loop, Say

FILES = Path(__file__).with_name("files")
ACTOR = "demo"
TASK, STUDY = "balance", "demo"
BASELINE, WINNER = "baseline", "better"
LOSERS = ("worse", "lucky", "hacker")
_IDENTITY = ("-c", "user.name=demo", "-c", "user.email=demo@localhost")


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a candidate."""

    name: str  # which one
    state: str  # where it ended
    trial: float  # how much better than the baseline it looked on the one development seed
    # Of the verdict that decided, the first one first; then what an audit found.
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the demo went."""

    study: Study  # the study, to look around in
    noise: float  # standard deviation of the baseline over its seeds
    same: float  # p-value of the A/A test: two halves of the baseline's seeds against each other
    judged: tuple[Judged, ...]  # the candidates
    runs: int  # how many trainings it took
    seconds: float  # how long it took
    pages: tuple[Path, Path]  # the report, as Markdown and as HTML

    @property
    def accepted(self) -> tuple[str, ...]:
        """Return the candidates that the gate accepted."""
        return tuple(one.name for one in self.judged if one.state == "accepted")

    @property
    def as_expected(self) -> bool:
        """Return whether the gate accepted the one that is truly better, and no other."""
        return self.accepted == (WINNER,)

    def facts(self) -> dict[str, Any]:
        """Return what came out, as plain data."""
        return {
            "root": self.study.root,
            "noise": self.noise,
            "aa_p": self.same,
            "candidates": {one.name: one.state for one in self.judged},
            "reasons": {one.name: one.reasons for one in self.judged},
            "as_expected": self.as_expected,
            "runs": self.runs,
            "seconds": self.seconds,
            "report": self.pages,
        }

    def lines(self) -> list[str]:
        """Return what came out, for a terminal: the noise, then every candidate and why."""
        unit = self.study.contract().metrics.primary.unit
        text = [
            f"{BASELINE}: standard deviation {self.noise:.1f} {unit} over its seeds; the A/A test "
            f"of its halves has p = {self.same:.2g}"
        ]
        for one in self.judged:
            text.append(f"{one.name}: {one.state}")
            text.append(f"  on the development seed alone: {one.trial:+.1f} {unit}")
            text += [f"  {reason}" for reason in one.reasons]
        if not self.as_expected:
            got = ", ".join(self.accepted) or "nobody"
            text.append(f"The gate should have accepted {WINNER} alone; it accepted {got}.")
        text.append(
            f"{counted(self.runs, 'training')} in {self.seconds:.0f} s; the report: {self.pages[1]}"
        )
        return text


def run(directory: Path, say: Say = lambda line: None) -> Outcome:
    """Write the repository out, run the study to its end and report on it.

    Args:
        directory: Where to; it must not exist, or be empty.
        say: Told what happens, line by line.

    Raises:
        StudyError: The directory holds something, or a training failed.
    """
    began = time.monotonic()
    study = prepare(directory)
    # The trial that the development seed of every candidate is compared with.
    Queue(study).add(BASELINE, "short", study.contract().evaluation.pools.development)
    ending = Loop(study, confirm=planning.CONFIRM, actor=ACTOR, say=say).run()
    say(f"The loop ended: {ending.reason}.")
    history = study.history()
    done = history.over()
    lost = [run for run in done if run.outcome != "done"]
    if lost:
        log = study.path / "runs" / lost[0].id / "stdout.log"
        raise StudyError(
            f"Run '{lost[0].id}' {lost[0].outcome}: {lost[0].reason}.", f"What it printed: '{log}'."
        )
    written = pages.write(study)[:2]
    metric = study.contract().metrics.primary
    halves = [history.arm(BASELINE, phase, metric.name) for phase in kinds.DECIDING]
    noise, seen = noise_floor(halves[0], halves[1], metric.direction)
    return Outcome(
        study=study,
        noise=noise,
        same=2 * min(seen.p_better, seen.p_worse),
        judged=tuple(_judged(history, metric.name, n) for n in (WINNER, *LOSERS)),
        runs=len(done),
        seconds=time.monotonic() - began,
        pages=written,
    )


def prepare(directory: Path) -> Study:
    """Write out the repository and an approved study with its candidates; nothing is run."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise StudyError(
            f"'{directory}' is not empty.", "Name a new directory for the demo to work in."
        )
    shutil.copytree(
        FILES / "repository",
        directory,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    write_text(directory / ".gitignore", ".rlxp/\n__pycache__/\n")
    git(directory, "init", "--quiet")
    git(directory, "add", ".")
    git(directory, *_IDENTITY, "commit", "--quiet", "--message", "Balance a pole")
    study = initialise(directory, TASK, STUDY, actor=ACTOR)
    write_text(study.contract_path, (FILES / "contract.yaml").read_text())
    for item in APPROVALS:
        approve(study, item, ACTOR)
    for name in proposers.from_file(study, FILES / "candidates.yaml", ACTOR):
        candidates.validate(study, name, ACTOR)
    return study


def _judged(history: History, metric: str, name: str) -> Judged:
    trials = [history.arm(who, "short", metric) for who in (BASELINE, name)]
    (before,), (after,) = (trial.values() for trial in trials)
    assert before is not None and after is not None  # no run failed
    given = [event.data for event in history.verdicts if event.data["candidate"] == name]
    return Judged(
        name=name,
        state=history.status[name],
        trial=after - before,
        reasons=tuple(given[-1]["reasons"]) if given else (),
    )
