"""The settings that a foreign script takes: options, fields of dataclasses, parameters.

What is noted has its type and its default, as far as they are written down as literals.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from assay.study.repo.files import words
from assay.study.repo.syntax import is_none
from assay.study.repo.walk import Hit, Option, Walker

_KINDS = {"int": "int", "float": "float", "str": "str", "bool": "bool", "Path": "str"}
# Decorators and calls that make a command line of a class or a function.
_MAKERS = {
    "tyro.cli", "tyro.extras.overridable_config_cli", "tyro.extras.subcommand_cli", "fire.Fire",
    "jsonargparse.CLI", "jsonargparse.auto_cli", "typer.run", "simple_parsing.parse",
    "draccus.parse", "pyrallis.parse", "chz.entrypoint", "chz.nested_entrypoint",
}  # fmt: skip
_WRAPS = {"draccus", "pyrallis", "simple_parsing"}


def literal(node: ast.AST | None) -> Any:
    """Return the value of an expression that is a literal, else None."""
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, str | int | float | bool | list | tuple) else None


def kind_of(value: Any) -> str:
    """Return the type of a default: bool, int, float, str or nothing."""
    return type(value).__name__ if isinstance(value, bool | int | float | str) else ""


def annotated(node: ast.AST | None) -> tuple[str, tuple[Any, ...]]:
    """Return the type that an annotation names, and the values that it allows."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return "", ()
    if isinstance(node, ast.BinOp):  # `int | None`
        found = [annotated(part) for part in (node.left, node.right) if not is_none(part)]
        return found[0] if found else ("", ())
    if isinstance(node, ast.Subscript):
        outer = node.value.attr if isinstance(node.value, ast.Attribute) else ""
        outer = node.value.id if isinstance(node.value, ast.Name) else outer
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Literal":
            return "choice", tuple(literal(item) for item in inner)
        if outer in ("Optional", "Annotated", "Union", "Final", "ClassVar") and inner:
            return annotated(inner[0])
        return "", ()
    if isinstance(node, ast.Attribute):
        return _KINDS.get(node.attr, node.attr), ()
    return (_KINDS.get(node.id, node.id), ()) if isinstance(node, ast.Name) else ("", ())


class Options(Walker):
    """The rules that look for settings."""

    def option_call(self, node: ast.Call, full: str, root: str, tail: str) -> None:
        """Note the options that a call declares, and what a command line is made of."""
        if tail == "add_argument" and node.args:
            self._argument(node, [self.text(item) for item in node.args])
        elif tail in ("Option", "option") and root in ("typer", "click"):
            names = [self.text(item).partition("/")[0] for item in node.args]
            self._argument(node, names)
            for name in names:
                self.facts.owners.setdefault(name, set()).add(self.function)
        elif tail.startswith("DEFINE_") and node.args:
            self._flag(node, tail)
        elif full.endswith(("OmegaConf.from_cli", "OmegaConf.from_dotlist")):
            self.facts.dotted = True
        elif full.endswith("OmegaConf.structured") and node.args:
            self.facts.structured.append(self.dotted(node.args[0]).rpartition(".")[2])
        elif full in _MAKERS or (tail == "add_arguments" and root not in ("self",)):
            self.facts.flat = self.facts.flat or "OmitArgPrefixes" in ast.unparse(node)
            for made in [*node.args[:1], *(k.value for k in node.keywords[:1])][:1]:
                self.facts.parsed.append((self.dotted(made).rpartition(".")[2], False))

    def option_decorator(
        self, node: ast.AST, full: str, function: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        """Note what a decorator makes of a function: options, or a command line."""
        root, _, tail = full.rpartition(".")
        if isinstance(node, ast.Call) and root == "click" and tail == "option":
            self._argument(node, [self.text(item).partition("/")[0] for item in node.args])
        elif tail == "wrap" and (root.partition(".")[0] in _WRAPS or root.endswith("parser")):
            self.facts.parsed.append((function.name, True))
            self.facts.config.setdefault("custom", Hit(root, function.lineno, 0.85))
        elif tail == "command" and "typer" in " ".join(self.facts.modules):
            self.facts.parsed.append((function.name, False))
            self.facts.dashed.add(function.name)
        elif full == "hydra.main" and isinstance(node, ast.Call):
            given = {k.arg: self.text(k.value) for k in node.keywords if k.arg}
            for name, value in zip(("config_path", "config_name"), node.args, strict=False):
                given.setdefault(name, self.text(value))
            place = given.get("config_path", ""), given.get("config_name", "")
            self.facts.hydra[function.name] = place
            self.facts.parsed.append((function.name, True))

    def _argument(self, node: ast.Call, names: list[str]) -> None:
        given = {k.arg: k.value for k in node.keywords if k.arg}
        default = literal(given.get("default"))
        action = literal(given.get("action"))
        kind = self.dotted(given["type"]).rpartition(".")[2] if "type" in given else ""
        if action in ("store_true", "store_false") or literal(given.get("is_flag")) is True:
            kind, default = "bool", action == "store_false"
        elif isinstance(given.get("action"), ast.AST) and "Boolean" in ast.unparse(given["action"]):
            kind = "bool"
        elif "action" in given and "StoreTrue" in ast.unparse(given["action"]):
            kind, default, action = "bool", False, "store_true"
        allowed = literal(given.get("choices"))
        option = Option(
            node.lineno,
            "choice" if isinstance(allowed, list | tuple) else _KINDS.get(kind) or kind_of(default),
            default,
            tuple(allowed) if isinstance(allowed, list | tuple) else (),
            literal(given.get("required")) is True,
            flag=action in ("store_true", "store_false"),
            about=self.text(given.get("help"))[:200],
        )
        # Of `-s, --seed` the long one is the name.
        for name in sorted(names, key=lambda name: not name.startswith("--")):
            if name.startswith("-"):
                self.facts.options.setdefault(name, option)
        if names and names[0] and not names[0].startswith("-") and "nargs" not in given:
            self.facts.positional.setdefault(names[0], option)

    def _flag(self, node: ast.Call, tail: str) -> None:
        name = self.text(node.args[0])
        if not name:
            return
        kind = tail.removeprefix("DEFINE_")
        kind = {"integer": "int", "boolean": "bool", "string": "str", "enum": "choice"}.get(
            kind, kind
        )
        given = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "default")]
        default = literal(given[0]) if given else None
        if tail == "DEFINE_config_file":
            self.facts.config_files.append((name, default if isinstance(default, str) else ""))
        choices = literal(node.args[2]) if kind == "choice" and len(node.args) > 2 else ()
        allowed = tuple(choices) if isinstance(choices, list | tuple) else ()
        kept = kind if kind in ("int", "float", "bool", "str", "choice") else ""
        self.facts.options.setdefault("--" + name, Option(node.lineno, kept, default, allowed))

    def fields_of_class(self, node: ast.ClassDef) -> dict[str, Option]:
        """Return the annotated fields of a class, and those that are only assigned."""
        found: dict[str, Option] = {}
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                found[item.target.id] = self._field(item.annotation, item.value, item.lineno)
            elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                default = literal(item.value)
                if default is not None:
                    option = Option(item.lineno, kind_of(default), default)
                    found[item.targets[0].id] = option
        return found

    def _field(self, annotation: ast.AST, value: ast.AST | None, line: int) -> Option:
        kind, choices = annotated(annotation)
        default = literal(value)
        if isinstance(value, ast.Call):
            for keyword in value.keywords:
                if keyword.arg == "default":
                    default = literal(keyword.value)
                elif keyword.arg == "default_factory" and not kind:
                    kind = self.dotted(keyword.value).rpartition(".")[2]
            if not kind[:1].isupper() and self.dotted(value.func)[:1].isupper():
                kind = kind or self.dotted(value.func).rpartition(".")[2]
        return Option(line, kind, default, choices, value is None)

    def signature(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Option]:
        """Return the parameters of a function."""
        found: dict[str, Option] = {}
        positional = [*node.args.posonlyargs, *node.args.args]
        missing = [None] * (len(positional) - len(node.args.defaults))
        pairs = [*zip(positional, [*missing, *node.args.defaults], strict=True)]
        pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        for argument, default in pairs:
            if argument.arg in ("self", "cls"):
                continue
            if isinstance(default, ast.Call) and default.args:  # `= typer.Option(0, "--seed")`
                default = default.args[0]
            kind, choices = annotated(argument.annotation)
            value = literal(default)
            found[argument.arg] = Option(
                argument.lineno, kind or kind_of(value), value, choices, default is None
            )
        return found


def is_seed(name: str) -> bool:
    """Return whether a setting is the seed: `--seed`, `random_seed`, `+seed`, `--args.seed`."""
    last = words(name.rpartition(".")[2])
    if {"num", "n", "number", "max", "count", "use", "same", "fix"} & set(last):
        return False  # how many, or whether
    return bool(last) and (
        last[-1] in ("seed", "seeds")
        or (last[-2:-1] == ("seed",) and last[-1] in ("value", "id", "nr", "idx", "start"))
    )


def seeds(options: Iterable[str]) -> list[str]:
    """Return the options that take a seed, the training's own first."""
    other = {"eval", "evaluation", "test", "env", "data", "split", "dataset", "goal", "noise"}
    found = [name for name in options if is_seed(name)]
    return sorted(
        found,
        key=lambda n: (bool(other & set(words(n))), n.endswith("s"), n.count("."), len(n), n),
    )
