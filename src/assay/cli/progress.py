"""Progress of a run: a bar and the learning curve on a terminal, lines elsewhere."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from assay.cli import output
from assay.core.types import Unit
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from assay.core.types import Clock
    from assay.loops.events import Activity, Event

Mode = Literal["bar", "lines", "silent"]
RETURN = "rollout/return_mean"
EVALUATION = "eval/return_mean"
LINE_SHARE = 1 / 8  # of the budget between two lines, where no evaluation makes one
LINE_SECONDS = 60.0  # and the longest time between two lines
BEAT_SECONDS = 0.5  # between two looks at a run that says nothing
_LEVELS = "▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 20


def speed_metric(unit: Unit) -> str:
    """Return the metric that says how fast a run is."""
    return f"time/{unit}_per_second"


def choose_mode(*, quiet: bool, as_json: bool) -> Mode:
    """Return how to show progress here: the bar is for people, the lines are for logs."""
    if quiet:
        return "silent"
    if sys.stderr.isatty():
        return "bar"
    return "silent" if as_json else "lines"


def curve(values: Sequence[float], width: int = _CURVE_WIDTH) -> str:
    """Draw values as a line of blocks, from the lowest to the highest of them.

    More than `width` values are averaged in groups of neighbours.

    Example:
        >>> curve([0.0, 10.0, 20.0, 70.0])
        '▁▂▃█'
        >>> curve([0.0, 0.0, 7.0, 7.0], width=2)
        '▁█'
    """
    values = [value for value in values if math.isfinite(value)]
    size = len(values)
    if size > width:
        ends = [size * i // width for i in range(width + 1)]
        groups = [values[a:b] for a, b in pairwise(ends)]
        values = [sum(group) / len(group) for group in groups]
    low, high = min(values, default=0.0), max(values, default=0.0)
    # Without a scale, one value or equal ones are neither high nor low.
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    base = 0.0 if scale else (len(_LEVELS) - 1) / 2
    return "".join(_LEVELS[round(base + (value - low) * scale)] for value in values)


@dataclass(slots=True)
class _Line:
    """The state of a run, and when it was last printed."""

    count: int
    total: int
    unit: Unit
    speed: float | None = None
    score: float | None = None
    evaluations: Sequence[float] = ()
    task: TaskID | None = None
    printed_share: float = 0.0
    printed_at: float = 0.0

    def figures(self) -> str:
        parts = []
        if self.speed is not None:
            word = "steps" if self.unit == "env_steps" else self.unit
            parts.append(f"{self.speed:,.0f} {word}/s")
        if self.score is not None:
            parts.append(f"return {number(self.score)}")
        if self.evaluations:
            parts.append(f"evaluation {number(self.evaluations[-1])}")
        return ", ".join(parts)


class Bars:
    """One line of progress per run, on stderr."""

    def __init__(
        self,
        mode: Mode,
        *,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mode = mode
        self.console = console or output.err()
        self._now = now
        self._display: Any = None
        self._lines: dict[str, _Line] = {}

    def __enter__(self) -> Self:
        if self.mode == "bar":
            self._display = _make_display(self.console)
            self._display.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None

    def update(
        self,
        label: str,
        count: int,
        total: int,
        *,
        unit: Unit = "env_steps",
        speed: float | None = None,
        score: float | None = None,
        evaluations: Sequence[float] | None = None,
        state: str = "",
    ) -> None:
        """Show how far the run called `label` is; a value that is None stays as it was.

        A new label makes a new line, and so does each new evaluation. A `state`, such as "waiting",
        is shown in place of the values.
        """
        if self.mode == "silent":
            return
        line = self._lines.get(label)
        if line is None:
            line = self._lines[label] = _Line(count, total, unit, printed_at=self._now())
        line.count, line.total = min(count, total), total
        line.speed = line.speed if speed is None else speed
        line.score = line.score if score is None else score
        known = len(line.evaluations)
        line.evaluations = line.evaluations if evaluations is None else list(evaluations)
        if self._display is not None:
            self._draw(label, line, state)
        elif not state:
            self._print(label, line, len(line.evaluations) > known)

    def pulse(self, label: str, count: int, doing: str) -> None:
        """Show how far a run is that has said nothing for a while, if it was shown before."""
        line = self._lines.get(label)
        if line is None or self.mode == "silent":
            return
        line.count = max(line.count, min(count, line.total))
        if self._display is not None:
            self._draw(label, line, "")
        elif self._now() - line.printed_at >= LINE_SECONDS:
            self._print(label, line, False, doing)

    def message(self, text: str) -> None:
        """Print a line above the bars."""
        if self._display is not None:
            self.console.print(text, soft_wrap=True)
        elif self.mode == "lines":
            try:
                print(text, file=self.console.file, flush=True)
            except OSError:  # stderr was closed; the run must not stop because of it
                self.mode = "silent"

    def _draw(self, label: str, line: _Line, state: str) -> None:
        if line.task is None:
            line.task = self._display.add_task(label, total=line.total, figures="", curve="")
        drawable = self.console.encoding.lower().startswith("utf")
        self._display.update(
            line.task,
            total=line.total,
            completed=line.count,
            figures=state or line.figures(),
            curve=curve(line.evaluations) if drawable else "",
        )

    def _print(self, label: str, line: _Line, evaluated: bool, doing: str = "") -> None:
        share, now = line.count / line.total, self._now()
        due = share - line.printed_share >= LINE_SHARE or now - line.printed_at >= LINE_SECONDS
        if not due and not evaluated:
            return
        line.printed_share, line.printed_at = share, now
        left = line.total - line.count
        parts = [
            f"{label}: {line.count:,} of {line.total:,} {line.unit} ({share:.0%})",
            doing,
            line.figures(),
            f"{output.duration(left / line.speed)} left" if line.speed and left else "",
        ]
        self.message(", ".join(part for part in parts if part))


class Progress:
    """A callback that shows one run: give it to `assay.train(callbacks=[...])`.

    Attributes:
        path: The run directory, once the run has started.
    """

    def __init__(self, bars: Bars, label: str) -> None:
        self.bars = bars
        self.label = label
        self.path: Path | None = None
        self._evaluations: list[float] = []
        self._clock: Clock | None = None
        self._activity: Activity | None = None
        self._said_stopping = False

    @property
    def collected(self) -> int:
        """Return the steps of a rollout that the run was stopped in."""
        return 0 if self._clock is None else self._clock.collected

    def beat(self) -> None:
        """Show what there is between two events: steps of a rollout, a long evaluation, a stop.

        It is called from another thread (`Pulse`), and only reads.
        """
        clock, activity = self._clock, self._activity
        if clock is None or activity is None:
            return
        doing = activity.doing
        if clock.stopping and not self._said_stopping:
            self._said_stopping = True
            over = "step" if clock.collected else "update"
            what = {
                "evaluating": "it saves when this step is over, and evaluates after a resume",
                "saving": "it is being saved",
            }.get(doing, f"it saves when this {over} is over")
            self.bars.message(
                f"{self.label}: stopping; {what}. A second Ctrl-C ends it at once, and what came "
                "after the last checkpoint is lost."
            )
        done = clock.count + (clock.collected if clock.unit == "env_steps" else 0)
        self.bars.pulse(self.label, done, "collecting" if clock.collected else doing)

    def __call__(self, event: Event) -> None:
        """Show an event of the run."""
        from assay.loops.events import Evaluated, Logged, RunStarted, StepsCompiled

        clock = event.clock
        speed = score = None
        if isinstance(event, RunStarted):
            self.path, self._clock, self._activity = event.path, clock, event.activity
            if event.resumed:
                self.bars.message(f"{self.label}: resumed at {clock.unit}={clock.count:,}")
                self._evaluations = _evaluated_before(event.path)
        elif isinstance(event, StepsCompiled):
            cached = not any(event.steps.values())
            words = "compiled updates, from the cache"
            if not cached:
                words = f"eager updates, compiled ones from update {clock.updates:,} on"
            self.bars.message(f"{self.label}: {words}")
        elif isinstance(event, Logged):
            speed = event.metrics.get(speed_metric(clock.unit))
            score = event.metrics.get(RETURN)
        elif isinstance(event, Evaluated):
            self._evaluations.append(event.result.mean)
        self.bars.update(
            self.label,
            clock.count,
            clock.total,
            unit=clock.unit,
            speed=speed,
            score=score,
            evaluations=self._evaluations,
        )


class Pulse:
    """Let a run that says nothing for a while be seen to be alive, as long as it is open."""

    def __init__(self, progress: Progress, seconds: float = BEAT_SECONDS) -> None:
        self._progress, self._seconds = progress, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self._progress.beat()


def _evaluated_before(path: Path) -> list[float]:
    """Return the mean returns of the evaluations of a run that is resumed."""
    from assay.core.errors import RunError
    from assay.runs.directory import RunDirectory
    from assay.runs.metrics import read_records

    try:
        records = list(read_records(RunDirectory.open(path).metrics_path))
    except RunError:  # the curve begins here, then
        return []
    return [r.metrics[EVALUATION] for r in records if EVALUATION in r.metrics]


def _make_display(console: Console) -> Any:
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TextColumn("{task.fields[curve]}", markup=False, style="green"),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        # Often enough to look alive, rarely enough not to slow down training.
        refresh_per_second=4,
    )
