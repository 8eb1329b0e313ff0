"""Pictures of the mazes that a generator drew over a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from assay.core.errors import ConfigError
from assay.evaluation.plots import new_figure, save_figure
from assay.functional.mazes import Gallery, Levels
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory

_SHADES = np.array([[250, 250, 250], [60, 60, 60], [50, 110, 220], [40, 160, 80]], np.uint8)


def read_levels(path: Path) -> list[Levels]:
    """Return the mazes that the last checkpoint of a run keeps, a few of each part of the run.

    Raises:
        ConfigError: It has none.
    """
    place = checkpoint.latest(RunDirectory.open(path).checkpoints_path)
    sections = {} if place is None else checkpoint.read_checkpoint(place, ["normalisers"])
    state = sections.get("normalisers", {}).get("gallery")
    if state is None:
        raise ConfigError(
            f"'{path}' keeps no levels that were drawn.", "Give a run of paired with a checkpoint."
        )
    gallery = Gallery()
    gallery.load_state(state)
    return gallery.levels


def levels_text(parts: list[Levels]) -> str:
    """Return the first maze of each part as text."""
    named = [f"part {i} of {len(parts)}\n{one.pictures()[0]}" for i, one in enumerate(parts, 1)]
    return "\n\n".join(named)


def plot_levels(parts: list[Levels], path: Path) -> Path:
    """Draw mazes, a column for each part of the run: the agent is blue, the goal green."""
    rows = len(parts[0].start)
    figure = new_figure(1.1 * len(parts) + 0.4, 1.1 * rows + 0.6)
    grid = figure.subplots(rows, len(parts), squeeze=False)
    for column, levels in enumerate(parts):
        for row in range(rows):
            cells = levels.walls[row].astype(np.int64)
            cells.reshape(-1)[levels.start[row]] = 2
            cells.reshape(-1)[levels.goal[row]] = 3
            axes = grid[row, column]
            axes.imshow(_SHADES[cells])
            axes.set_xticks([])
            axes.set_yticks([])
        grid[0, column].set_title(f"{100 * column // Gallery.parts} %", fontsize=9)
    return save_figure(figure, path)
