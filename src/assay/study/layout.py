"""Where a study's files are, and how they are read and written.

State lives in the target repository under `.rlxp/`:

    registry.yaml                      which task and study are active
    shared/{schemas,metric_extractors,templates}/
    tasks/<task>/{task_card.md,adapter.yaml}
    tasks/<task>/studies/<study>/      contract, state, ledger, candidates, runs, audits, report
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from assay.core.config import Model, parse
from assay.core.errors import AssayError, nearest
from assay.runs.files import dump_json, run_error, write_atomic
from assay.study.ledger import Head, Ledger
from assay.study.models import (
    DOCUMENTS,
    VERSION,
    Adapter,
    Anchor,
    Candidate,
    Contract,
    Registry,
    RunRecord,
    State,
)

ROOT = ".rlxp"
ModelT = TypeVar("ModelT", bound=Model)
# The safe loader written in C, where PyYAML was built with it: seven times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")


class StudyError(AssayError):
    """A study is missing, malformed, or asked to do what its rules forbid."""


class Study:
    """The directory of one study: its files by name, read checked and written whole.

    Args:
        root: The target repository.
        task: Its name.
        study: Its name.
    """

    def __init__(self, root: Path, task: str, study: str) -> None:
        self.root = root
        self.task, self.name = task, study
        self.task_path = root / ROOT / "tasks" / checked_name(task, "task")
        self.path = self.task_path / "studies" / checked_name(study, "study")
        self.ledger = Ledger(self.path / "ledger.jsonl")

    @property
    def contract_path(self) -> Path:
        """Return where the contract is."""
        return self.path / "contract.yaml"

    def contract(self) -> Contract:
        """Read the contract.

        Raises:
            StudyError: It is missing, malformed, or of another task or study.
        """
        contract = read_yaml_document(self.contract_path, Contract)
        if (contract.task.id, contract.study) != (self.task, self.name):
            raise StudyError(
                f"'{self.contract_path}' is the contract of {contract.task.id}/{contract.study}; "
                f"expected {self.task}/{self.name}.",
                "Studies share nothing: write a contract of its own for this one.",
            )
        return contract

    def adapter(self) -> Adapter:
        """Read what the audit of the repository found."""
        return read_yaml_document(self.task_path / "adapter.yaml", Adapter)

    def candidate_path(self, name: str) -> Path:
        """Return where a candidate is."""
        return self.path / "candidates" / f"{checked_name(name, 'candidate')}.yaml"

    def candidate(self, name: str) -> Candidate:
        """Read a candidate.

        Raises:
            StudyError: It is missing, malformed, or of another task or study.
        """
        path = self.candidate_path(name)
        if not path.exists():
            hint = nearest(name, self.candidates()) if self.candidates() else "There are none yet."
            raise StudyError(f"There is no candidate '{name}' in study {self.name}.", hint)
        candidate = read_yaml_document(path, Candidate)
        if (candidate.task, candidate.study) != (self.task, self.name):
            raise StudyError(
                f"Candidate '{name}' belongs to {candidate.task}/{candidate.study}, not to "
                f"{self.task}/{self.name}.",
                "Studies share no candidates: propose it anew in this one.",
            )
        if candidate.id != name:
            raise StudyError(f"'{path}' calls itself '{candidate.id}'; expected '{name}'.")
        return candidate

    def candidates(self) -> list[str]:
        """Return the names of all candidates, in order."""
        return sorted(path.stem for path in (self.path / "candidates").glob("*.yaml"))

    def run(self, name: str) -> RunRecord:
        """Read the record of a run."""
        path = self.path / "runs" / checked_name(name, "run") / "run.json"
        return read_json_document(path, RunRecord)

    def state(self) -> State:
        """Read the state."""
        return read_json_document(self.path / "state.json", State)

    def write_state(self, state: State) -> None:
        """Write the state, with the ledger's head anchored in it."""
        head = self.ledger.head()
        anchored = state.model_copy(update={"head": Anchor(seq=head.seq, hash=head.hash)})
        write_json_document(self.path / "state.json", anchored)

    def anchors(self) -> dict[str, Head]:
        """Return the heads of the ledger that were noted outside of it."""
        anchors = {}
        if (self.path / "state.json").exists():
            head = self.state().head
            anchors["state.json"] = Head(head.seq, head.hash)
        return anchors


def checked_name(name: str, what: str) -> str:
    """Return `name` if it can be a file's name, and nothing more than that.

    Raises:
        StudyError: It could leave its directory, or is no name.
    """
    if not _NAME.match(name):
        raise StudyError(
            f"'{name}' is no name for a {what}.",
            "Use letters, digits, dots, dashes and underscores, 80 at most, no leading dot.",
        )
    return name


def find_root(start: Path) -> Path:
    """Return the nearest directory, from `start` upwards, that holds a study.

    Raises:
        StudyError: There is none.
    """
    for place in (start.resolve(), *start.resolve().parents):
        if (place / ROOT).is_dir():
            return place
    raise StudyError(
        f"There is no {ROOT} in '{start}' or above it.",
        "Begin with `assay study init`, or name the repository with --root.",
    )


def open_study(root: Path, task: str | None = None, study: str | None = None) -> Study:
    """Open the named study, or the one that the registry selects.

    Raises:
        StudyError: Nothing is selected, or it does not exist.
    """
    registry_path = root / ROOT / "registry.yaml"
    if not registry_path.exists():
        raise StudyError(
            f"'{registry_path}' is missing.", "Begin with `assay study init` in that repository."
        )
    registry = read_yaml_document(registry_path, Registry)
    task, study = task or registry.task, study or registry.study
    if task is None or study is None:
        raise StudyError(
            f"No study is active in '{root}'.",
            f"Name one with --task and --study. {_known(root)}",
        )
    found = Study(root, task, study)
    if not found.path.is_dir():
        raise StudyError(f"There is no study {task}/{study} in '{root}'.", _known(root))
    return found


def _known(root: Path) -> str:
    paths = sorted((root / ROOT / "tasks").glob("*/studies/*/"))
    names = ", ".join(f"{path.parent.parent.name}/{path.name}" for path in paths)
    return f"Known: {names}." if names else "There are none yet: `assay study init` makes one."


# ---------------------------------------------------------------------- files


def read_yaml_document(path: Path, model: type[ModelT]) -> ModelT:
    """Read a YAML file into a model.

    Raises:
        StudyError: It is missing, malformed (line and column are named), of an unknown schema
            version, or says something that the model does not allow.
    """
    try:
        values = yaml.load(path.read_text(), Loader=_Loader)
    except OSError as error:
        raise StudyError(*run_error(error, f"read '{path}'").args) from None
    except UnicodeDecodeError as error:
        raise StudyError(f"'{path}' is no UTF-8 text: {error}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise StudyError(f"'{path}' is malformed{place}: {problem}.") from None
    return _parsed(path, values, model)


def read_json_document(path: Path, model: type[ModelT]) -> ModelT:
    """Read a JSON file into a model; the errors are those of `read_yaml_document`."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise StudyError(*run_error(error, f"read '{path}'").args) from None
    except ValueError as error:
        raise StudyError(f"'{path}' is malformed: {error}.") from None
    return _parsed(path, values, model)


def _parsed(path: Path, values: Any, model: type[ModelT]) -> ModelT:
    if not isinstance(values, dict):
        raise StudyError(f"'{path}' holds {type(values).__name__}; expected a mapping.")
    version = values.get("schema_version", VERSION)
    if version != VERSION:
        raise StudyError(
            f"'{path}' has schema version {version!r}; this version of Assay knows {VERSION}.",
            "Open it with the version of Assay that wrote it, or write the file anew.",
        )
    return parse(model, values, what=f"'{path}'")


def write_yaml_document(path: Path, document: Model) -> None:
    """Write a model as YAML, whole or not at all.

    Raises:
        StudyError: The place cannot be written to.
    """
    plain = document.model_dump(mode="json")
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
    _write(path, text.encode())


def write_json_document(path: Path, document: Model) -> None:
    """Write a model as JSON, whole or not at all.

    Raises:
        StudyError: The place cannot be written to.
    """
    _write(path, dump_json(document.model_dump(mode="json"), indent=1))


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all.

    Raises:
        StudyError: The place cannot be written to.
    """
    _write(path, text.encode())


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    except OSError as error:
        raise StudyError(*run_error(error, f"write '{path}'").args) from None


def export_schemas(directory: Path) -> None:
    """Write the JSON Schema of every kind of file."""
    for name, model in DOCUMENTS.items():
        schema = model.model_json_schema()
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        write_text(directory / f"{name}.schema.json", json.dumps(schema, indent=1) + "\n")


def schema_of(event: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a dataclass, such as a ledger event."""
    return pydantic.TypeAdapter(event).json_schema()
