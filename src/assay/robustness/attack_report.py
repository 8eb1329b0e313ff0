"""What a report on attacks says besides losses: attacks against their controls, and bounds."""

from __future__ import annotations

from typing import NamedTuple

from assay.evaluation.formatting import bounds
from assay.robustness.attack import CONTROLLED, Attacked
from assay.robustness.measure import LEVEL, value_text
from assay.robustness.report import table

_CHOICES = {
    "certified_share": "certified",
    "attacked_share": "changed by PGD",
    "mean_gap_bound": "mean lower bound of the gap",
}
_BOX = {"attacked_move": "moved by PGD", "largest_move_bound": "certified to move by at most"}


class Part(NamedTuple):
    """A part of the report: its title, a sentence, and a table, which may be empty."""

    title: str
    text: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def parts(result: Attacked) -> list[Part]:
    """Return what is said besides losses."""
    found = []
    if result.beyond:
        text = f"What an attack costs beyond its control of the same size, each at {LEVEL:.0%}:"
        rows = tuple(
            (point.axis, value_text(point.value), CONTROLLED.get(point.axis, "random"),
             f"{more.point:+.0%}", bounds(more, places=2), _word(more.low, more.high))
            for point, more in result.beyond.items()
        )  # fmt: skip
        head = ("attack", "value", "control", "more loss", "interval", "verdict")
        found.append(Part("Beyond chance", text, head, rows))
    return [*found, _certified(result)]


def sections(result: Attacked) -> list[str]:
    """Return the same as lines of Markdown."""
    lines = []
    for part in parts(result):
        lines += [f"## {part.title}", "", part.text, ""]
        if part.rows:
            lines += [*table(part.head, part.rows), ""]
    return lines


def _certified(result: Attacked) -> Part:
    if result.certified is None:
        return Part("Certified", f"Nothing is certified: {result.uncertified}")
    choices = "certified_share" in next(iter(result.certified.values()))
    names = _CHOICES if choices else _BOX
    text = (
        "Shares of the states of undisturbed episodes in which no attack within the budget can "
        "change the choice, and in which PGD does:"
        if choices
        else "How far the farthest action moves on average over states of undisturbed episodes, in "
        "units of half its range: by PGD, and by any attack at most:"
    )
    rows = tuple(
        (value_text(budget), *(_figure(name, figures[name]) for name in names))
        for budget, figures in result.certified.items()
    )
    return Part("Certified", text, ("budget", *names.values()), rows)


def _word(low: float, high: float) -> str:
    return "stronger" if low > 0 else "weaker" if high < 0 else "not shown"


def _figure(name: str, value: float) -> str:
    return f"{value:.1%}" if name.endswith("_share") else f"{value:.3g}"
