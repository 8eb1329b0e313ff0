"""`assay study run`, `batch`, `queue`, `loop` and `stop`: the commands that start and end runs."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import output
from assay.cli.study import common
from assay.cli.study.candidates import GpuHours, Hours, request_of
from assay.cli.study.common import Call, Confirm, Execute, PhaseName, acting, on_study
from assay.core.errors import EXIT_PERSON_NEEDED
from assay.core.wording import counted
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from assay.study.files.records import RunRecord
    from assay.study.record.study import Study
    from assay.study.steps.loop import Proposer

queue = typer.Typer(help="Runs that wait to be launched.", no_args_is_help=True)


@acting
def run(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="CANDIDATE")],
    seed: Annotated[int, typer.Option("--seed", help="A training seed of the phase's pool.")],
    phase: Annotated[PhaseName, typer.Option("--phase", help="What the run is for.")] = "short",
    execute: Execute = False,
    confirm: Confirm = "",
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Do not wait for its end; it continues in the background."),
    ] = False,
) -> None:
    """Launch one run of one candidate, or show what that would do."""
    from assay.study.run import launcher, planning, recovery

    common.refuse_unconfirmed(execute, confirm)
    with call.opened() as found:
        if not execute:
            planned = planning.plan(found, name, phase, seed)
            devices = [gpu["index"] for gpu in planned.gpus]
            facts = {
                "run": planned.run, "argv": planned.argv, "evaluation": planned.evaluation,
                "cwd": planned.cwd, "env": sorted(planned.env), "token": planned.token,
                "hours": planned.candidate.budget.wall_clock_hours, "launched": False,
                "gpus": devices,
            }  # fmt: skip
            lines = [
                f"Dry run of {planned.run}; nothing is started.",
                f"  command: {shlex.join(planned.argv)}",
                *([f"  then:    {shlex.join(planned.evaluation)}"] if planned.evaluation else []),
                f"  in:      {planned.cwd}",
                f"  given:   {', '.join(sorted(planned.env)) or 'no environment variables'}",
                *([f"  GPUs:    any free of {', '.join(devices)}"] if devices else []),
                f"Launch it with: --execute --confirm {planned.token}",
            ]
            call.show(facts, lines)
            return
        actor = call.actor
        planned = launcher.launch(found, name, phase, seed, confirm=confirm, actor=actor)
        if detach:
            facts = {"run": planned.run, "launched": True}
            call.show(facts, f"{planned.run} is launched; watch it: assay study monitor")
            return
        output.note(f"{planned.run} is launched; it continues if this command is interrupted.")
        record = recovery.wait(found, planned.run)
    _show_record(call, found, record)


def _show_record(call: Call, found: Study, record: RunRecord) -> None:
    from assay.study.run.recovery import log_tail

    facts = {
        "run": record.id, "outcome": record.outcome, "reason": record.reason,
        "hours": record.hours, "metrics": record.metrics, "launched": True,
    }  # fmt: skip
    seen = ", ".join(f"{k} {number(v)}" for k, v in record.metrics.items())
    lines = [f"{record.id}: {record.outcome}. {record.reason or seen}"]
    if record.outcome != "done":
        lines.append(log_tail(found.path / "runs" / record.id))
    call.show(facts, lines)
    if record.outcome != "done":
        raise typer.Exit(1)


@on_study
def batch(
    call: Call,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most this many jobs.")
    ] = None,
    enqueue: Annotated[
        bool, typer.Option("--queue", help="Queue the jobs; `queue step` or `loop` runs them.")
    ] = False,
) -> None:
    """Plan the runs that can go now: worktree, GPU, seed, output and rule per job; starts none."""
    from assay.study.run.queue import Queue
    from assay.study.steps import batch

    with call.opened() as found:
        planned = batch.plan(found, limit)
        added: list[str] = []
        if enqueue:
            found.require_writable()
            for job in planned.jobs:
                added += Queue(found).add(job.candidate, job.phase, [job.seed])
    lines: list[Any] = ["No run waits. What comes next: assay study next"]
    if planned.jobs:
        rows = [
            (j.wave, f"{j.candidate}-{j.phase}-{j.seed}", ", ".join(j.gpus) or "-", j.worktree,
             j.output[0], j.rule)
            for j in planned.jobs
        ]  # fmt: skip
        runs = counted(len(planned.jobs), "run")
        title = f"{runs}, {planned.at_once} at once, at most {planned.hours:.3g} h"
        columns = ("wave>", "run", "GPU", "worktree", "output", "rule")
        lines = [output.table(columns, rows, title=title)]
    if planned.left_out:
        lines.append(f"{planned.left_out} more do not fit into budget.runs.")
    if enqueue and planned.jobs:
        lines.append(f"Queued: {len(added)}. Run them with: assay study queue step, or the loop.")
    call.show({**dataclasses.asdict(planned), "hours": planned.hours, "queued": added}, lines)


@queue.command("add")
@on_study
def add(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="CANDIDATE")],
    phase: Annotated[PhaseName, typer.Option("--phase", help="What the runs are for.")] = "short",
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="By default the phase's whole pool.")
    ] = None,
) -> None:
    """Queue runs of a candidate."""
    from assay.study.run.queue import Queue

    with call.opened() as found:
        found.require_writable()
        pool = found.contract().evaluation.pools.of(phase)
        added = Queue(found).add(name, phase, seeds or pool)
    call.show({"added": added}, added or ["Nothing new: all of these runs are queued or done."])


@queue.command("cancel")
@on_study
def cancel(call: Call, name: Annotated[str, typer.Argument(metavar="CANDIDATE")]) -> None:
    """Remove the waiting runs of a candidate from the queue."""
    from assay.study.run.queue import Queue

    with call.opened() as found:
        found.require_writable()
        found.candidate(name)
        count = Queue(found).cancel(name)
    call.show(
        {"cancelled": count},
        f"{counted(count, 'run')} of {name} {'is' if count == 1 else 'are'} cancelled.",
    )


@queue.command("status")
@on_study
def queue_status(call: Call) -> None:
    """Show the runs that wait, run and are done."""
    from assay.study.run.queue import Queue

    items = Queue(call.read()).manifest().items
    rows = [(i.id, i.candidate, i.phase, i.seed, i.state, i.owner, i.attempts) for i in items]
    columns = ("item", "candidate", "phase", "seed>", "state", "runner", "attempts>")
    call.show([item.model_dump(mode="json") for item in items], [output.table(columns, rows)])


@queue.command("step")
@acting
def step(call: Call, execute: Execute = False, confirm: Confirm = "") -> None:
    """Run the next item of the queue to its end, or show which one it is."""
    from assay.study.run import planning
    from assay.study.run.queue import Queue

    common.refuse_unconfirmed(execute, confirm)
    with call.opened() as found:
        waiting = Queue(found)
        if not execute:
            item = waiting.peek()
            if item is None:
                call.show({"next": None}, "Nothing waits.")
                return
            token = planning.plan(found, item.candidate, item.phase, item.seed).token
            facts = {"next": item.model_dump(mode="json"), "token": token}
            lines = [f"Next: {item.id}", f"Launch it with: --execute --confirm {token}"]
            call.show(facts, lines)
            return
        record = waiting.step(confirm=confirm, actor=call.actor)
    if record is None:
        call.show({"launched": False}, "Nothing waits.")
        return
    _show_record(call, found, record)


@queue.command("promote")
@acting
def promote(call: Call) -> None:
    """Rank the short trials and queue the best for promotion (successive halving)."""
    from assay.study.run.queue import Queue
    from assay.study.steps import agenda

    with call.opened() as found:
        chosen, passed = agenda.promote(found, call.actor)
        seeds = found.contract().evaluation.stage("promotion")
        for name in chosen:
            Queue(found).add(name, "promotion", seeds)
    lines = [f"{name} is promoted" for name in chosen] + [f"{name} is rejected" for name in passed]
    call.show({"promoted": chosen, "passed": passed}, lines)


@acting
def loop(
    call: Call,
    execute: Execute = False,
    confirm: Annotated[
        str, typer.Option("--confirm", help="RUN_CANDIDATE: confirms all that was approved.")
    ] = "",
    optuna: Annotated[
        int,
        typer.Option(
            "--optuna", min=0, help="Sample this many new candidates when all are decided."
        ),
    ] = 0,
    file: Annotated[
        Path | None, typer.Option("--propose", help="Propose the candidates of a file first.")
    ] = None,
    hours: Hours = None,
    gpu_hours: GpuHours = 0.0,
) -> None:
    """Keep going (validate, run, audit, judge, propose) until budget or a stop rule ends it.

    Exit code 0: everything proposed is decided, or the budget is used. 3: a person has to decide
    something first; the last lines say what.
    """
    from assay.study.report import pages
    from assay.study.steps import agenda, proposers
    from assay.study.steps.loop import Loop

    how = "A loop is confirmed as a whole: --confirm RUN_CANDIDATE"
    common.refuse_unconfirmed(execute, confirm, how)
    with call.opened() as found:
        if not execute:
            steps = agenda.steps_of(found.book()[0], found.contract())
            waiting = [
                {"action": s.action, "candidate": s.candidate, "phase": s.phase, "seeds": s.seeds,
                 "reason": s.reason} for s in steps
            ]  # fmt: skip
            lines = [f"{s.action}: {s.reason}" for s in steps] or ["Nothing waits."]
            lines.append("Nothing is started. Start it with: --execute --confirm RUN_CANDIDATE")
            call.show({"launched": False, "steps": waiting}, lines)
            return
        actor = call.actor
        if file is not None:
            proposers.from_file(found, file, actor)

        def sample(study: Study) -> list[str]:
            request = request_of(study, hours, gpu_hours)
            return proposers.from_optuna(study, optuna, request, actor)

        proposer: Proposer | None = sample if optuna else None
        ending = Loop(found, confirm, actor, proposer=proposer, say=output.note).run()
        paths = pages.write(found)
        history = found.history()
    facts = {
        "ended": ending.reason, "done": ending.done, "candidates": dict(history.status),
        "report": paths,
    }  # fmt: skip
    states = [f"  {name}: {history.shown_state(name)}" for name in history.status]
    call.show(facts, [f"Ended: {ending.reason}", *states, f"Report: {paths[0]}"])
    if not ending.done:
        raise typer.Exit(EXIT_PERSON_NEEDED)


@acting
def stop(
    call: Call,
    reason: Annotated[str, typer.Option("--reason", help="For the record.")] = "stopped by hand",
    off: Annotated[bool, typer.Option("--off", help="Release the kill switch.")] = False,
) -> None:
    """Stop all runs and launch no more, until `stop --off`.

    A run that is stopped counts as lost. No audit of an arm passes that was stopped twice.
    """
    from assay.study.run import switch

    with call.opened() as found:
        found.require_writable()
        if off:
            switch.go_on(found, call.actor)
        else:
            switch.stop(found, reason, call.actor)
    word = "off: launches are possible again" if off else "on: runs end, nothing is launched"
    call.show({"stopped": not off}, f"The kill switch is {word}.")
