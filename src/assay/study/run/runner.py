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
another one, which training never saw.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from assay.core.errors import AssayError
from assay.runs import provenance
from assay.runs.files import dump_json, write_atomic
from assay.runs.git import GitError, git, repository
from assay.study.agree import approvals, budget, protocol
from assay.study.agree.protocol import fingerprint
from assay.study.files.models import Candidate, Contract, Phase, RunRecord, Status
from assay.study.measure import extractors, monitor
from assay.study.record import kinds, states
from assay.study.record.ledger import Event, Writer, digest
from assay.study.record.study import ROOT, Study, StudyError, write_json_document, write_text
from assay.study.run.worktree import (
    changed_files,
    refuse_out_of_scope,
    require_repository,
    worktree,
)

PREPARED = kinds.PREPARED
LAUNCHED = kinds.LAUNCHED
EXITED = kinds.EXITED
ENDED = kinds.ENDED
MEASURED = kinds.MEASURED
REGISTERED = kinds.REGISTERED
CONFIRM = "RUN_CANDIDATE"
STOPPED = "study.stopped"
RESUMED = "study.resumed"
SWITCHED = kinds.SWITCHED
LOCKS = ("uv.lock", "poetry.lock", "requirements.txt")
STOP = kinds.STOP

POOLS = kinds.POOLS
DECIDING = kinds.DECIDING
MOST_LOST = kinds.MOST_LOST
GRACE_SECONDS = 10.0
POLL_SECONDS = 0.2
START_SECONDS = 30.0  # after which a run that nobody claimed is given up
HEARTBEAT_SECONDS = 2.0
_LAUNCHABLE = ("validated", "launched", "completed", "inconclusive", "debug", "accepted")


class StillRunning(StudyError):
    """A run that was waited for is not over yet."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a launch would do; also all that a dry run shows.

    Attributes:
        run: Its name.
        candidate: What is tried.
        phase: What for.
        seed: The training seed.
        argv: The command, filled in.
        evaluation: What is run after it, or nothing.
        cwd: Where it runs, relative to the repository or the candidate's worktree.
        env: The whole environment of the process.
        token: What `--confirm` must say.
        protocol: Hash of how it is measured.
        base: The commit whose code it runs, or "" for the directory as it is.
    """

    run: str
    candidate: Candidate
    phase: Phase
    seed: int
    argv: tuple[str, ...]
    evaluation: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    token: str
    protocol: str
    base: str


# ---------------------------------------------------------------------- before a launch


def plan(study: Study, name: str, phase: Phase, seed: int) -> Plan:
    """Check everything that a launch needs, and say what it would do. Starts nothing.

    Raises:
        StudyError: Names the first thing that forbids it.
    """
    refuse_stopped(study)
    reading = study.examine()
    if reading.problems:
        raise StudyError(
            f"The ledger of {study.task}/{study.name} is damaged, {reading.problems[0]}.",
            "Run `assay study verify`; nothing is launched on a ledger that cannot be trusted.",
        )
    agreed = study.contract()
    events = reading.events
    approvals.require_approved(study, agreed, events)
    candidate = study.candidate(name)
    status = states.current(events).get(name)
    if status not in _LAUNCHABLE:
        raise StudyError(
            f"Candidate '{name}' is {status or 'not registered'}; it cannot be launched.",
            "Validate it first: assay study validate.",
        )
    measured = protocol.protocol_hash(study.root, agreed)
    registered = registration(events, name).data
    token = registered["hash"]
    if protocol.registration_hash(candidate, agreed, measured) != token:
        raise StudyError(
            f"Candidate '{name}', or how it is measured, was changed after it was registered; "
            "its evidence is void.",
            "Take the change back, or propose it as a new candidate.",
        )
    pool = POOLS[phase]
    allowed = getattr(agreed.evaluation.pools, pool)
    if seed not in allowed:
        raise StudyError(
            f"Seed {seed} is not in the {pool} pool ({', '.join(map(str, allowed))}).",
            f"The {phase} phase uses that pool alone.",
        )
    refuse_scope(study, agreed, candidate)
    refuse_hardware(agreed)
    refuse_dirty(study, agreed)
    run = _run_name(events, candidate, phase, seed)
    given = environment(agreed)
    if phase in DECIDING:
        refuse_other_environment(events, given)
    shortened = agreed.baseline.shortened.get(phase, {})
    out = (study.path / "runs" / run / "out").resolve()
    return Plan(
        run=run,
        candidate=candidate,
        phase=phase,
        seed=seed,
        argv=command(agreed, seed, out, registered["parameters"] | shortened),
        evaluation=_filled(agreed.evaluation.command, "evaluation", seed, out, agreed),
        cwd=agreed.baseline.cwd,
        env=given,
        token=f"{CONFIRM}:{token[:12]}",
        protocol=measured,
        base=registered["base"],
    )


def refuse_stopped(study: Study) -> None:
    """Refuse to go on while the kill switch is on.

    Raises:
        StudyError: It is.
    """
    reason = stopped(study)
    if reason is not None:
        raise StudyError(
            f"The study is stopped: {reason or 'no reason given'}.",
            "A person lets it go on with: assay study stop --off",
        )


def stopped(study: Study) -> str | None:
    """Return why the study is stopped, by its switch or its ledger, or None if it is not."""
    switch = study.path / STOP
    if switch.exists():
        return switch.read_text().strip()
    said = [e for e in study.ledger.events() if e.kind in (STOPPED, RESUMED)]
    return str(said[-1].data["reason"]) if said and said[-1].kind == STOPPED else None


def refuse_scope(study: Study, agreed: Contract, candidate: Candidate) -> None:
    """Refuse a change that the contract does not allow.

    Raises:
        StudyError: Names the parameter or file, and what is allowed.
    """
    for name, value in candidate.change.parameters.items():
        known = agreed.scope.parameters.get(name)
        if known is None:
            options = ", ".join(agreed.scope.parameters) or "none"
            raise StudyError(f"'{name}' is not in the approved scope ({options}).")
        reason = known.refusal(value)
        if reason:
            raise StudyError(f"{name}={value!r} is out of scope: {reason}.")
    if candidate.change.patch:
        require_repository(study.root)
        paths = changed_files(study.root, candidate.change.patch)
        refuse_out_of_scope(study.root, agreed, paths)


def refuse_hardware(agreed: Contract) -> None:
    """Refuse where the hardware that was agreed on is not there.

    Raises:
        StudyError: It is an obstacle of this machine, not a failure of the candidate.
    """
    if agreed.hardware.kind != "gpu":
        return
    found = [str(gpu) for gpu in provenance.hardware()["gpus"]]
    wanted = agreed.hardware.gpu_model
    fitting = [gpu for gpu in found if wanted.lower() in gpu.lower()]
    if len(fitting) < max(1, agreed.hardware.gpus):
        raise StudyError(
            f"GPU missing: the contract asks for {max(1, agreed.hardware.gpus)} GPU(s) {wanted}; "
            f"this machine has {', '.join(found) or 'none'}.",
            "This is a blocker of the environment: run the study where the hardware is.",
        )


def refuse_dirty(study: Study, agreed: Contract) -> None:
    """Refuse a working tree with changes that no candidate declared.

    Raises:
        StudyError: Names the first changed file.
    """
    if repository(study.root) is None or "dirty-tree" in agreed.experiment.exceptions:
        return
    out = git(study.root, "status", "--porcelain", "-z", "--untracked-files=no")
    changed = [entry[3:] for entry in out.split("\0") if entry]
    changed = [path for path in changed if not path.startswith(f"{ROOT}/")]
    if changed:
        raise StudyError(
            f"The working tree has uncommitted changes ({changed[0]}).",
            "Commit or stash them: a run must say exactly which code it ran.",
        )


def command(agreed: Contract, seed: int, out: Path, parameters: dict[str, Any]) -> tuple[str, ...]:
    """Fill in the contract's command.

    Raises:
        StudyError: It names something that cannot be filled in.
    """
    form = agreed.baseline.parameter_format
    settings = [form.format(name=name, value=value) for name, value in parameters.items()]
    if parameters and "{parameters}" not in agreed.baseline.command:
        raise StudyError(
            "The baseline command has no {parameters}, so that settings would have no effect.",
            "Add it as a word by itself, and have the baseline approved again.",
        )
    words: list[str] = []
    for word in agreed.baseline.command:
        if word == "{parameters}":
            words += settings
        else:
            words += _filled((word,), "baseline", seed, out, agreed)
    return tuple(words)


def _filled(
    words: Sequence[str], what: str, seed: int, out: Path, agreed: Contract
) -> tuple[str, ...]:
    """Fill in the words of a command.

    Raises:
        StudyError: One of them names something else than can be filled in.
    """
    values = {"seed": seed, "out": out, "python": sys.executable}
    values["episodes"] = agreed.evaluation.episodes
    filled = []
    for word in words:
        try:
            filled.append(word.format(**values))
        except (KeyError, IndexError, ValueError):
            raise StudyError(
                f"The {what} command has '{word}', which cannot be filled in.",
                "Use {seed}, {out}, {python}, {episodes} and, in the baseline's as a word by "
                "itself, {parameters}.",
            ) from None
    return tuple(filled)


def environment(agreed: Contract) -> dict[str, str]:
    """Return the whole environment of a run: what is allowed through, and what is set.

    W&B writes to disk alone, unless the contract allows it the network.

    Raises:
        StudyError: What is set needs the network, and the contract does not allow that.
    """
    approvals.refuse_network(agreed)
    passed = {name: os.environ[name] for name in agreed.baseline.env_allow if name in os.environ}
    online = agreed.experiment.network and agreed.experiment.wandb
    local = {} if online else {"WANDB_MODE": "offline"}
    return passed | local | agreed.baseline.env


def fingerprints(env: Mapping[str, str]) -> dict[str, str]:
    """Return a hash of every variable's value: enough to tell that one changed."""
    return {name: digest(value)[:16] for name, value in sorted(env.items())}


def refuse_other_environment(events: Sequence[Event], env: Mapping[str, str]) -> None:
    """Refuse to decide by runs that were given different variables.

    Raises:
        StudyError: Names the first variable that differs from the study's earlier deciding runs.
    """
    earlier = [
        e.data["environment"] for e in events
        if e.kind == PREPARED and e.data["phase"] in DECIDING and "environment" in e.data
    ]  # fmt: skip
    now = fingerprints(env)
    if earlier and earlier[-1] != now:
        odd = next(n for n in sorted({*earlier[-1], *now}) if earlier[-1].get(n) != now.get(n))
        raise StudyError(
            f"The environment variable {odd} is not what it was in the study's earlier runs.",
            "Launch as before, or fix it for all runs in baseline.env and have that approved.",
        )


def registration(events: Sequence[Event], name: str) -> Event:
    """Return the event by which a candidate was frozen.

    Raises:
        StudyError: It was not.
    """
    for event in reversed(events):
        if event.kind == REGISTERED and event.data["candidate"] == name:
            return event
    raise StudyError(
        f"Candidate '{name}' is not registered.", "Validate it first: assay study validate."
    )


def _run_name(events: Sequence[Event], candidate: Candidate, phase: Phase, seed: int) -> str:
    """Name the next attempt at a seed.

    What was lost may be run again, and so may a baseline's seed that failed: candidates are held
    against a whole baseline.

    Raises:
        StudyError: The seed has a result, or is under way: results are not thrown again.
    """
    name, attempts = candidate.id, 0
    outcomes = {e.data["run"]: e.data["outcome"] for e in events if e.kind == ENDED}
    again = ("lost", "failed", "killed") if candidate.kind == "baseline" else ("lost",)
    for event in events:
        if event.kind != PREPARED:
            continue
        data = event.data
        if (data["candidate"], data["phase"], data["seed"]) != (name, phase, seed):
            continue
        attempts += 1
        outcome = outcomes.get(data["run"])
        if outcome is None:
            raise StudyError(
                f"Run '{data['run']}' is under way.",
                "Wait for it, or let `assay study status` find out that it is lost.",
            )
        if outcome == "done" or (phase in DECIDING and outcome not in again):
            raise StudyError(
                f"Seed {seed} of '{name}' has a result in the {phase} phase (run "
                f"'{data['run']}': {outcome}); a seed is not run again.",
                "Use another seed of the pool.",
            )
    if phase in DECIDING and attempts >= MOST_LOST:
        raise StudyError(
            f"Seed {seed} of '{name}' was lost or failed {attempts} times in the {phase} phase.",
            "Find out why; a seed is not thrown until it pleases.",
        )
    taken = {e.data["run"] for e in events if e.kind == budget.RESERVED}
    while (run := f"{name}-{phase}-{seed}" + (f"-{attempts + 1}" if attempts else "")) in taken:
        attempts += 1  # of a launch that was killed before it was prepared
    return run


# ---------------------------------------------------------------------- the launch


def launch(
    study: Study,
    name: str,
    phase: Phase,
    seed: int,
    *,
    confirm: str,
    actor: str,
    between: Callable[[str], None] = lambda step: None,
) -> Plan:
    """Start one run of one candidate; return when its supervisor is started.

    Args:
        study: Whose.
        name: The candidate.
        phase: What for.
        seed: The training seed.
        confirm: The token that a dry run shows, or `RUN_CANDIDATE`.
        actor: Who launches.
        between: Called with the name of each step, for tests that kill there.

    Raises:
        StudyError: Something forbids it; nothing was started.
    """
    study.require_writable()
    recover(study)
    planned = plan(study, name, phase, seed)
    if confirm not in (CONFIRM, planned.token):
        raise StudyError(
            f"'{confirm}' does not confirm this launch.",
            f"Look at the dry run, then pass --confirm {planned.token}.",
        )
    agreed = study.contract()
    place = study.path / "runs" / planned.run
    write_json_document(place / "run.json", _record(study, planned))
    write_text(place / "plan.json", dump_json({"env": planned.env, "actor": actor}).decode())
    (place / "plan.json").chmod(0o600)  # the environment may hold what only this user may read
    between("recorded")
    with study.ledger.transaction() as writer:
        budget.reserve(writer, agreed.budget, planned.run, planned.candidate.budget, actor)
        facts = {
            "run": planned.run, "candidate": name, "phase": phase, "seed": seed,
            "argv": list(planned.argv), "evaluation": list(planned.evaluation),
            "protocol": planned.protocol, "environment": fingerprints(planned.env),
            "registration": registration(list(writer.events()), name).data["hash"],
        }  # fmt: skip
        writer.append(PREPARED, facts, actor=actor)
        if states.current(writer.events())[name] not in ("launched", "accepted"):
            states.move(writer, name, "launched", actor=actor, why=f"{phase} of seed {seed}")
    between("prepared")
    _start_supervisor(study, planned.run)
    between("started")
    return planned


def _record(study: Study, planned: Plan) -> RunRecord:
    facts = provenance.collect(list(planned.argv), cwd=study.root)
    # A worktree of a commit has nothing uncommitted, whatever the repository's own tree has.
    code = {"sha": planned.base} if planned.base else facts["git"] or {}
    locks = (_text_of(study, planned.base, name) for name in LOCKS)
    lock = next((text for text in locks if text is not None), None)
    gpus = facts["hardware"]["gpus"]
    return RunRecord(
        id=planned.run,
        candidate=planned.candidate.id,
        phase=planned.phase,
        seed=planned.seed,
        argv=planned.argv,
        evaluation=planned.evaluation,
        cwd=planned.cwd,
        out="out",
        env={n: "(kept secret)" if provenance.is_secret(n) else v for n, v in planned.env.items()},
        commit=code.get("sha", ""),
        dirty=bool(code.get("dirty", False)),
        diff=code.get("diff", "") and digest(code["diff"]),
        lock=digest(lock) if lock is not None else "",
        versions=facts["packages"],
        host=platform.node(),
        gpu=", ".join(map(str, gpus)) if gpus else "",
        protocol=planned.protocol,
    )


def _text_of(study: Study, base: str, name: str) -> str | None:
    """Return a file as the run sees it, or None if there is none."""
    if not base:
        path = study.root / name
        return path.read_text(errors="replace") if path.is_file() else None
    with contextlib.suppress(GitError):
        return git(study.root, "show", f"{base}:{name}")
    return None


def _start_supervisor(study: Study, run: str) -> None:
    words = [str(study.root.resolve()), study.task, study.name, run]
    subprocess.Popen(
        [sys.executable, "-m", "assay.study.run.runner", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def wait(study: Study, run: str, timeout: float | None = None) -> RunRecord:
    """Wait until a run is over and measured, and return its record.

    Raises:
        StillRunning: It is not over after `timeout` seconds.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        record = poll(study, run)
        if record is not None:
            return record
        if end is not None and time.monotonic() > end:
            raise StillRunning(f"Run '{run}' is not over after {timeout:g} s.")
        time.sleep(POLL_SECONDS)


def poll(study: Study, run: str) -> RunRecord | None:
    """Return the record of a run if it is over and in the ledger, else None.

    The ledger is read only once something has happened: a loop asks often.
    """
    place = study.path / "runs" / run
    record = study.run(run)
    if record.outcome == "running":
        claimed = (place / "claim.json").exists()
        young = time.time() - (place / "run.json").stat().st_mtime < START_SECONDS
        if _supervised(place) if claimed else young:
            return None
        recover(study)
        record = study.run(run)
    over = any(e.kind == ENDED and e.data["run"] == run for e in study.ledger.events())
    return record if over else None


# ---------------------------------------------------------------------- the supervisor


def supervise(study: Study, run: str, between: Callable[[str], None] = lambda step: None) -> None:
    """Claim a run, run it, watch it, and write down how it ended. Called in its own process."""
    place = study.path / "runs" / run
    if not _claim(place, "supervisor"):
        return
    between("claimed")
    _become_subreaper()
    started = time.monotonic()
    exit_code: int | None = None
    outcome, reason = "failed", ""
    program = ""
    try:
        agreed, record, env, actor = _orders(study, run)
        with open(place / "stdout.log", "ab") as log:
            (place / "out").mkdir(exist_ok=True)
            for words in filter(None, (record.argv, record.evaluation)):
                program = words[0]
                training = words is record.argv
                with _tree(study, agreed, record, training) as tree:
                    process = subprocess.Popen(
                        list(words),
                        cwd=tree / record.cwd,
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        preexec_fn=_die_with_parent,
                    )
                    between("running")
                    _note(place / "process.json", process.pid)
                    if training:
                        started = time.monotonic()
                        facts = {"run": run, "pid": process.pid, "host": platform.node()}
                        study.ledger.append(LAUNCHED, facts, actor=actor)
                        between("launched")
                    outcome, reason = _watch(study, agreed, record, process, place, started)
                    exit_code = process.wait()
                    # What training left running must not reach into its evaluation.
                    _kill_descendants()
                if outcome == "done" and exit_code:
                    what = "it" if training else "its evaluation"
                    outcome, reason = "failed", f"{what} exited with {exit_code}"
                if outcome != "done":
                    break
    except AssayError as error:
        outcome, reason = "failed", error.message
    except FileNotFoundError:
        outcome, reason = "failed", f"the command '{program}' was not found"
    except OSError as error:
        outcome, reason = "failed", f"it could not be started: {error}"
    finally:
        _kill_descendants()
    exited(study, run, outcome, reason, exit_code, (time.monotonic() - started) / 3600)
    between("exited")
    finish(study, run)
    between("finished")


def _orders(study: Study, run: str) -> tuple[Contract, RunRecord, dict[str, str], str]:
    """Return what to run as the ledger has it; files that say otherwise are not believed.

    Returns:
        The contract, the record, the environment and who launched it.

    Raises:
        StudyError: A file was changed since the launch.
    """
    events = list(study.ledger.events())
    orders = next(e for e in events if e.kind == PREPARED and e.data["run"] == run)
    record = study.run(run)
    told = (list(record.argv), list(record.evaluation))
    settings = json.loads((study.path / "runs" / run / "plan.json").read_bytes())
    agreed = study.contract()
    approvals.require_approved(study, agreed)
    measured = protocol.protocol_hash(study.root, agreed)
    candidate = study.candidate(record.candidate)
    changed = {
        "its command": told != (orders.data["argv"], orders.data["evaluation"]),
        "its environment": fingerprints(settings["env"]) != orders.data["environment"],
        "its candidate, or how it is measured,": orders.data["registration"]
        != protocol.registration_hash(candidate, agreed, measured),
    }
    for what, is_so in changed.items():
        if is_so:
            raise StudyError(f"{what} was changed after the launch")
    return agreed, record, settings["env"], orders.actor


def exited(
    study: Study, run: str, outcome: str, reason: str, exit_code: int | None, hours: float
) -> None:
    """Put on record how a run ended and what it wrote, before anybody else can touch that."""
    place = study.path / "runs" / run
    facts = {
        "run": run, "outcome": outcome, "reason": reason, "exit_code": exit_code,
        "hours": max(0.0, hours), "artifacts": digest(artifacts(place / "out")),
        "log": fingerprint(place / "stdout.log") if (place / "stdout.log").exists() else "",
    }  # fmt: skip
    study.ledger.append(EXITED, facts, actor="assay")


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
    beat = 0.0
    while process.poll() is None:
        now = time.time()
        if now - beat >= HEARTBEAT_SECONDS:
            with contextlib.suppress(OSError):  # a full disk ends the run soon enough
                write_atomic(place / "heartbeat.json", dump_json({"time": now}))
            beat = now
            reason = health.look(now)
            if reason:
                _end(process)
                return "killed", reason
        if (study.path / STOP).exists():
            _end(process)
            return "lost", SWITCHED  # no result of the candidate's: the seed may be run again
        if time.monotonic() - started > limit:
            _end(process)
            return (
                "killed",
                f"it ran longer than {agreed.experiment.stop.overrun:g} times its request",
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    return "done", ""


def _end(process: subprocess.Popen[bytes]) -> None:
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
    base = registration(list(study.ledger.events()), record.candidate).data["base"]
    if not base:
        yield study.root
        return
    name = record.id if training else f"{record.id}.evaluation"
    with worktree(study, agreed, name, patch, base) as place:
        yield place


def _claim(place: Path, who: str) -> bool:
    """Take the right to start a run; exactly one caller ever gets it.

    The claim is linked into place, so that nobody sees it half written and takes its owner for
    dead.
    """
    draft = place / f"claim-{os.getpid()}.tmp"
    try:
        with open(draft, "wb") as file:
            file.write(dump_json({"by": who, **_identity(os.getpid())}))
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, place / "claim.json")
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def _identity(pid: int) -> dict[str, Any]:
    """Name a process so that a later one with its number is not taken for it."""
    with contextlib.suppress(psutil.Error):
        return {"pid": pid, "created": psutil.Process(pid).create_time(), "host": platform.node()}
    return {"pid": pid, "created": 0.0, "host": platform.node()}


def _note(path: Path, pid: int) -> None:
    write_atomic(path, dump_json(_identity(pid)))


def _alive(identity: dict[str, Any]) -> bool:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(int(identity["pid"]))
        same = abs(process.create_time() - float(identity["created"])) < 1.0
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its supervisor dies (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _become_subreaper() -> None:
    """Inherit orphans of the run (prctl PR_SET_CHILD_SUBREAPER), to end them with it."""
    ctypes.CDLL(None).prctl(36, 1)


def _kill_descendants() -> None:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()


# ---------------------------------------------------------------------- after a run


def finish(study: Study, run: str) -> None:
    """Bring the ledger and the record up to how the run exited; twice does no harm."""
    place = study.path / "runs" / run
    with study.ledger.transaction() as writer:
        events = list(writer.events())
        if any(e.kind == ENDED and e.data["run"] == run for e in events):
            return
        facts = next(dict(e.data) for e in events if e.kind == EXITED and e.data["run"] == run)
        orders = next(e for e in events if e.kind == PREPARED and e.data["run"] == run)
        record = study.run(run)
        values, missing = _measure(study, record)
        written = artifacts(place / "out")
        if facts["outcome"] == "done" and digest(written) != facts["artifacts"]:
            missing = "what it wrote was changed after it had ended"
        if facts["outcome"] == "done" and missing:
            facts |= {"outcome": "failed", "reason": missing}
        told = {key: facts[key] for key in ("outcome", "reason", "exit_code", "hours")}
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        ordered = {key: tuple(orders.data[key]) for key in ("argv", "evaluation")}
        measured = {"ended": ended, "metrics": values, "artifacts": written}
        record = record.model_copy(update=told | ordered | measured)
        write_json_document(place / "run.json", record)
        gpus = study.contract().hardware.gpus if record.gpu else 0
        budget.settle(writer, run, told["hours"], told["hours"] * gpus)
        if not any(e.kind == MEASURED and e.data["run"] == run for e in events):
            writer.append(MEASURED, {"run": run, "metrics": values}, actor="assay")
        sealed = digest(record.model_dump(mode="json"))
        writer.append(ENDED, {"run": run, **told, "record": sealed}, actor="assay")
        _close_candidate(writer, record.candidate, record)
    study.sync()


def artifacts(out: Path) -> dict[str, str]:
    """Return the hash of every file that a run wrote, by its path; of a link, with its target."""
    paths = [path for path in sorted(out.rglob("*")) if path.is_symlink() or path.is_file()]
    return {path.relative_to(out).as_posix(): fingerprint(path) for path in paths}


def _measure(study: Study, record: RunRecord) -> tuple[dict[str, float | None], str]:
    """Extract every metric of the contract, and say what is wrong with the deciding one."""
    place = study.path / "runs" / record.id
    metrics = study.contract().metrics
    values: dict[str, float | None] = {}
    missing = ""
    for metric in metrics.all():
        try:
            values[metric.name] = extractors.extract(metric, place / "out", place / "stdout.log")
        except StudyError as error:
            values[metric.name] = None
            if metric == metrics.primary:
                missing = error.message
    return values, missing


def _close_candidate(writer: Writer, name: str, last: RunRecord) -> None:
    """Move a candidate on when none of its runs is under way."""
    events = list(writer.events())
    if states.current(events).get(name) != "launched":
        return
    mine = {e.data["run"] for e in events if e.kind == PREPARED and e.data["candidate"] == name}
    if mine - {e.data["run"] for e in events if e.kind == ENDED}:
        return
    # In a deciding phase a seed that failed is a result like any other, and is judged.
    counted = last.outcome == "done" or (last.phase in DECIDING and last.outcome != "lost")
    to: Status = "completed" if counted else "debug"
    why = last.reason or "its runs are over"
    states.move(writer, name, to, actor="assay", why=why)


def recover(study: Study) -> list[str]:
    """Find runs whose supervisor is gone and bring the books in order; return their names.

    A run that was prepared and never claimed is claimed here, so that a supervisor that comes
    late cannot start it.
    """
    if study.flat:
        return []  # which is only read
    events = list(study.ledger.events())
    over = {e.data["run"] for e in events if e.kind == ENDED}
    _release(study, events)
    found = []
    for event in events:
        if event.kind != PREPARED or event.data["run"] in over:
            continue
        run = str(event.data["run"])
        place = study.path / "runs" / run
        if not (place / "claim.json").exists():
            age = (datetime.now(UTC) - datetime.fromisoformat(event.time)).total_seconds()
            if age < START_SECONDS or not _claim(place, "recovery"):
                continue
            _lose(study, run, "it was prepared and never started", 0.0)
        elif _supervised(place):
            continue
        else:
            _kill_orphan(place)
            _lose(study, run, "its supervisor was killed", _hours_until_last_beat(place))
        finish(study, run)
        found.append(run)
    _close_left(study, events)
    return found


def _close_left(study: Study, events: Sequence[Event]) -> None:
    """Move candidates on whose last run was ended by someone who was killed before doing so."""
    over = [str(e.data["run"]) for e in events if e.kind == ENDED]
    owner = {e.data["run"]: str(e.data["candidate"]) for e in events if e.kind == PREPARED}
    waiting = {name for name, status in states.current(events).items() if status == "launched"}
    waiting -= {name for run, name in owner.items() if run not in set(over)}
    for name in waiting:
        mine = [run for run in over if owner[run] == name]
        if mine:
            with study.ledger.transaction() as writer:
                _close_candidate(writer, name, study.run(mine[-1]))


def _release(study: Study, events: Sequence[Event]) -> None:
    """Settle what was held back for a run by a launch that was killed before it was prepared."""
    prepared = {e.data["run"] for e in events if e.kind == PREPARED}
    if set(budget.usage(events).open) <= prepared:
        return
    with study.ledger.transaction() as writer:  # no launch is half done while it is held
        prepared = {e.data["run"] for e in writer.events() if e.kind == PREPARED}
        for run in budget.usage(writer.events()).open:
            if run not in prepared:
                budget.settle(writer, run, 0.0, 0.0)


def _supervised(place: Path) -> bool:
    """Return whether the process that claimed a run is alive."""
    try:
        claim = json.loads((place / "claim.json").read_bytes())
    except ValueError:  # somebody else wrote this; who claims links the whole file into place
        return False
    return claim["by"] == "supervisor" and _alive(claim)


def _kill_orphan(place: Path) -> None:
    """End what the run left behind; the kernel has done so already where it could."""
    try:
        identity = json.loads((place / "process.json").read_bytes())
    except (OSError, ValueError):
        return
    if _alive(identity):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(identity["pid"]), signal.SIGKILL)


def _hours_until_last_beat(place: Path) -> float:
    claimed = (place / "claim.json").stat().st_mtime
    with contextlib.suppress(OSError):
        return max(0.0, (place / "heartbeat.json").stat().st_mtime - claimed) / 3600
    return 0.0


def _lose(study: Study, run: str, reason: str, hours: float) -> None:
    """Put on record that a run was lost, unless its supervisor said how it exited."""
    facts = {
        "run": run, "outcome": "lost", "reason": reason, "exit_code": None, "hours": hours,
        "artifacts": digest({}),
    }  # fmt: skip
    with study.ledger.transaction() as writer:
        if not any(e.kind == EXITED and e.data["run"] == run for e in writer.events()):
            writer.append(EXITED, facts, actor="assay")


def stop(study: Study, reason: str, actor: str) -> None:
    """Turn the kill switch on: what runs is ended, and nothing is launched until it is off."""
    study.require_writable()
    switch = study.path / STOP
    switch.touch()  # which takes no room on a full disk
    with contextlib.suppress(OSError):
        switch.write_text(reason.strip() + "\n")
    study.ledger.append(STOPPED, {"reason": reason.strip()}, actor=actor)


def go_on(study: Study, actor: str) -> None:
    """Turn the kill switch off.

    Raises:
        StudyError: It is not on.
    """
    if stopped(study) is None:
        raise StudyError("The kill switch is not on.", "There is nothing to take off.")
    study.ledger.append(RESUMED, {}, actor=actor)
    (study.path / STOP).unlink(missing_ok=True)


def main() -> None:
    """Be the supervisor of one run: `python -m assay.study.run.runner ROOT TASK STUDY RUN`."""
    root, task, study, run = sys.argv[1:]
    supervise(Study(Path(root), task, study), run)


if __name__ == "__main__":
    main()
