"""Several runs at once, each in its own process.

The parent reads the run directories to show how far its children are, and sends them nothing but
    signals: so a child is the same command that a user could have typed. Children have their own
    process group, because a Ctrl-C on the terminal would otherwise reach them twice, and they stop
    when their standard input ends, so that none outlives a parent that was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from assay.cli import output
from assay.cli.progress import EVALUATION, RETURN, Bars, speed_metric
from assay.core.types import Unit

STOP_WITH_STDIN = "--stop-with-stdin"
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.5  # between two reads of the run directories
_PATIENCE_SECONDS = 20.0  # for children to save before they are killed
_LINES_OF_A_BUG = 20


@dataclass(frozen=True, slots=True)
class Job:
    """A run to be trained by a child.

    Attributes:
        label: What the run is called in progress and messages, such as "seed 3".
        arguments: What follows `assay` on the child's command line.
        path: Its run directory.
        total: Its budget.
        unit: What the budget is counted in.
    """

    label: str
    arguments: tuple[str, ...]
    path: Path
    total: int
    unit: Unit = "env_steps"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended.

    Attributes:
        job: The job.
        status: "done", "failed", "interrupted", or "not started".
        message: Why it failed, as the run reported it.
        code: The child's exit code; None if it was never started.
    """

    job: Job
    status: str
    message: str | None = None
    code: int | None = None


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(jobs: Sequence[Job], parallel: int, bars: Bars) -> list[Outcome]:
    """Run all jobs, `parallel` of them at a time, and return how each of them ended.

    A job that fails does not stop the others. The first Ctrl-C (or SIGTERM) asks all children to
    save and starts no more of them, the second one ends them immediately.
    """
    return _Pool(jobs, parallel, bars).run()


def stop_with_stdin() -> None:
    """End this process as SIGTERM does once its standard input is closed."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="stop-with-stdin").start()


class _Child:
    """A job's process and what it prints."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stops_sent = 0  # stop signals sent so far
        self._stdout: IO[bytes] = tempfile.TemporaryFile()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "assay", *job.arguments, STOP_WITH_STDIN],
            stdin=subprocess.PIPE,
            stdout=self._stdout,
            stderr=self._stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            process_group=0,
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process is still there."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def forward_stops(self, stops: int) -> None:
        """Pass on every stop that was not sent yet: the first two are SIGINT, the third kills."""
        while self.stops_sent < stops:
            self.stops_sent += 1
            self.send(signal.SIGINT if self.stops_sent < 3 else signal.SIGKILL)

    def close(self) -> tuple[int, str]:
        """Wait for the end, keep what was printed, and return the exit code and stderr."""
        code = self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        texts = []
        for stream in (self._stdout, self._stderr):
            stream.seek(0)
            texts.append(stream.read())
            stream.close()
        if self.job.path.is_dir() and any(texts):
            with contextlib.suppress(OSError), open(self.job.path / "stdout.log", "ab") as log:
                log.write(b"".join(texts))
        return code, texts[1].decode(errors="replace")


class _Pool:
    """The children that run now, and the jobs that wait."""

    def __init__(self, jobs: Sequence[Job], parallel: int, bars: Bars) -> None:
        self.waiting = list(jobs)
        self.running: list[_Child] = []
        self.outcomes: dict[str, Outcome] = {}
        self.order = [job.label for job in jobs]
        self.parallel = max(1, parallel)
        self.bars = bars
        self.stops = 0
        self.seen: dict[str, tuple[int, _Seen | None]] = {}  # bytes of metrics, and what they say

    def run(self) -> list[Outcome]:
        for job in self.waiting:
            self.bars.update(job.label, 0, job.total, unit=job.unit, state="waiting")
        looked = 0.0
        try:
            with self._signals():
                while self.running or (self.waiting and not self.stops):
                    while self.waiting and len(self.running) < self.parallel and not self.stops:
                        child = _Child(self.waiting.pop(0))
                        self.running.append(child)
                        child.forward_stops(
                            self.stops
                        )  # a Ctrl-C during its start did not reach it
                    time.sleep(_POLL_SECONDS)
                    for child in [c for c in self.running if c.process.poll() is not None]:
                        self.running.remove(child)
                        self._finish(child)
                    if time.monotonic() - looked >= _LOOK_SECONDS:
                        looked = time.monotonic()
                        for child in self.running:
                            self._look(child.job)
        finally:
            self._end_all()
        for job in self.waiting:
            self.outcomes[job.label] = Outcome(job, "not started")
        return [self.outcomes[label] for label in self.order]

    def _finish(self, child: _Child) -> None:
        job = child.job
        code, stderr = child.close()
        if code == 0:
            outcome = Outcome(job, "done", None, code)
        elif _was_stopped(code, self.stops):
            outcome = Outcome(job, "interrupted", None, code)
        else:
            outcome = Outcome(job, "failed", _reason(stderr, code), code)
        self.outcomes[job.label] = outcome
        self._look(job, state="" if outcome.status == "done" else outcome.status)
        if outcome.status == "failed":
            self.bars.message(f"{job.label} failed: {outcome.message}")
        elif self.bars.mode == "lines":
            self.bars.message(f"{job.label}: {outcome.status}")

    def _look(self, job: Job, state: str = "") -> None:
        """Show how far a run is; its metrics are read again only if there are more of them."""
        path = job.path / "metrics.jsonl"
        size = 0
        with contextlib.suppress(OSError):  # not there yet, or gone with a run that never started
            size = path.stat().st_size
        if size != self.seen.get(job.label, (0, None))[0]:
            self.seen[job.label] = (size, _read_seen(path))
        seen = self.seen.get(job.label, (0, None))[1]
        if seen is None:
            waits = state or "starting"
            self.bars.update(job.label, 0, job.total, unit=job.unit, state=waits)
            return
        self.bars.update(
            job.label,
            seen.count,
            job.total,
            unit=job.unit,
            speed=seen.values.get(speed_metric(job.unit)),
            score=seen.values.get(RETURN),
            evaluations=seen.evaluations,
            state=state,
        )

    def _end_all(self) -> None:
        """Stop all children, whatever happened here."""
        for child in self.running:
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for child in self.running:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
            child.close()
        self.running.clear()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: Any) -> None:
            self.stops += 1
            if self.stops == 1 and self.bars.mode != "silent":
                self.bars.message(
                    "Stopping: every run saves its state. Ctrl-C again ends immediately."
                )
            for child in self.running:
                child.forward_stops(self.stops)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class _Seen:
    """How far a run is by its metrics: the last value of each, and all evaluations."""

    count: int
    values: dict[str, float]
    evaluations: list[float]


def _read_seen(path: Path) -> _Seen | None:
    """Return what the metrics of a run say; None if there are none yet."""
    from assay.core.errors import RunError
    from assay.runs.metrics import read_records

    values: dict[str, float] = {}
    evaluations: list[float] = []
    count = None
    with contextlib.suppress(RunError):  # it may be readable next time
        for record in read_records(path):
            count = record.count
            values |= record.metrics
            if EVALUATION in record.metrics:
                evaluations.append(record.metrics[EVALUATION])
    return None if count is None else _Seen(count, values, evaluations)


def _was_stopped(code: int, stops: int) -> bool:
    """Return whether a child ended because it was stopped; failing while saving does not count."""
    ended = {output.EXIT_INTERRUPTED}
    if stops:  # before it listens to signals, and after the last warning, they end it themselves
        ended |= {-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL}
    return code in ended


def _reason(stderr: str, code: int) -> str:
    """Return why a child failed: the message of its error, or the end of what it printed."""
    lines = stderr.strip().splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("Error: ")]
    if starts:
        return "\n".join(lines[starts[-1] :]).removeprefix("Error: ")
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return "\n".join(lines[-_LINES_OF_A_BUG:]) or f"it ended with exit code {code}"
