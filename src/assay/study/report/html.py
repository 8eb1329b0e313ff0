"""A report as one HTML file that needs nothing from anywhere: no scripts, no fonts, no network."""

from __future__ import annotations

import html
from collections.abc import Sequence

from assay.study.report.blocks import (
    Badge,
    Block,
    Cell,
    Figure,
    Heading,
    Items,
    Text,
    Value,
    clean,
)

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --one: #0b62c4; --two: #b3480f; --good: #1a6b33; --bad: #b3261e; --warn: #7a5200;
  --wash: #f3f5f8 }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e8eaed; --soft: #a7b0ba;
  --line: #3a424c; --one: #6db3ff; --two: #ffa366; --good: #6fd08c; --bad: #ff8a80; --warn: #f0c060;
  --wash: #1d2228 } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  margin: 0 auto; max-width: 76rem; padding: 1rem 1.5rem 4rem }
h1, h2, h3, h4 { line-height: 1.25; overflow-wrap: anywhere }
h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem; padding-bottom: .25rem }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; padding: 0 }
a { color: var(--one) }
p, li { max-width: 60rem; overflow-wrap: anywhere }
.warning { border-left: 4px solid var(--warn); background: var(--wash); padding: .5rem 1rem }
.scroll { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-size: .875rem }
caption { text-align: left; color: var(--soft); padding-bottom: .25rem }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: left;
  vertical-align: top; overflow-wrap: break-word; max-width: 32rem }
th { background: var(--wash) }
td data { font-variant-numeric: tabular-nums }
.badge { border: 1px solid currentColor; border-radius: .6em; padding: 0 .5em; white-space: nowrap }
.good { color: var(--good) } .bad { color: var(--bad) } .warn { color: var(--warn) }
figure { margin: 1rem 0 } figcaption { color: var(--soft); font-size: .875rem; max-width: 60rem }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif }
svg text { fill: var(--ink) } svg .soft { fill: var(--soft) }
svg .axis { stroke: var(--line) } svg .mark { stroke: var(--soft); stroke-dasharray: 4 3 }
svg .l1 { stroke: var(--one); fill: none } svg .l2 { stroke: var(--two); fill: none }
svg .f1 { fill: var(--one) } svg .f2 { fill: var(--two) }
svg .thin { stroke-width: 1; opacity: .45 } svg .thick { stroke-width: 2.5 }
svg .mean { stroke-width: 2.5 } svg .l2.mean { stroke-dasharray: 8 3 }
svg .band { opacity: .2; stroke: none } svg .cross { stroke: var(--bad); stroke-width: 2 }
svg .held { fill: none; stroke: var(--one); stroke-dasharray: 3 2 }
"""
_GOOD = {"accept", "accepted", "valid", "passed", "done", "low"}
_BAD = {"reject", "rejected", "harmful", "invalid", "void", "failed", "killed", "lost", "high"}


def page(title: str, blocks: Sequence[Block]) -> str:
    """Return blocks as one page."""
    anchors = [(i, b) for i, b in enumerate(blocks) if isinstance(b, Heading) and b.level == 2]
    links = "".join(f'<li><a href="#s{i}">{escape(block.text)}</a></li>' for i, block in anchors)
    body = []
    for i, block in enumerate(blocks):
        body.append(_html_block(block, i))
        if i == 0:
            body.append(f'<nav aria-label="Sections"><ul>{links}</ul></nav>')
    # The policy forbids what the escaping makes impossible already: loading or running anything.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def escape(text: str) -> str:
    """Return a text that is nothing but text, in an element or an attribute."""
    return html.escape(clean(text), quote=True)


def _html_block(block: Block, number: int) -> str:
    if isinstance(block, Heading):
        level = f"h{block.level}"
        return f'<{level} id="s{number}">{escape(block.text)}</{level}>'
    if isinstance(block, Text):
        kind = ' class="warning" role="note"' if block.warning else ""
        return f"<p{kind}>{escape(block.text)}</p>"
    if isinstance(block, Items):
        return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Figure):
        return f"<figure>{block.svg}<figcaption>{escape(block.caption)}</figcaption></figure>"
    head = ""
    if any(block.columns):
        cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in block.columns)
        head = f"<thead><tr>{cells}</tr></thead>"
    rows = []
    for row in block.rows:
        first, *others = row
        cells = "".join(f"<td>{_html_cell(cell)}</td>" for cell in others)
        rows.append(f'<tr><th scope="row">{_html_cell(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(block.caption)}">'
        f"<table><caption>{escape(block.caption)}</caption>{head}"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _html_cell(cell: Cell) -> str:
    if isinstance(cell, Value):
        return f'<data value="{cell.exact!r}">{escape(cell.shown)}</data>'
    if isinstance(cell, Badge):
        kind = "good" if cell.word in _GOOD else "bad" if cell.word in _BAD else "warn"
        return f'<span class="badge {kind}">{escape(cell.word)}</span>'
    return escape(cell)
