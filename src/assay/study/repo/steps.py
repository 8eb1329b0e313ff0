"""Where the step of an environment pays its reward and ends its episode."""

from __future__ import annotations

import ast

from assay.study.repo.calls import Calls
from assay.study.repo.syntax import assignments, is_computed, target_name
from assay.study.repo.walk import Owner
from assay.study.repo.words import DONE_NAMES, REWARD_NAMES


class Steps(Calls):
    """The rules that look into steps."""

    def sets(self, node: ast.FunctionDef | ast.AsyncFunctionDef, qualified: str) -> None:
        """Note where a method works out `self.reward` or `self.done` before a step returns it."""
        for item, _ in assignments(node.body, False):
            target = item.targets[0] if isinstance(item, ast.Assign) else item.target
            plain = isinstance(target, ast.Attribute) and isinstance(item.value, ast.BinOp)
            compared = isinstance(target, ast.Attribute | ast.Name) and (
                isinstance(item.value, ast.Compare | ast.BoolOp)
                and is_computed(item.value, False, "termination")
            )
            if plain and target_name(target) in REWARD_NAMES:
                self.found("reward", qualified, item.lineno, 0.75)
            elif compared and target_name(target) in DONE_NAMES:
                self.found("termination", qualified, item.lineno, 0.75)

    def step(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, qualified: str, owner: Owner
    ) -> None:
        """Note where a step computes its reward and its end, not where it hands them on."""
        found: dict[str, int] = {}
        for item, branch in assignments(node.body, False):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            for target in targets:
                name = target_name(target)
                slot = (
                    "reward" if name in REWARD_NAMES
                    else "termination" if name in DONE_NAMES
                    else ""
                )  # fmt: skip
                if owner.wrapper and (
                    (isinstance(item.value, ast.Call) and _converts(item.value))
                    or (isinstance(item, ast.AugAssign) and "reward" in ast.unparse(item.value))
                ):
                    continue  # a wrapper converts or sums what the environment gave it
                if slot and item.value is not None and slot not in found:
                    if is_computed(item.value, branch or isinstance(item, ast.AugAssign), slot):
                        found[slot] = item.lineno
        for slot, line in found.items():
            self.found(slot, qualified, line, 0.6 if owner.wrapper else 0.8)


def _converts(node: ast.Call) -> bool:
    """Return whether a call only turns what it is given into another form."""
    parts = [part for part in ast.walk(node) if isinstance(part, ast.Compare | ast.BinOp)]
    return not parts
