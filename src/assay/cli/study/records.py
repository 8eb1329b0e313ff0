"""`assay study next`, `status`, `report`, `verify` and `demo`: reports and checks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson
from assay.cli.study import common
from assay.cli.study.common import Call, acting, on_study
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from assay.study.report.standings import Standing


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
        lines.append(f"  {seen.asks}")
    call.show(facts, lines)


@on_study
def status(call: Call) -> None:
    """Show a study: the answer so far, scores and effects, approvals, budget, active runs.

    Exit code 2 if its ledger is damaged.
    """
    from assay.study.agree.approvals import unapproved
    from assay.study.files.contract import placeholders
    from assay.study.files.documents import read_yaml
    from assay.study.record import kinds
    from assay.study.record.history import History
    from assay.study.record.ledger import WAY_OUT
    from assay.study.report.standings import answer, standings
    from assay.study.run import recovery

    found = call.read()
    open_fields = [f for values in read_yaml(found.contract_path) for f in placeholders(values)]
    unready = f"still to be filled in: {', '.join(open_fields)}" if open_fields else ""
    agreed = None if unready else found.contract()
    if agreed is not None and not found.flat:
        recovery.recover(found)
        found.sync()
    reading = found.examine()  # state.json is not taken at its word
    history = History.read(reading.events)
    found.label(history)
    problems = [str(problem) for problem in reading.problems]
    metric = agreed.metrics.primary if agreed else None
    rows = standings(history, agreed)
    reasons = unapproved(agreed, history.approvals) if agreed else {}
    stopped = (found.path / kinds.STOP).exists()
    used, limits = history.usage, agreed.budget if agreed else None
    facts = {
        "task": found.task, "study": found.name,
        "question": agreed.question if agreed else None, "unready": unready or None,
        "answer": answer(rows, history.incumbent, metric),
        "mode": agreed.experiment.mode if agreed else None, "missing": reasons,
        "stopped": stopped, "incumbent": history.incumbent,
        "candidates": dict(history.status),
        "standings": [dataclasses.asdict(row) for row in rows],
        "under_way": list(history.under_way), "problems": problems,
        "budget": {
            "runs": [used.runs, limits and limits.runs],
            "wall_clock_hours": [used.wall_clock_hours, limits and limits.wall_clock_hours],
            "gpu_hours": [used.gpu_hours, limits and limits.gpu_hours],
        },
    }  # fmt: skip
    question = agreed.question if agreed else "the contract is not ready"
    lines: list[Any] = [f"{found.task}/{found.name}: {question}"]
    lines += [f"DAMAGED:   {problem}" for problem in problems]
    lines.append(f"answer:    {facts['answer']}")
    if agreed is None or limits is None:
        lines.append(f"contract:  {unready}")
    else:
        switch = " (stopped: assay study stop --off allows launches again)" if stopped else ""
        approved = f"{len(reasons)} missing: {', '.join(reasons)}" if reasons else "complete"
        lines += [
            f"mode:      {agreed.experiment.mode}{switch}",
            f"approvals: {approved}",
            f"budget:    {used.runs} of {limits.runs} runs, {used.wall_clock_hours:.3g} of "
            f"{limits.wall_clock_hours:g} h, {used.gpu_hours:.3g} of {limits.gpu_hours:g} GPU-h",
            f"incumbent: {history.incumbent or 'the baseline'}",
        ]
    if rows:
        name = metric.name if metric else "score"
        columns = ("candidate", "state", "phase", "seeds>", f"mean {name}>", "against>",
                   "effect [one-sided 95 % limits]>")  # fmt: skip
        lines.append(output.table(columns, [_standing_row(row) for row in rows]))
        lines += [f"{row.name} is {row.state}: {row.reason}" for row in rows if row.reason]
    call.show(facts, [*lines, *(f"running:   {run}" for run in history.under_way)])
    found.refuse_damage(reading.problems, WAY_OUT)


def _standing_row(row: Standing) -> tuple[str, ...]:
    return (
        row.name, row.state, row.phase or "-", row.seeds_text(), number(row.mean),
        number(row.rival_mean), row.effect_text() or "-",
    )  # fmt: skip


@on_study
def report(call: Call) -> None:
    """Write report.md and report.html from the ledger and the artifacts alone."""
    from assay.study.report import pages

    paths = pages.write(call.read(copies=True))
    call.show({"written": paths}, [f"Written: {path}" for path in paths])


@on_study
def verify(
    call: Call,
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="Check every study below a directory.")
    ] = None,
) -> None:
    """Check ledger, anchors and evidence; exit 1 and name the place if something is damaged.

    A contract that was changed and waits for approval is not damage; it exits with 1 as well.
    """
    from assay.study.judge import verify

    studies = verify.studies(path) if path is not None else [call.read(copies=True)]
    facts: dict[str, list[str]] = {}
    lines = []
    for found in studies:
        name = f"{found.task}/{found.name}"
        facts[name] = [str(problem) for problem in verify.verify(found)]
        state = "DAMAGED"
        if all(verify.is_pending(problem) for problem in facts[name]):
            pending = "; the contract waits for approval" if facts[name] else ""
            state = f"intact, {found.ledger.head().seq} events{pending}"
        lines += [f"{name}: {state}", *(f"  {problem}" for problem in facts[name])]
    call.show(facts, lines)
    if any(facts.values()):
        raise typer.Exit(1)


@acting
def anchor(
    call: Call, why: Annotated[str, typer.Option("--why", help="The reason, for the record.")]
) -> None:
    """Record the ledger's head in Git again, after a clone that did not fetch refs/rlxp."""
    found = call.read(copies=True)
    found.anchor_again(call.actor, why)
    where = found.ref.name if found.ref.possible else "state.json alone: there is no Git here"
    call.show({"ref": found.ref.name}, f"The ledger's head is recorded in {where}.")


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
