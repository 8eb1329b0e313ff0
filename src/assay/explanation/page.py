"""An explanation as one HTML page that loads nothing: pictures and charts are written out in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from assay.core.wording import counted
from assay.explanation.look import METHODS
from assay.explanation.memory import MemoryReport
from assay.explanation.pictures import as_data
from assay.explanation.report import Explanation, Moment
from assay.explanation.values import ValueReport

_MOST_FEATURES = 24
_MOST_POINTS = 800
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem }
table { border-collapse: collapse }
td, th { border-bottom: 1px solid #ddd; padding: .25rem .7rem; text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.failed { color: #b00020; font-weight: 600 } .ok { color: #1b6e2c }
.moment { border-top: 1px solid #ccc; padding: .6rem 0 }
figure { display: inline-block; margin: .3rem .6rem .3rem 0; vertical-align: top }
figure img { max-height: 14rem; image-rendering: pixelated; display: block }
figcaption, .small { color: #555; font-size: 13px }
svg text { font: 12px system-ui, sans-serif; fill: #333 }
.bar { fill: #4878a8 } .minus { fill: #c0504d } .axis { stroke: #999 }
.dot { fill: #4878a8; opacity: .45 }
"""


def page(found: Explanation) -> str:
    """Return the whole page."""
    title = f"Why {found.run} acts as it does"
    worth = "ok" if found.believable else "failed"
    words = "passed every check" if found.believable else "failed a check: do not rely on them"
    intro = (
        f"<p>{escape(found.algorithm)} on {escape(found.env)}: "
        f"{counted(len(found.returns), 'episode')}, mean return {found.returns.mean():.4g}. "
        f"Explained is the {found.of} "
        f"({escape(', '.join(found.outputs))}) in {found.states} states. The maps "
        f'<span class="{worth}">{words}</span>.</p>'
    )
    parts = [
        intro,
        _checks(found),
        _features(found),
        _moments(found.moments),
        _values(found.values),
    ]
    if found.memory is not None:
        parts.append(_memory(found.memory))
    parts += [_cascade(found), *(f'<p class="small">{escape(note)}</p>' for note in found.notes)]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def _checks(found: Explanation) -> str:
    rows = "".join(
        f'<tr><td>{escape(one.name)}</td><td class="{"ok" if one.passed else "failed"}">'
        f"{'ok' if one.passed else 'failed'}</td><td>{escape(one.detail)}</td></tr>"
        for one in found.checks
    )
    return f"<h2>Can the maps be believed?</h2><table>{rows}</table>"


def _features(found: Explanation) -> str:
    head = "".join(f'<th class="n">{name}</th>' for name in METHODS)
    rows = "".join(
        f"<tr><td>{escape(one.name)}</td>"
        + "".join(f'<td class="n">{_share(one.share[name])}</td>' for name in METHODS)
        + f"<td>{_bar(one.share['integrated'] or 0.0)}</td></tr>"
        for one in found.features[:_MOST_FEATURES]
    )
    rest = len(found.features) - _MOST_FEATURES
    more = f'<p class="small">and {rest} more</p>' if rest > 0 else ""
    return (
        "<h2>What it looks at</h2><p>The share of each number in the maps of all states. Gradients "
        "are those of one standard deviation of a number.</p>"
        f"<table><tr><th>number</th>{head}<th></th></tr>{rows}</table>{more}"
    )


def _moments(moments: Sequence[Moment]) -> str:
    return "<h2>The most telling states</h2>" + "".join(_moment(one) for one in moments)


def _moment(one: Moment) -> str:
    facts = [f"action {one.action}", "score " + ", ".join(f"{x:.3g}" for x in one.scores)]
    if one.value is not None:
        facts.append(f"expected {one.value:.4g}, got {one.realised:.4g}")
    figures = "".join(
        f'<figure><img alt="{escape(name)}" src="{as_data(picture)}">'
        f"<figcaption>{escape(name)}</figcaption></figure>"
        for name, picture in one.pictures.items()
    )
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{value:.4g}</td><td class="n">{part:+.3g}</td>'
        f"<td>{_signed(part, max(abs(p) for _, _, p in one.parts))}</td></tr>"
        for name, value, part in one.parts
    )
    head = "<tr><th>number</th><th class='n'>value</th><th class='n'>integrated</th><th></th></tr>"
    table = f"<table>{head}{rows}</table>" if rows else ""
    return (
        f'<div class="moment"><h3>{escape(one.reason)}: episode {one.episode}, step {one.time}</h3>'
        f"<p>{escape('; '.join(facts))}</p>{figures}{table}</div>"
    )


def _values(values: ValueReport | str) -> str:
    head = "<h2>What it expects, and what it gets</h2>"
    if isinstance(values, str):
        return f"{head}<p>There are no values to compare: {escape(values)}.</p>"
    lines = "".join(f"<p>{escape(line)}</p>" for line in values.describe())
    return head + lines + _scatter(values.realised, values.value)


def _memory(memory: MemoryReport) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in memory.describe())
    charts = ""
    if memory.influence:
        charts += _columns(memory.influence, "influence by steps back")
    if memory.attention:
        charts += _columns(memory.attention, "attention by steps back")
    return f"<h2>What it remembers</h2><ul>{lines}</ul>{charts}"


def _cascade(found: Explanation) -> str:
    rows = "".join(
        f'<tr><td>{escape(name) or "network"}</td><td class="n">{x:.2f}</td></tr>'
        for name, x in found.cascade
    )
    return (
        "<h2>Layer by layer</h2><p>The correlation of the gradient map with itself after a layer "
        "and all later ones got random weights.</p>"
        f"<table><tr><th>layer</th><th class='n'>correlation</th></tr>{rows}</table>"
    )


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _bar(share: float) -> str:
    return (
        '<svg width="160" height="12" role="img" aria-label="share">'
        f'<rect class="bar" width="{160 * share:.1f}" height="12"/></svg>'
    )


def _signed(part: float, most: float) -> str:
    size = 70 * abs(part) / (most or 1.0)
    left, kind = (75.0, "bar") if part >= 0 else (75.0 - size, "minus")
    return (
        '<svg width="150" height="12" role="img" aria-label="share">'
        '<line class="axis" x1="75" x2="75" y1="0" y2="12"/>'
        f'<rect class="{kind}" x="{left:.1f}" width="{size:.1f}" height="12"/></svg>'
    )


def _scatter(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    rows = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).astype(int))
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    room = (high - low) or 1.0

    def place(values: Iterable[float]) -> list[float]:
        return [30 + 300 * (value - low) / room for value in values]

    dots = "".join(
        f'<circle class="dot" cx="{a:.1f}" cy="{350 - b:.1f}" r="2.5"/>'
        for a, b in zip(place(x[rows]), place(y[rows]), strict=True)
    )
    return (
        '<svg width="360" height="370" role="img" aria-label="values against returns">'
        '<line class="axis" x1="30" y1="320" x2="330" y2="20"/>'
        f'{dots}<text x="30" y="345">{low:.4g}</text><text x="295" y="345">{high:.4g}</text>'
        '<text x="130" y="365">got</text><text x="0" y="14">expected</text></svg>'
    )


def _columns(shares: Sequence[float], label: str) -> str:
    most, width = max(shares) or 1.0, 600 / len(shares)
    bars = "".join(
        f'<rect class="bar" x="{i * width:.1f}" y="{110 - 100 * share / most:.1f}" '
        f'width="{max(1.0, width - 1):.1f}" height="{100 * share / most:.1f}"/>'
        for i, share in enumerate(shares)
    )
    return (
        f'<figure><svg width="620" height="130" role="img" aria-label="{escape(label)}">{bars}'
        f'<text x="0" y="126">0</text><text x="585" y="126">{len(shares) - 1}</text></svg>'
        f"<figcaption>{escape(label)}</figcaption></figure>"
    )
