"""Syntax trees of files that this Python cannot parse: those of Python 2 and of newer ones."""

from __future__ import annotations

import ast
import re

_PRINT = re.compile(r"^([ \t]*)print[ \t]+((?![(=.])[^\n]*?),?[ \t]*$", re.MULTILINE)
# Type parameters of a newer Python: `def first[T](items)`, `class Box[T]:`, `type Pair = ...`.
_PARAMETERS = re.compile(
    r"^([ \t]*(?:async +def|def|class) +\w+)\[(?:[^\[\]]|\[[^\[\]]*\])*\](?=[(:])", re.MULTILINE
)
_ALIAS = re.compile(r"^([ \t]*)type +(\w+)(?:\[[^\]=]*\])? *=", re.MULTILINE)
# Where a part begins: nothing that closes or goes on with the one before.
_PART = re.compile(r"^(?!else\b|elif\b|except\b|finally\b)[A-Za-z_@]")


def parse_other(text: str) -> ast.Module:
    """Return the tree of a file of another Python, else of its parts that can be parsed."""
    text = _ALIAS.sub(r"\1\2 =", _PARAMETERS.sub(r"\1", text))
    text = _PRINT.sub(r"\1print(\2)", text)
    text = re.sub(r"^(\s*except\s+[\w.]+),\s*(\w+)\s*:", r"\1 as \2:", text, flags=re.MULTILINE)
    try:
        return ast.parse(text)
    except SyntaxError:
        return _parse_parts(text)


def _parse_parts(text: str) -> ast.Module:
    """Return the functions, classes and statements of a file that can be parsed by themselves."""
    module = ast.Module(body=[], type_ignores=[])
    lines = text.split("\n")
    found = [index for index, line in enumerate(lines) if _PART.match(line)]
    # A decorator belongs to what follows it.
    starts = [
        index
        for before, index in zip([-1, *found], found, strict=False)
        if before < 0 or not lines[before].startswith("@")
    ]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        try:
            part = ast.parse("\n".join(lines[start:end]))
        except SyntaxError:
            continue
        for node in part.body:
            module.body.append(ast.increment_lineno(node, start))
    return module
