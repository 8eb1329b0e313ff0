"""The four layers of a training run as a picture: in characters, and as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

_WIDTH = 58  # characters inside of a box
_LINE, _BOX, _GAP, _MARGIN = 18, 460, 44, 16  # pixels


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes:
        title: Its name.
        lines: What it consists of.
        passes: What goes to the next layer, and how.
    """

    title: str
    lines: tuple[str, ...]
    passes: str


def ascii_diagram(layers: list[Layer], back: str) -> str:
    """Return the layers one below the other; `back` is what goes from the learner to the rollout.

    Example:
        >>> print(ascii_diagram([Layer("rollout", ("1 environment",), "steps")], "weights"))
        +------------------------------------------------------------+
        | ROLLOUT                                                    |
        |   1 environment                                            |
        +------------------------------------------------------------+
          ^ weights go back to the rollout
    """
    rule = "+" + "-" * (_WIDTH + 2) + "+"
    text = []
    for number, layer in enumerate(layers):
        text += [rule, f"| {layer.title.upper():<{_WIDTH}} |"]
        for line in layer.lines:
            for piece in _folded(line, _WIDTH - 2):
                text.append(f"|   {piece:<{_WIDTH - 2}} |")
        text.append(rule)
        if number < len(layers) - 1:
            text += ["      |", f"      | {layer.passes}", "      v"]
    return "\n".join([*text, f"  ^ {back} go back to the rollout"])


def _folded(line: str, width: int) -> list[str]:
    pieces = [""]
    for word in line.split():
        if len(pieces[-1]) + len(word) + 1 > width and pieces[-1]:
            pieces.append("")
        pieces[-1] = f"{pieces[-1]} {word}".strip()
    return [piece[:width] for piece in pieces]


def svg_diagram(title: str, layers: list[Layer], back: str) -> str:
    """Return the layers as an SVG document."""
    parts, y, middles = [], 2 * _MARGIN + _LINE, []
    for number, layer in enumerate(layers):
        lines = [piece for line in layer.lines for piece in _folded(line, _WIDTH - 2)]
        height = _LINE * (len(lines) + 1) + _MARGIN
        parts.append(f'<rect x="{_MARGIN}" y="{y}" width="{_BOX}" height="{height}" rx="6"/>')
        parts.append(_text(_MARGIN + 12, y + _LINE, layer.title, "title"))
        parts += [
            _text(_MARGIN + 12, y + _LINE * (row + 2), line, "line")
            for row, line in enumerate(lines)
        ]
        middles.append(y + height / 2)
        y += height
        if number < len(layers) - 1:
            middle = _MARGIN + _BOX / 2
            parts.append(_arrow(f"M {middle} {y} V {y + _GAP - 4}"))
            parts.append(_text(middle + 10, y + _GAP / 2 + 4, layer.passes, "note"))
            y += _GAP
    right = _MARGIN + _BOX
    if len(layers) > 2:
        path = f"M {right} {middles[2]} H {right + 30} V {middles[0]} H {right + 4}"
        parts.append(_arrow(path))
        parts.append(_text(right + 38, (middles[0] + middles[2]) / 2, back, "note"))
    width, height = right + 190, y + _MARGIN
    return _SVG.format(
        width=width, height=height, title=escape(title), x=_MARGIN, y=_MARGIN + _LINE - 4,
        body="\n".join(parts),
    )  # fmt: skip


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def _arrow(path: str) -> str:
    return f'<path d="{path}" marker-end="url(#tip)"/>'


_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>{title}</title>
<style>
rect {{ fill: #f4f6f8; stroke: #3b5873; stroke-width: 1.5; }}
path {{ fill: none; stroke: #3b5873; stroke-width: 1.5; }}
text {{ font: 13px sans-serif; fill: #1c2733; }}
.title {{ font-weight: bold; }}
.note {{ fill: #54697d; font-style: italic; }}
</style>
<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">
<polygon points="0,0 7,3 0,6" fill="#3b5873"/></marker></defs>
<text x="{x}" y="{y}" class="title">{title}</text>
{body}
</svg>
"""
