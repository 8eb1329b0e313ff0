"""`assay study next`, `status`, `report`, `verify` and `demo`: reports and checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson
from assay.cli.study import common
from assay.cli.study.common import Call, acting, on_study


@on_study
def next_step(call: Call) -> None:
    """Show what to do next, why, and whether an agent may do it without asking."""
    from assay.study.steps.advice import next_step

    seen = next_step(call.read())
    facts = {
        "action": seen.action, "reason": seen.reason, "command": seen.command, "safe": seen.safe,
    }  # fmt: skip
    lines = [f"{seen.action}: {seen.reason}"]
    if seen.command:
        lines.append(f"  {seen.command}")
    if not seen.safe:
        lines.append("  A person has to decide this.")
    call.show(facts, lines)


@on_study
def status(call: Call) -> None:
    """Show a study: approvals, budget, candidates, active runs."""
    from assay.study.agree.approvals import missing
    from assay.study.record import kinds
    from assay.study.record.history import History
    from assay.study.run import recovery

    found = call.read()
    if not found.flat:
        recovery.recover(found)
        found.sync()
    agreed = found.contract()
    reading = found.examine()  # state.json is not taken at its word
    history = History.read(reading.events)
    book = found.label(history)
    used = history.usage
    problems = [str(problem) for problem in reading.problems]
    reasons = missing(found, agreed, history.approvals)
    stopped = (found.path / kinds.STOP).exists()
    limits = agreed.budget
    facts = {
        "task": found.task, "study": found.name, "question": agreed.question,
        "mode": agreed.experiment.mode, "missing": reasons, "stopped": stopped,
        "incumbent": book.incumbent, "candidates": dict(book.status),
        "under_way": list(book.under_way), "problems": problems,
        "budget": {
            "runs": [used.runs, limits.runs],
            "wall_clock_hours": [used.wall_clock_hours, limits.wall_clock_hours],
            "gpu_hours": [used.gpu_hours, limits.gpu_hours],
        },
    }  # fmt: skip
    if call.as_json:
        output.print_json(facts)
        return
    output.say(f"{found.task}/{found.name}: {agreed.question}")
    for problem in problems:
        output.say(f"DAMAGED:   {problem}")
    output.say(
        f"mode:      {agreed.experiment.mode}{' (the kill switch is on)' if stopped else ''}"
    )
    approved = f"{len(reasons)} missing: {', '.join(reasons)}" if reasons else "complete"
    output.say(f"approvals: {approved}")
    output.say(
        f"budget:    {used.runs} of {limits.runs} runs, {used.wall_clock_hours:.3g} of "
        f"{limits.wall_clock_hours:g} h, {used.gpu_hours:.3g} of {limits.gpu_hours:g} GPU-h"
    )
    output.say(f"incumbent: {book.incumbent or 'the baseline'}")
    rows = [
        (name, book.kind[name], status, "yes" if name == book.incumbent else "")
        for name, status in book.status.items()
    ]
    output.show(output.table(("candidate", "kind", "state", "incumbent"), rows))
    for run in book.under_way:
        output.say(f"under way: {run}")


@on_study
def report(call: Call) -> None:
    """Write report.md and report.html from the ledger and the artifacts alone."""
    from assay.study.report import pages

    paths = pages.write(call.read())
    call.show({"written": paths}, [f"Written: {path}" for path in paths])


@on_study
def verify(
    call: Call,
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="Check every study below a directory.")
    ] = None,
) -> None:
    """Check ledger, anchors and evidence; exit 1 and name the place if something is damaged."""
    from assay.study.judge import verify

    studies = verify.studies(path) if path is not None else [call.read()]
    facts: dict[str, list[str]] = {}
    lines = []
    for found in studies:
        name = f"{found.task}/{found.name}"
        facts[name] = [str(problem) for problem in verify.verify(found)]
        state = "DAMAGED" if facts[name] else f"intact, {found.ledger.head().seq} events"
        lines += [f"{name}: {state}", *(f"  {problem}" for problem in facts[name])]
    call.show(facts, lines)
    if any(facts.values()):
        raise typer.Exit(1)


@acting
def anchor(
    call: Call, why: Annotated[str, typer.Option("--why", help="The reason, for the record.")]
) -> None:
    """Record the ledger's head in Git again, after a clone that did not fetch refs/rlxp."""
    found = call.read()
    found.anchor_again(call.actor, why)
    call.show({"ref": found.ref.name}, f"The ledger's head is recorded in {found.ref.name}.")


def demo(
    root: Annotated[
        Path | None, typer.Option("--root", help="Where to put it; a new directory by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a complete study on CartPole: of four candidates, only the better one is accepted."""
    import time

    from assay.core.paths import runs_root
    from assay.study.demo import walkthrough

    place = root or runs_root(None) / f"study-demo-{time.strftime('%Y%m%d-%H%M%S')}"
    outcome = walkthrough.run(place, say=output.note if as_json else output.say)
    common.show(as_json, outcome.facts(), outcome.lines())
    if not outcome.as_expected:
        raise typer.Exit(1)
