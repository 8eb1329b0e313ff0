"""Run a repository's training command once, before there is a contract: how long, and what it says.

It is training, so it needs a person's word like every run (`--execute --confirm RUN_ONCE`). It
decides nothing: its seed is a development seed, and the ledger says that it was tried.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assay.runs.git import git
from assay.study.agree.scope import pinned
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.measure import extractors
from assay.study.record.kinds import TRIED
from assay.study.record.study import Study
from assay.study.run import gpus, planning
from assay.study.run.supervisor import run_for
from assay.study.run.worktree import collect, strays, worktree

CONFIRM = "RUN_ONCE"
TRIAL = "trial"  # its directory in the study's


@dataclass(frozen=True, slots=True)
class Trial:
    """How a trial went."""

    argv: tuple[str, ...]
    out: Path
    log: Path
    seconds: float
    exit_code: int | None  # None if it was stopped because it took too long
    outputs: tuple[str, ...] = ()  # globs of what it wrote beside its output


def try_once(study: Study, agreed: Contract, seed: int, limit: float, actor: str) -> Trial:
    """Run the baseline command to its end, or for `limit` seconds.

    Raises:
        StudyError: The command cannot be filled in or was not found.
    """
    place = study.path / TRIAL
    shutil.rmtree(place, ignore_errors=True)
    out, log = place / "out", place / "stdout.log"
    out.mkdir(parents=True)
    argv = planning.command(agreed, seed, out.resolve(), dict(agreed.baseline.parameters))
    begun = time.monotonic()
    held = gpus.lease(agreed, gpus.usable(agreed))
    with held as taken, _tree(study, agreed) as tree, open(log, "xb") as file:
        where = tree / agreed.baseline.cwd
        env = planning.environment(agreed, study.root) | gpus.variables(taken.names)
        try:
            code = run_for(argv, where, env, file, limit)
        except FileNotFoundError:
            raise StudyError(f"The command '{argv[0]}' was not found.") from None
        outputs = strays(where) if tree != study.root else []
        if outputs:
            collect(where, outputs, out)
    seconds = time.monotonic() - begun
    facts = {"argv": list(argv), "seconds": round(seconds, 3), "exit_code": code}
    study.ledger.append(TRIED, facts, actor=actor)
    return Trial(argv, out, log, seconds, code, tuple(outputs))


def trial_seconds(study: Study) -> float | None:
    """Return how long the last trial took that ended by itself, or None."""
    tried = [event.data for event in study.ledger.events() if event.kind == TRIED]
    ended = [data["seconds"] for data in tried if data["exit_code"] == 0]
    return float(ended[-1]) if ended else None


def unread(study: Study, agreed: Contract) -> list[str]:
    """Return which metrics of the contract the last trial does not hold, or holds twice."""
    place = study.path / TRIAL
    if trial_seconds(study) is None or not (place / "out").is_dir():
        return []
    found: list[str] = []
    for metric in agreed.metrics.all():
        try:
            extractors.extract(metric, place / "out", place / "stdout.log")
            found += filter(None, [extractors.doubt(metric, place / "out", place / "stdout.log")])
        except StudyError as error:
            said = " ".join(filter(None, (error.message, error.fix)))
            found.append(
                f"metric '{metric.name}' is not in what the trial wrote: {said} See assay study "
                f"metrics --out {shlex.quote(str(place / 'out'))}, and correct it: assay study "
                "contract set metrics.primary.source.key=KEY (or .path, .kind)"
            )
    return found


@contextmanager
def _tree(study: Study, agreed: Contract) -> Iterator[Path]:
    """Yield where to run: a worktree of the last commit, or the directory as it is without Git."""
    if not pinned(study.root):
        yield study.root
        return
    head = git(study.root, "rev-parse", "HEAD").strip()
    with worktree(study, agreed, TRIAL, "", head) as tree:
        yield tree
