"""`assay study monitor`, `analyze`, `scorecard`, `reflect`, `probe`, `audit-result`, `verdict`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import output
from assay.cli.study.candidates import GpuHours, Hours, request_of
from assay.cli.study.common import Call, DecidingPhase, PhaseName, acting, on_study
from assay.core.wording import counted
from assay.evaluation.formatting import number, signed

if TYPE_CHECKING:
    from rich.table import Table

    from assay.study.measure.monitor import Finding

probe = typer.Typer(help="Find out how far a parameter may be randomised.", no_args_is_help=True)
Phase = Annotated[DecidingPhase, typer.Option("--phase", help="The phase whose runs are meant.")]


@on_study
def monitor(
    call: Call,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="By default all.")] = None,
) -> None:
    """Check active runs: is the process alive, does it learn?"""
    from assay.study.measure import monitor
    from assay.study.run import recovery

    with call.opened() as found:
        if not found.flat:
            recovery.recover(found)
        names = [run] if run is not None else list(found.book()[0].under_way)
        seen = {name: monitor.health(found, name) for name in names}
    facts = {name: [dataclasses.asdict(f) for f in findings] for name, findings in seen.items()}
    tables = [_findings(findings, name) for name, findings in seen.items()]
    call.show(facts, tables or "Nothing is under way.")


def _findings(findings: Iterable[Finding], title: str = "") -> Table:
    rows = [(finding.name, finding.level, finding.detail) for finding in findings]
    return output.table(("what", "level", "seen"), rows, title=title)


@on_study
def analyze(call: Call, run: Annotated[str, typer.Argument(metavar="RUN")]) -> None:
    """Analyse one run: extract its metrics, compare them, diagnose it, classify it.

    Nothing is written. One seed decides nothing; the class says what to look at next.
    """
    from assay.study.report.analysis import analyze

    seen = analyze(call.read(), run)
    rows = [
        (m.metric, number(m.value), number(m.rival_mean),
         "-" if m.deviations is None else f"{m.deviations:+.1f}")
        for m in seen.metrics
    ]  # fmt: skip
    columns = ("metric", "value>", f"mean of {seen.rival or 'the rival'}>", "better by (sd)>")
    metrics = output.table(columns, rows, title=f"{seen.run}: {seen.outcome}")
    log = [seen.log] if seen.log else []
    told = [f"Class: {seen.kind} ({seen.why})", seen.next]
    call.show(dataclasses.asdict(seen), [metrics, _findings(seen.findings), *log, *told])


@on_study
def scorecard(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="CANDIDATE")],
    phase: Annotated[
        PhaseName | None, typer.Option("--phase", help="By default the last that has scores.")
    ] = None,
) -> None:
    """Show all metrics of a candidate beside its rival's; exit 1 if a guardrail is violated."""
    from assay.study.report.scorecard import scorecard

    found = call.read()
    seen = scorecard(found, found.history(), name, phase)
    rows = [
        (line.role, line.metric, line.seeds, number(line.mean), number(line.rival_mean),
         "-" if line.better is None else signed(line.better), line.state, line.detail)
        for line in seen.lines
    ]  # fmt: skip
    columns = ("role", "metric", "seeds>", "mean>", f"{seen.rival or 'rival'}>", "better by>",
               "state", "seen")  # fmt: skip
    card = output.table(columns, rows, title=f"{seen.candidate}, {seen.phase}")
    call.show(dataclasses.asdict(seen) | {"violated": seen.violated}, [card])
    if seen.violated:
        raise typer.Exit(1)


@acting
def reflect(call: Call, run: Annotated[str, typer.Argument(metavar="RUN")]) -> None:
    """Analyse a run's reward: trends, saturation, domination, risk of hacking."""
    from assay.study.measure.reflection import reflect

    with call.opened() as found:
        seen = reflect(found, run, call.actor)
    yes = {True: "yes", False: ""}
    rows = [
        (c.name, f"{c.share:.0%}", c.trend, yes[c.saturated], yes[c.dominant])
        for c in seen.components
    ]
    columns = ("component", "share>", "trend", "saturated", "dominant")
    lines = [f"Risk of hacking: {seen.hacking_risk}", *(f"  {each}" for each in seen.findings)]
    call.show(seen.model_dump(mode="json"), [output.table(columns, rows, title=run), *lines])


@probe.command("plan")
@acting
def plan(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML: a probe plan.")],
    hours: Hours = None,
    gpu_hours: GpuHours = 0.0,
) -> None:
    """Record a probe's plan, which is then fixed, and propose one candidate per value."""
    from assay.study.files.documents import read_yaml_document
    from assay.study.files.records import ProbePlan
    from assay.study.measure.probe import drafts, plan_probe
    from assay.study.steps import candidates

    with call.opened() as found:
        made = read_yaml_document(file, ProbePlan)
        path = plan_probe(found, made, call.actor)
        proposed = drafts(found, made, request_of(found, hours, gpu_hours))
        for candidate in proposed:
            candidates.propose(found, candidate, call.actor)
    names = [candidate.id for candidate in proposed]
    lines = [f"Planned: {path}", *(f"{n} is a draft: assay study validate {n}" for n in names)]
    call.show({"plan": path, "proposed": names}, lines)


@probe.command("summarise")
@acting
def summarise(call: Call, name: Annotated[str, typer.Argument(metavar="PROBE")]) -> None:
    """Show how far the parameter may be moved from its nominal value."""
    from assay.study.measure.probe import summarise

    with call.opened() as found:
        seen = summarise(found, name, call.actor)
    lines = [
        f"{seen.parameter} succeeds from {seen.lowest} to {seen.highest}.",
        *(f"  {value}: {share:.0%} of the seeds" for value, share in seen.results.items()),
        seen.safety,
    ]
    call.show(seen.model_dump(mode="json"), lines)


@acting
def audit_result(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="CANDIDATE")],
    phase: Phase = "promotion",
) -> None:
    """Check whether a candidate's results can be trusted; exit 1 if not."""
    from assay.study.judge.audit import audit

    with call.opened() as found:
        seen = audit(found, name, phase, call.actor)
    rows = [(c.name, "passed" if c.passed else "FAILED", c.detail) for c in seen.checks]
    checks = output.table(("check", "result", "seen"), rows, title=f"{name}, {phase}")
    trusted = "can" if seen.passed else "cannot"
    call.show(seen.model_dump(mode="json"), [checks, f"The results {trusted} be trusted."])
    if not seen.passed:
        raise typer.Exit(1)


@acting
def verdict(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="CANDIDATE")],
    phase: Phase = "promotion",
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Show whether it could be judged; no alpha is spent.")
    ] = False,
) -> None:
    """Judge a candidate by the evidence gate; the verdict is final."""
    from assay.study.judge import verdict

    with call.opened() as found:
        if dry:
            seen = verdict.rehearse(found, found.history(), found.contract(), name, phase)
        else:
            seen = verdict.judge(found, name, phase, call.actor)
        status = found.book()[0].status.get(name)
        given = None if dry else found.history().verdict(name, phase)
    shown = given.data.get("iqm", {}) if given else {}
    facts = {"candidate": name, "phase": phase, "status": status, "recorded": not dry}
    lines = [f"{name} in {phase}: {seen.outcome}", *(f"  {reason}" for reason in seen.reasons)]
    lines += [
        f"  IQM of {who} over {counted(n, 'seed')}: {point:.4g} [{low:.4g}, {high:.4g}]"
        for who, (point, low, high, n) in shown.items()
    ]
    if dry:
        lines.append("Nothing was recorded.")
    call.show(facts | verdict.as_data(seen), lines)
