"""Syntax trees: small questions about them, their pieces, and those of other Pythons."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from assay.study.repo.files import words
from assay.study.repo.words import DONE_NAMES, REPACKS, REWARD_NAMES

# What an environment wraps or asks is called one of these.
INNER = {"env", "envs", "environment", "unwrapped", "wrapped"}
_MATHS = {"log", "exp", "sqrt", "tanh", "norm", "abs", "max", "min"}  # of what it is given
LEAVES = frozenset({ast.Constant, ast.Name, ast.alias, ast.Pass, ast.Break, ast.Continue})
# Parts of a node in which nothing is looked for.
BARE = {
    "ctx", "op", "ops", "annotation", "returns", "type_comment", "type_params", "type_ignores",
    "kind", "conversion", "names", "decorator_list",
}  # fmt: skip
MAIN = "__main__"
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_PRINT = re.compile(r"^([ \t]*)print[ \t]+((?![(=.])[^\n]*?),?[ \t]*$", re.MULTILINE)
# Type parameters of a newer Python: `def first[T](items)`, `class Box[T]:`, `type Pair = ...`.
_PARAMETERS = re.compile(
    r"^([ \t]*(?:async +def|def|class) +\w+)\[(?:[^\[\]]|\[[^\[\]]*\])*\](?=[(:])", re.MULTILINE
)
_ALIAS = re.compile(r"^([ \t]*)type +(\w+)(?:\[[^\]=]*\])? *=", re.MULTILINE)
# Where a part begins: nothing that closes or goes on with the one before.
_PART = re.compile(r"^(?!else\b|elif\b|except\b|finally\b)[A-Za-z_@]")


@functools.cache
def fields_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the parts of a kind of node in which something may be found."""
    return tuple(name for name in kind._fields if name not in BARE)


def placeholder(node: ast.AST) -> str:
    """Return `{name}` for a value that is filled in when the program runs."""
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    name = inner.id if isinstance(inner, ast.Name) else ""
    return f"{{{name}}}"


def draws(node: ast.Call) -> bool:
    """Return whether an event draws something, rather than to put things back where they were."""
    for part in ast.walk(node):
        text = part.arg if isinstance(part, ast.keyword) else getattr(part, "value", None)
        if isinstance(part, ast.Attribute):
            text = part.attr
        if isinstance(text, str):
            if text in ("startup", "prestartup", "interval"):
                return True
            if {"range", "ranges", "distribution", "random", "randomize"} & set(words(text)):
                return True
    return False


def is_none(node: ast.AST) -> bool:
    """Return whether an expression is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_number(node: ast.AST) -> bool:
    """Return whether an expression is a number, perhaps with a sign."""
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    )


def body_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Return the statements of a function without its docstring."""
    body = node.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return body


def computes(node: ast.FunctionDef | ast.AsyncFunctionDef, *, strict: bool = True) -> bool:
    """Return whether a function does more than to pass, to raise or to hand an attribute on."""
    body = [item for item in body_of(node) if not isinstance(item, ast.Pass | ast.Raise)]
    if not body or (strict and not yields(node)):
        return False
    if len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return False
    if len(body) == 1 and isinstance(body[0], ast.Return):
        value = body[0].value
        simple = (ast.Attribute, ast.Constant, ast.Name) if strict else (ast.Constant, ast.Name)
        return value is not None and not isinstance(value, simple)
    return True


def works_out(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function computes something, rather than to ask its like elsewhere."""
    body = body_of(node)
    value = body[-1].value if body and isinstance(body[-1], ast.Return) else None
    while isinstance(value, ast.Subscript):
        value = value.value
    called = value.func.attr if isinstance(value, ast.Call) and (
        isinstance(value.func, ast.Attribute)
    ) else ""  # fmt: skip
    elsewhere = (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and isinstance(value.func.value, ast.Attribute)  # `self.env.reward()`
        and bool({"reward", "rewards"} & set(words(called)))
    )
    return computes(node) and not (len(body) == 1 and (called == node.name or elsewhere))


def never(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function says no to everything: `return np.zeros(len(states))`."""
    body = [item for item in body_of(node) if not isinstance(item, ast.Import | ast.ImportFrom)]
    value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    return isinstance(value, ast.Call) and target_name(value.func) in ("zeros", "zeros_like")


def asks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function gives back what a part of its object knows: `self.car.crashed`."""
    body = body_of(node)
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return False
    value = body[0].value
    return (
        isinstance(value, ast.Attribute)
        and value.attr not in DONE_NAMES
        and isinstance(value.value, ast.Attribute)
        and not {"env", "manager", "state"} & set(words(value.value.attr))
    )


def yields(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function gives back a value or writes it into a buffer."""
    for part in ast.walk(node):
        if isinstance(part, ast.Return) and part.value is not None:
            return True
        if isinstance(part, ast.Assign | ast.AugAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            if any(target_name(target) in REWARD_NAMES | DONE_NAMES for target in targets):
                return True
    return False


def returns_step(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function works out a reward and an end, without stepping anything."""
    calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    if any(isinstance(call, ast.Attribute) and call.attr == "step" for call in calls):
        return False
    for part in ast.walk(node):
        if isinstance(part, ast.Return) and isinstance(part.value, ast.Tuple):
            names = {item.id for item in part.value.elts if isinstance(item, ast.Name)}
            if names & {"reward", "rewards"} and names & {"done", "terminated", "dones"}:
                return True
    return False


def target_name(node: ast.AST) -> str:
    """Return the name that is assigned to: `buffer` for `self.buffer[i]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def assignments(
    body: list[ast.stmt], branch: bool
) -> Iterator[tuple[ast.Assign | ast.AugAssign | ast.AnnAssign, bool]]:
    """Yield the assignments of a body, and whether they stand in a branch."""
    for item in body:
        if isinstance(item, ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield item, branch
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(item, name, None)
            if isinstance(inner, list):
                yield from assignments(inner, branch or isinstance(item, ast.If))
        # What an exception or a pattern leads to is a branch as well.
        for part in (*getattr(item, "handlers", ()), *getattr(item, "cases", ())):
            yield from assignments(part.body, True)


def is_computed(node: ast.AST, branch: bool, slot: str) -> bool:
    """Return whether a value of a slot, assigned in a branch or not, is worked out here."""
    if isinstance(node, ast.Constant):
        # `reward = 0` and `done = False` set the stage; only a branch makes them a rule.
        return branch and node.value not in (0, False, None)
    if isinstance(node, ast.Call):
        name = node.func
        tail = (
            name.attr if isinstance(name, ast.Attribute)
            else name.id if isinstance(name, ast.Name) else ""
        )  # fmt: skip
        if isinstance(name, ast.Attribute) and "manager" in words(ast.unparse(name.value)):
            return False  # it is computed there
        if isinstance(name, ast.Attribute) and words(tail)[-1:] in (("fn",), ("function",)):
            return False  # `self.reward_fn(...)`, which was given to it or stands elsewhere
        if isinstance(name, ast.Attribute) and target_name(name.value).strip("_") in INNER:
            return False  # `self.env.unwrapped.is_done()` is decided there
        if tail in ("sum", "mean") and _own(name) and "reward" not in ast.unparse(name):
            return True  # `self.profits[day].sum()`
        if tail == "bool" and slot == "termination" and node.args:
            told = node.args[0]
            if isinstance(told, ast.Call) and getattr(told.func, "attr", "") == "get" and told.args:
                told = ast.Subscript(told.func.value, told.args[0])  # type: ignore[attr-defined]
            key = getattr(getattr(told, "slice", None), "value", "")
            if _own(told):  # `bool(self._state["solved"])`
                return target_name(told) not in DONE_NAMES and key not in DONE_NAMES
        if set(words(tail)) & REPACKS:
            # Of `reshape(done, [n] + rest)` the first argument is what is repacked.
            given = node.args[:1] if tail in ("reshape", "tile", "repeat") else node.args
            given = [item.body if isinstance(item, ast.Lambda) else item for item in given]
            return any(
                is_computed(argument, branch, slot)
                for argument in given
                if isinstance(argument, ast.BinOp | ast.Compare | ast.BoolOp)
                or (
                    isinstance(argument, ast.Call)
                    and _MATHS & set(words(ast.unparse(argument.func)))
                )
            )
        return True
    if isinstance(node, ast.Subscript) and slot == "reward":
        # `self.prices[item]`, where an item was taken, or a table: `self.R[state, action]`.
        looked_up = isinstance(node.slice, ast.Tuple) and target_name(node) not in REWARD_NAMES
        return (branch or looked_up) and _own(node)
    if isinstance(node, ast.DictComp | ast.ListComp) and slot == "reward":
        value = node.value if isinstance(node, ast.DictComp) else node.elt
        return isinstance(value, ast.BinOp | ast.IfExp | ast.UnaryOp)
    if isinstance(node, ast.IfExp) and slot == "termination":
        return any(
            isinstance(part, ast.Constant) or is_computed(part, True, slot)
            for part in (node.body, node.orelse)
        )  # not `done if one else np.array([done])`
    if isinstance(node, ast.Attribute) and slot == "reward":
        if not _own(node) or {"last", "prev", "total", "episode"} & set(words(node.attr)):
            return False
        # `self.step_score`, or `self.goal_reward` where the goal was reached.
        return "rew" not in node.attr or (branch and node.attr not in REWARD_NAMES)
    if isinstance(node, ast.DictComp) and slot == "termination":
        return branch and isinstance(node.value, ast.Constant) and node.value.value is True
    if isinstance(node, ast.BoolOp | ast.BinOp) and slot == "termination":
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
        return bool(names - DONE_NAMES - {"self", "torch", "np", "jnp", "logical_or"})
    if isinstance(node, ast.BoolOp):  # `step.reward or 0.0`
        return any(is_computed(part, False, slot) for part in node.values)
    return isinstance(node, ast.BinOp | ast.Compare | ast.IfExp | ast.UnaryOp)


def _own(node: ast.AST) -> bool:
    """Return whether an expression is a part of the object: `self.prices[item]`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "self"


def conditions(test: ast.AST, *, holds: bool = True) -> list[tuple[str, Any]]:
    """Return the settings that a test asks for, and the value each must have for it to hold."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return conditions(test.operand, holds=not holds)
    if isinstance(test, ast.BoolOp):
        both = isinstance(test.op, ast.And) == holds
        return [item for part in test.values for item in conditions(part, holds=holds)] * both
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, operator, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(operator, ast.In | ast.NotIn):
            left, right = right, left  # `"wandb" in args.loggers`
        if not isinstance(right, ast.Constant) or not _setting(left):
            return []
        if not isinstance(operator, ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn):
            return []  # `x > 0` asks for no one value
        positive = isinstance(operator, ast.Eq | ast.Is | ast.In) == holds
        if right.value is None:
            return [(_setting(left), None if positive else ...)]
        return [(_setting(left), right.value)] if positive else []
    name = _setting(test)
    return [(name, holds)] if name else []


def _setting(node: ast.AST) -> str:
    """Return the name of a setting: `track` for `args.track`, `cfg["track"]` and `track`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "get" and node.args:
            key = node.args[0]
            return str(key.value) if isinstance(key, ast.Constant) else ""
        return _setting(node.func.value) if node.func.attr == "lower" else ""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value) if isinstance(node.slice.value, str) else ""
    if isinstance(node, ast.Attribute):
        owner = node.value
        if node.attr == "value" and isinstance(owner, ast.Name):
            return owner.id.strip("_").lower()  # a flag of absl: `_USE_WANDB.value`
        inner = owner.attr if isinstance(owner, ast.Attribute) else ""
        return f"{inner}.{node.attr}" if inner else node.attr
    return node.id if isinstance(node, ast.Name) else ""


# ---------------------------------------------------------------------- the pieces of a file


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


# ---------------------------------------------------------------------- files of another Python


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
