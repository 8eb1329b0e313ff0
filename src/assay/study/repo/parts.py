"""The functions, methods and variables of a file, and the names that each of them mentions."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

MAIN = "__main__"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Part:
    """A piece of a file that runs as a whole."""

    name: str  # `main`, `Agent.learn`; empty for what runs on import, MAIN for what does not
    line: int
    end: int
    mentions: frozenset[str]
    decorators: tuple[str, ...] = ()  # that make it by a name: `register` in `@register("ppo")`


@dataclass(frozen=True)
class Parts:
    """The pieces of a file."""

    parts: tuple[Part, ...] = ()
    bases: tuple[tuple[str, tuple[str, ...]], ...] = ()  # of classes


def parts_of(tree: ast.Module) -> Parts:
    """Return the pieces that a file consists of."""
    found: list[Part] = []
    bases: list[tuple[str, tuple[str, ...]]] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases.append((node.name, tuple(filter(None, map(_tail, node.bases)))))
            found += _of_class(node)
        elif isinstance(node, _Function):
            found.append(_part(node.name, node, node.decorator_list))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not _calls(node):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                found.append(_part(_tail(target), node))
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            guard = isinstance(node, ast.If) and "__name__" in _mentions(node.test)
            found.append(_part(MAIN if guard else "", node))
    return Parts(tuple(found), tuple(bases))


def _of_class(node: ast.ClassDef) -> Iterable[Part]:
    """Yield a class without its methods, and each of them."""
    methods = [item for item in node.body if isinstance(item, _Function)]
    rest = [item for item in node.body if not isinstance(item, _Function)]
    mentions = frozenset().union(*(_mentions(item) for item in (*rest, *node.bases)))
    yield Part(node.name, node.lineno, node.lineno, mentions, _made(node.decorator_list))
    for item in methods:
        yield _part(f"{node.name}.{item.name}", item)
    for other in rest:
        yield Part(node.name, other.lineno, other.end_lineno or other.lineno, frozenset())


def _part(name: str, node: ast.stmt, decorators: list[ast.expr] | None = None) -> Part:
    end = node.end_lineno or node.lineno
    return Part(name, node.lineno, end, _mentions(node), _made(decorators or []))


def _made(decorators: list[ast.expr]) -> tuple[str, ...]:
    """Return the decorators that are called, and those that register without a call."""
    called = [_tail(item.func) for item in decorators if isinstance(item, ast.Call)]
    plain = [_tail(item) for item in decorators if not isinstance(item, ast.Call)]
    return (*called, *(name for name in plain if name.startswith("register")))


def _calls(node: ast.Assign | ast.AnnAssign) -> bool:
    """Return whether a variable is made by a call, which runs when the file is run."""
    return any(isinstance(part, ast.Call) for part in ast.walk(node))


def _tail(node: ast.AST) -> str:
    """Return the last name of an expression: `Module` of `nn.Module`."""
    if isinstance(node, ast.Subscript):
        return _tail(node.value)
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _mentions(node: ast.AST) -> frozenset[str]:
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
    return frozenset(found)
