"""What callbacks receive: one small typed object per thing that happened.

A callback is any callable of one event. Returning `STOP` ends training at a good state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from assay.core.types import Clock, Metrics

STOP: Final = object()


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Training begins, or goes on after a resume."""

    path: Path
    clock: Clock
    resumed: bool


@dataclass(frozen=True, slots=True)
class Logged:
    """A line of metrics was written."""

    clock: Clock
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation finished; `result` is an `assay.evaluation.evaluate.EvaluationResult`."""

    clock: Clock
    result: Any


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is complete on disk."""

    clock: Clock
    path: Path


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Training ended; status is "done", "interrupted" or "failed"."""

    path: Path
    clock: Clock
    status: str


Event = RunStarted | Logged | Evaluated | CheckpointSaved | RunEnded
Callback = Callable[[Event], Any]
