"""What a report is made of: headings, texts, tables and figures, and how both formats show them.

Texts of candidates are hostile input: they are cleaned and escaped here.
"""

from __future__ import annotations

import html
import importlib.resources
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_TEXT = 1500

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_STYLE = "\n" + importlib.resources.files("assay.study.report").joinpath("style.css").read_text()
_GOOD = {"accept", "accepted", "valid", "passed", "done", "low"}
_BAD = {
    "reject", "rejected", "harmful", "no effect", "no-effect", "invalid", "void", "failed",
    "killed", "lost", "high",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """A number as it is, and as it is shown."""

    exact: float
    shown: str


@dataclass(frozen=True, slots=True)
class Badge:
    """A word that decides, set apart."""

    word: str


Cell = str | Value | Badge


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; the title is of level 1."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, the first of each being its name."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot; Markdown leaves it out."""

    svg: str
    caption: str


Block = Heading | Text | Items | Table | Figure


def number(value: Any, spec: str = ".4g") -> Cell:
    """Return a cell for a number; a dash where there is none."""
    exact = finite(value)
    return "-" if exact is None else Value(exact, f"{exact:{spec}}")


def finite(value: Any) -> float | None:
    """Return what is a finite number; the ledger may hold anything that somebody appended."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def shown(cell: Cell) -> str:
    """Return a cell as plain text."""
    if isinstance(cell, Value):
        return cell.shown
    return cell.word if isinstance(cell, Badge) else cell


def clean(text: str, most: int = LONGEST_TEXT) -> str:
    """Return a text on one line, without what could hide or turn it around, and not endless."""
    text = _UNSAFE.sub("\ufffd", " ".join(text[: 4 * most].split()))
    return text if len(text) <= most else text[: most - 1] + "…"


def _escape_markdown(text: str) -> str:
    text = html.escape(clean(text), quote=False)
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", text)


def markdown(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown."""
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            lines.append(f"{'#' * block.level} {_escape_markdown(block.text)}")
        elif isinstance(block, Text):
            text = _escape_markdown(block.text)
            lines.append(f"> **Attention:** {text}" if block.warning else _no_list(text))
        elif isinstance(block, Items):
            lines += [f"- {_escape_markdown(item)}" for item in block.items]
        elif isinstance(block, Table):
            lines.append(f"{_escape_markdown(block.caption)}:")
            lines.append("")
            lines.append(_row(block.columns))
            lines.append("|" + " --- |" * len(block.columns))
            lines += [_row([shown(cell) for cell in row]) for row in block.rows]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escape_markdown(cell) for cell in cells) + " |"


def _no_list(text: str) -> str:
    """Keep a paragraph from being read as a list or a rule by how it begins."""
    return re.sub(r"^(\d+)([.)])|^([-+=#])", lambda m: f"{m[1] or ''}\\{m[2] or m[3]}", text)


# ---------------------------------------------------------------------- HTML


def page(title: str, blocks: Sequence[Block]) -> str:
    """Return blocks as one page that needs nothing from anywhere: no scripts, fonts or network."""
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
