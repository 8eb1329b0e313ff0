"""Where the step of an environment pays its reward and ends its episode."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from assay.study.repo.calls import Calls
from assay.study.repo.files import words
from assay.study.repo.syntax import assignments, is_computed, is_number, target_name
from assay.study.repo.walk import Owner
from assay.study.repo.words import DONE_NAMES, FETCHES, REWARD_NAMES, STEPS

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Steps(Calls):
    """The rules that look into steps."""

    def sets(self, node: Function, qualified: str) -> None:
        """Note where a method works out the reward or the end before a step returns it."""
        returned = {
            part.id
            for item in ast.walk(node)
            if isinstance(item, ast.Return) and item.value is not None
            for part in ast.walk(item.value)
            if isinstance(part, ast.Name)
        }
        for item, branch in assignments(node.body, False):
            target = item.targets[0] if isinstance(item, ast.Assign) else item.target
            kept = isinstance(target, ast.Attribute)
            handed = isinstance(target, ast.Name) and target.id in returned
            name, value = target_name(target), item.value
            plain = kept and isinstance(value, ast.BinOp)
            paid = isinstance(item, ast.AugAssign) and not _names(value, "reward")
            plain = plain or (handed and (paid or _pays(value)))
            compared = isinstance(target, ast.Attribute | ast.Name) and (
                isinstance(value, ast.Compare | ast.BoolOp)
                and is_computed(value, False, "termination")
            )
            ends = (kept or handed) and branch and _is_true(value)
            if plain and name in REWARD_NAMES:
                self.found("reward", qualified, item.lineno, 0.75)
            elif (compared or ends) and name in DONE_NAMES:
                self.found("termination", qualified, item.lineno, 0.75)

    def step(self, node: Function, qualified: str, owner: Owner) -> None:
        """Note where a step computes its reward and its end, not where it hands them on."""
        found: dict[str, int] = {}
        known: dict[str, ast.expr] = {}  # what the step's variables were last set to
        paid = _paid(node, named=owner.wrapper or not self.classes)
        for item, branch in assignments(node.body, False):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            value = _behind(item.value, known)
            for target in targets:
                kinds = ast.BinOp if owner.wrapper else ast.BinOp | ast.UnaryOp | ast.Call
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(part, ast.Name) and isinstance(item.value, kinds):
                        known[part.id] = item.value
                if isinstance(target, ast.Tuple) and not owner.wrapper:
                    for slot in self._unpacks(target, item.value):
                        found.setdefault(slot, item.lineno)
                    continue
                slot = "reward" if target_name(target) in paid else _slot(target_name(target))
                if self.elsewhere(item.value) and not owner.wrapper:
                    continue  # what another file works out is its own
                if owner.wrapper and (
                    (isinstance(item.value, ast.Call) and _converts(item.value))
                    or (isinstance(item, ast.AugAssign) and "reward" in ast.unparse(item.value))
                ):
                    continue  # a wrapper converts or sums what the environment gave it
                if slot and value is not None and slot not in found:
                    if is_computed(value, branch or isinstance(item, ast.AugAssign), slot):
                        found[slot] = item.lineno
        for slot, line in (*_returned(node), *(() if owner.wrapper else self._packed(node))):
            found.setdefault(slot, line)
        for slot, line in found.items():
            self.found(slot, qualified, line, 0.6 if owner.wrapper else 0.8)

    def elsewhere(self, value: ast.AST | None) -> bool:
        """Return whether a value is what a function of another file gives back."""
        function = value.func if isinstance(value, ast.Call) else None
        return isinstance(function, ast.Name) and function.id in self.facts.imports

    def _unpacks(self, target: ast.Tuple, value: ast.AST | None) -> Iterable[str]:
        """Yield what a step gets from a function of its own: `obs, reward = self._move(action)`."""
        if not isinstance(value, ast.Call):
            return
        function = value.func
        own = isinstance(function, ast.Name) and function.id in self.local
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            own = function.value.id == "self" and function.attr not in STEPS
            own = own and not set(words(function.attr)) & FETCHES
        # What is given the reward passes it on.
        own = own and not any(_names(argument, "reward") for argument in value.args)
        own = own and not any(  # nor does what is given a step: `_to_jax(self._step(action))`
            isinstance(part, ast.Call) and target_name(part.func) in STEPS
            for argument in value.args
            for part in ast.walk(argument)
        )
        for item in target.elts if own else ():
            if _slot(target_name(item)):
                yield _slot(target_name(item))

    def _packed(self, node: Function) -> Iterable[tuple[str, int]]:
        """Yield what a step works out in a record: `TimeStep(reward=-distance, done=near)`."""
        for part in ast.walk(node):
            pairs: list[tuple[str, ast.expr]] = []
            if isinstance(part, ast.Dict):
                pairs = [
                    (self.text(key) or target_name(key), value)
                    for key, value in zip(part.keys, part.values, strict=True)
                    if key is not None
                ]
            elif isinstance(part, ast.Call):
                pairs = [(item.arg, item.value) for item in part.keywords if item.arg]
            for name, value in pairs:
                slot = _slot(name.lower())
                if slot and not isinstance(value, ast.Call) and is_computed(value, False, slot):
                    yield slot, value.lineno


def _behind(value: ast.expr | None, known: dict[str, ast.expr]) -> ast.expr | None:
    """Return what a value was worked out as: `profit` of `float(profit)` by what it was set to."""
    inner = value
    if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
        if target_name(value.func) in ("float", "float32", "float64", "int"):
            inner = value.args[0]
    return (
        known.get(inner.id, None if inner is value else value)
        if isinstance(inner, ast.Name)
        else value
    )


def _paid(node: Function, *, named: bool) -> set[str]:
    """Return the variables that a step returns as its reward: `received_reward`, `gain`.

    Args:
        node: The step.
        named: Whether only those are meant that are called rewards.
    """
    found = set()
    for part in ast.walk(node):
        value = part.value if isinstance(part, ast.Return) else None
        if not isinstance(value, ast.Tuple) or not 3 <= len(value.elts) <= 6:
            continue
        name = target_name(value.elts[1])
        # The second of `state, gain, done, info` is the reward, whatever it is called.
        placed = not named and 4 <= len(value.elts) <= 5 and _ends(value.elts[2])
        if _is_reward(name) or (placed and isinstance(value.elts[1], ast.Name)):
            found.add(name)
    for item, _ in assignments(node.body, False):
        target = (
            item.target if isinstance(item, ast.AnnAssign) else getattr(item, "targets", [0])[0]
        )
        if isinstance(item.value, ast.Attribute) and _is_reward(item.value.attr):
            if isinstance(target, ast.Name) and target.id in found | REWARD_NAMES:
                found.add(item.value.attr)  # `reward = self.goal_reward`, which a branch set
    return found - DONE_NAMES


def _is_reward(name: str) -> bool:
    return bool({"reward", "rewards", "rew"} & set(words(name)))


def _slot(name: str) -> str:
    """Return what a variable of a step holds."""
    return "reward" if name in REWARD_NAMES else "termination" if name in DONE_NAMES else ""


def _names(node: ast.AST | None, word: str) -> bool:
    """Return whether an expression has a variable that is called after something."""
    parts = ast.walk(node) if node is not None else ()
    return any(isinstance(part, ast.Name) and word in part.id.lower() for part in parts)


def _ends(node: ast.AST) -> bool:
    """Return whether an expression can say that an episode is over."""
    flag = isinstance(node, ast.Constant) and isinstance(node.value, bool)
    flag = flag or _tells(node)
    named = {word.rstrip("s") for word in words(target_name(node))}
    named |= {word.rstrip("s") for word in words(target_name(getattr(node, "func", node)))}
    return flag or isinstance(node, ast.Compare | ast.BoolOp) or bool(named & DONE_NAMES)


def _is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _tells(node: ast.AST) -> bool:
    """Return whether an expression is `bool(reward)`, where a reward ends the episode."""
    return isinstance(node, ast.Call) and target_name(node.func) == "bool" and _names(node, "rew")


def _pays(node: ast.AST | None) -> bool:
    """Return whether an expression works out a number."""
    if isinstance(node, ast.IfExp):
        return any(is_number(part) or _pays(part) for part in (node.body, node.orelse))
    return isinstance(node, ast.BinOp) or (isinstance(node, ast.UnaryOp) and not is_number(node))


def _returned(node: Function) -> Iterable[tuple[str, int]]:
    """Yield what a step works out as it returns it: `return state, -1, True, {}`."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Return) or not isinstance(part.value, ast.Tuple):
            continue
        items = part.value.elts
        if not 3 <= len(items) <= 5 or not any(map(_ends, items[2:4])):
            continue
        number = is_number(items[1]) and ast.unparse(items[1]).strip("-0.") != ""
        penalty = isinstance(items[1], ast.Attribute) and target_name(items[1].value) == "self"
        penalty = penalty and not {"total", "episode", "last"} & set(words(target_name(items[1])))
        if number or _pays(items[1]) or (penalty and target_name(items[1]) not in REWARD_NAMES):
            yield "reward", part.lineno
        for item in items[2 : max(len(items) - 1, 3)]:
            if (
                _is_true(item)
                or _tells(item)
                or (
                    isinstance(item, ast.Compare | ast.BoolOp)
                    and is_computed(item, False, "termination")
                )
            ):
                yield "termination", part.lineno


def _converts(node: ast.Call) -> bool:
    """Return whether a call only turns what it is given into another form."""
    return not any(isinstance(part, ast.Compare | ast.BinOp) for part in ast.walk(node))
