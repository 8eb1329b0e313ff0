"""How much of its return a run loses where something is disturbed, with a verdict.

Losses are shares of what the run is worth: the undisturbed return less that of random actions.
0 is no loss, and 1 is a run that does as badly as random actions do without any disturbance.

Every cell plays the same episodes, so that losses are paired. One run is measured over its
episodes, several over runs, because a seed of training is then one measurement. Intervals are
Student's, and hold for all cells together (Bonferroni).

Episodes that are all alike have no spread, and say nothing about those that were not seen. So the
upper end of an interval is at least what a share of unseen episodes would cost that lose
everything: the largest share that would show up in none of n episodes with a probability of
(1 - level) / 2, which is 1 - ((1 - level) / 2)^(1 / n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.evaluation.formatting import number
from assay.evaluation.statistics import Interval, t_interval

Outcome = Literal["holds", "fails", "not shown"]
Floats = NDArray[np.float64]
LEVEL = 0.95
TOLERANCE = 0.2


@dataclass(frozen=True, slots=True)
class Point:
    """Where in the grid a cell is: what is disturbed, and by how much.

    Attributes:
        axis: What is disturbed, such as `obs_noise`.
        value: By how much, as it was asked for.
    """

    axis: str
    value: Any

    def __str__(self) -> str:
        return f"{self.axis}={value_text(self.value)}"


@dataclass(frozen=True, slots=True)
class Played:
    """The returns of one run: undisturbed, at random, and in each cell."""

    run: str
    nominal: Floats
    floor: float
    cells: tuple[Floats, ...]

    @property
    def span(self) -> float:
        """Return what the run is worth."""
        return float(self.nominal.mean()) - self.floor

    def losses(self, cell: int) -> Floats:
        """Return the loss of each episode, as a share of what the run is worth."""
        return (self.nominal - self.cells[cell]) / self.span


@dataclass(frozen=True, slots=True)
class Cell:
    """What became of the runs under one disturbance.

    Attributes:
        point: The disturbance.
        mean: The mean return.
        loss: The share that is lost, with its interval.
        outcome: `holds` where the whole interval is within the tolerance, `fails` where it is
            beyond it.
    """

    point: Point
    mean: float
    loss: Interval
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "axis": self.point.axis,
            "value": self.point.value,
            "mean": self.mean,
            "loss": self.loss.point,
            "low": self.loss.low,
            "high": self.loss.high,
            "outcome": self.outcome,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """All cells, and what they say together.

    Attributes:
        runs: Names of the runs.
        episodes: Of each run in each cell.
        nominal: Mean return without a disturbance.
        floor: Mean return of random actions, or what was given for it.
        tolerance: The largest loss that is accepted.
        cells: In the order in which they were asked for.
    """

    runs: tuple[str, ...]
    episodes: int
    nominal: float
    floor: float
    tolerance: float
    cells: tuple[Cell, ...]

    @property
    def outcome(self) -> Outcome:
        """Return `holds` if all cells do, and `fails` if one does."""
        found = {cell.outcome for cell in self.cells}
        return "fails" if "fails" in found else "not shown" if "not shown" in found else "holds"

    @property
    def worst(self) -> list[Cell]:
        """Return the cells from the largest loss to the smallest."""
        return sorted(self.cells, key=lambda cell: -cell.loss.point)

    def curve(self, axis: str) -> list[Cell]:
        """Return the cells of one axis."""
        return [cell for cell in self.cells if cell.point.axis == axis]

    @property
    def axes(self) -> list[str]:
        """Return what was disturbed."""
        return list(dict.fromkeys(cell.point.axis for cell in self.cells))

    def sentence(self) -> str:
        """Return the verdict in a sentence."""
        worst, allowed = self.worst[0], f"{self.tolerance:.0%}"
        most = f"the most is {worst.loss.point:.0%}, at {worst.point}"
        if self.outcome == "holds":
            return f"Holds: no disturbance costs more than {allowed}; {most}."
        count = sum(cell.outcome == "fails" for cell in self.cells)
        if self.outcome == "fails":
            return f"Fails: {count} of {len(self.cells)} cost more than {allowed}; {most}."
        return (
            f"Not shown: no disturbance is known to cost more than {allowed}, but intervals reach "
            f"beyond it; {most}. More episodes would tell."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "runs": list(self.runs),
            "episodes": self.episodes,
            "nominal": self.nominal,
            "floor": self.floor,
            "tolerance": self.tolerance,
            "level": LEVEL,
            "outcome": self.outcome,
            "verdict": self.sentence(),
            "cells": [cell.to_json() for cell in self.cells],
        }


def judge(points: Sequence[Point], played: Sequence[Played], tolerance: float) -> Verdict:
    """Return what the returns of runs say.

    Args:
        points: The cells, in the order of `Played.cells`.
        played: One for each run.
        tolerance: The largest loss that is accepted.
    """
    level = 1 - (1 - LEVEL) / len(points)
    cells = []
    for index, point in enumerate(points):
        losses = played[0].losses(index)
        if len(played) > 1:
            losses = np.array([one.losses(index).mean() for one in played])
        loss = _with_unseen(t_interval(losses, level), len(played) * len(played[0].nominal))
        mean = float(np.mean([one.cells[index].mean() for one in played]))
        cells.append(Cell(point, mean, loss, _outcome(loss, tolerance)))
    return Verdict(
        tuple(one.run for one in played),
        len(played[0].nominal),
        float(np.mean([one.nominal.mean() for one in played])),
        float(np.mean([one.floor for one in played])),
        tolerance,
        tuple(cells),
    )


def check_tolerance(tolerance: float) -> None:
    """Refuse a tolerance that is not a share.

    Raises:
        ConfigError: It is not.
    """
    if not 0 < tolerance < 1:
        raise ConfigError(f"tolerance={tolerance:g}: expected a share between 0 and 1.")


def check_worth(run: str, nominal: Floats, floor: Floats | float) -> None:
    """Refuse a run that is not worth more than random actions: it has nothing to lose.

    Raises:
        ConfigError: It is not, or that cannot be told from so few episodes.
    """
    worth = t_interval(nominal - float(np.mean(floor)), LEVEL)
    if worth.low <= 0 or math.isnan(worth.low):
        drawn = isinstance(floor, np.ndarray)
        zero = "random actions" if drawn else "the floor is"
        other = "say what counts as nothing: --floor RETURN" if drawn else "give a lower --floor"
        raise ConfigError(
            f"The run '{run}' returns {number(float(nominal.mean()))}, and {zero} "
            f"{number(float(np.mean(floor)))}: it has nothing to lose, as far as "
            f"{len(nominal)} episodes show.",
            f"Train it longer, play more episodes, or {other}.",
        )


def value_text(value: Any) -> str:
    """Return a value of an axis as people write it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {value_text(v)}" for k, v in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _with_unseen(loss: Interval, episodes: int) -> Interval:
    """Return an interval that leaves room for episodes that were not seen."""
    share = 1 - ((1 - loss.level) / 2) ** (1 / episodes)
    high = max(loss.high, loss.point + share * max(0.0, 1 - loss.point))
    return Interval(loss.point, loss.low, high, loss.level)


def _outcome(loss: Interval, tolerance: float) -> Outcome:
    if loss.high <= tolerance:
        return "holds"
    return "fails" if loss.low > tolerance else "not shown"
