"""`assay design`: describe a problem, check it, choose an algorithm, and make it run."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunsRoot
from assay.core.errors import EXIT_USER_ERROR, RunError

if TYPE_CHECKING:
    from assay.design.blueprint import Blueprint
    from assay.design.rules import Finding

app = typer.Typer(
    help="Before the first run: describe a problem, check it, choose an algorithm, make it run.",
    no_args_is_help=True,
)
FILE = Path("problem.yaml")
File = Annotated[Path, typer.Option("--file", "-f", help="The problem.")]


@app.command("new")
def new(
    answers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FIELD=VALUE]...", help="Answers, such as action.kind=box."),
    ] = None,
    file: File = FILE,
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="Look at this environment.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Look at this run.")
    ] = None,
    answer_file: Annotated[
        Path | None, typer.Option("--answers", metavar="FILE", help="A YAML file of answers.")
    ] = None,
    interview: Annotated[
        bool, typer.Option("--interview", help="Ask, question by question.")
    ] = False,
    root: RunsRoot = None,
) -> None:
    """Begin a problem: from answers, an environment, a run, or an interview.

    Answers on the command line win over what the others say. Nothing that exists is overwritten,
    and answers that contradict each other are refused.
    """
    from assay.design import sources
    from assay.design.documents import write_text
    from assay.design.rules import DesignError

    if file.exists():
        raise DesignError(
            f"'{file}' exists already, and nothing was changed.",
            "Change it with `assay design set`, or name another file with --file.",
        )
    if sum((env is not None, run is not None, answer_file is not None, interview)) > 1:
        raise DesignError("--env, --run, --answers and --interview exclude each other.")
    values: dict[str, Any] = {}
    if env is not None:
        values = sources.from_env(env)
    elif run is not None:
        from assay.runs.directory import RunDirectory

        values = sources.from_run(RunDirectory.open(locate(run, root)))
    elif answer_file is not None:
        from assay.core.config import read_yaml

        values = sources.from_answers(read_yaml(answer_file))
    elif interview:
        values = sources.interview(_ask, output.note)
    given = sources.from_assignments(answers or [])
    write_text(file, sources.written(sources.merged(values, given)))
    output.say(f"Problem: {file}")
    output.note("Next: assay design check" + ("" if file == FILE else f" --file {file}"))


def _ask(question: str) -> str:
    answer: str = typer.prompt(question, default="", show_default=False, err=True)
    return answer


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
    from assay.core.wording import counted
    from assay.design import checks
    from assay.design.documents import read_document

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


@app.command("choose")
def choose(
    file: File = FILE,
    most: Annotated[int, typer.Option("--most", min=1, help="Show this many.")] = 5,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the first choice into the problem.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rank the algorithms that can learn a problem, with reasons, steps, cost and the command."""
    from assay.design.choose import choose as rank
    from assay.design.documents import assign, read_document
    from assay.design.rules import DesignError

    document = read_document(file)
    fitting, ruled_out = rank(document.problem)
    if not fitting:
        raise DesignError(
            f"No algorithm can learn this problem: {next(iter(ruled_out.values()))}.",
            "`assay design choose --json` says why, for each of them."
            if not as_json
            else "See `assay design check`.",
        )
    if apply:
        assign(document, {"architecture.learner.algorithm": fitting[0].spec.name})
    if as_json:
        ranked = [one.to_dict() for one in fitting]
        output.print_json({"ranked": ranked, "ruled_out": ruled_out})
        return
    for number, one in enumerate(fitting[:most], 1):
        output.say(f"{number}. {one.spec.name} ({one.spec.family}): {one.spec.summary}")
        for points, text in one.reasons:
            output.say(f"     {'+' if points > 0 else '-'} {text}")
        took = output.duration(one.expected.seconds) if one.expected.seconds else "time unknown"
        count = f"{one.expected.count:,}" if one.expected.count else "unknown"
        preset = "preset" if one.preset else "no preset"
        output.say(f"     {count} {one.expected.unit}, {took} ({one.expected.source}); {preset}")
        output.say(f"     {one.command}")
    if len(fitting) > most:
        output.say(f"Also possible: {', '.join(one.spec.name for one in fitting[most:])}")
    output.say("Ruled out:")
    reasons: dict[str, list[str]] = {}
    for name, reason in ruled_out.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        output.say(f"  {', '.join(names)}: {reason}")
    if apply:
        output.note(f"{file}: architecture.learner.algorithm")


@app.command("blueprint")
def blueprint(
    out: Annotated[Path, typer.Option("--out", "-o", help="The directory to make.")],
    file: File = FILE,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", help="Instead of the first choice.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Train it at once, inside.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a directory that runs: configuration, environment, diagrams, and a study's contract.

    Before it takes its place, the configuration is resolved and the algorithm is built on the
    environment, so that `assay train --config config.yaml` starts there. With --train it does.
    """
    made = write_blueprint(file, out, algorithm)
    facts = {
        "path": out,
        "algorithm": made.draft.choice.spec.name,
        "env": made.draft.env,
        "config": made.draft.config,
        "left_out": made.draft.left_out,
        "files": sorted(made.files),
        "layers": {layer.title: layer.lines for layer in made.layers},
    }
    if as_json and not train:
        output.print_json(facts)
    elif not as_json:
        output.say(made.files["blueprint.txt"].rstrip())
        output.say(f"Blueprint: {out}")
        output.note(f"Next:\n  cd {out}\n  assay train --config config.yaml")
        output.note("  assay study contract check    # then approve it")
        for name, value in made.draft.left_out.items():
            output.note(f"{made.draft.choice.spec.name} has no setting {name}: {value} is left out")
    if train:
        train_there(out, as_json=as_json)


@app.command("explain")
def explain(
    rule: Annotated[
        str | None, typer.Argument(metavar="[RULE]", help="Such as reward.suicide; all if missing.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a rule looks for, why, what to do, and show a problem that breaks it."""
    from assay.design.checks import RULES, examples, known_rule
    from assay.design.documents import render

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


_ACTOR = "assay design"  # who is named in the ledger


def write_blueprint(file: Path, out: Path, algorithm: str | None) -> Blueprint:
    """Write the blueprint of a problem into a new directory.

    Raises:
        AssayError: The problem has errors, the directory exists, or the run could not start;
            nothing is left behind.
    """
    from assay.core import registry
    from assay.design.blueprint import CONFIG, complete, make_draft, pick
    from assay.design.documents import read_document
    from assay.design.rules import DesignError
    from assay.loops.run_settings import settings_model
    from assay.runs.files import run_error

    if out.exists() or out.is_symlink():
        raise DesignError(
            f"'{out}' exists already, and nothing was changed.", "Name a new directory with --out."
        )
    document = read_document(file)
    choice = pick(document.problem, algorithm)
    cls = registry.get(choice.spec.name)
    known = {*cls.Hyperparameters.model_fields, *settings_model(cls).model_fields}
    draft = make_draft(document.problem, document.text, choice, known)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent.resolve()))
    except OSError as error:
        raise run_error(error, f"write '{out}'") from None
    try:
        _write(aside, draft.files)
        own = f"{draft.env.partition(':')[0]}/env.py" in draft.files
        made = complete(document.problem, draft, _try(aside / CONFIG, own=own))
        _write(aside, made.files)
        _study(aside, made)
        aside.chmod(0o755)
        os.rename(aside, out)
    except OSError as error:
        raise run_error(error, f"write '{out}'") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return made


def _write(place: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _try(config: Path, *, own: bool) -> dict[str, Any]:
    """Resolve a configuration, and build its algorithm on its environment as training does.

    Returns:
        All settings of the run.
    """
    from assay.cli.plan import choose_task, make_plan, read_settings

    settings, given = read_settings([], config, {})
    with _importable(config.parent) if own else contextlib.nullcontext():
        found = make_plan(*choose_task([], settings, given), settings, given).config.to_dict()
    return {**found["run"], **found["hyperparameters"]}


@contextlib.contextmanager
def _importable(place: Path) -> Iterator[None]:
    """Let the environment's package be imported from a place that is about to be moved."""
    import gymnasium as gym

    before, registered = set(sys.modules), set(gym.registry)
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(place))
    try:
        yield
    finally:
        sys.path.remove(str(place))
        sys.dont_write_bytecode = bytecode
        for name in set(sys.modules) - before:
            source = getattr(sys.modules[name], "__file__", None)
            if source is not None and Path(source).is_relative_to(place):
                del sys.modules[name]
        for name in set(gym.registry) - registered:
            del gym.registry[name]  # it would be registered twice


def _study(place: Path, made: Blueprint) -> None:
    """Begin a study in the directory, with the contract filled in."""
    from assay.core.config import parse
    from assay.study.agree.setup import initialise
    from assay.study.files.contract import Contract
    from assay.study.files.documents import write_yaml_document

    agreed = parse(Contract, made.contract, what="the contract")
    study = initialise(place, agreed.task.id, agreed.study, actor=_ACTOR)
    write_yaml_document(study.contract_path, agreed)


def train_there(out: Path, *, as_json: bool) -> None:
    """Train what a blueprint describes, in its directory.

    Raises:
        RunError: The directory is gone.
    """
    from assay.cli.train import train

    try:
        os.chdir(out)
    except OSError as error:
        raise RunError(f"Cannot enter '{out}': {error.strerror}.") from None
    options: dict[str, Any] = dict.fromkeys(
        ("algorithm", "env", "seed", "seeds", "name", "device", "root", "jobs")
    )
    train(
        **options,
        settings=[],
        config=Path("config.yaml"),
        preset=True,
        quiet=False,
        as_json=as_json,
        stop_with_stdin=False,
    )
