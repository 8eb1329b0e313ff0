"""`assay study init`, `migrate`, `audit`, `contract` and `metrics`: before anything is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson
from assay.cli.study import common
from assay.cli.study.common import By, Call, Root, on_study
from assay.core.wording import counted
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from assay.study.files.contract import Contract
    from assay.study.files.records import Adapter
    from assay.study.record.study import Study
    from assay.study.run.gpus import Gpu

_ALL_APPROVED = "Everything is approved."
contract = typer.Typer(
    help="The agreed contract: create it, read it, approve it.", no_args_is_help=True
)


def init(
    root: Annotated[
        Path | None,
        typer.Option("--root", help="The target repository; by default the working directory."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="Name of the task.")] = None,
    study: Annotated[str, typer.Option("--study", help="Name of the study.")] = "first",
    activate: Annotated[bool, typer.Option("--activate", help="Replace the active study.")] = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Start a study in a repository. No code of the repository is run."""
    from assay.study.agree.checkout import obstacles
    from assay.study.agree.setup import initialise, task_name, without_git
    from assay.study.report import pages

    place = (root or Path.cwd()).resolve()
    made = initialise(
        place, task_name(place, task), study, actor=common.actor(by), activate=activate
    )
    made.sync()
    pages.write(made)
    warnings = [*without_git(place), *obstacles(place)]
    facts = {
        "task": made.task,
        "study": made.name,
        "path": made.path,
        "contract": made.contract_path,
        "warnings": warnings,
    }
    lines = [
        f"Study {made.task}/{made.name} was created in {made.path}",
        *(f"Warning: {warning}" for warning in warnings),
        "Next: assay study audit          # find out how the repository is trained and measured",
        f"Then fill in {made.contract_path}",
    ]
    common.show(as_json, facts, lines)


def migrate(root: Root = None, by: By = None, as_json: AsJson = False) -> None:
    """Move an old flat .rlxp into tasks/ and studies/."""
    from assay.study.agree.setup import migrate
    from assay.study.record.opening import find_root

    made = migrate(root or find_root(Path.cwd()), actor=common.actor(by))
    made.sync()
    facts = {"task": made.task, "study": made.name, "path": made.path}
    common.show(as_json, facts, f"Moved to {made.path}")


@on_study
def audit(
    call: Call,
    profile: Annotated[
        str | None, typer.Option("--profile", help="A packaged profile, or a file of hints.")
    ] = None,
    write: Annotated[
        bool, typer.Option(help="Write adapter.yaml and task_card.md where there is a study.")
    ] = True,
) -> None:
    """Find out how a repository is trained, measured and logged, without running it."""
    from assay.study.files.documents import ROOT, StudyError, write_text, write_yaml_document
    from assay.study.record.opening import find_root, open_study
    from assay.study.repo.audit import inspect
    from assay.study.repo.card import task_card
    from assay.study.repo.proposal import propose

    place = call.root or Path.cwd()
    if call.root is None and not (place / ROOT).is_dir():
        try:
            place = find_root(place)
        except StudyError:  # no study above: use this directory
            write = False
    seen = inspect(place, profile)
    found = seen.adapter
    written: list[Path] = []
    if write and (place / ROOT).is_dir():
        opened = open_study(place, call.task, call.study)
        opened.require_writable()
        write_yaml_document(opened.task_path / "adapter.yaml", found)
        write_text(opened.task_path / "task_card.md", task_card(place, found, seen.findings))
        written = [opened.task_path / "adapter.yaml", opened.task_path / "task_card.md"]
    facts = found.model_dump(mode="json") | {"findings": seen.findings, "written": written}
    facts["proposal"] = propose(found).model_dump(mode="json")
    if call.as_json:
        output.print_json(facts)
        return
    for finding in seen.findings:
        output.note(f"Warning: {finding}")
    _show_audit(facts)
    for path in written:
        output.say(f"Written: {path}")


def _show_audit(facts: dict[str, Any]) -> None:
    """Show the answers of an audit, as its JSON has them."""
    from assay.study.repo.card import QUESTIONS, shown

    unreadable = {m["name"]: m["unreadable"] for m in facts["proposal"]["metrics"]}
    rows = []
    for slot in QUESTIONS:
        for i, answer in enumerate(facts[slot][:5]):
            text = shown(answer["value"]).replace("`", "")
            if slot == "metrics" and (why := unreadable[str(answer["value"])]):
                text += f" ({why})"
            evidence = ", ".join(answer["evidence"][:2])
            rows.append((slot if i == 0 else "", text, f"{answer['confidence']:.2f}", evidence))
        if not facts[slot]:
            rows.append((slot, "none", "", ""))
    columns = ("question", "answer", "confidence>", "evidence")
    output.show(output.table(columns, rows, title=f"Profile: {facts['profile']}"))


@contract.command("new")
@on_study
def new(
    call: Call,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a contract that is already filled in.")
    ] = False,
) -> None:
    """Write a contract to fill in, with what the audit found as comments."""
    from assay.study.agree.setup import contract_template
    from assay.study.files.contract import PLACEHOLDER
    from assay.study.files.documents import StudyError, write_text

    found = call.read()
    found.require_writable()
    path = found.contract_path
    if path.exists() and PLACEHOLDER not in path.read_text() and not force:
        raise StudyError(
            f"'{path}' is filled in already.",
            "Edit it, or pass --force to start again, which voids its approvals.",
        )
    write_text(path, contract_template(found.task, found.name) + _hints(found.adapter()))
    call.show({"contract": path}, f"Fill in {path}")


def _hints(adapter: Adapter) -> str:
    """Return the audit's answers as comments."""
    from assay.study.repo.card import shown

    lines = ["\n# What the audit found, as a help to fill in the above:\n"]
    for slot in ("train", "evaluate", "metrics", "guardrails", "logging", "reward"):
        for answer in getattr(adapter, slot)[:5]:
            place = answer.evidence[0] if answer.evidence else "a profile"
            text = shown(answer.value).replace("`", "")
            lines.append(f"#   {slot}: {text}  ({place}, {answer.confidence:.2f})\n")
    return "".join(lines) if len(lines) > 1 else ""


@contract.command("set")
@on_study
def set_fields(
    call: Call,
    fields: Annotated[
        list[str],
        typer.Argument(metavar="FIELD=VALUE...", help="Such as metrics.primary.minimum_effect=50."),
    ],
) -> None:
    """Set fields of the contract; approvals of the parts that change are void."""
    from assay.study.agree.scope import overlaps
    from assay.study.agree.setup import assign

    given = common.assignments(fields)
    found = call.read()
    lack = assign(found, given)
    odd = [] if lack else overlaps(found.root, found.contract())
    lines = [f"{name} = {value}" for name, value in given.items()]
    lines += [*filter(None, [lack]), *(f"Warning: {warning}" for warning in odd)]
    call.show({"set": given, "lacks": lack or None, "warnings": odd}, lines)


@contract.command("show")
@on_study
def show(call: Call) -> None:
    """Show the contract and which parts are approved."""
    from assay.study.agree.approvals import missing
    from assay.study.files.contract import APPROVALS

    found = call.read()
    agreed = found.contract()
    reasons = missing(found, agreed)
    rows = []
    for item in APPROVALS:
        given = agreed.approvals.get(item)
        word = f"{given.by}, {given.at}" if given else ""
        rows.append((item, "no" if item in reasons else "yes", reasons.get(item) or word))
    text = found.contract_path.read_text().rstrip()
    facts = {**agreed.model_dump(mode="json"), "missing": reasons}
    call.show(facts, [text, output.table(("part", "approved", "by"), rows)])


@contract.command("check")
@on_study
def check(call: Call) -> None:
    """Check the contract against its schema and the repository; exit 2 if it is not ready."""
    from assay.core.errors import EXIT_USER_ERROR
    from assay.study.agree import budget, checkout, interpreter, protocol
    from assay.study.agree.approvals import missing
    from assay.study.agree.rules import (
        refuse_network,
        refuse_placeholders,
        refuse_uncommitted,
        refuse_unguarded,
    )
    from assay.study.agree.scope import pinned
    from assay.study.judge import power
    from assay.study.run import gpus, planning
    from assay.study.run.trial import trial_seconds
    from assay.study.steps import agenda

    found = call.read()
    agreed = found.contract()
    changeable = dict.fromkeys(agreed.scope.parameters, 0)  # any value: it is only written down
    planning.command(agreed, 0, found.path, changeable | agreed.baseline.parameters)
    refuse_placeholders(agreed)
    refuse_network(agreed)
    refuse_unguarded(found.root, agreed)
    budget.refuse_small(agreed, trial_seconds(found))
    given = planning.environment(agreed, found.root)
    interpreter.refuse_missing(found.root, agreed, given)
    refuse_uncommitted(found.root, agreed, found.history().base)
    if pinned(found.root):
        checkout.refuse_obstacles(found.root)
        interpreter.refuse_unmapped(found.root, agreed, given)
    devices = gpus.usable(agreed)
    void = agenda.voided(found, found.book()[0], agreed)
    seen = power.shown(agreed.evaluation)
    measured = protocol.protocol_hash(found.root, agreed)
    imported = sorted(protocol.measuring_imports(found.root, agreed))
    startup = list(
        interpreter.startup_files(interpreter.interpreters(found.root, agreed, given), given)
    )
    kept = protocol.protected_files(found.root, agreed)
    reasons = missing(found, agreed)
    warnings = _warnings(found, agreed, devices, protected=bool(kept))
    warnings += [void.reason] if void is not None else []
    facts = {
        "valid": True, "protocol": measured, "protected": sorted(kept), "missing": reasons,
        "imported_by_evaluation": imported, "loaded_by_python": startup,
        "warnings": warnings, "voided": void.reason if void else "", "power": seen,
    }  # fmt: skip
    lines = [
        f"The contract is well formed. Protocol {measured[:12]}, {len(kept)} protected files.",
        *([f"The evaluation imports: {', '.join(imported)}."] if imported else []),
        *([f"Python loads at every start: {', '.join(startup)}."] if startup else []),
        seen,
        *(f"Warning: {warning}" for warning in warnings),
        *(f"  {item}: {reason}" for item, reason in reasons.items()),
    ]
    if reasons:
        lines.append("Approve each with: assay study contract approve ITEM --by NAME")
    call.show(facts, lines)
    if reasons or void:
        raise typer.Exit(EXIT_USER_ERROR)


def _warnings(
    found: Study, agreed: Contract, devices: Sequence[Gpu], *, protected: bool
) -> list[str]:
    """Return what is odd about a contract that is well formed."""
    from assay.study.agree import budget
    from assay.study.agree.scope import overlaps
    from assay.study.agree.setup import without_git
    from assay.study.run import gpus
    from assay.study.run.trial import unread
    from assay.study.steps import agenda

    warnings = without_git(found.root)
    if not protected:
        warnings.append(
            "nothing is protected: if files of the repository compute the metrics, name them in "
            "evaluation.files"
        )
    if not _leaves_files(agreed):
        warnings.append(
            "the command has no {out}, and baseline.outputs names nothing: a run would leave no "
            "files to measure. For example: baseline.outputs='[runs/**/*]'"
        )
    if agreed.scope.files and not agreed.evaluation.command:
        warnings.append(
            "patches are allowed, and training itself writes the metrics: a patch can write any "
            "score. Give an evaluation.command that reads what training saved"
        )
    if gpus.at_once(agreed, devices) < agreed.budget.parallel:
        warnings.append(
            f"budget.parallel is {agreed.budget.parallel}, and the {len(devices)} GPUs that runs "
            f"may use here hold {gpus.at_once(agreed, devices)} at once (hardware.runs_per_gpu)"
        )
    unjudged = agenda.pool_without_share(found.book()[0], agreed)
    warnings += [*filter(None, (unjudged, budget.warning(agreed))), *overlaps(found.root, agreed)]
    return warnings + unread(found, agreed)


def _leaves_files(agreed: Contract) -> bool:
    """Return whether the files of a run come to where its metrics are read."""
    words = (*agreed.baseline.command, *agreed.evaluation.command)
    printed = agreed.metrics.primary.source.kind == "stdout"
    return printed or bool(agreed.baseline.outputs) or any("{out}" in word for word in words)


@contract.command("approve")
@on_study
def approve(
    call: Call,
    items: Annotated[list[str], typer.Argument(metavar="ITEM...", help="Parts, or `all`.")],
    by: Annotated[str, typer.Option("--by", help="The name of the person who approves.")],
    key: Annotated[
        Path | None,
        typer.Option("--key", help="Sign with this SSH key; NAME is one of experiment.signers."),
    ] = None,
) -> None:
    """Record a person's approval of parts of the contract, as they are now."""
    from assay.core.errors import nearest
    from assay.study.agree.approvals import approve, missing
    from assay.study.files.contract import APPROVALS
    from assay.study.files.documents import StudyError
    from assay.study.run.trial import unread

    wanted = list(APPROVALS) if items == ["all"] else items
    for item in wanted:
        if item not in APPROVALS:
            raise StudyError(f"There is no part '{item}' to approve.", nearest(item, APPROVALS))
    with call.opened() as found:
        given = {item: approve(found, item, by, key) for item in wanted}
        left = missing(found)
        odd = unread(found, found.contract()) if "metrics" in given else []
    facts = {"approved": {i: a.model_dump() for i, a in given.items()}, "missing": left}
    facts["warnings"] = odd
    lines = [f"Warning: {warning}" for warning in odd]
    lines += [f"{item}: approved by {a.by}, {a.hash[:12]}" for item, a in given.items()]
    if "baseline" in given and given["baseline"].commit:
        lines.append(f"The code that is approved with it: commit {given['baseline'].commit[:12]}")
    lines.append(f"Still missing: {counted(len(left), 'approval')}." if left else _ALL_APPROVED)
    call.show(facts, lines)


@on_study
def metrics(
    call: Call,
    out: Annotated[
        Path | None, typer.Option("--out", help="Read them from a run's output directory.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="And from a file of its stdout.")
    ] = None,
) -> None:
    """Show the metrics of the contract, and try them on the output of an existing run.

    Exit code 2 if one of them is not there; the message says which are. What could be read from
    several lines or files is named.
    """
    from assay.study.files.contract import Guardrail, PrimaryMetric
    from assay.study.files.documents import StudyError
    from assay.study.measure.extractors import doubt, extract

    agreed = call.read().contract().metrics
    if out is not None and not out.is_dir():
        raise StudyError(f"'{out}' is not a directory.", "Give the directory that a run wrote to.")
    facts, rows, odd = [], [], []
    missing: StudyError | None = None
    for metric in agreed.all():
        if isinstance(metric, PrimaryMetric):
            role = "primary"
        else:
            role = "guardrail" if isinstance(metric, Guardrail) else "other"
        row: dict[str, Any] = {"name": metric.name, "role": role, "direction": metric.direction}
        row["source"] = f"{metric.source.kind}:{metric.source.path}:{metric.source.key}"
        if out is not None:
            printed = log or out / "stdout.log"
            try:
                row["value"] = extract(metric, out, printed)
                row["warning"] = doubt(metric, out, printed)
                odd += [f"Warning: {row['warning']}."] if row["warning"] else []
            except StudyError as error:
                row["error"] = " ".join(str(error).split())
                what = f"Metric '{metric.name}' cannot be read. {error.message}"
                missing = missing or StudyError(what, error.fix)
        facts.append(row)
        value = "missing" if "error" in row else number(row.get("value"))
        rows.append((metric.name, role, metric.direction, row["source"], value))
    columns = ("metric", "role", "direction", "source", "value")
    shown = len(columns) if out is not None else len(columns) - 1
    call.show(facts, [output.table(columns[:shown], [row[:shown] for row in rows]), *odd])
    if missing is not None:
        raise missing
