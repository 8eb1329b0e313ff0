"""Change fields of a contract without an editor: `metrics.primary.minimum_effect=50`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from assay.core.config import parse
from assay.core.errors import AssayError, nearest
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, read_yaml, write_text
from assay.study.record.study import Study

_STILL = "still to be filled in"


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
