"""What a report on attacks says besides losses: attacks against their controls, and bounds."""

from __future__ import annotations

from assay.evaluation.formatting import bounds
from assay.robustness.attack import CONTROLLED, Attacked
from assay.robustness.measure import LEVEL, value_text
from assay.robustness.report import table

_CHOICES = {
    "certified_share": "certified",
    "attacked_share": "changed by PGD",
    "mean_gap_bound": "mean lower bound of the gap",
}
_BOX = {
    "attacked_move": "moved by PGD",
    "largest_move_bound": "certified to move by at most",
}


def sections(result: Attacked) -> list[str]:
    """Return lines of Markdown."""
    lines: list[str] = []
    if result.beyond:
        rows = [
            (point.axis, value_text(point.value), CONTROLLED.get(point.axis, "random"),
             f"{more.point:+.0%}", bounds(more, places=2), _word(more.low, more.high))
            for point, more in result.beyond.items()
        ]  # fmt: skip
        lines += [
            "## Beyond chance",
            "",
            f"What an attack costs beyond its control of the same size, each at {LEVEL:.0%}:",
            "",
            *table(("attack", "value", "control", "more loss", "interval", ""), rows),
            "",
        ]
    lines += ["## Certified", ""]
    if result.certified is None:
        return [*lines, f"Nothing is certified: {result.uncertified}", ""]
    names = _CHOICES if "certified_share" in next(iter(result.certified.values())) else _BOX
    shares = names is _CHOICES
    rows = [
        (value_text(budget), *(_figure(name, figures[name]) for name in names))
        for budget, figures in result.certified.items()
    ]
    what = (
        "Shares of the states of undisturbed episodes in which no attack within the budget can "
        "change the choice, and in which PGD does change it:"
        if shares
        else "How far the farthest action moves on average over states of undisturbed episodes, in "
        "units of half its range: by PGD, and by any attack at most:"
    )
    return [*lines, what, "", *table(("budget", *names.values()), rows), ""]


def _word(low: float, high: float) -> str:
    return "stronger" if low > 0 else "weaker" if high < 0 else "not shown"


def _figure(name: str, value: float) -> str:
    return f"{value:.1%}" if name.endswith("_share") else f"{value:.3g}"
