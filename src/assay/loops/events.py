"""What callbacks receive: one small typed object per thing that happened.

A callback is any callable of one event. Returning `STOP` ends training at a good state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.core.types import Clock, Metrics

STOP: Final = object()


class StoppedError(Exception):
    """Raised by an evaluation whose run is to stop; it is made again after a resume."""


class Evaluation(Protocol):
    """What an evaluation tells: `assay.evaluation.evaluate.EvaluationResult` is one."""

    @property
    def mean(self) -> float:
        """Return the mean return."""

    @property
    def iqm(self) -> float:
        """Return the interquartile mean of the returns."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return how many steps each episode took."""

    @property
    def success_rate(self) -> float | None:
        """Return the share of successful episodes, or None if nothing says what a success is."""

    @property
    def figures(self) -> Metrics:
        """Return what else was measured, by name."""


@dataclass(slots=True)
class Activity:
    """What a run does between two events, for who watches it from another thread.

    Attributes:
        doing: "training", "evaluating" or "saving".
    """

    doing: str = "training"


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Training begins, or goes on after a resume."""

    path: Path
    clock: Clock
    resumed: bool
    activity: Activity = field(default_factory=Activity, repr=False)


@dataclass(frozen=True, slots=True)
class Logged:
    """A line of metrics was written."""

    clock: Clock
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation finished."""

    clock: Clock
    result: Evaluation


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is complete on disk."""

    clock: Clock
    path: Path


@dataclass(frozen=True, slots=True)
class StepsCompiled:
    """Optimizer steps that began eagerly are compiled.

    Attributes:
        clock: The counts of the run.
        steps: The update of each step from which on it is compiled, by the step's name; 0 if it
            was in the cache when the run began.
    """

    clock: Clock
    steps: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Training ended; status is "done", "interrupted" or "failed"."""

    path: Path
    clock: Clock
    status: str


Event = RunStarted | Logged | Evaluated | CheckpointSaved | StepsCompiled | RunEnded
Callback = Callable[[Event], Any]
