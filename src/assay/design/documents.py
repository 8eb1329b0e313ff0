"""Read `problem.yaml`, with the line of every mistake, and edit it with all comments kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pydantic
import yaml

from assay.core.config import Model
from assay.core.errors import nearest
from assay.design.problem import PATTERNS, Problem
from assay.design.rules import DesignError
from assay.runs.files import run_error, write_atomic

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A problem, and the text that it was read from."""

    path: Path
    text: str
    problem: Problem


def read_document(path: Path) -> Document:
    """Read a problem.

    Raises:
        DesignError: It is missing, malformed, or says what a problem cannot say; each with line and
            column, and the nearest name.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DesignError(
            f"There is no file '{path}'.", f"Begin one: assay design new --file {path}"
        ) from None
    except UnicodeDecodeError as error:
        raise DesignError(f"'{path}' is not UTF-8 text: {error}.") from None
    except OSError as error:
        raise DesignError(*run_error(error, f"read '{path}'").args) from None
    return Document(path, text, parse_text(text, str(path)))


def parse_text(text: str, name: str = "") -> Problem:
    """Return the problem that a text describes.

    `name` is what messages call the file; without one, they name the fields alone.

    Raises:
        DesignError: As of `read_document`.
    """
    values, root = _load(text, name)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise DesignError(f"'{name}' holds a {type(values).__name__}; expected `section: ...`.")
    try:
        return Problem(**values)
    except pydantic.ValidationError as error:
        raise DesignError(_explain(error.errors(), root, name)) from None


def _load(text: str, name: str) -> tuple[Any, yaml.Node | None]:
    """Return the values of a YAML text and its nodes."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_twice(root)
        return yaml.safe_load(text), root
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise DesignError(
            f"'{name}' is malformed{place}: {problem}.", "Correct that line; nothing was changed."
        ) from None


def _refuse_twice(node: yaml.Node | None) -> None:
    """Refuse a key that is there twice: people read the first, YAML takes the last."""
    seen = set()
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value in seen:
            raise yaml.MarkedYAMLError(
                problem=f"the key '{key.value}' is there twice", problem_mark=key.start_mark
            )
        seen.add(str(key.value))
        _refuse_twice(value)
    for value in node.value if isinstance(node, yaml.SequenceNode) else ():
        _refuse_twice(value)


def _explain(errors: Sequence[Any], root: yaml.Node | None, name: str) -> str:
    """Return one line for each field that is wrong, with where it is in the file."""
    lines: dict[Place, str] = {}
    for item in errors:
        place, node = _follow(root, item["loc"])
        key = ".".join(map(str, place)) or "the file"
        if item["type"] == "extra_forbidden":
            said = f"'{key}' is unknown. {nearest(str(place[-1]), _siblings(place))}"
            node = _key(_follow(root, place[:-1])[1], place[-1])
        else:
            reason = _reason(item)
            given = item["input"]
            value = "" if isinstance(given, (Mapping, list)) else f" is {given!r}"
            said = f"{key}{value}: {reason[0].lower()}{reason[1:]}"
        mark = node.start_mark if node is not None and name else None
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        if place in lines:  # the members of a union, each with its own complaint
            continue
        lines[place] = where + said.rstrip(".")
    told = "; ".join(lines.values())
    told += "" if told.endswith("?") else "."
    return f"'{name}' is not a problem that can be read: {told}" if name else told


def _reason(item: Any) -> str:
    """Return why a value is wrong, in words of the file and not of Python."""
    if item["type"] in ("model_type", "dict_type"):
        return "fields are expected below it, each `name: value`"
    if item["type"] == "string_pattern_mismatch":
        return PATTERNS[item["ctx"]["pattern"]]
    return str(item["msg"]).removeprefix("Value error, ")


def _follow(root: yaml.Node | None, loc: Sequence[str | int]) -> tuple[Place, yaml.Node | None]:
    """Return how far a place exists in the file, and the node that is there."""
    place: list[str | int] = []
    node = root
    for part in loc:
        below = _child(node, part)
        if below is None:
            if not _is_field(place, part):
                break
            place.append(part)  # a field that is missing
            break
        node = below
        place.append(part)
    return tuple(place), node


def _child(node: yaml.Node | None, part: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        items: list[yaml.Node] = node.value
        return items[part] if part < len(items) else None
    if isinstance(node, yaml.MappingNode):
        found: yaml.Node | None = next((v for k, v in node.value if k.value == str(part)), None)
        return found
    return None


def _key(node: yaml.Node | None, part: str | int) -> yaml.Node | None:
    """Return the node of a key itself, which may stand on the line before its value."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((key for key, _ in pairs if key.value == str(part)), None)


def _is_field(place: Sequence[str | int], part: str | int) -> bool:
    model = _model_at(place)
    return model is not None and part in model.model_fields


def _siblings(place: Place) -> list[str]:
    model = _model_at(place[:-1])
    return list(model.model_fields) if model is not None else []


def _model_at(place: Sequence[str | int]) -> type[Model] | None:
    """Return the model that the fields at a place belong to."""
    model: type[Model] | None = Problem
    for part in place:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model is not None else None
        model = _model_in(field.annotation) if field is not None else None
    return model


def _model_in(annotation: Any) -> type[Model] | None:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((m for m in map(_model_in, get_args(annotation)) if m is not None), None)


# ---------------------------------------------------------------------- editing


def assign(document: Document, fields: Mapping[str, Any]) -> Document:
    """Set fields by their dotted names in the file, where all comments and the order stay.

    Raises:
        DesignError: A name or a value does not fit; the file stays as it was.
    """
    text = document.text
    for name, value in fields.items():
        text = _set(text, _parts(name), value, name)
    made = Document(document.path, text, parse_text(text))
    write_text(document.path, text)
    return made


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all.

    Raises:
        DesignError: The place cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as error:
        raise DesignError(*run_error(error, f"write '{path}'").args) from None


def render(values: Mapping[str, Any]) -> str:
    """Return values as YAML, with short lists on one line."""
    return yaml.safe_dump(
        dict(values), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )


def _parts(name: str) -> Place:
    """Return the parts of `state.entries[0].unit`."""
    words = name.replace("[", ".").replace("]", "").split(".")
    return tuple(int(word) if word.isdigit() else word for word in words)


def _set(text: str, place: Place, value: Any, name: str) -> str:
    """Return the text with one value set."""
    before, root = _load(text, "the file")
    wanted = _with(before or {}, place, value, name)
    node, depth = root, 0
    while depth < len(place) and (below := _child(node, place[depth])) is not None:
        node, depth = below, depth + 1
    rest = place[depth:]
    if node is None:
        return _verified(text.rstrip("\n") + "\n" * bool(text) + render(wanted), wanted, name)
    if not rest:
        made = _replaced(text, node, value)
    elif isinstance(node, yaml.MappingNode) and node.value:
        made = _inserted(text, node, _nested(rest, value))
    else:  # an empty value, or an empty mapping
        made = _replaced(text, node, _nested(rest, value))
    return _verified(made, wanted, name)


def _nested(place: Place, value: Any) -> Any:
    for part in reversed(place):
        value = {part: value}
    return value


def _with(values: Any, place: Place, value: Any, name: str) -> Any:
    """Return plain values with one set."""
    if not place:
        return value
    part, rest = place[0], place[1:]
    if isinstance(values, list):
        if not isinstance(part, int) or part >= len(values):
            raise DesignError(
                f"'{name}' is not in the file: the list has {len(values)} items.",
                "Count from 0, or add the item in an editor.",
            )
        return [_with(v, rest, value, name) if i == part else v for i, v in enumerate(values)]
    if values is not None and not isinstance(values, dict):
        raise DesignError(f"'{name}' cannot be set: {values!r} has no fields.")
    inner = dict(values or {})
    inner[part] = _with(inner.get(part), rest, value, name)
    return inner


def _flow(value: Any) -> str:
    """Return a value on one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1e9
    )
    return text.removesuffix("...\n").strip()


def _end(node: yaml.Node) -> int:
    """Return where the text of a node ends, before comments that follow it."""
    block = isinstance(node, yaml.CollectionNode) and not node.flow_style
    if block and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _replaced(text: str, node: yaml.Node, value: Any) -> str:
    start, end = node.start_mark.index, _end(node)
    old = text[start:end]
    tail = old[len(old.rstrip("\n")) :]  # a block of text owns its last newline
    space = " " if start and text[start - 1] == ":" else ""
    return text[:start] + space + _flow(value) + tail + text[end:]


def _inserted(text: str, node: yaml.MappingNode, value: Mapping[str, Any]) -> str:
    """Return the text with one more key at the end of a mapping."""
    if node.flow_style:
        end = node.end_mark.index - 1
        return text[:end].rstrip() + ", " + _flow(value)[1:-1] + text[end:]
    line_end = text.find("\n", max(0, _end(node) - (text[_end(node) - 1] == "\n")))
    at = len(text) if line_end < 0 else line_end + 1
    indent = " " * node.value[0][0].start_mark.column
    block = render(value)
    if block.startswith("{"):  # a mapping of plain values only
        block = block.strip()[1:-1] + "\n"
    lines = "".join(indent + line for line in block.splitlines(keepends=True))
    head = text[:at] if text[:at].endswith("\n") else text[:at] + "\n"
    return head + lines + text[at:]


def _verified(text: str, wanted: Any, name: str) -> str:
    """Return the text if it says what is wanted, and nothing else changed."""
    try:
        right = yaml.safe_load(text) == wanted
    except yaml.YAMLError:
        right = False
    if not right:
        raise DesignError(
            f"'{name}' cannot be set without touching other lines of the file.",
            "Edit it by hand; nothing was changed.",
        )
    return text
