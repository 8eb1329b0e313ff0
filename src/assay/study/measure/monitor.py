"""Watch a run from outside, by the files that it writes.

Two questions: does the process still work, and does it still learn? Only the stop rules of the
contract may end a run; everything else is a warning for whoever looks.

What a run writes is not trusted: a file that breaks its reader is a metric that is not there, and
never an error of the one who watches.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from assay.study.files.contract import Contract, Metric
from assay.study.measure import extractors
from assay.study.record.kinds import STOP
from assay.study.record.study import Study

Level = Literal["ok", "warn", "stop"]

READING_SHARE = 0.05  # of the time; reading long logs must not take a core from the training
QUIET_SECONDS = 30.0  # without a heartbeat, which comes every two
FEWEST = 8  # points, below which a series says nothing about learning
HIGH_KL = 0.1
DEAD = 0.05  # explained variance within this of zero explains nothing
SLOW = 0.5  # share of the earlier throughput
DIVERGED = 100.0  # times the earlier magnitude
COLLAPSED = 0.5  # share of what was gained and is lost again
STILL = 1e-9


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str  # what
    level: Level  # `stop` where a stop rule of the contract applies, `warn` where something is odd
    detail: str  # what was seen


class Watch:
    """Look at a run now and then, and say when a stop rule of the contract applies."""

    def __init__(
        self, agreed: Contract, place: Path, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.agreed = agreed
        self.place = place
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._moved = 0.0
        self._unread = True
        self._next_reading = -math.inf

    def look(self, now: float) -> str | None:
        """Return why the run must be ended, or None if it may go on."""
        seen = _written(self.place)
        if seen != self._seen:
            self._seen, self._moved, self._unread = seen, now, True
        idle = _frozen(self.agreed, now - self._moved)
        if idle.level == "stop":
            return idle.detail
        if not self._unread or now < self._next_reading:
            return None
        begun = self._clock()
        findings = _stop_rules(self.agreed, self.place)
        self._next_reading = now + (self._clock() - begun) / READING_SHARE
        self._unread = False
        return next((finding.detail for finding in findings if finding.level == "stop"), None)


def _written(place: Path) -> tuple[int, int]:
    """Return the size of all that a run has written, and when it last did."""
    paths = [place / "stdout.log"]
    for base, _, names in os.walk(place / "out"):
        paths += [Path(base, name) for name in names]
    size = newest = 0
    for path in paths:
        try:
            found = path.lstat()
        except OSError:
            continue  # it was just renamed or removed
        size += found.st_size
        newest = max(newest, found.st_mtime_ns)
    return size, newest


def _frozen(agreed: Contract, seconds: float) -> Finding:
    minutes, limit = seconds / 60, agreed.experiment.stop.frozen_minutes
    level: Level = "stop" if minutes > limit else "warn" if minutes > limit / 2 else "ok"
    if level == "ok":
        return Finding("output", "ok", f"it wrote something {minutes:.1f} minutes ago")
    return Finding("output", level, f"it has written nothing for {minutes:.0f} minutes")


def _stop_rules(agreed: Contract, place: Path) -> list[Finding]:
    """Hold what the run has logged against the contract's rules."""
    metrics, rules = agreed.metrics, agreed.experiment.stop
    findings = []
    for metric in (metrics.primary, metrics.training_reward, *metrics.diagnostics):
        if metric is None:
            continue
        points = points_of(metric, place)
        if not points:
            continue
        last = points[-1][1]
        if not math.isfinite(last):
            level: Level = "stop" if rules.nan else "warn"
            findings.append(Finding("numbers", level, f"{metric.name} is {last}"))
        elif metric in metrics.diagnostics and "entropy" in metric.name.lower():
            findings.append(_entropy(metric.name, points, rules.entropy_below))
    return findings


def _entropy(name: str, points: Sequence[extractors.Point], limit: float | None) -> Finding:
    first, last = points[0][1], points[-1][1]
    if limit is not None and last < limit:
        return Finding("entropy", "stop", f"{name} is {last:.4g}, below {limit:g}")
    # The entropy of a continuous policy may be negative, where a share of it means nothing.
    if first > 0 and last < 0.05 * first:
        return Finding("entropy", "warn", f"{name} fell from {first:.4g} to {last:.4g}")
    return Finding("entropy", "ok", f"{name} is {last:.4g}")


def points_of(metric: Metric, place: Path) -> list[extractors.Point]:
    """Return what a run has logged of a metric so far; nothing where it cannot be read."""
    try:
        return extractors.series(metric.source, place / "out", place / "stdout.log")
    except Exception:
        # Half-written, absent or malformed on purpose: each format's reader has its own errors,
        # and a run must not be able to bring down who watches it.
        return []


def health(study: Study, run: str, now: float | None = None) -> list[Finding]:
    """Say how a run is, whether it is under way or over."""
    record, agreed = study.run(run), study.contract()
    place = study.path / "runs" / record.id
    over = record.outcome != "running"
    findings = []
    if not over:
        now = time.time() if now is None else now
        request = study.candidate(record.candidate).budget.wall_clock_hours
        findings += _process(agreed, place, request, now)
        if (study.path / STOP).exists():
            findings.append(Finding("kill switch", "stop", "it is on"))
    else:
        good = record.outcome == "done"
        reason = record.reason or f"exit code {record.exit_code}"
        detail = f"it is over: {record.outcome}, {reason}"
        findings.append(Finding("process", "ok" if good else "warn", detail))
    return findings + learning(agreed, place, over=over)


def _process(agreed: Contract, place: Path, request: float, now: float) -> list[Finding]:
    if not (place / "claim.json").exists():
        return [Finding("process", "warn", "it has not been started yet")]
    started = _modified(place / "process.json") or _modified(place / "claim.json") or now
    beat = _modified(place / "heartbeat.json") or started
    quiet = max(0.0, now - beat)
    if quiet > QUIET_SECONDS:
        detail = f"its supervisor has not been heard of for {quiet:.0f} s; it may be lost"
        findings = [Finding("process", "warn", detail)]
    else:
        findings = [Finding("process", "ok", f"under way, last heartbeat {quiet:.0f} s ago")]
    hours, overrun = max(0.0, now - started) / 3600, agreed.experiment.stop.overrun
    level: Level = "stop" if hours > request * overrun else "warn" if hours > request else "ok"
    detail = f"{hours:.3g} of the {request:g} hours that were asked for"
    findings.append(Finding("time", level, detail))
    newest = _written(place)[1] / 1e9
    findings.append(_frozen(agreed, max(0.0, now - max(started, newest))))
    return findings


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def learning(agreed: Contract, place: Path, *, over: bool) -> list[Finding]:
    """Say how a run learns, from what it has logged.

    Args:
        agreed: The contract, which names the metrics.
        place: The run's directory.
        over: Whether the run has ended; standing still at the end is then nothing odd.
    """
    metrics, rules = agreed.metrics, agreed.experiment.stop
    findings = _stop_rules(agreed, place)
    if rules.entropy_below is not None and not any(
        "entropy" in metric.name.lower() for metric in metrics.diagnostics
    ):
        detail = "entropy_below is set, and no diagnostic metric has 'entropy' in its name"
        findings.append(Finding("entropy", "warn", detail))
    for metric in (metrics.primary, metrics.training_reward):
        if metric is not None:
            findings += _progress(metric, points_of(metric, place), over)
    for metric in metrics.diagnostics:
        findings += _diagnostic(metric, points_of(metric, place))
    if not any(f.name == "numbers" for f in findings):
        findings.insert(0, Finding("numbers", "ok", "all that was logged last is finite"))
    return findings


def _progress(metric: Metric, points: Sequence[extractors.Point], over: bool) -> list[Finding]:
    """Look for a collapse and for a plateau in something that should rise."""
    values = extractors.finite(points)
    if values.size < FEWEST:
        detail = f"{values.size} points of {metric.name} so far; {FEWEST} are needed"
        return [Finding("progress", "ok", detail)]
    sign = 1.0 if metric.direction == "maximize" else -1.0
    smooth = _smooth(sign * values)
    noise = _noise(values) / math.sqrt(_window(values.size))
    first, best, last = float(smooth[0]), float(smooth.max()), float(smooth[-1])
    # Six standard errors: the best of many noisy averages lies above the last one by itself.
    if best - last > max(COLLAPSED * (best - first), 6 * noise, STILL):
        detail = f"{metric.name} was {sign * best:.4g} and is {sign * last:.4g}"
        return [Finding("collapse", "warn", detail)]
    half = smooth[smooth.size // 2 :]
    gain = float(half[-1] - half[0])
    if gain <= max(0.05 * (best - first), 2 * noise):
        step = points[len(points) // 2][0]
        detail = f"{metric.name} has stood at about {sign * last:.4g} since step {step:g}"
        return [Finding("plateau", "ok" if over else "warn", detail)]
    return [Finding("progress", "ok", f"{metric.name} is {sign * last:.4g} and getting better")]


def _diagnostic(metric: Metric, points: Sequence[extractors.Point]) -> list[Finding]:
    """Look at a diagnostic metric by what its name says that it is."""
    values = extractors.finite(points)
    words = set(re.split(r"[^a-z]+", metric.name.lower()))
    if values.size < FEWEST:
        return []
    tail, before = values[values.size // 2 :], values[: values.size // 2]
    last = float(_smooth(values)[-1])
    findings = []
    if "kl" in words:
        level: Level = "warn" if last > HIGH_KL else "ok"
        findings.append(Finding("KL", level, f"{metric.name} is {last:.3g}"))
    if {"explained", "variance"} <= words:
        if float(np.abs(tail).max()) <= DEAD:
            detail = f"{metric.name} has been within {DEAD:g} of zero for half of the run"
            findings.append(Finding("dead value function", "warn", detail))
        elif last < 0:
            detail = f"{metric.name} is {last:.3g}: worse than a constant guess"
            findings.append(Finding("explained variance", "warn", detail))
        else:
            findings.append(Finding("explained variance", "ok", f"{metric.name} is {last:.3g}"))
    elif words & {"value", "critic", "vf"} and np.ptp(tail) <= STILL * (1 + abs(last)):
        detail = f"{metric.name} has stood at exactly {last:.4g} for half of the run"
        findings.append(Finding("dead value function", "warn", detail))
    if words & {"fps", "sps", "throughput"} or {"per", "second"} <= words:
        usual = float(np.median(before))
        level = "warn" if last < SLOW * usual else "ok"
        detail = f"{metric.name} is {last:.4g}, {usual:.4g} in the first half"
        findings.append(Finding("throughput", level, detail))
    if words & {"loss", "grad", "gradient", "norm"}:
        usual = float(np.median(np.abs(before)))
        if usual > 0 and abs(last) > DIVERGED * usual:
            detail = f"{metric.name} is {last:.3g}, {usual:.3g} in the first half"
            findings.append(Finding("divergence", "warn", detail))
        else:
            findings.append(Finding("divergence", "ok", f"{metric.name} is {last:.3g}"))
    return findings


def _window(size: int) -> int:
    return max(2, size // 10)


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return means over a tenth of the series."""
    window = _window(values.size)
    result: NDArray[np.float64] = np.convolve(values, np.full(window, 1 / window), "valid")
    return result


def _noise(values: NDArray[np.float64]) -> float:
    """Return the spread of single points, from differences of neighbours, which a trend spares."""
    return float(np.std(np.diff(values)) / math.sqrt(2))
