"""Pictures of games: pay-offs, replicator dynamics, and the graph of alpha-rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from assay.evaluation.equilibria import near
from assay.evaluation.formatting import number
from assay.evaluation.payoffs import PayoffTable
from assay.evaluation.plots import COLOURS, FAINT, INK, new_figure, save_figure, tidy
from assay.functional.games.alpha_rank import Ranking
from assay.functional.games.normal_form import is_symmetric, replicator, replicator_path, spread
from assay.functional.games.tree import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
_MOST_NODES = 24  # a graph of more cannot be read
_SHOWN = 0.005  # mass below which a node is small and grey


def plot_payoffs(payoffs: PayoffTable, path: Path) -> Path:
    """Draw what the first player's strategies get against those of the second."""
    table = payoffs.table[0].reshape(*payoffs.table.shape[1:3], -1).mean(axis=2)
    rows, columns = payoffs.strategies[0], payoffs.strategies[1]
    figure = new_figure(2.4 + 0.8 * len(columns), 1.6 + 0.5 * len(rows))
    axes = figure.subplots()
    reach = max(float(np.abs(table).max()), 1e-12)
    axes.imshow(table, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    if table.size <= 400:
        for (row, column), value in np.ndenumerate(table):
            dark = abs(value) > 0.6 * reach
            axes.text(
                column, row, number(float(value)), ha="center", va="center", fontsize=9,
                color="white" if dark else INK,
            )  # fmt: skip
    axes.set_title(f"{payoffs.name}: pay-off of the row", loc="left", fontweight="bold")
    return save_figure(figure, path)


def plot_replicator(payoffs: PayoffTable, path: Path) -> Path:
    """Draw where populations go: in the triangle, in the square, or as shares over time.

    One population of three strategies has a triangle, two populations of two strategies have a
    square; of others the shares over time are drawn, from near the uniform profile on.
    """
    table = payoffs.table
    if is_symmetric(table) and table.shape[1] == 3:
        return _triangle(payoffs, path)
    if len(table) == 2 and table.shape[1:] == (2, 2):
        return _square(payoffs, path)
    return _shares(payoffs, path)


def _triangle(payoffs: PayoffTable, path: Path) -> Path:
    table = payoffs.table / spread(payoffs.table)
    figure = new_figure(5.4, 5.0)
    axes = figure.subplots()
    axes.fill(*_CORNERS.T, facecolor="none", edgecolor=INK, linewidth=1.2)
    for start in _inner_points(8):
        ends = np.array([start, start])
        path_of = replicator_path(table, list(ends), steps=120, dt=0.15)[0] @ _CORNERS
        axes.plot(*path_of.T, color=COLOURS[0], linewidth=0.9, alpha=0.7)
        velocity = replicator(table, list(ends))[0] @ _CORNERS
        _arrow(axes, start @ _CORNERS, velocity)
    for corner, name, (dx, dy) in zip(
        _CORNERS, payoffs.strategies[0], ((0, -12), (0, -12), (0, 6)), strict=True
    ):
        at = float(corner[0]), float(corner[1])
        axes.annotate(
            name, at, xytext=(dx, dy), textcoords="offset points", ha="center",
            va="top" if dy < 0 else "bottom", color=INK,
        )  # fmt: skip
    axes.set_aspect("equal")
    axes.margins(0.12)
    axes.axis("off")
    axes.set_title(f"{payoffs.name}: replicator dynamics", loc="left", fontweight="bold")
    return save_figure(figure, path)


def _inner_points(parts: int) -> list[Floats]:
    """Return points of the triangle that lie on no side, on a regular grid."""
    return [
        np.array([a, b, parts - a - b]) / parts
        for a in range(1, parts - 1)
        for b in range(1, parts - a)
    ]


def _arrow(axes: Axes, at: Floats, velocity: Floats) -> None:
    speed = float(np.hypot(*velocity))
    if speed > 1e-9:
        x, y = at + 0.03 * velocity / speed
        arrow = {"arrowstyle": "-|>", "color": COLOURS[0], "linewidth": 0.9}
        axes.annotate("", (x, y), xytext=tuple(at), arrowprops=arrow)


def _square(payoffs: PayoffTable, path: Path) -> Path:
    table = payoffs.table / spread(payoffs.table)
    figure = new_figure(5.0, 4.8)
    axes = figure.subplots()
    grid = np.linspace(0.05, 0.95, 13)
    x, y = np.meshgrid(grid, grid)
    velocity = np.array(
        [
            [own[0] for own in replicator(table, [_pair(a), _pair(b)])]
            for a, b in zip(x.reshape(-1), y.reshape(-1), strict=True)
        ]
    )
    axes.quiver(x, y, *velocity.T.reshape(2, *x.shape), color=COLOURS[0], angles="xy")
    for first, second in ((0.15, 0.9), (0.35, 0.7), (0.65, 0.4), (0.85, 0.2), (0.75, 0.85)):
        ways = replicator_path(table, [_pair(first), _pair(second)], steps=150, dt=0.3)
        axes.plot(ways[0][:, 0], ways[1][:, 0], color=COLOURS[1], linewidth=1.0, alpha=0.8)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel(f"player 0: share of {payoffs.strategies[0][0]}")
    axes.set_ylabel(f"player 1: share of {payoffs.strategies[1][0]}")
    axes.set_title(f"{payoffs.name}: replicator dynamics", loc="left", fontweight="bold")
    tidy(axes, grid="both")
    return save_figure(figure, path)


def _pair(share: float) -> Floats:
    return np.array([share, 1.0 - share])


def _shares(payoffs: PayoffTable, path: Path) -> Path:
    table = payoffs.table / spread(payoffs.table)
    one = is_symmetric(table)
    steps, dt = 400, 0.25
    uniform = [np.full(size, 1.0 / size) for size in table.shape[1:]]
    ways = replicator_path(table, near(uniform), steps=steps, dt=dt)
    shown = ways[:1] if one else ways
    figure = new_figure(6.4, 2.6 * len(shown) + 0.8)
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for player, (axes, way) in enumerate(zip(panels, shown, strict=True)):
        for k, name in enumerate(payoffs.strategies[player]):
            times = np.arange(steps + 1) * dt
            axes.plot(times, way[:, k], color=COLOURS[k % len(COLOURS)], label=name)
        axes.set_ylim(0, 1)
        axes.set_ylabel("share" if one else f"player {player}: share")
        tidy(axes, grid="y")
        if len(payoffs.strategies[player]) <= 12:
            axes.legend(frameon=False, fontsize=8)
    panels[-1].set_xlabel("time, with pay-offs scaled to a range of 1")
    panels[0].set_title(f"{payoffs.name}: replicator dynamics", loc="left", fontweight="bold")
    return save_figure(figure, path)


def plot_alpha_rank(payoffs: PayoffTable, ranking: Ranking, path: Path) -> Path:
    """Draw the chain: where mutants take over more often than by chance, and how long it stays.

    Of many profiles those with the most mass are drawn.
    """
    order = np.argsort(-ranking.mass, kind="stable")[:_MOST_NODES]
    order = np.sort(order)
    angle = np.pi / 2 - 2 * np.pi * np.arange(len(order)) / max(1, len(order))
    place = np.column_stack([np.cos(angle), np.sin(angle)])
    figure = new_figure(6.2, 5.8)
    axes = figure.subplots()
    for i, row in enumerate(order):
        for j, column in enumerate(order):
            strength = ranking.chance[row, column] / ranking.neutral
            if i != j and strength > 1.0 + 1e-9:
                arrow = {
                    "arrowstyle": "-|>", "color": COLOURS[0], "shrinkA": 22, "shrinkB": 22,
                    "linewidth": 1.0, "alpha": 0.75, "connectionstyle": "arc3,rad=0.08",
                }  # fmt: skip
                axes.annotate("", tuple(place[j]), xytext=tuple(place[i]), arrowprops=arrow)
    for i, index in enumerate(order):
        mass = float(ranking.mass[index])
        colour = COLOURS[4] if mass >= _SHOWN else FAINT
        axes.scatter(
            [place[i, 0]], [place[i, 1]], s=250 + 2600 * mass, color=colour, alpha=0.7, zorder=3
        )
        text = f"{payoffs.profile_name(ranking.profiles[index])}\n{mass:.2f}"
        axes.annotate(text, place[i], ha="center", va="center", fontsize=8, color=INK, zorder=4)
    axes.set_aspect("equal")
    axes.margins(0.2)
    axes.axis("off")
    axes.set_title(f"{payoffs.name}: alpha-rank", loc="left", fontweight="bold")
    return save_figure(figure, path)
