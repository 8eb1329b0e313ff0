"""The one place that starts an experiment.

`launch` re-reads contract and candidate, checks everything that can be checked, writes its
intention and its budget to the ledger, and starts a supervisor in a session of its own. The
supervisor claims the run by creating a file that must not exist; only then does it start the
training process, watch it, and write down how it ended. So a run is started at most once, whoever
is killed and when, and `recover` can tell from the files what happened.

The order of a launch, each step a point at which a kill must do no harm:

    recorded (file) -> prepared and reserved (ledger) -> supervisor started -> claimed (file)
    -> process started -> launched (ledger) -> exited (ledger) -> settled, measured, ended (ledger)

In a Git repository a run gets a worktree of the commit that its candidate was registered on, so
that nothing that was edited, added or committed since has a part in it; an evaluation command gets
another one, which training never saw, and a sandbox where the machine has one. `guard` watches over
what they load and what must not change meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from assay.core.errors import AssayError
from assay.runs.files import dump_json, write_atomic
from assay.study.agree import approvals, interpreter, protocol
from assay.study.agree.protocol import fingerprints
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.files.records import RunRecord, Seen
from assay.study.measure import monitor
from assay.study.record.kinds import LAUNCHED, STOP
from assay.study.record.ledger import Event
from assay.study.record.study import Study
from assay.study.run import gpus, processes, switch
from assay.study.run.guard import Guard
from assay.study.run.processes import (
    TEMPORARY,
    become_subreaper,
    claim,
    die_with_parent,
    identity,
    kill_descendants,
    scratch,
)
from assay.study.run.recovery import POLL_SECONDS, exited, finish
from assay.study.run.sandbox import NONE, Sandbox
from assay.study.run.worktree import collect, worktree

GRACE_SECONDS = 10.0
HEARTBEAT_SECONDS = 2.0
_NO_SPACE = 2**20  # bytes
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def start(study: Study, run: str, held: Sequence[int] = ()) -> None:
    """Start the supervisor of a run, in a session of its own; it keeps some open files `held`."""
    words = [str(study.root.resolve()), study.task, study.name, run]
    subprocess.Popen(
        [sys.executable, "-m", "assay.study.run.supervisor", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=held,
        cwd="/",
    )


def supervise(study: Study, run: str, between: Callable[[str], None] = lambda step: None) -> None:
    """Claim a run, run it, watch it, and write down how it ended. Called in its own process."""
    place = study.path / "runs" / run
    if not claim(place, "supervisor"):
        return
    between("claimed")
    become_subreaper()
    started = time.monotonic()
    exit_code: int | None = None
    outcome, reason = "failed", ""
    program, used = "", ""
    guard: Guard | None = None
    try:
        agreed, record, env, orders = _orders(study, run)
        patch = study.candidate(record.candidate).change.patch
        guard = Guard(study.root, agreed, place, env, orders.data, patch)
        # Neither may be there: what somebody laid into them would be measured.
        with open(place / "stdout.log", "xb") as log:
            (place / "out").mkdir()
            for words in filter(None, (record.argv, record.evaluation)):
                program = words[0]
                training = words is record.argv
                between("training" if training else "evaluation")
                with _tree(study, agreed, record, training) as tree, scratch(env) as own:
                    pinned = tree != study.root
                    given = guard.begin(tree, training, pinned) | own
                    boxes = [] if training else [_sandbox(study, agreed, guard, tree, given)]
                    process, used = started_in(words, tree / record.cwd, given, log, boxes)
                    between("running" if training else "evaluating")
                    write_atomic(place / "process.json", dump_json(identity(process.pid)))
                    if training:
                        started = time.monotonic()
                        facts = {"run": run, "pid": process.pid, "host": platform.node()}
                        study.ledger.append(LAUNCHED, facts, actor=orders.actor)
                        between("launched")
                    outcome, reason = _watch(study, agreed, record, process, place, started)
                    exit_code = process.wait()
                    # What training left running must not reach into its evaluation.
                    kill_descendants()
                    if outcome == "done" and training and agreed.baseline.outputs:
                        collect(tree / record.cwd, agreed.baseline.outputs, place / "out")
                    if outcome == "done":
                        guard.end(tree, training, pinned)
                if outcome == "done" and exit_code:
                    outcome, reason = _ended_badly(exit_code, training, place)
                if outcome == "done" and guard.found:
                    outcome, reason = "failed", guard.found[0]
                if outcome != "done":
                    break
    except AssayError as error:
        outcome, reason = "failed", error.message
    except FileExistsError as error:
        name = Path(str(error.filename)).name
        outcome, reason = "failed", f"'{name}' was in its directory before it was started"
    except FileNotFoundError:
        outcome, reason = "failed", f"the command '{program}' was not found"
    except OSError as error:
        outcome, reason = "failed", f"it could not be started: {error}"
    finally:
        kill_descendants()
    seen = Seen(
        sandbox=used,
        loaded=guard.loaded if guard else {},
        unrecorded=guard.unrecorded if guard else "",
        tampered=tuple(guard.found) if guard else (),
    )
    exited(study, run, outcome, reason, exit_code, (time.monotonic() - started) / 3600, seen)
    between("exited")
    finish(study, run)
    between("finished")


def _sandbox(
    study: Study, agreed: Contract, guard: Guard, tree: Path, env: dict[str, str]
) -> Sandbox:
    """Return what an evaluation is shut in: the repository and its Python cannot be written to."""
    pythons = interpreter.interpreters(study.root, agreed, env)
    homes = {prefix for python in pythons for prefix in interpreter.prefixes(python)}
    pinned = tree != study.root  # else it runs in the repository, and may write there
    fixed = [*([study.root] if pinned else []), *sorted(homes - {Path("/")})]
    writable = [*guard.writable(training=False), tree, Path(env[TEMPORARY])]
    return Sandbox(fixed, writable, network=agreed.experiment.network)


def started_in(
    words: Sequence[str],
    cwd: Path,
    env: dict[str, str],
    log: IO[bytes],
    boxes: Sequence[Sandbox],
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a command in the first sandbox that this machine allows, or in none; say in which."""
    for box in (*boxes, None):
        with contextlib.suppress(subprocess.SubprocessError):  # of the sandbox, before the command
            process = subprocess.Popen(
                list(words),
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=box or die_with_parent,
            )
            return process, box.name if box else NONE if boxes else ""
    raise StudyError(f"the command '{words[0]}' could not be started")


def run_for(
    words: Sequence[str], cwd: Path, env: dict[str, str], log: IO[bytes], limit: float
) -> int | None:
    """Run a command for at most `limit` seconds; return its exit code, or None if it was ended."""
    process, _ = started_in(words, cwd, env, log, ())
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(process)


def _orders(study: Study, run: str) -> tuple[Contract, RunRecord, dict[str, str], Event]:
    """Return what to run as the ledger has it; files that say otherwise are not trusted.

    Returns:
        The contract, the record, the environment and the event of its launch.
    """
    history = study.history()
    orders = history.runs[run].prepared
    record = study.run(run)
    told = (list(record.argv), list(record.evaluation))
    settings = json.loads((study.path / "runs" / run / "plan.json").read_bytes())
    agreed = study.contract()
    approvals.require_approved(study, agreed, history.approvals)
    changed = {
        "its command": told != (orders.data["argv"], orders.data["evaluation"]),
        "its environment": fingerprints(settings["env"]) != orders.data["environment"],
    }
    for what, is_so in changed.items():
        if is_so:
            raise StudyError(f"{what} was changed after the launch")
    registered = history.registration(record.candidate).data
    void = protocol.why_void(study, agreed, record.candidate, registered)
    if void or orders.data["registration"] != registered["hash"]:
        raise StudyError(void or "it was registered again after the launch")
    env = settings["env"] | gpus.variables(orders.data.get("gpus", {}))
    return agreed, record, env, orders


def _watch(
    study: Study,
    agreed: Contract,
    record: RunRecord,
    process: subprocess.Popen[bytes],
    place: Path,
    started: float,
) -> tuple[str, str]:
    """Wait for the process; end it for the kill switch or a stop rule."""
    request = study.candidate(record.candidate).budget.wall_clock_hours
    limit = request * agreed.experiment.stop.overrun * 3600
    health = monitor.Watch(agreed, place)
    beat = -math.inf
    while process.poll() is None:
        now = time.monotonic()  # a clock that is set must not end a run, nor keep it unwatched
        if now - beat >= HEARTBEAT_SECONDS:
            with contextlib.suppress(OSError):  # a full disk ends the run soon enough
                write_atomic(place / "heartbeat.json", dump_json({"time": time.time()}))
            beat = now
            reason = health.look(now) or processes.exceeded(agreed.experiment.stop, place)
            if reason:
                end(process)
                return "killed", reason
        if (study.path / STOP).exists():
            stop = switch.current(study)  # before it takes its time to end
            end(process)
            # No result of the candidate's; its audit counts it.
            return "lost", switch.put_on_record(study, stop)
        if time.monotonic() - started > limit:
            end(process)
            times = f"{agreed.experiment.stop.overrun:g} times"
            asked = f"{request * 3600:.3g} s (its share of budget.wall_clock_hours, or --hours)"
            return "killed", f"it ran longer than {times} its request of {asked}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    over = processes.exceeded(agreed.experiment.stop, place)
    return ("killed", over) if over else ("done", "")


def _ended_badly(exit_code: int, training: bool, place: Path) -> tuple[str, str]:
    """Return the outcome of a process that failed, or that somebody else killed, and why.

    Assay did not end it. What its own fault ends (a segmentation fault, an abort) has failed; what
    comes from outside (out of memory or disk, a reboot, a person's kill) is not a result of the
    candidate.
    """
    what = "it" if training else "its evaluation"
    if shutil.disk_usage(place).free < _NO_SPACE:
        return "lost", f"{what} exited with {exit_code}, and the disk is full"
    if -exit_code not in _FROM_OUTSIDE:
        return "failed", f"{what} exited with {exit_code}"
    name = signal.Signals(-exit_code).name
    return "lost", f"{what} was killed by {name}, which Assay did not send (out of memory?)"


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process group to end, then insist."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
            return


@contextlib.contextmanager
def _tree(study: Study, agreed: Contract, record: RunRecord, training: bool) -> Iterator[Path]:
    """Yield the tree to run in: a worktree of the registered commit, with the patch if any."""
    patch = study.candidate(record.candidate).change.patch
    base = study.history().registration(record.candidate).data["base"]
    if not base:
        yield study.root
        return
    name = record.id if training else f"{record.id}.evaluation"
    with worktree(study, agreed, name, patch, base) as place:
        yield place


def main() -> None:
    """Be the supervisor of one run: `python -m assay.study.run.supervisor ROOT TASK STUDY RUN`."""
    root, task, study, run = sys.argv[1:]
    supervise(Study(Path(root), task, study), run)


if __name__ == "__main__":
    main()
