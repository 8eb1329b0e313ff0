"""`assay design`: describe a problem, check it, choose an algorithm, and make it run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunsRoot
from assay.core.errors import EXIT_USER_ERROR

if TYPE_CHECKING:
    from assay.design.rules import Finding

app = typer.Typer(
    help="Before the first run: describe a problem, check it, choose an algorithm, make it run.",
    no_args_is_help=True,
)
FILE = Path("problem.yaml")
File = Annotated[Path, typer.Option("--file", "-f", help="The problem.")]


@app.command("check")
def check(
    section: Annotated[
        str | None, typer.Argument(metavar="[SECTION]", help="Only this section.")
    ] = None,
    file: File = FILE,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="Also check the reward terms that a run logged."),
    ] = None,
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Check a problem; exit with 2 if something in it cannot work."""
    from assay.design import checks
    from assay.design.documents import read_document
    from assay.evaluation.formatting import counted

    if section is not None:
        checks.known_section(section)
    problem = read_document(file).problem
    found = checks.check(problem, section)
    if run is not None:
        found += _of_run(problem, run, root)
    known = checks.facts(problem, section)
    errors = [one for one in found if one.severity == "error"]
    if as_json:
        findings = [one.to_dict() for one in found]
        output.print_json({"valid": not errors, "findings": findings, "facts": known})
    else:
        _show(found)
        for name, facts in known.items():
            output.say(f"{name}: " + "; ".join(f"{k} {_short(v)}" for k, v in facts.items()))
        warnings = sum(one.severity == "warning" for one in found)
        words = f"{counted(len(errors), 'error')}, {counted(warnings, 'warning')}"
        output.say(f"{file}: {words}.")
    if errors:
        raise typer.Exit(EXIT_USER_ERROR)


def _of_run(problem: Any, run: str, root: Path | None) -> list[Finding]:
    from assay.design.reward_runs import check_series, read_terms
    from assay.runs.directory import RunDirectory

    series = read_terms(problem, RunDirectory.open(locate(run, root)))
    return check_series(problem.reward, series)


def _show(findings: list[Finding]) -> None:
    for one in findings:
        output.say(f"{one.severity.upper():<8} {one.rule}: {one.field}: {one.message}")
        output.say(f"         Why: {one.why}")
        output.say(f"         Fix: {one.fix}")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@app.command("explain")
def explain(
    rule: Annotated[
        str | None, typer.Argument(metavar="[RULE]", help="Such as reward.suicide; all if missing.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a rule looks for, why, what to do, and show a problem that breaks it."""
    from assay.design.checks import RULES, known_rule
    from assay.design.documents import render
    from assay.design.explanations import examples

    if rule is None:
        rows = [(one.name, one.severity, one.summary) for one in RULES.values()]
        if as_json:
            output.print_json([one.describe() for one in RULES.values()])
        else:
            output.show(output.table(("rule", "severity", "looks for"), rows))
        return
    one = known_rule(rule)
    shown = examples().get(rule, {})
    if as_json:
        output.print_json({**one.describe(), "examples": shown})
        return
    output.say(f"{one.name} ({one.severity}): {one.summary}")
    output.say(f"Why: {one.why}")
    output.say(f"Fix: {one.fix}")
    for name, title in (("bad", "It finds something here:"), ("good", "And nothing here:")):
        if name in shown:
            output.say(title)
            for line in render(shown[name]).splitlines():
                output.say(f"  {line}")


@app.command("set")
def set_fields(
    fields: Annotated[
        list[str], typer.Argument(metavar="FIELD=VALUE...", help="Such as mdp.gamma=0.99.")
    ],
    file: File = FILE,
) -> None:
    """Set fields of a problem; comments and order of the file stay."""
    from assay.core.config import parse_assignments
    from assay.design.documents import assign, read_document

    values = parse_assignments(fields)
    assign(read_document(file), values)
    output.note(f"{file}: {', '.join(values)}")


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of problem.yaml, for editors."""
    from assay.design.problem import json_schema

    output.print_json(json_schema())
