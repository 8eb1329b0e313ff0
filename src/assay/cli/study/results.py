"""`assay study monitor`, `reflect`, `probe`, `audit-result` and `verdict`: what runs came to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import output
from assay.cli.study import common
from assay.cli.study.candidates import GpuHours, Hours, request_of
from assay.cli.study.common import AsJson, By, DecidingPhase, Name, Root, Task

probe = typer.Typer(help="How far a randomised parameter may go.", no_args_is_help=True)
Phase = Annotated[DecidingPhase, typer.Option("--phase", help="Whose runs are meant.")]


def monitor(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="By default all.")] = None,
    root: Root = None,
    task: Task = None,
    study: Name = None,
    as_json: AsJson = False,
) -> None:
    """Look at runs under way: is the process alive, does it learn?"""
    from assay.study import monitor, runner

    with common.opened(root, task, study) as found:
        if not found.flat:
            runner.recover(found)
        names = [run] if run is not None else list(found.book()[0].under_way)
        seen = {name: monitor.health(found, name) for name in names}
    if as_json:
        levels = {
            name: [{"name": f.name, "level": f.level, "detail": f.detail} for f in findings]
            for name, findings in seen.items()
        }
        output.print_json(levels)
        return
    if not seen:
        output.say("Nothing is under way.")
    for name, findings in seen.items():
        rows = [(finding.name, finding.level, finding.detail) for finding in findings]
        output.show(output.table(("what", "level", "seen"), rows, title=name))


def reflect(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    root: Root = None,
    task: Task = None,
    study: Name = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Look back on a run's reward: trends, saturation, domination, risk of hacking."""
    from assay.study.reflection import reflect

    with common.opened(root, task, study) as found:
        seen = reflect(found, run, common.actor(by))
    if as_json:
        output.print_json(seen.model_dump(mode="json"))
        return
    rows = [
        (
            c.name,
            f"{c.share:.0%}",
            c.trend,
            "yes" if c.saturated else "",
            "yes" if c.dominant else "",
        )
        for c in seen.components
    ]
    columns = ("component", "share>", "trend", "saturated", "dominant")
    output.show(output.table(columns, rows, title=run))
    output.say(f"Risk of hacking: {seen.hacking_risk}")
    for finding in seen.findings:
        output.say(f"  {finding}")


def _yes(value: bool) -> str:
    return "yes" if value else ""


@probe.command("plan")
def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML: a probe plan.")],
    hours: Hours = None,
    gpu_hours: GpuHours = 0.0,
    root: Root = None,
    task: Task = None,
    study: Name = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Write a probe's plan down for good, and propose one candidate per value."""
    from assay.study import candidates
    from assay.study.layout import read_yaml_document
    from assay.study.models import ProbePlan
    from assay.study.probe import drafts, plan_probe

    with common.opened(root, task, study) as found:
        made = read_yaml_document(file, ProbePlan)
        path = plan_probe(found, made, common.actor(by))
        proposed = drafts(found, made, request_of(found, hours, gpu_hours))
        for candidate in proposed:
            candidates.propose(found, candidate, common.actor(by))
    names = [candidate.id for candidate in proposed]
    lines = [f"Planned: {path}", *(f"{n} is a draft: assay study validate {n}" for n in names)]
    common.told(as_json, {"plan": path, "proposed": names}, lines)


@probe.command("summarise")
def summarise(
    name: Annotated[str, typer.Argument(metavar="PROBE")],
    root: Root = None,
    task: Task = None,
    study: Name = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Say how far the parameter may be moved from its nominal value."""
    from assay.study.probe import summarise

    with common.opened(root, task, study) as found:
        seen = summarise(found, name, common.actor(by))
    lines = [
        f"{seen.parameter} succeeds from {seen.lowest} to {seen.highest}.",
        *(f"  {value}: {share:.0%} of the seeds" for value, share in seen.results.items()),
        seen.safety,
    ]
    common.told(as_json, seen.model_dump(mode="json"), lines)


def audit_result(
    name: Annotated[str, typer.Argument(metavar="CANDIDATE")],
    phase: Phase = "promotion",
    root: Root = None,
    task: Task = None,
    study: Name = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a candidate's evidence may be believed; exit 1 if not."""
    from assay.study.result_audit import audit

    with common.opened(root, task, study) as found:
        seen = audit(found, name, phase, common.actor(by))
    if as_json:
        output.print_json(seen.model_dump(mode="json"))
    else:
        rows = [(c.name, "passed" if c.passed else "FAILED", c.detail) for c in seen.checks]
        output.show(output.table(("check", "result", "seen"), rows, title=f"{name}, {phase}"))
        output.say("It may be believed." if seen.passed else "It may not be believed.")
    if not seen.passed:
        raise typer.Exit(1)


def verdict(
    name: Annotated[str, typer.Argument(metavar="CANDIDATE")],
    phase: Phase = "promotion",
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Return whether it could be judged; spend no alpha.")
    ] = False,
    root: Root = None,
    task: Task = None,
    study: Name = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Judge a candidate by the evidence gate, for good."""
    from assay.study import verdict

    with common.opened(root, task, study) as found:
        if dry:
            events = list(found.ledger.events())
            seen = verdict.rehearse(found, events, found.contract(), name, phase)
        else:
            seen = verdict.judge(found, name, phase, common.actor(by))
        status = found.book()[0].status.get(name)
    facts = {"candidate": name, "phase": phase, "status": status, "recorded": not dry}
    lines = [f"{name} in {phase}: {seen.outcome}", *(f"  {reason}" for reason in seen.reasons)]
    if dry:
        lines.append("Nothing was recorded.")
    common.told(as_json, facts | verdict.as_data(seen), lines)
