"""What Hydra would compose for a script by default, read from its YAML files alone."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from assay.study.repo.files import Files
from assay.study.repo.options import kind_of
from assay.study.repo.walk import Option

_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_DEPTH = 5


@dataclass
class Composed:
    """The settings of a script, by their dotted names, and the files they are from."""

    settings: dict[str, Option] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)  # with the directory of their choices


def compose(files: Files, script: str, path: str, name: str) -> Composed:
    """Return the default config of a script, as its defaults lists compose it.

    Args:
        files: The repository.
        script: The file with `@hydra.main`.
        path: Its `config_path`; relative to the script, or `pkg://` and a package.
        name: Its `config_name`.
    """
    found = Composed()
    root = _root(files, script, path, name)
    if root is not None:
        _add(files, root, _with_suffix(name), "", found, 0)
    return found


def read_settings(files: Files, path: str, package: str = "") -> dict[str, Option]:
    """Return the settings of one YAML file, by their dotted names."""
    try:
        node = yaml.compose(files.text(path), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    found: dict[str, Option] = {}
    if isinstance(node, yaml.MappingNode):
        _flatten(node, package, path, found, 0)
    return found


def _root(files: Files, script: str, path: str, name: str) -> str | None:
    here = script.rpartition("/")[0]
    wanted = _with_suffix(name)
    if path.startswith("pkg://"):
        place = path.removeprefix("pkg://").replace(".", "/")
        near = ["", "src", here]
    else:
        place, near = path or ".", [here]
    for start in near:
        joined = os.path.normpath(os.path.join(start, place)).replace(os.sep, "/")
        joined = "" if joined == "." else joined
        if f"{joined}/{wanted}".lstrip("/") in files:
            return joined
    found = [item for item in files.ending(".yaml", ".yml") if item.endswith("/" + wanted)]
    parent = path.rstrip("/").rpartition("/")[2]
    if parent.strip("."):
        found = [item for item in found if f"/{parent}/" in "/" + item] or found
    roots = {item.removesuffix("/" + wanted) for item in found}
    return roots.pop() if name and len(roots) == 1 else None


def _with_suffix(name: str) -> str:
    return name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"


def _add(files: Files, root: str, name: str, package: str, found: Composed, depth: int) -> None:
    path = f"{root}/{name}".lstrip("/")
    if path not in files or depth > _DEPTH or path in found.files:
        return
    text = files.text(path)
    header = _PACKAGE.search(text)
    if header:
        package = "" if header[1] == "_global_" else header[1]
    found.files.append(path)
    own = read_settings(files, path, package)
    after: list[tuple[str, str]] = []
    for group, option in _defaults(text):
        if group.startswith("override "):
            group = group.removeprefix("override ")
        group = group.removeprefix("optional ")
        group, _, at = group.partition("@")
        here = "" if group.startswith("/") or not group else name.rpartition("/")[0]
        group = group.strip("/")
        whole = f"{here}/{group}".strip("/")
        if group and group != "hydra" and not group.startswith("hydra/"):
            found.groups.setdefault(whole, f"{root}/{whole}".lstrip("/"))
            at = at.replace("_global_", "").replace("_here_", package) if at else ""
            after.append((f"{whole}/{_with_suffix(option)}", at or whole.replace("/", ".")))
        elif not group:
            beside = name.rpartition("/")[0]
            after.append((f"{beside}/{_with_suffix(option)}".lstrip("/"), package))
    for other, below in after:
        _add(files, root, other, below, found, depth + 1)
    found.settings = {**found.settings, **own}


def _defaults(text: str) -> list[tuple[str, str]]:
    """Return the defaults list of a config: groups and their options."""
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        return []
    items = values.get("defaults", []) if isinstance(values, dict) else []
    found = []
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict):
            found += [(str(key), str(value)) for key, value in item.items() if value is not None]
        elif isinstance(item, str) and item != "_self_":
            group, _, option = item.rpartition("/")
            found.append(("", f"{group}/{option}".strip("/")))
    return found


def _flatten(
    node: yaml.MappingNode, prefix: str, path: str, found: dict[str, Option], depth: int
) -> None:
    for key, value in node.value:
        name = f"{prefix}.{key.value}".strip(".") if isinstance(key, yaml.ScalarNode) else ""
        listed = name == "defaults" and isinstance(value, yaml.SequenceNode)
        if not name or listed or name == "hydra" or key.value.startswith("_"):
            continue
        line = key.start_mark.line + 1
        if isinstance(value, yaml.MappingNode) and depth < 8:
            _flatten(value, name, path, found, depth + 1)
        elif isinstance(value, yaml.ScalarNode):
            default = _scalar(value)
            unset = default == "???"
            kind = "" if unset else kind_of(default)
            found[name] = Option(line, kind, None if unset else default, required=unset, path=path)
        elif isinstance(value, yaml.SequenceNode):
            items = [_scalar(v) for v in value.value if isinstance(v, yaml.ScalarNode)]
            found[name] = Option(line, "", items, path=path)


def _scalar(node: yaml.ScalarNode) -> Any:
    if node.style in ("'", '"'):
        return node.value
    try:
        value = yaml.safe_load(node.value)
    except (yaml.YAMLError, ValueError):
        return node.value
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)  # YAML 1.1 takes 1e-3 for a word
    return value if isinstance(value, str | int | float | bool) or value is None else node.value
