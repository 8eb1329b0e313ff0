"""Format scores, differences, intervals and p-values for people. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.evaluation.statistics import Interval


def number(value: float | None) -> str:
    """Format a score with as many digits as a reader can use, or "-" if there is none.

    Example:
        >>> [number(x) for x in (12345.6, 499.96, -1.2345, 0.01234, 0, None)]
        ['12,346', '500.0', '-1.23', '0.0123', '0', '-']
    """
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if size == 0.0:
        return "0"
    if size >= 10_000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:,.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def signed(value: float) -> str:
    """Format a difference, with its sign."""
    return f"+{number(value)}" if value > 0 else number(value)


def bounds(interval: Interval, *, places: int | None = None) -> str:
    """Format the bounds of an interval, or "-" where it has none."""
    if math.isnan(interval.low):
        return "-"
    low, high = (
        number(bound) if places is None else f"{bound:.{places}f}"
        for bound in (interval.low, interval.high)
    )
    return f"{low} to {high}"


def p_value(p: float) -> str:
    """Format a p-value."""
    if math.isnan(p):
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def few(names: Iterable[str], most: int = 5) -> str:
    """Format the first names of a list, and how many more there are."""
    items = list(names)
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if items[most:] else "")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(cells)} |" for cells in rows]
