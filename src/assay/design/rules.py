"""What a rule of the design desk is, and how a section gets its rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from assay.core.errors import AssayError
from assay.design.problem import Problem

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
# What a rule yields: the offending field, and what is wrong with it.
Hits = Iterator[tuple[str, str]]
Check = Callable[[Any, Problem], Hits]


class DesignError(AssayError):
    """A problem file cannot be read, or something in it cannot be what was meant."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is looked for in a section.

    Attributes:
        name: "section.rule".
        severity: "error" if it cannot work, "warning" if it often does not, "note" otherwise.
        summary: What it looks for.
        why: Why that matters.
        fix: What to do about it.
        check: Given the section and the problem, yields what it finds; None for a rule about runs.
        contradiction: Whether answers exclude each other, so that no file is written with them.
    """

    name: str
    severity: Severity
    summary: str
    why: str
    fix: str
    check: Check | None
    contradiction: bool = False

    @property
    def section(self) -> str:
        """Return the section that it is about."""
        return self.name.partition(".")[0]

    def describe(self) -> dict[str, str]:
        """Return all that can be said about it."""
        keys = ("name", "severity", "summary", "why", "fix")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found in a problem.

    Attributes:
        rule: The rule's name.
        severity: The rule's.
        field: Where: the path of the field in the file.
        message: What is wrong there.
        why: Why that matters.
        fix: What to do about it.
    """

    rule: str
    severity: Severity
    field: str
    message: str
    why: str
    fix: str

    def to_dict(self) -> dict[str, str]:
        """Return plain values."""
        return asdict(self)


class Rules(list[Rule]):
    """The rules of one section, in the order of their definition."""

    def __init__(self, section: str) -> None:
        super().__init__()
        self.section = section

    def add(
        self, severity: Severity, why: str, fix: str, *, contradiction: bool = False
    ) -> Callable[[Check], Check]:
        """Return a decorator that adds a function as a rule.

        The rule's name is that of the function, and its summary the docstring's first line.
        """

        def decorate(check: Check) -> Check:
            summary = (check.__doc__ or "").strip().partition("\n")[0]
            name = f"{self.section}.{check.__name__}"
            self.append(Rule(name, severity, summary, why, fix, check, contradiction))
            return check

        return decorate

    def each(self, field: str) -> Callable[..., Callable[[Check], Check]]:
        """Return what `add` is for rules about every item of a list of the section.

        Such a rule is given the item and the problem, and yields places inside of the item.
        """

        def add(*arguments: Any, **options: Any) -> Callable[[Check], Check]:
            def decorate(check: Check) -> Check:
                @functools.wraps(check)
                def every(section: Any, problem: Problem) -> Hits:
                    for index, item in enumerate(getattr(section, field)):
                        for place, message in check(item, problem):
                            yield f"{self.section}.{field}[{index}]{place}", message

                return self.add(*arguments, **options)(every)

            return decorate

        return add


def repeated(place: str, items: Sequence[Any]) -> Hits:
    """Yield the items of a list whose name another one before them has."""
    names = [item.name for item in items]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"{place}[{index}].name", f"'{name}' is there twice"


def found(rule: Rule, field: str, message: str) -> Finding:
    """Return a finding of a rule."""
    return Finding(rule.name, rule.severity, field, message, rule.why, rule.fix)
