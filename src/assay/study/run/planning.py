"""What a launch would do, and everything that forbids it. Nothing is started here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.runs.git import GitError, git
from assay.study.agree import approvals, checkout, interpreter, protocol, rules, spending, untracked
from assay.study.agree.protocol import fingerprints
from assay.study.agree.scope import refuse_scope
from assay.study.files.base import POOLS, Phase
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.record.book import DECIDED, never_started
from assay.study.record.history import OVER, History
from assay.study.record.kinds import DECIDING, MOST_LOST
from assay.study.record.study import Study
from assay.study.run import gpus
from assay.study.run.switch import refuse_stopped

CONFIRM = "RUN_CANDIDATE"
_LAUNCHABLE = ("validated", "launched", "completed", "inconclusive", "debug", "accepted")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a launch would do; also all that a dry run shows."""

    run: str  # its name
    candidate: Candidate  # what is tried
    phase: Phase  # what for
    seed: int  # the training seed
    argv: tuple[str, ...]  # the command, filled in
    evaluation: tuple[str, ...]  # what is run after it, or nothing
    cwd: str  # where it runs, relative to the repository or the candidate's worktree
    env: dict[str, str]  # the whole environment of the process
    token: str  # what `--confirm` must say
    protocol: str  # hash of how it is measured
    base: str  # the commit whose code it runs, or "" for the directory as it is
    startup: dict[str, str]  # hashes of the files that Python loads at its start
    untracked: untracked.Facts  # what runs need that Git does not hold
    gpus: tuple[gpus.Gpu, ...]  # those that it may be given one or more of


def plan(study: Study, name: str, phase: Phase, seed: int) -> Plan:
    """Check everything that a launch needs, and say what it would do. Starts nothing.

    Raises:
        StudyError: Names the first thing that forbids it.
    """
    refuse_stopped(study)
    reading = study.examine()
    way_out = "Run `assay study verify`; nothing is launched on a ledger that cannot be trusted."
    study.refuse_damage(reading.problems, way_out)
    agreed = study.contract()
    history = History.read(reading.events)
    approvals.require_approved(study, agreed, history.approvals)
    approvals.require_same_code(history, history.base or "")
    candidate = study.candidate(name)
    status = history.status.get(name)
    if status not in _LAUNCHABLE:
        raise StudyError(
            f"Candidate '{name}' is {status or 'not registered'}; it cannot be launched.",
            OVER if status in DECIDED else "Validate it first: assay study validate.",
        )
    registered = history.registration(name).data
    _refuse_void(study, agreed, history, name)
    spending.due(history, agreed, name, phase)  # what could not be judged is not run
    allowed = agreed.evaluation.pools.of(phase)
    if seed not in allowed:
        raise StudyError(
            f"Seed {seed} is not in the {POOLS[phase]} pool ({', '.join(map(str, allowed))}).",
            f"The {phase} phase uses that pool alone.",
        )
    refuse_scope(study, agreed, candidate)
    devices = gpus.usable(agreed)
    rules.refuse_dirty(study.root, agreed)
    if agreed.baseline.outputs and not registered["base"]:
        raise StudyError(
            "baseline.outputs needs a Git repository with a commit: without one all runs write to "
            "the same directory.",
            "Begin a repository (git init), or have the script write to {out}.",
        )
    run = _run_name(history, candidate, phase, seed)
    given = environment(agreed, study.root)
    if registered["base"]:
        _refuse_gone(study, name, registered["base"])
        checkout.refuse_obstacles(study.root)
        interpreter.refuse_unmapped(study.root, agreed, given)
    pythons = interpreter.interpreters(study.root, agreed, given)
    startup = interpreter.startup_files(pythons, given)
    orders = [run.prepared.data for run in history.runs.values()]
    kept = [order["untracked"] for order in orders if order.get("untracked")]
    data = untracked.examine(study.root, agreed, kept[-1] if kept else {})
    if phase in DECIDING:
        refuse_other_environment(history, given)
        refuse_other_files(study.root, history, startup, data)
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
        token=f"{CONFIRM}:{registered['hash'][:12]}",
        protocol=registered["protocol"],
        base=registered["base"],
        startup=startup,
        untracked=data,
        gpus=devices,
    )


def _refuse_gone(study: Study, name: str, base: str) -> None:
    """Refuse a candidate whose code is not in this repository."""
    try:
        git(study.root, "cat-file", "-e", f"{base}^{{commit}}")
    except GitError:
        raise StudyError(
            f"Commit {base[:12]}, which '{name}' was registered on, is not in '{study.root}'.",
            "Fetch it, or copy the repository together with its .git; or begin a new study on the "
            "code that is here: assay study init --study NAME --activate.",
        ) from None


def _refuse_void(study: Study, agreed: Contract, history: History, name: str) -> None:
    """Refuse a candidate whose evidence would be void, or whose rival's is."""
    registered = history.registration(name).data
    void = protocol.why_void(study, agreed, name, registered)
    if void:
        raise StudyError(
            f"Evidence on '{name}' would be void: {void}.",
            "Put it back; or, before its first deciding run, register it as it is now: "
            f"assay study validate {name}.",
        )
    rivals = [history.incumbent] if history.incumbent else history.baselines()[:1]
    for rival in rivals:
        other = history.registered.get(rival)
        if other is None or other.data["protocol"] == registered["protocol"]:
            continue
        odd = protocol.differing(
            other.data.get("measures", {}), protocol.measures(study.root, agreed)
        )
        raise StudyError(
            f"'{rival}' was measured by another protocol, and nothing could be compared with it: "
            f"{', '.join(odd)} changed since.",
            f"Put it back, or discard {rival} and measure a baseline again.",
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
    """Fill in the words of a command."""
    values: dict[str, Any] = {"seed": seed, "out": out, "python": sys.executable}
    if agreed.evaluation.episodes is not None:
        values["episodes"] = agreed.evaluation.episodes
    elif any("{episodes}" in word for word in words):
        raise StudyError(
            f"The {what} command has {{episodes}}, and evaluation.episodes is empty.",
            "Say how many: assay study contract set evaluation.episodes=20",
        )
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


def environment(agreed: Contract, root: Path) -> dict[str, str]:
    """Return the whole environment of a run: what is allowed through, and what is set.

    W&B writes to disk alone, unless the contract allows it the network.
    """
    rules.refuse_network(agreed)
    passed = {name: os.environ[name] for name in agreed.baseline.env_allow if name in os.environ}
    online = agreed.experiment.network and agreed.experiment.wandb
    local = {} if online else {"WANDB_MODE": "offline"}
    return passed | local | interpreter.uv_variables(root, agreed) | agreed.baseline.env


def refuse_other_environment(history: History, env: Mapping[str, str]) -> None:
    """Refuse to decide by runs that were given different variables."""
    orders = [run.prepared.data for run in history.runs.values() if run.phase in DECIDING]
    earlier = [given["environment"] for given in orders if "environment" in given]
    now = fingerprints(env)
    if earlier and earlier[-1] != now:
        odd = next(n for n in sorted({*earlier[-1], *now}) if earlier[-1].get(n) != now.get(n))
        raise StudyError(
            f"The environment variable {odd} is not what it was in the study's earlier runs.",
            "Launch as before, or fix it for all runs in baseline.env and have that approved.",
        )


def refuse_other_files(
    root: Path, history: History, startup: Mapping[str, str], data: untracked.Facts
) -> None:
    """Refuse to decide by runs that differ in what Git does not hold.

    Raises:
        StudyError: Names a file that Python loads at its start, or data, that has changed.
    """
    earlier = [run.prepared.data for run in history.runs.values() if run.phase in DECIDING]
    for order in [order for order in earlier if "startup" in order][-1:]:
        odd = interpreter.changed(order["startup"], startup)
        if odd:
            raise StudyError(
                f"'{odd}', which Python loads at its start, is not what it was in the study's "
                "earlier runs.",
                "Put the environment back as it was, or begin a new study in the new one.",
            )
    for order in [order for order in earlier if order.get("untracked")][-1:]:
        odd = untracked.changed(root, data, order["untracked"])
        if odd:
            raise StudyError(
                f"{odd} is not what it was in the study's earlier runs.",
                "Put it back as it was, or begin a new study on the new data.",
            )


def _run_name(history: History, candidate: Candidate, phase: Phase, seed: int) -> str:
    """Name the next attempt at a seed.

    What was lost may be run again, and so may a baseline's seed that failed: candidates are
    compared with a whole baseline.

    Raises:
        StudyError: The seed has a result, or is under way: results are not thrown again.
    """
    name, attempts, counted = candidate.id, 0, 0
    again = ("lost", "failed", "killed") if candidate.kind == "baseline" else ("lost",)
    for run in history.of_candidate(name):
        if (run.phase, run.seed) != (phase, seed):
            continue
        attempts += 1
        counted += not never_started(run)
        if run.ended is None:
            raise StudyError(
                f"Run '{run.id}' is under way.",
                "Wait for it, or let `assay study status` find out that it is lost.",
            )
        if run.outcome == "done" or (phase in DECIDING and run.outcome not in again):
            raise StudyError(
                f"Seed {seed} of '{name}' has a result in the {phase} phase (run "
                f"'{run.id}': {run.outcome}); a seed is not run again.",
                "Use another seed of the pool.",
            )
    if phase in DECIDING and counted >= MOST_LOST:
        raise StudyError(
            f"Seed {seed} of '{name}' was lost or failed {counted} times in the {phase} phase.",
            "Find out why; a seed is not repeated until its result is liked.",
        )
    taken = history.reserved
    while (named := f"{name}-{phase}-{seed}" + (f"-{attempts + 1}" if attempts else "")) in taken:
        attempts += 1  # of a launch that was killed before it was prepared
    return named
