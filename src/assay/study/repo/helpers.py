"""Functions of a foreign repository that log what they are given, and the calls of them."""

from __future__ import annotations

import ast
import re

from assay.study.repo.options import Options
from assay.study.repo.syntax import target_name
from assay.study.repo.walk import Helper, Spoken
from assay.study.repo.words import METRIC_CALLS

_WORD = re.compile(r"[A-Za-z_][\w /.:{}()%@-]{1,60}")
# Functions with these names are called for other things as well.
_COMMON = {
    "__init__", "__call__", "forward", "main", "run", "get", "set", "append", "format", "join",
    "split", "getattr", "setattr", "hasattr", "print", "add_argument", "open", "replace", "make",
}  # fmt: skip


class Helpers(Options):
    """The rules that look at functions between a script and its logger."""

    def logs_argument(self, tag: ast.AST, text: str) -> bool:
        """Note that this function logs under a name that it is given; return whether it does."""
        names = [part.id for part in ast.walk(tag) if isinstance(part, ast.Name)]
        given = [name for name in names if name in self.arguments and name not in ("self", "cls")]
        if not given:
            return False
        # Of `f"{prefix}/{name}"` the last is the name.
        template = text.replace(f"{{{given[-1]}}}", "{}", 1) if text else "{}"
        self._helper(given[-1], template if "{}" in template else "{}", keys=False)
        return True

    def logs_keys(self, source: ast.AST, template: str) -> bool:
        """Note that this function logs the keys of a dictionary that it is given."""
        name = source.id if isinstance(source, ast.Name) else ""
        if name not in self.arguments or name in self.dicts or name in self.made:
            return False
        self._helper(name, template, keys=True)
        return True

    def _helper(self, argument: str, template: str, *, keys: bool) -> None:
        if not self.function or self.function in _COMMON:
            return
        bound = self.arguments[0] in ("self", "cls")
        arguments = tuple(self.arguments[bound:])
        others = tuple((name, text) for name, text in self.defaults if f"{{{name}}}" in template)
        helper = Helper(argument, arguments, template, keys, others)
        self.facts.helpers.setdefault(self.function, helper)

    def speaks(self, node: ast.Call, tail: str) -> None:
        """Note a call that is given names, in case that it turns out to log them."""
        if tail in _COMMON or tail in METRIC_CALLS or not tail:
            return
        given: list[tuple[str | int, ast.expr]] = [*enumerate(node.args[:4])]
        given += [(item.arg, item.value) for item in node.keywords if item.arg]
        texts: list[tuple[str | int, str]] = []
        keys: list[tuple[str | int, tuple[str, ...]]] = []
        for argument, value in given:
            text = self.text(value)
            if text and _WORD.fullmatch(text):
                texts.append((argument, text))
            elif isinstance(value, ast.Dict | ast.Name | ast.Call):
                hits = self.dict_keys(value) or self.dicts.get(target_name(value), [])
                names = tuple(dict.fromkeys(hit.name for hit in hits))
                if names:
                    keys.append((argument, names))
        if texts or keys:
            self.facts.spoken.append(Spoken(tail, tuple(texts), tuple(keys), node.lineno))
