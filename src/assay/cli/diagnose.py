"""`assay diagnose`: what is wrong with a run, and what to do about it. Nothing here needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunsRoot
from assay.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from assay.diagnosis.case import Finding
    from assay.diagnosis.report import Diagnosis

EXIT_FOUND = 1
LOGS = (".csv", ".json", ".jsonl", ".npz")


def diagnose(
    run: str = typer.Argument(
        None, metavar="RUN", help="A run, a group of runs, or another program's log file."
    ),
    column: list[str] = typer.Option(
        None, "--column", metavar="METRIC=COLUMN", help="Which column of a log is which metric."
    ),
    rules: bool = typer.Option(False, "--rules", help="List what is looked for."),
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a run, why, and what to type next.

    Reads what a run left behind, or another program's log: CSV, JSON lines, TensorBoard, W&B, and
    the progress.csv, monitor.csv and evaluations.npz of Stable-Baselines3. Nothing is trained or
    changed.

    The exit code is 0 if there is no error (there may be warnings), 1 if there is one, and 2 if
    nothing can be read.
    """
    if rules:
        _list_rules(as_json)
        return
    if run is None:
        raise ConfigError("RUN is missing.", "Give a run, a group of runs or a log file.")
    from assay.diagnosis.report import diagnose as look

    if Path(run).suffix in LOGS and not Path(run).exists():
        raise RunError(f"There is no file '{run}'.", "Give the path of a log, or a run.")
    report = look(locate(run, root), _columns(column or []))
    if as_json:
        output.print_json(report.to_dict())
    else:
        for one in report.diagnoses:
            _show(one)
        if report.group:
            output.say(f"The group '{run}':")
            _list(list(report.group))
    if not report.healthy:
        raise typer.Exit(EXIT_FOUND)


def _columns(given: list[str]) -> dict[str, str]:
    columns = {}
    for text in given:
        metric, sign, column = text.partition("=")
        if not (metric and sign and column):
            raise ConfigError(
                f"--column {text}: expected METRIC=COLUMN.",
                "For example --column rollout/return_mean=score",
            )
        columns[metric] = column
    return columns


def _list_rules(as_json: bool) -> None:
    from assay.diagnosis.report import RULES, describe

    rows = [describe(rule) for rule in RULES]
    rows.append(("seed_variance", "Seeds of a group of which some learn and others do not"))
    if as_json:
        output.print_json([{"name": name, "looks_for": text} for name, text in rows])
        return
    output.show(output.table(("rule", "looks for"), rows))


def _show(one: Diagnosis) -> None:
    from assay.core.wording import counted
    from assay.diagnosis.case import FEW_TO_JUDGE, SEVERITIES

    case = one.case
    what = ", ".join(text for text in (case.algorithm, case.env, case.status) if text)
    if case.columns:
        output.note(f"{case.source} is read as {case.kind}, with these columns:")
        for metric, column in sorted(case.columns.items()):
            output.note(f"  {column} -> {metric}")
        output.note("Others by --column METRIC=COLUMN.")
    counts = {s: sum(f.severity == s for f in one.findings) for s in SEVERITIES}
    words = [counted(counts[s], s) for s in ("error", "warning") if counts[s]]
    verdict = ", ".join(words) or "healthy: no errors, no warnings"
    longest = max((len(values) for _, values in case.series.values()), default=0)
    if longest < FEW_TO_JUDGE:
        verdict += f"; with {counted(longest, 'point')} of each curve, little can be judged"
    output.say(f"{case.source} ({what or case.kind}, {case.unit}={case.count:,}): {verdict}")
    _list(list(one.findings))


def _list(findings: list[Finding]) -> None:
    for one in findings:
        output.say(f"  {one.severity.upper():<8} {one.name}: {one.evidence}")
        output.say(f"           Likely cause: {one.cause}")
        output.say(f"           Next: {one.step}")
        if one.command is not None:
            output.say(f"           {one.command}")
