"""How a run is doing, while it is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from assay.cli import output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from assay.loops.events import Event

Mode = Literal["bar", "lines", "silent"]
RETURN = "rollout/return_mean"
SPEED = "time/env_steps_per_second"
LINES = 10  # lines per run where there is no terminal
LINE_SECONDS = 60.0  # and at least one in this time


def choose_mode(*, quiet: bool, as_json: bool) -> Mode:
    """Return how to show progress here: the bar is for people, the lines are for logs."""
    if quiet:
        return "silent"
    if sys.stderr.isatty():
        return "bar"
    return "silent" if as_json else "lines"


class Bars:
    """One line of progress per run, on stderr.

    Args:
        mode: What to draw.
        console: Where to; stderr if None.
        now: Seconds that only grow.
    """

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
        self._tasks: dict[str, TaskID] = {}
        self._printed: dict[str, tuple[float, float]] = {}  # share and time of the last line

    def __enter__(self) -> Self:
        if self.mode == "bar":
            self._display = _make_display(self.console)
            self._display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None

    def update(
        self,
        label: str,
        env_steps: int,
        total: int,
        *,
        speed: float | None = None,
        score: float | None = None,
        state: str = "",
    ) -> None:
        """Show where the run called `label` is.

        Args:
            label: Names the run; a new name makes a new line.
            env_steps: Environment steps done.
            total: The budget.
            speed: Environment steps per second.
            score: Recent return.
            state: A word to show in place of speed and return, such as "waiting".
        """
        if self._display is not None:
            self._draw(label, env_steps, total, speed, score, state)
        elif self.mode == "lines" and not state:
            self._print(label, env_steps, total, speed, score)

    def message(self, text: str) -> None:
        """Print a line above the bars."""
        if self._display is not None:
            self.console.print(text, soft_wrap=True)
        elif self.mode == "lines":
            try:
                print(text, file=self.console.file, flush=True)
            except OSError:  # whoever read this is gone; the run must not stop for it
                self.mode = "silent"

    def _draw(
        self,
        label: str,
        env_steps: int,
        total: int,
        speed: float | None,
        score: float | None,
        state: str,
    ) -> None:
        figures = state or _figures(speed, score)
        done = min(env_steps, total)
        if label not in self._tasks:
            self._tasks[label] = self._display.add_task(
                label, total=total, completed=done, figures=figures
            )
        else:
            self._display.update(
                self._tasks[label], total=total, completed=done, figures=figures
            )

    def _print(
        self, label: str, env_steps: int, total: int, speed: float | None, score: float | None
    ) -> None:
        share, now = env_steps / total, self._now()
        last_share, last_time = self._printed.setdefault(label, (0.0, now))
        if share - last_share < 1 / LINES and now - last_time < LINE_SECONDS:
            return
        self._printed[label] = (share, now)
        left = "-" if not speed else output.duration(max(0, total - env_steps) / speed)
        parts = [
            f"{label}: {env_steps:,} of {total:,} env_steps ({share:.0%})",
            _figures(speed, score),
            f"{left} left",
        ]
        self.message(", ".join(part for part in parts if part))


class Progress:
    """A callback that shows one run: give it to `assay.train(callbacks=[...])`.

    Args:
        bars: Where to show it; entered and left by the caller.
        label: What the run is called.

    Attributes:
        path: The run directory, once the run has started.
    """

    def __init__(self, bars: Bars, label: str) -> None:
        self.bars = bars
        self.label = label
        self.path: Path | None = None
        self._speed: float | None = None
        self._score: float | None = None

    def __call__(self, event: Event) -> None:
        """Show what happened."""
        from assay.loops.events import Evaluated, Logged, RunEnded, RunStarted

        if isinstance(event, RunEnded):
            return
        clock = event.clock
        if isinstance(event, RunStarted):
            self.path = event.path
        if isinstance(event, RunStarted) and event.resumed:
            self.bars.message(f"{self.label}: going on from env_steps={clock.env_steps:,}")
        if isinstance(event, Logged):
            self._speed = event.metrics.get(SPEED)
            self._score = event.metrics.get(RETURN, self._score)
        if isinstance(event, Evaluated):
            self.bars.message(
                f"{self.label}: evaluation at env_steps={clock.env_steps:,}: "
                f"mean {output.number(event.result.mean)} over {len(event.result.returns)} episodes"
            )
        self.bars.update(
            self.label,
            clock.env_steps,
            clock.total_env_steps,
            speed=self._speed,
            score=self._score,
        )


def _figures(speed: float | None, score: float | None) -> str:
    parts = []
    if speed is not None:
        parts.append(f"{speed:,.0f} steps/s")
    if score is not None:
        parts.append(f"return {output.number(score)}")
    return ", ".join(parts)


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
        TextColumn("{task.fields[figures]}", markup=False),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        # Often enough to look alive, seldom enough not to slow training down.
        refresh_per_second=4,
    )
