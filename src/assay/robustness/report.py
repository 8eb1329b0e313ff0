"""The report of a test: Markdown for people, JSON for programs, and curves of what is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import ConfigError
from assay.core.wording import counted
from assay.evaluation.equilibria_report import check_picture
from assay.evaluation.formatting import bounds, markdown_table, number
from assay.evaluation.plots import COLOURS, INK, new_panels, save_figure, tidy
from assay.robustness.measure import LEVEL, Cell, Verdict, value_text
from assay.runs.files import dump_json, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORST = 5


def write_report(
    place: Path,
    title: str,
    verdict: Verdict,
    *,
    found: Mapping[str, Any],
    sections: Sequence[str] = (),
    picture: str = "svg",
    panels: Mapping[str, Sequence[str]] | None = None,
) -> list[Path]:
    """Write `report.md`, `report.json` and the curves, and return the files.

    Args:
        place: The directory; it is made.
        title: Of the Markdown.
        verdict: What was measured.
        found: The whole of the JSON.
        sections: Markdown after the cells.
        picture: "svg" or "png".
        panels: By the name of each panel, the axes that it draws together; by default each one
            has a panel.

    Raises:
        ConfigError: There is no such kind of picture, or the place is a file.
        RunError: A file cannot be written.
    """
    check_place(place, picture)
    drawn = plot_losses(
        verdict, place / f"losses.{picture}", panels or {axis: [axis] for axis in verdict.axes}
    )
    text = markdown(title, verdict, drawn.name, sections)
    for name, content in (
        ("report.json", dump_json(dict(found), indent=1)),
        ("report.md", text.encode()),
    ):
        with replacing(place / name) as draft:
            draft.write_bytes(content)
    return [place / "report.md", place / "report.json", drawn]


def check_place(place: Path | None, picture: str) -> None:
    """Refuse what no report can be written to, before anything is played.

    Raises:
        ConfigError: Pictures are neither SVG nor PNG, or nothing can be written to the place.
    """
    check_picture(picture)
    if place is not None and place.exists() and not place.is_dir():
        raise ConfigError(f"'{place}' is a file: expected a directory for the report.")
    if place is not None:
        there = next(one for one in (place, *place.absolute().parents) if one.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            raise ConfigError(
                f"--out {place}: nothing can be written to '{there}': {error.strerror}.",
                "Choose another directory, or make room and permit writing there.",
            ) from None


def markdown(title: str, verdict: Verdict, picture: str, sections: Sequence[str] = ()) -> str:
    """Return the report as Markdown."""
    many = len(verdict.runs) > 1
    unit = counted(len(verdict.runs), "run") if many else counted(verdict.episodes, "episode")
    lines = [
        f"# {title}",
        "",
        f"**{verdict.sentence()}**",
        "",
        f"Undisturbed return {number(verdict.nominal)}, random actions {number(verdict.floor)}. A "
        "loss is a share of the difference between the two. The same episodes are played in every "
        f"cell. Intervals are over {unit}, and hold for all {len(verdict.cells)} cells together at "
        f"{LEVEL:.0%}.",
        "",
        "## Worst cases",
        "",
        *markdown_table(HEAD, [row(cell) for cell in verdict.worst[:_WORST]]),
        "",
        f"![losses]({picture})",
        "",
        "## All cells",
        "",
        *markdown_table(HEAD, [row(cell) for cell in verdict.cells]),
        "",
        *sections,
        "## Runs",
        "",
        *(f"- `{run}`" for run in verdict.runs),
    ]
    return "\n".join(lines) + "\n"


HEAD = ("disturbance", "value", "return", "loss", "interval", "verdict")


def row(cell: Cell) -> tuple[str, ...]:
    """Return a cell for a table."""
    loss = cell.loss
    return (
        cell.point.axis,
        value_text(cell.point.value),
        number(cell.mean),
        f"{loss.point:.0%}",
        bounds(loss, places=2),
        cell.outcome,
    )


def plot_losses(verdict: Verdict, path: Path, panels: Mapping[str, Sequence[str]]) -> Path:
    """Draw what is lost against the size of the disturbance, and return the file's path.

    Raises:
        RunError: The file cannot be written.
    """
    figure, places = new_panels(len(panels), 3.6, 2.9)
    for axes, (title, names) in zip(places, panels.items(), strict=True):
        for index, name in enumerate(names):
            _draw(axes, verdict.curve(name), name, COLOURS[index % len(COLOURS)])
        axes.axhline(verdict.tolerance, color=INK, linewidth=1, linestyle=(0, (2, 3)))
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.set_ylabel("share of the return lost")
        if len(names) > 1:
            axes.legend(fontsize=8, frameon=False)
        tidy(axes, grid="y")
    return save_figure(figure, path)


def _draw(axes: Axes, cells: Sequence[Cell], name: str, colour: str) -> None:
    values = [cell.point.value for cell in cells]
    numbers = all(isinstance(value, int | float) for value in values)
    at = values if numbers else list(range(len(values)))
    losses = [cell.loss for cell in cells]
    below = [loss.point - loss.low for loss in losses]
    above = [loss.high - loss.point for loss in losses]
    axes.errorbar(
        at,
        [loss.point for loss in losses],
        yerr=[below, above],
        color=colour,
        marker="o",
        markersize=4,
        capsize=2,
        linewidth=1.6 if numbers else 0,
        elinewidth=1.2,
        label=name,
    )
    if not numbers:
        axes.set_xticks(at, [value_text(value) for value in values], rotation=30, fontsize=7)
