"""The plots of a report, as SVG that is drawn here and styled by the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from assay.evaluation import statistics
from assay.study.agree import budget
from assay.study.measure.extractors import Point
from assay.study.record.history import Scores
from assay.study.record.ledger import Event
from assay.study.report.blocks import escape

_WIDTH = 720
_LEFT = 220
_GAP = 24


class _Scale:
    """Maps numbers to pixels, with room at both ends."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        # Half of the largest float keeps differences of hostile numbers finite.
        found = [max(-8e307, min(8e307, v)) for v in values if math.isfinite(v)] or [0.0]
        low, high = min(found), max(found)
        room = (high - low) * 0.06 or abs(low) * 0.1 or 1.0
        self.low, self.high = low - room, high + room
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (max(self.low, min(self.high, value)) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[float]:
        """Return about five round numbers inside."""
        raw = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
        first = math.ceil(self.low / step)
        last = math.floor(self.high / step)
        return [i * step for i in range(first, min(last, first + 10) + 1)]


def _svg(height: float, label: str, parts: Iterable[str]) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" height="{height:g}"'
    name = escape(label)
    return f'<svg {size} role="img" aria-label="{name}"><title>{name}</title>{"".join(parts)}</svg>'


def _label(
    x: float, y: float, text: str, anchor: str = "start", kind: str = "", most: int = 28
) -> str:
    short = escape(text if len(text) <= most else text[: most - 1] + "…")
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{short}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def _circle(x: float, y: float, kind: str, radius: float = 4) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{kind}"/>'


def _diamond(x: float, y: float, kind: str) -> str:
    return f'<path d="M{x:g} {y - 5:g}l5 5l-5 5l-5 -5z" class="{kind}"/>'


def _cross(x: float, y: float) -> str:
    return _line(x - 4, y - 4, x + 4, y + 4, "cross") + _line(x - 4, y + 4, x + 4, y - 4, "cross")


def _x_axis(scale: _Scale, top: float, bottom: float, name: str = "") -> list[str]:
    parts = []
    for tick in scale.ticks():
        x = scale(tick)
        parts.append(_line(x, top, x, bottom, "axis"))
        parts.append(_label(x, bottom + 16, f"{tick:.4g}", "middle", "soft"))
    if name:
        parts.append(_label((scale.start + scale.end) / 2, bottom + 34, name, "middle", "soft", 60))
    return parts


def _y_axis(scale: _Scale, left: float, right: float) -> list[str]:
    parts = []
    for tick in scale.ticks():
        y = scale(tick)
        parts.append(_line(left, y, right, y, "axis"))
        parts.append(_label(left - 6, y + 4, f"{tick:.4g}", "end", "soft"))
    return parts


@dataclass(frozen=True, slots=True)
class Effect:
    """A row of the effects; None where there is no number."""

    name: str
    outcome: str
    effect: float | None
    low: float | None
    high: float | None
    minimum: float | None


def effects(rows: Sequence[Effect]) -> str:
    """Draw every effect with its limits, zero, and the minimum effect it was held to."""
    numbers = [0.0]
    for row in rows:
        numbers += [v for v in (row.effect, row.low, row.high, row.minimum) if v is not None]
    bottom = 34.0 + _GAP * len(rows)
    x = _Scale(numbers, _LEFT, _WIDTH - 20)
    parts = _x_axis(x, 22, bottom, "effect; positive favours the candidate")
    parts.append(_line(x(0), 22, x(0), bottom, "mark"))
    held = [row.minimum for row in rows if row.minimum is not None]
    if held:
        parts.append(_label(x(held[0]), 14, "minimum effect", "middle", "soft"))
    for i, row in enumerate(rows):
        y = 42.0 + _GAP * i
        if row.minimum is not None:
            # Rows that were held to the same one make one line.
            end = bottom if i == len(rows) - 1 else y + _GAP / 2
            begin = 22 if i == 0 else y - _GAP / 2
            parts.append(_line(x(row.minimum), begin, x(row.minimum), end, "l2 thick"))
        parts.append(_label(_LEFT - 8, y + 4, row.name, "end"))
        if row.effect is None:
            parts.append(_label(_LEFT + 4, y + 4, row.outcome, kind="soft"))
            continue
        # A limit that is not a number is an open end.
        left = x.low if row.low is None else row.low
        right = x.high if row.high is None else row.high
        parts.append(_line(x(left), y, x(right), y, "l1 thick"))
        parts.append(_circle(x(row.effect), y, "f1"))
    minima = ", ".join(sorted({f"{value:g}" for value in held})) or "nothing"
    label = f"Effects of {len(rows)} verdicts against the minimum effect of {minima}"
    return _svg(bottom + 42, label, parts)


def dots(arms: Sequence[tuple[str, Scores]], axis: str) -> str:
    """Draw every seed of two arms, those with the same seed joined."""
    values = [v for _, arm in arms for v in arm.values() if v is not None]
    y = _Scale(values, 230, 20)
    columns = (260.0, 520.0)
    parts = _y_axis(y, 90, _WIDTH - 20)
    parts.append(_label(10, 14, axis, kind="soft"))
    before, after = arms[0][1], arms[1][1]
    for seed in sorted(before.keys() & after.keys()):
        first, second = before[seed], after[seed]
        if first is not None and second is not None:
            parts.append(_line(columns[0], y(first), columns[1], y(second), "axis"))
    for (name, arm), x, number in zip(arms, columns, (1, 2), strict=True):
        parts.append(_label(x, 270, name, "middle"))
        scores = [v for v in arm.values() if v is not None]
        if scores:
            mean = y(float(np.mean(scores)))
            parts.append(_line(x - 40, mean, x + 40, mean, f"l{number} thick"))
        for value in arm.values():
            if value is None:
                parts.append(_cross(x, 244))
            elif number == 1:
                parts.append(_circle(x, y(value), "f1"))
            else:
                parts.append(_diamond(x, y(value), "f2"))
    failed = sum(v is None for _, arm in arms for v in arm.values())
    label = f"{axis} per seed of {arms[0][0]} and {arms[1][0]}; {failed} failed"
    return _svg(284, label, parts)


_Lines = list[list[Point]]


def curves(arms: Sequence[tuple[str, _Lines, _Lines]], axis: str) -> str:
    """Draw every seed's course, and the mean of the finished ones with its interval."""
    lines = [points for _, every, _ in arms for points in every]
    x = _Scale([step for points in lines for step, _ in points], 90, _WIDTH - 20)
    y = _Scale([value for points in lines for _, value in points], 270, 34)
    parts = [*_y_axis(y, 90, _WIDTH - 20), *_x_axis(x, 34, 270, "step")]
    parts.append(_label(10, 14, axis, kind="soft"))
    for number, (name, every, whole) in enumerate(arms, 1):
        parts += [_path(_thinned(points), x, y, f"l{number} thin") for points in every]
        mean, band = _mean(whole)
        if band:
            corners = " ".join(f"{x(step):g},{y(value):g}" for step, value in band)
            parts.append(f'<polygon points="{corners}" class="f{number} band"/>')
        if mean:
            parts.append(_path(mean, x, y, f"l{number} mean"))
        left = 240.0 if number == 1 else 480.0
        parts.append(_line(left, 14, left + 28, 14, f"l{number} mean"))
        parts.append(_label(left + 34, 18, name))
    label = f"Learning curves of {arms[0][0]} and {arms[1][0]}: {axis} over steps"
    return _svg(312, label, parts)


def _path(points: Sequence[Point], x: _Scale, y: _Scale, kind: str) -> str:
    corners = " ".join(f"{x(step):g},{y(value):g}" for step, value in points)
    return f'<polyline points="{corners}" class="{kind}"/>'


def _thinned(points: Sequence[Point], most: int = 120) -> list[Point]:
    keep = np.unique(np.linspace(0, len(points) - 1, min(most, len(points))).astype(int))
    return [points[i] for i in keep]


def _mean(lines: _Lines) -> tuple[list[Point], list[Point]]:
    """Return the mean over seeds where all have data, and the outline of its 95 % t-interval."""
    if not lines or any(len(points) < 2 for points in lines):
        return [], []
    low, high = max(p[0][0] for p in lines), min(p[-1][0] for p in lines)
    if low >= high:
        return [], []
    grid = np.linspace(low, high, 60)
    table = np.array([np.interp(grid, *np.array(points).T) for points in lines])
    if float(np.abs(table).max()) > 1e150:  # whose squares are not numbers any more
        return [], []
    mean = [(float(step), float(value)) for step, value in zip(grid, table.mean(0), strict=True)]
    if len(lines) < 2:
        return mean, []
    found = [statistics.t_interval(column) for column in table.T]
    upper = [(step, interval.high) for (step, _), interval in zip(mean, found, strict=True)]
    lower = [(step, interval.low) for (step, _), interval in zip(mean, found, strict=True)]
    outline = [*upper, *reversed(lower)]
    return mean, outline if all(math.isfinite(value) for _, value in outline) else []


def bars(lines: Sequence[tuple[str, float, float, float | None]]) -> str:
    """Draw what is settled and reserved as shares of what is approved."""
    parts = []
    shown = [line for line in lines if line[3]]
    left, full = float(_LEFT), 380.0
    for i, (name, settled, reserved, limit) in enumerate(shown):
        assert limit
        y = 14.0 + 34 * i
        first, second = (full * min(1.1, v / limit) for v in (settled, settled + reserved))
        parts.append(_label(left - 8, y + 15, name, "end"))
        parts.append(f'<rect x="{left:g}" y="{y:g}" width="{first:.4g}" height="20" class="f1"/>')
        width = max(0.0, second - first)
        parts.append(
            f'<rect x="{left + first:g}" y="{y:g}" width="{width:.4g}" height="20" class="held"/>'
        )
        for share, kind in ((budget.WARN_AT, "mark"), (1.0, "l2 thick")):
            parts.append(_line(left + full * share, y - 4, left + full * share, y + 24, kind))
        parts.append(_label(left + full + 46, y + 15, f"of {limit:.4g}", kind="soft"))
    names = "; ".join(f"{n}: {s + r:.4g} of {limit:.4g}" for n, s, r, limit in shown if limit)
    return _svg(24 + 34 * len(shown), f"Budget use. {names}", parts)


_LANES = ("contract", "candidate", "run", "budget", "result", "verdict", "other")


def timeline(events: Sequence[Event]) -> str:
    """Draw when how much of what happened; a dot's area grows with the count."""
    bins, first, last = 100, _seconds(events[0].time), _seconds(events[-1].time)
    span = (last - first) or 1.0
    counts: dict[tuple[str, int], int] = {}
    for event in events:
        lane = event.kind.partition(".")[0]
        lane = lane if lane in _LANES else "other"
        share = max(0.0, min(1.0, (_seconds(event.time) - first) / span))
        place = (lane, int(share * bins))
        counts[place] = counts.get(place, 0) + 1
    most = max(counts.values())
    lanes = [lane for lane in _LANES if any(key[0] == lane for key in counts)]
    width = _WIDTH - 140.0
    parts = []
    for i, lane in enumerate(lanes):
        y = 20.0 + 26 * i
        parts.append(_label(100, y + 4, lane, "end"))
        parts.append(_line(112, y, _WIDTH - 16, y, "axis"))
        for (name, slot), count in counts.items():
            if name == lane:
                radius = 2.5 + 7 * math.sqrt(count / most)
                parts.append(_circle(118 + width * slot / bins, y, "f1", round(radius, 2)))
    bottom = 20.0 + 26 * len(lanes)
    parts.append(_label(112, bottom + 8, events[0].time[:19], kind="soft"))
    parts.append(_label(_WIDTH - 16, bottom + 8, events[-1].time[:19], "end", "soft"))
    label = f"{len(events)} events from {events[0].time} to {events[-1].time}"
    return _svg(bottom + 20, label, parts)


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0
