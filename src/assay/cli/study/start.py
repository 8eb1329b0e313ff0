"""`assay study start`: from a repository to a filled contract."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson
from assay.cli.study import common
from assay.cli.study.common import By, Execute

if TYPE_CHECKING:
    from assay.study.run.trial import Trial
    from assay.study.steps.start import Draft


def start(
    script: Annotated[
        str | None,
        typer.Argument(metavar="[SCRIPT]", help="The file that trains; by default it is found."),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option("--root", help="The repository; by default the working directory."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="Name of the task.")] = None,
    study: Annotated[str | None, typer.Option("--study", help="Name of the study.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting that all runs are given."),
    ] = None,
    question: Annotated[
        str, typer.Option("--question", help="What the study is to find out.")
    ] = "",
    minimum_effect: Annotated[
        float | None,
        typer.Option("--minimum-effect", help="The smallest improvement worth having."),
    ] = None,
    candidates: Annotated[
        int, typer.Option("--candidates", min=1, help="How many changes you expect to try.")
    ] = 3,
    seeds: Annotated[
        int, typer.Option("--seeds", min=5, help="Training seeds of each of the two phases.")
    ] = 10,
    python: Annotated[
        str, typer.Option("--python", help="The repository's own interpreter.", show_default=False)
    ] = "{python}",
    profile: Annotated[
        str | None, typer.Option("--profile", help="A packaged profile, or a file of hints.")
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.01, help="Stop the trial run after this time.")
    ] = 10.0,
    execute: Execute = False,
    confirm: Annotated[
        str, typer.Option("--confirm", help="RUN_ONCE: train once, to see metrics and time.")
    ] = "",
    activate: Annotated[bool, typer.Option("--activate", help="Replace the active study.")] = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Audit a repository and fill in a contract; with --execute train once, to time it."""
    from assay.study.agree.setup import initialise, task_name, without_git
    from assay.study.files.documents import StudyError, write_text, write_yaml_document
    from assay.study.repo.audit import inspect
    from assay.study.repo.card import task_card
    from assay.study.repo.proposal import propose
    from assay.study.report import pages
    from assay.study.run.trial import CONFIRM
    from assay.study.steps import start

    if execute != (confirm == CONFIRM):
        raise StudyError(
            f"--execute and --confirm {CONFIRM} belong together: they train once.",
            "Leave both out to fill in the contract without running anything.",
        )
    place = (root or Path.cwd()).resolve()
    start.refuse_python(place, python)
    seen = inspect(place, profile, script)
    found = propose(seen.adapter)
    given, odd = start.as_spelt(found.parameters, common.assignments(settings or []))
    actor = common.actor(by)
    made = start.unapproved(place, task, study)
    filled_before = made is not None
    if made is None:
        start.refuse_unusable(place, found)  # before anything is written
        made = initialise(
            place, task_name(place, task), study or "first", actor=actor, activate=activate
        )
    write_yaml_document(made.task_path / "adapter.yaml", seen.adapter)
    write_text(made.task_path / "task_card.md", task_card(place, seen.adapter, seen.findings))
    wishes = start.Wishes(question, minimum_effect, candidates, seeds, python, given)
    if execute and filled_before and script is None:
        filled = start.again(made, wishes)  # what was changed by hand since stays
    else:
        filled = start.draft(made, found, wishes)
    start.write(made, filled)
    trial = None
    if execute:
        output.note(f"Training once (at most {minutes:g} minutes) ...")
        trial = start.learn(filled, made, minutes * 60, actor)
        start.write(made, filled)
    made.sync()
    pages.write(made)
    warnings = [*without_git(place), *seen.findings, *odd]
    facts = {
        "task": made.task, "study": made.name, "contract": made.contract_path,
        "decide": [dataclasses.asdict(decision) for decision in filled.decisions],
        "trial": None if trial is None else dataclasses.asdict(trial), "warnings": warnings,
    }  # fmt: skip
    if as_json:
        output.print_json(facts)
        return
    for warning in warnings:
        output.note(f"Warning: {warning}")
    options = {"--root": root, "--task": task, "--study": study}
    where = [f" {name} {shlex.quote(str(value))}" for name, value in options.items() if value]
    _show(made.contract_path, filled, trial, "".join(where))


def _show(path: Path, filled: Draft, trial: Trial | None, where: str) -> None:
    """Print what was filled in; `where` are the options that name the study."""
    output.say(f"The contract is filled in: {path}")
    if trial is not None:
        output.say(f"The trial run took {trial.seconds:.3g} s; its output: {trial.out}")
    output.say("A person has to decide:")
    rows = [(d.field, _short(d.value), d.why) for d in filled.decisions]
    output.show(output.table(("field", "filled in", "why it is to be decided"), rows))
    output.say(f"Change a field:  assay study contract set{where} FIELD=VALUE")
    if trial is None:
        output.say(f"Time one run:    assay study start{where} --execute --confirm RUN_ONCE")
    output.say(f"Approve it all:  assay study contract approve{where} all --by NAME")


def _short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        text = " ".join(value)
    elif isinstance(value, dict):
        text = ", ".join(f"{key}: {item}" for key, item in value.items())
    else:
        text = str(value)
    return text if len(text) <= 90 else text[:87] + "..."
