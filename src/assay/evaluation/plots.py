"""Plot learning curves and comparisons, to a PNG or SVG file or as text in a terminal.

Curves of several seeds are put on a common grid of environment steps (or of updates, where runs
learn from data alone), which ends where the shortest of them ends: beyond that point the line would
describe other runs. The line is the interquartile mean, the band a bootstrap interval at each point
by itself; a single seed has no band.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.types import Unit
from assay.evaluation import statistics
from assay.evaluation.compare import Arm, Comparison
from assay.evaluation.evaluate import TRAINING
from assay.evaluation.formatting import number
from assay.evaluation.run_scores import UNITS, arm_names, read_curve
from assay.evaluation.statistics import Interval
from assay.runs.directory import group_runs
from assay.runs.files import replacing
from assay.runs.metrics import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

_GRID_POINTS = 200
# Okabe and Ito's palette, which colour-blind people can distinguish; its yellow is left out because
# it is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, FAINT = "#333333", "#D9D9D9"
_LONG_NAME = 24
_SUFFIXES = (".png", ".svg")
_MARKS = "●○▲△■□◆◇"
_BARS = " ▁▂▃▄▅▆▇█"
_METRIC_WORDS = {
    "eval/return_mean": "evaluation return",
    "eval/return_iqm": "evaluation return (IQM of episodes)",
    "eval/length_mean": "evaluation episode length",
    "rollout/return_mean": "training return",
    "rollout/length_mean": "training episode length",
}


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """A curve over several seeds; all arrays are `[points]`, and a band of one seed is NaN."""

    counts: Floats
    iqm: Floats
    low: Floats
    high: Floats


def aggregate(
    curves: Sequence[Series], *, level: float = 0.95, reps: int = 500, seed: int = 0
) -> Band:
    """Return the interquartile mean of several curves with a bootstrap band.

    Where all curves have values at the same steps, those are the points; otherwise the curves are
    interpolated linearly on a regular grid over the steps that all of them cover. Values that are
    not finite (no episode had ended yet) are left out.

    Raises:
        ConfigError: A curve has no values, or no range of steps is covered by all curves.
    """
    clean = [(steps[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in curves]
    if not clean or any(steps.size == 0 for steps, _ in clean):
        raise ConfigError("There is nothing to draw: a curve has no finite value.")
    first = clean[0][0]
    if all(np.array_equal(steps, first) for steps, _ in clean):
        grid = first.astype(np.float64)
    else:
        start = max(int(steps[0]) for steps, _ in clean)
        end = min(int(steps[-1]) for steps, _ in clean)
        if end < start:
            raise ConfigError(
                f"The curves do not overlap: one begins at {start:,}, after another ended at "
                f"{end:,}.",
                "Draw runs with the same budget.",
            )
        grid = np.linspace(start, end, _GRID_POINTS if end > start else 1)
    values = np.array([np.interp(grid, steps, series) for steps, series in clean])
    # The same seed at every point: the band is as smooth as the curves.
    points = [
        statistics.stratified_bootstrap(column, rng=seed, reps=reps, level=level)
        for column in values.T
    ]
    return Band(
        grid,
        np.array([point.point for point in points]),
        np.array([point.low for point in points]),
        np.array([point.high for point in points]),
    )


def read_curves(
    paths: Sequence[Path], metric: str, *, label: str = TRAINING
) -> dict[str, tuple[Series, ...]]:
    """Return the curves of the runs of each path, which is a run or a group, by a short name.

    Raises:
        RunError: There is no run, or one has no such metric.
    """
    return {
        name: tuple(read_curve(run, metric, label=label) for run in group_runs(path))
        for name, path in zip(arm_names(paths), paths, strict=True)
    }


def read_unit(paths: Sequence[Path]) -> Unit:
    """Return what the runs of all paths are counted in.

    Raises:
        ConfigError: Some are counted in environment steps, others in updates.
        RunError: There is no run, or its configuration cannot be read.
    """
    units: set[Unit] = {run.budget[0] for path in paths for run in group_runs(path)}
    if len(units) > 1:
        raise ConfigError(
            "Some of the runs are counted in environment steps and others in updates.",
            "Draw them in two plots.",
        )
    return units.pop()


def plot_curves(
    groups: Sequence[Path] | Mapping[str, Sequence[Series]],
    metric: str,
    path: Path,
    *,
    title: str | None = None,
    level: float = 0.95,
    unit: Unit = "env_steps",
) -> Path:
    """Draw one learning curve per group and return the file's path.

    Args:
        groups: Runs or groups to read, or curves by name.
        metric: What to draw.
        path: Where to, ending in `.png` or `.svg`; its directory is made.
        title: What to write above it.
        level: Confidence of the bands.
        unit: What curves that are given by name are counted in.

    Raises:
        ConfigError: The file's ending is not known, or the curves of a group do not overlap.
        RunError: A run cannot be read, or the file cannot be written.
    """
    check_suffix(path)
    curves = groups if isinstance(groups, Mapping) else read_curves(groups, metric)
    if not curves:
        raise ConfigError("There is nothing to draw.", "Give at least one run or group.")
    unit = unit if isinstance(groups, Mapping) else read_unit(groups)
    columns = 1 if max(map(len, curves)) > _LONG_NAME else min(3, len(curves))
    figure = new_figure(6.4, 3.8 + 0.2 * -(-len(curves) // columns))
    axes = figure.subplots()
    _draw_curves(axes, curves, metric, level, unit)
    # Below the axes, where it can hide nothing.
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    if title:
        axes.set_title(title, loc="left", fontweight="bold")
    return save_figure(figure, path)


def plot_panels(
    panels: Mapping[str, Mapping[str, Sequence[Series]]],
    metric: str,
    path: Path,
    *,
    level: float = 0.95,
    unit: Unit = "env_steps",
    note: str | None = None,
) -> Path:
    """Draw learning curves of several environments side by side and return the file's path.

    Args:
        panels: By the title of each panel, curves by name.
        metric: What to draw.
        path: Where to, ending in `.png` or `.svg`; its directory is made.
        level: Confidence of the bands.
        unit: What the curves are counted in.
        note: Kept in the file as its description, where it is not seen.

    Raises:
        ConfigError: The file's ending is not known, or the curves of a group do not overlap.
        RunError: The file cannot be written.
    """
    check_suffix(path)
    if not panels:
        raise ConfigError("There is nothing to draw.", "Give at least one panel.")
    figure, places = new_panels(len(panels), 3.6, 2.9)
    for axes, (title, curves) in zip(places, panels.items(), strict=True):
        _draw_curves(axes, curves, metric, level, unit)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.legend(fontsize=8, frameon=False)
    return save_figure(figure, path, note)


def plot_comparison(comparison: Comparison, path: Path) -> Path:
    """Draw a comparison and return the file's path: learning curves left, scores right.

    The right side shows each arm's score with its interval and every seed as a dot, with the
    verdict against the baseline below the arm's name.

    Raises:
        ConfigError: The file's ending is not known.
        RunError: The file cannot be written.
    """
    check_suffix(path)
    arms = comparison.arms
    figure = new_figure(9.6, max(3.8, 1.9 + 0.62 * len(arms)))
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    curves = {arm.name: arm.curves for arm in arms}
    _draw_curves(left, curves, comparison.metric, comparison.level, comparison.unit)
    _draw_scores(right, comparison)
    word = "steps" if comparison.unit == "env_steps" else comparison.unit
    budget = "" if comparison.total is None else f", {_units(comparison.total)} {word}"
    figure.suptitle(f"{comparison.env}{budget}", x=0.01, ha="left", fontweight="bold")
    return save_figure(figure, path)


def plot_histograms(panels: Mapping[str, NDArray[Any]], path: Path, *, title: str = "") -> Path:
    """Draw distributions side by side and return the file's path.

    Args:
        panels: By the name of each panel, its values.
        path: Where to, ending in `.png` or `.svg`; its directory is made.
        title: Of the whole.

    Raises:
        ConfigError: The file's ending is not known.
        RunError: The file cannot be written.
    """
    check_suffix(path)
    figure, places = new_panels(len(panels), 3.4, 2.6)
    for axes, (name, values) in zip(places, panels.items(), strict=True):
        axes.hist(values, bins=30, color=COLOURS[0])
        axes.set_title(_shorten(name), loc="left", fontsize=10, fontweight="bold")
        tidy(axes, grid="y")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return save_figure(figure, path)


# In the terminal


def plot_league(
    names: Sequence[str],
    ratings: Sequence[Interval],
    payoffs: NDArray[Any],
    path: Path,
    *,
    title: str,
) -> Path:
    """Draw a league and return the file's path: ratings left, pay-offs right.

    Args:
        names: [P] from the best player to the worst.
        ratings: [P] their Elo.
        payoffs: [P, P] the share of points of the row's player against the column's.
        path: Where to, ending in `.png` or `.svg`; its directory is made.
        title: The game.

    Raises:
        ConfigError: The file's ending is not known.
        RunError: The file cannot be written.
    """
    check_suffix(path)
    figure = new_figure(10.0, max(3.2, 1.4 + 0.36 * len(names)))
    left, right = figure.subplots(1, 2)
    rows, labels = np.arange(len(names)), [_shorten(name) for name in names]
    points = [rating.point for rating in ratings]
    spread = [[r.point - r.low for r in ratings], [r.high - r.point for r in ratings]]
    left.errorbar(points, rows, xerr=spread, fmt="o", color=COLOURS[0], capsize=3)
    left.set_yticks(rows, labels)
    left.invert_yaxis()
    left.set_xlabel("Elo, 95 % interval")
    tidy(left, grid="x")
    image = right.imshow(payoffs, vmin=0.0, vmax=1.0, cmap="RdBu", aspect="auto")
    right.set_xticks(rows, labels, rotation=60, ha="right", fontsize=8)
    right.set_yticks(rows, labels, fontsize=8)
    if len(names) <= 12:
        for i, row in enumerate(payoffs):
            for j, share in enumerate(row):
                if np.isfinite(share):
                    right.text(j, i, f"{share:.2f}", ha="center", va="center", fontsize=7)
    figure.colorbar(image, ax=right, label="share of points of the row")
    figure.suptitle(f"League of {title}", x=0.01, ha="left", fontweight="bold")
    return save_figure(figure, path)


def text_histogram(values: NDArray[Any], width: int = 40) -> str:
    """Render a distribution as one line of bars, from its least to its greatest value.

    Example:
        >>> text_histogram(np.array([0, 1, 1, 3]), width=3)
        '▅█▅'
    """
    counts, _ = np.histogram(values, bins=width)
    steps = np.ceil(counts / max(1, counts.max()) * (len(_BARS) - 1)).astype(int)
    return "".join(_BARS[step] for step in steps)


def text_chart(
    curves: Mapping[str, Sequence[Series]],
    *,
    width: int = 60,
    height: int = 10,
    unit: Unit = "env_steps",
) -> str:
    """Render learning curves as text: the interquartile mean over the seeds of each group.

    Width and height are those of the plotting area, in characters.
    """
    if width < 2 or height < 2:
        raise ConfigError(f"A chart of {width} x {height} cells: expected at least 2 x 2.")
    if not curves:
        raise ConfigError("There is nothing to draw.", "Give at least one run or group.")
    bands = {name: aggregate(series, reps=1) for name, series in curves.items()}
    every = np.concatenate([band.iqm for band in bands.values()])
    low, high = float(every.min()), float(every.max())
    if high == low:
        low, high = low - 1.0, high + 1.0
    start = min(float(band.counts[0]) for band in bands.values())
    end = max(float(band.counts[-1]) for band in bands.values())
    cells = [[" "] * width for _ in range(height)]
    for index, band in enumerate(bands.values()):
        columns = np.linspace(start, end, width)
        inside = (columns >= band.counts[0]) & (columns <= band.counts[-1])
        inside[np.abs(columns - band.counts[-1]).argmin()] = True  # also where it is one point
        heights = np.interp(columns, band.counts, band.iqm)
        rows = np.round((heights - low) / (high - low) * (height - 1)).astype(int)
        for column in np.flatnonzero(inside).tolist():
            cells[height - 1 - rows[column]][column] = _MARKS[index % len(_MARKS)]
    step = (high - low) / (height - 1)
    labels = {row: number(high - row * step) for row in (0, height // 2, height - 1)}
    margin = max(map(len, labels.values()))
    lines = [f"{labels.get(i, ''):>{margin}} ┤{''.join(row)}" for i, row in enumerate(cells)]
    lines = [line.rstrip() for line in lines]
    left, right = _units(start), f"{_units(end)} {unit}"
    lines.append(f"{'':>{margin}} └{'─' * width}")
    lines.append(f"{'':>{margin}}  {left}{right:>{max(0, width - len(left))}}")
    if len(bands) > 1:
        named = (f"{_MARKS[i % len(_MARKS)]} {name}" for i, name in enumerate(bands))
        lines.append(f"{'':>{margin}}  {'   '.join(named)}")
    return "\n".join(lines)


# Drawing


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that needs no display and does not touch matplotlib's state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels of a size, three in a row at most."""
    columns = min(3, count)
    rows = -(-count // columns)
    figure = new_figure(width * columns, height * rows)
    places = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axes in places[count:]:
        axes.remove()
    return figure, places[:count]


def _draw_curves(
    axes: Axes, curves: Mapping[str, Sequence[Series]], metric: str, level: float, unit: Unit
) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for index, (name, series) in enumerate(curves.items()):
        band = aggregate(series, level=level)
        colour = COLOURS[index % len(COLOURS)]
        marker = "o" if len(band.counts) == 1 else None
        axes.plot(
            band.counts,
            band.iqm,
            color=colour,
            linewidth=1.8,
            marker=marker,
            label=f"{name} ({_count(len(series))})",
        )
        if len(series) > 1:
            axes.fill_between(
                band.counts, band.low, band.high, color=colour, alpha=0.18, linewidth=0
            )
    axes.xaxis.set_major_formatter(FuncFormatter(_tick))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    axes.set_xlabel(UNITS[unit])
    axes.set_ylabel(_METRIC_WORDS.get(metric, metric))
    axes.margins(x=0.01)
    tidy(axes, grid="y")


def _draw_scores(axes: Axes, comparison: Comparison) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    arms = comparison.arms
    axes.axvline(arms[0].iqm.point, color=COLOURS[0], linewidth=1, linestyle=(0, (2, 3)), alpha=0.7)
    for index, arm in enumerate(arms):
        _draw_arm(axes, index, arm)
    verdicts = {pair.name: _SHORT[pair.outcome] for pair in comparison.pairs}
    names = [
        f"{_shorten(arm.name)}\n{verdicts.get(arm.name, 'baseline')}, {_count(len(arm.scores))}"
        for arm in arms
    ]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.1)
    axes.xaxis.set_major_formatter(FuncFormatter(_tick))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    percent = f"{100 * comparison.level:g}%"
    axes.set_xlabel(f"{_AT_WORDS[comparison.at]}: IQM, {percent} interval, every seed")
    tidy(axes, grid="x")
    for index, label in enumerate(axes.get_yticklabels()):
        label.set_color(COLOURS[index % len(COLOURS)])


def _draw_arm(axes: Axes, row: int, arm: Arm) -> None:
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import ScaledTranslation

    colour = COLOURS[row % len(COLOURS)]
    # Seeds lie below the interval, so that neither hides the other.
    figure = axes.figure
    below = axes.transData + ScaledTranslation(0, -9 / 72, figure.dpi_scale_trans)
    axes.plot(
        arm.scores,
        np.full(len(arm.scores), row),
        "o",
        color=colour,
        markersize=4.5,
        alpha=0.55,
        markeredgewidth=0,
        transform=below,
    )
    # Points in a shifted frame do not widen the axes by themselves.
    axes.update_datalim(np.column_stack([arm.scores, np.full(len(arm.scores), row)]))
    if not math.isnan(arm.iqm.low):
        axes.plot(
            [arm.iqm.low, arm.iqm.high],
            [row, row],
            color=colour,
            linewidth=5,
            alpha=0.35,
            solid_capstyle="butt",
        )
    axes.plot([arm.iqm.point], [row], "D", color=colour, markersize=6)
    axes.annotate(
        number(arm.iqm.point),
        (arm.iqm.point, row),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        color=colour,
        fontsize=9,
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )


_SHORT = {
    "better": "better",
    "worse": "worse",
    "not shown": "no difference shown",
    "unknown": "cannot tell",
}
_AT_WORDS = {"final": "final", "best": "best", "auc": "mean over training"}


def tidy(axes: Axes, *, grid: Any) -> None:
    """Leave of the axes what helps reading: two spines and a faint grid."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(INK)
    axes.tick_params(colors=INK)
    axes.grid(axis=grid, color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


def save_figure(figure: Figure, path: Path, note: str | None = None) -> Path:
    """Write a figure to a file; the same figure gives the same bytes."""
    from matplotlib import rc_context

    kept: dict[str, str | None] = {} if note is None else {"Description": note}
    # The same curves give the same file, and texts of an SVG can be searched.
    if path.suffix.lower() == ".svg":
        kept["Date"] = None
    with replacing(path) as draft, rc_context({"svg.hashsalt": "assay", "svg.fonttype": "none"}):
        figure.savefig(draft, dpi=150, metadata=kept)
    return path


def check_suffix(path: Path) -> None:
    """Refuse a file that is neither PNG nor SVG."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"'{path}' ends in '{path.suffix}': expected .png or .svg.")


def _units(steps: float) -> str:
    """Format a number of steps: 0, 500, 20k, 1.5M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(steps) >= size:
            return f"{steps / size:.4g}{unit}"
    return f"{steps:.4g}"


def _tick(value: float, _: int | None = None) -> str:
    """Format the number at a tick, with the minus sign that matplotlib uses."""
    return _units(value).replace("-", "\N{MINUS SIGN}")


def _shorten(name: str) -> str:
    return name if len(name) <= _LONG_NAME else f"{name[: _LONG_NAME - 1]}…"


def _count(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"
