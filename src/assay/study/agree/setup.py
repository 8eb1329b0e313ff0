"""Begin a study: its directories, its schemas, and a contract to fill in and to change."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from assay.core.config import Model, parse
from assay.core.errors import AssayError, nearest
from assay.runs.files import dump_json, run_error, write_atomic
from assay.runs.git import GitError, git, repository
from assay.study.agree.scope import pinned
from assay.study.files.candidate import Candidate, Curriculum, EnvironmentGeneration
from assay.study.files.contract import Budget, Contract, Metric
from assay.study.files.documents import (
    INSIDE,
    ROOT,
    StudyError,
    checked_name,
    read_yaml,
    read_yaml_document,
    write_text,
    write_yaml_document,
)
from assay.study.files.records import (
    Adapter,
    LedgerEvent,
    ProbePlan,
    ProbeSummary,
    QueueManifest,
    Registry,
    ResultAudit,
    RewardReflection,
    RunRecord,
    State,
)
from assay.study.record import kinds
from assay.study.record.ledger import Ledger
from assay.study.record.opening import ASIDE, is_flat, open_study
from assay.study.record.study import Study

DOCUMENTS: dict[str, type[Model]] = {
    "registry": Registry,
    "adapter": Adapter,
    "contract": Contract,
    "metric": Metric,
    "candidate": Candidate,
    "curriculum": Curriculum,
    "environment": EnvironmentGeneration,
    "state": State,
    "run": RunRecord,
    "budget": Budget,
    "reward_reflection": RewardReflection,
    "probe_plan": ProbePlan,
    "probe_summary": ProbeSummary,
    "queue": QueueManifest,
    "result_audit": ResultAudit,
    "ledger_event": LedgerEvent,
}
_NAMES = "names.json"
_STILL = "still to be filled in"


def export_schemas(directory: Path) -> None:
    """Write the JSON Schema of every kind of file."""
    for name in DOCUMENTS:
        write_text(directory / f"{name}.schema.json", _schema(name))


@cache
def _schema(name: str) -> str:
    schema = DOCUMENTS[name].model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=1) + "\n"


def initialise(root: Path, task: str, study: str, *, actor: str, activate: bool = False) -> Study:
    """Create a study in a repository and make it the active one, in place of another if asked to.

    Nothing of the repository is run or read for it.

    Raises:
        StudyError: It exists, or another one is active.
    """
    if not root.is_dir():
        raise StudyError(f"'{root}' is not a directory.", "Name the repository with --root.")
    if is_flat(root):
        open_study(root).require_writable()
    made = Study(root, checked_name(task, "task"), checked_name(study, "study"))
    if made.path.exists():
        raise StudyError(f"There is a study {task}/{study} already.", "Choose another name.")
    if made.ref.head() is not None:
        raise StudyError(
            f"There was a study {task}/{study}: Git notes the head of its ledger in "
            f"{made.ref.name}, and its files are gone.",
            f"Restore them, choose another name, or forget it: git update-ref -d {made.ref.name}",
        )
    registry_path = root / ROOT / "registry.yaml"
    if registry_path.exists() and not activate:
        active = read_yaml_document(registry_path, Registry)
        if active.study is not None:
            raise StudyError(
                f"{active.task}/{active.study} is the active study.",
                "Finish it, or pass --activate to work on the new one from now on.",
            )
    _equip(made)
    if not made.contract_path.exists():
        write_text(made.contract_path, contract_template(task, study))
    made.ledger.append(kinds.CREATED, {"task": task, "study": study}, actor=actor)
    made.sync()
    write_yaml_document(registry_path, Registry(task=task, study=study))
    return made


def task_name(root: Path, given: str | None) -> str:
    """Return the task that a new study belongs to: the given, the active, or the directory's."""
    if given:
        return given
    path = root / ROOT / "registry.yaml"
    active = read_yaml_document(path, Registry).task if path.exists() else None
    return active or re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-.") or "task"


def refused_by_git(root: Path) -> str:
    """Return what Git says where there is a repository that it does not want to read, or ""."""
    if not any((place / ".git").exists() for place in (root, *root.parents)):
        return ""
    try:
        git(root, "rev-parse", "--show-toplevel")
    except GitError as error:
        return " ".join(error.message.split())
    return ""


def without_git(root: Path) -> list[str]:
    """Return what a study lacks that is not at the top of a Git repository with a commit."""
    if pinned(root):
        return []
    top = repository(root)
    said = refused_by_git(root)
    if said:
        place = f"cannot be used by Git, which says: {said}"
    elif top is None:
        place = "is in no Git repository"
    elif top.resolve() != root.resolve():
        place = f"is not the top of its Git repository, which is '{top}'"
    else:
        place = "is a Git repository without a commit"
    return [
        f"'{root}' {place}: patches are refused, runs use the files as they lie there and cannot "
        "say which code they ran, and a ledger that is written again as a whole does not show. "
        "Before the first approval this helps: git init, git add -A, git commit"
    ]


def migrate(root: Path, *, actor: str) -> Study:
    """Move a study in the old flat layout into the new one, and record that in its ledger.

    Files are renamed, none is rewritten. They are collected aside first and take their place
    together, so that a move that was interrupted can be taken up by asking again.

    Raises:
        StudyError: There is nothing to move, its books are not in order, or a run is under way.
    """
    top = root / ROOT
    aside = top / ASIDE
    if aside.exists():
        names = json.loads((aside / _NAMES).read_bytes())
    else:
        names = _movable(root)
    moved = Study(root, names["task"], names["study"])
    try:
        aside.mkdir(exist_ok=True)
        write_atomic(aside / _NAMES, dump_json(names))
        moved.path.parent.mkdir(parents=True, exist_ok=True)
        for path in sorted(top.iterdir()):
            if path.name not in (*INSIDE, ASIDE):
                of_task = path.name in ("adapter.yaml", "task_card.md")
                os.rename(path, (moved.task_path if of_task else aside) / path.name)
        ledger = Ledger(aside / "ledger.jsonl")
        if not any(event.kind == kinds.MIGRATED for event in ledger.events()):
            ledger.append(kinds.MIGRATED, {"from": ROOT, **names}, actor=actor)
        write_yaml_document(top / "registry.yaml", Registry(**names))
        os.rename(aside, moved.path)
        (moved.path / _NAMES).unlink()
    except OSError as error:
        raise StudyError(*run_error(error, f"move '{top}'").args) from None
    _equip(moved)
    moved.sync()
    return moved


def _movable(root: Path) -> dict[str, str]:
    """Return the names that a flat layout's study will have, if it may be moved."""
    if not is_flat(root):
        raise StudyError(
            f"'{root / ROOT}' does not have the old flat layout.", "There is nothing to move."
        )
    study = open_study(root)
    book, damage = study.book()
    if damage:
        raise StudyError(
            f"The ledger of the flat layout is damaged, {damage[0]}.",
            "Nothing is moved until it is repaired; copy the directory, and look at the line.",
        )
    if book.held:
        raise StudyError(f"Run '{next(iter(book.held))}' is under way.", "Wait until it is over.")
    return {"task": study.task, "study": study.name}


def _equip(study: Study) -> None:
    """Give a study its directories, and the repository what studies share."""
    for name in ("candidates", "runs", "audits"):
        (study.path / name).mkdir(parents=True, exist_ok=True)
    shared = study.root / ROOT / "shared"
    for name in ("metric_extractors", "templates"):
        (shared / name).mkdir(parents=True, exist_ok=True)
    export_schemas(shared / "schemas")
    write_text(shared / "templates" / "contract.yaml", contract_template("TASK", "STUDY"))
    for name, text in templates().items():
        write_text(shared / "templates" / name, text)
    if not (study.task_path / "adapter.yaml").exists():
        write_yaml_document(study.task_path / "adapter.yaml", Adapter())


def templates() -> dict[str, str]:
    """Return the files that people and agents copy and fill in, by name; the contract has more."""
    place = importlib.resources.files("assay.study.agree").joinpath("templates")
    return {path.name: path.read_text() for path in place.iterdir() if path.name.endswith(".yaml")}


def contract_template(task: str, study: str) -> str:
    """Return a contract with a line of explanation for everything that must be decided."""
    template = importlib.resources.files("assay.study.agree").joinpath("contract.yaml").read_text()
    return template.replace("study: STUDY", f"study: {study}").replace("id: TASK", f"id: {task}")


# ---------------------------------------------------------------------- changing a contract


def assign(study: Study, fields: Mapping[str, Any]) -> str:
    """Set fields of the contract by their dotted names; null removes one.

    Comments at the head of the file stay, others are lost. Parts that change need a new approval.

    Args:
        study: Whose contract.
        fields: The new values, by names such as `evaluation.alpha`.

    Returns:
        What the contract still lacks, or "".

    Raises:
        StudyError: A name or a value does not fit; the file stays as it was.
    """
    study.require_writable()
    path = study.contract_path
    documents = read_yaml(path)
    values = documents[0] if documents and isinstance(documents[0], dict) else None
    if values is None:
        raise StudyError(f"'{path}' holds no contract.", "Write one: assay study contract new")
    for name, value in fields.items():
        _set(values, name, value)
    lack = _lacks(values, str(path))
    head = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        head.append(line)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
    write_text(path, "\n".join([*head, text]))
    return lack


def _set(values: dict[str, Any], name: str, value: Any) -> None:
    *parents, last = name.split(".")
    if parents[:1] == ["approvals"] or name == "approvals":
        raise StudyError(
            f"'{name}' cannot be set.", "A person approves with: assay study contract approve"
        )
    place, model = values, Contract.model_json_schema()
    for depth, part in enumerate([*parents, last]):
        known = _fields(model, Contract.model_json_schema())
        if known is not None and part not in known:
            where = ".".join(parents[:depth]) or "the contract"
            raise StudyError(f"'{part}' is not a field of {where}.", nearest(part, known))
        model = known[part] if known is not None else {}
        if depth < len(parents):
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise StudyError(
                    f"'{name}' cannot be set: '{part}' is {inner!r}, which has no fields."
                )
            place = inner
    if model.get("type") == "array":
        value = _listed(value)
    if value is None:
        place.pop(last, None)
    else:
        place[last] = value


def _listed(value: Any) -> Any:
    """Return a list as people type it: words of a command, or `[{python}, train.py]`."""
    if isinstance(value, str):
        return shlex.split(value)
    if isinstance(value, dict):
        return [_placeholder(value)]
    return [_placeholder(item) for item in value] if isinstance(value, list) else value


def _placeholder(item: Any) -> Any:
    """Return `{python}`, which YAML takes for a mapping, as it was written."""
    return f"{{{next(iter(item))}}}" if isinstance(item, dict) and len(item) == 1 else item


def _fields(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a part by their names; None where any name is allowed."""
    while "$ref" in schema or "anyOf" in schema or "allOf" in schema:
        if "$ref" in schema:
            schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
        else:
            options = schema.get("anyOf") or schema["allOf"]
            schema = next((option for option in options if "$ref" in option), {})
    found: dict[str, Any] | None = schema.get("properties")
    return found


def _lacks(values: dict[str, Any], path: str) -> str:
    """Return which fields are still to be filled in; refuse values that cannot be right."""
    try:
        parse(Contract, values, what=f"'{path}'")
    except AssayError as error:
        if _STILL in error.message:
            return error.message
        fix = "The contract stays as it was: give the field a value of that kind."
        raise StudyError(error.message, error.fix or fix) from None
    return ""
