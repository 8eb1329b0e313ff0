"""A report as one HTML file that needs nothing from anywhere: no scripts, no fonts, no network."""

from __future__ import annotations

import html
import importlib.resources
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

_STYLE = "\n" + importlib.resources.files("assay.study.report").joinpath("style.css").read_text()
_GOOD = {"accept", "accepted", "valid", "passed", "done", "low"}
_BAD = {
    "reject",
    "rejected",
    "harmful",
    "no effect",
    "no-effect",
    "invalid",
    "void",
    "failed",
    "killed",
    "lost",
    "high",
}


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
