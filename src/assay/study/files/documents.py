"""Read and write the files of a study: checked when read, written whole."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml

from assay.core import fast_yaml
from assay.core.config import Model, parse
from assay.core.errors import AssayError
from assay.runs.files import dump_json, run_error, write_atomic
from assay.study.files.base import VERSION

ROOT = ".rlxp"
INSIDE = ("registry.yaml", "shared", "tasks")  # all that stands directly below it
ModelT = TypeVar("ModelT", bound=Model)
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")


class _Loader(fast_yaml.UniqueKeys, fast_yaml.Loader):  # type: ignore[misc]
    """Reads what people write, each key once."""


class StudyError(AssayError):
    """A study is missing, malformed, or asked to do what its rules forbid."""


def is_name(name: str) -> bool:
    """Return whether a word can be a file's name, and nothing more than that."""
    return _NAME.match(name) is not None


def checked_name(name: str, what: str) -> str:
    """Return `name` if it can be a file's name, and nothing more than that.

    Raises:
        StudyError: It could leave its directory, or is not a name.
    """
    if not is_name(name):
        raise StudyError(
            f"'{name}' is not a name for a {what}.",
            "Use letters, digits, dots, dashes and underscores, 80 at most, no leading dot.",
        )
    return name


def flat_refusal(root: Path) -> StudyError:
    """Return why nothing is written into the old flat layout."""
    return StudyError(
        f"'{root / ROOT}' has the old flat layout, which is read and not written.",
        "Move it into the new one first: assay study migrate.",
    )


def read_yaml_document(path: Path, model: type[ModelT]) -> ModelT:
    """Read a YAML file into a model.

    Raises:
        StudyError: It is missing, malformed (line and column are named), of an unknown schema
            version, or says something that the model does not allow.
    """
    document = _document(path, _text(path), model)
    assert isinstance(document, model)
    return document


# A step of a study reads its contract dozens of times. Models are frozen, so that all may share
# one; nobody changes what stands in a mapping of theirs.
@functools.lru_cache(maxsize=64)
def _document(path: Path, text: str, model: type[Model]) -> Model:
    documents = _documents(path, text)
    if len(documents) > 1:
        raise StudyError(f"'{path}' holds {len(documents)} YAML documents; expected one.")
    return _parsed(path, documents[0] if documents else None, model)


def read_yaml(path: Path) -> list[Any]:
    """Return the documents of a YAML file as plain values.

    Raises:
        StudyError: It is missing, no text, or malformed (line and column are named).
    """
    return _documents(path, _text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StudyError(*run_error(error, f"read '{path}'").args) from None
    except UnicodeDecodeError as error:
        raise StudyError(f"'{path}' is not UTF-8 text: {error}.") from None


def _documents(path: Path, text: str) -> list[Any]:
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise StudyError(f"'{path}' is malformed{place}: {problem}.") from None


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
            "Open it with the version of Assay that wrote it, or write the file again.",
        )
    return parse(model, values, what=f"'{path}'")


def write_yaml_document(path: Path, document: Model) -> None:
    """Write a model as YAML, whole or not at all."""
    plain = document.model_dump(mode="json")
    write_text(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100))


def write_json_document(path: Path, document: Model) -> None:
    """Write a model as JSON, whole or not at all."""
    write_text(path, dump_json(document.model_dump(mode="json"), indent=1).decode())


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all.

    Raises:
        StudyError: The place cannot be written to.
    """
    # Whoever writes, nothing new ever stands directly below `.rlxp`.
    if ROOT in path.parts:
        at = len(path.parts) - 1 - path.parts[::-1].index(ROOT)
        if path.parts[at + 1 : at + 2] and path.parts[at + 1] not in INSIDE:
            raise flat_refusal(Path(*path.parts[:at]))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as error:
        raise StudyError(*run_error(error, f"write '{path}'").args) from None


def canonical(value: Any) -> bytes:
    """Render a value as the one JSON text that stands for it.

    Raises:
        ValueError: It holds a NaN, an infinity, or something that JSON cannot say.

    Example:
        >>> canonical({"b": 1, "a": [True, None, 0.5]})
        b'{"a":[true,null,0.5],"b":1}'
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def digest(value: Any) -> str:
    """Return the SHA-256 of a value's canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def digest_of(document: Model) -> str:
    """Return the SHA-256 of a document's canonical form."""
    return digest(document.model_dump(mode="json"))
