"""Read a metric from what a run left behind: one number per training seed.

Nothing of the target repository is imported or run. A metric that is not there is an error that
names what is there.
"""

from __future__ import annotations

import csv
import importlib
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import nearest
from assay.runs.metrics import read_records
from assay.study.agree.rules import remote
from assay.study.files.contract import Metric, MetricSource
from assay.study.files.documents import StudyError
from assay.study.measure.wandb_file import wandb_history

MOST_NAMES = 30  # of metrics that a message lists
LARGEST = 1e100  # of a metric without a range; beyond it means and deviations overflow
Point = tuple[float, float]  # (step, value)
Series = dict[str, list[Point]]


class ScoreError(StudyError):
    """A metric is where it should be, but its value is not a score."""


def extract(metric: Metric, out: Path, log: Path) -> float:
    """Return the metric's value, by what a run wrote and printed.

    Raises:
        ScoreError: It is not a number, or outside of its range.
        StudyError: The file or the metric is missing; those that are there are named.
    """
    points = series(metric.source, out, log)
    value = reduce(points, metric.source)
    if not math.isfinite(value):
        raise ScoreError(f"Metric '{metric.name}' is {value}, which is not a number.")
    low, high = metric.range or (-LARGEST, LARGEST)
    if not low <= value <= high:
        raise ScoreError(
            f"Metric '{metric.name}' is {value:g}, outside of its valid range {low:g} to {high:g}.",
            "Find out what wrote it; the contract states a range in the metric's 'range'.",
        )
    return value


def value_of(metric: Metric, place: Path) -> float | None:
    """Return a metric's value by the files of a run, None where they do not have it."""
    try:
        return extract(metric, place / "out", place / "stdout.log")
    except (StudyError, OSError):
        return None


def finite(points: Sequence[Point]) -> NDArray[np.float64]:
    """Return the values of a series that are numbers."""
    return np.array([value for _, value in points if math.isfinite(value)], float)


def series(source: MetricSource, out: Path, log: Path) -> list[Point]:
    """Return all points of a metric, in order of their steps."""
    if remote(source.path):
        raise StudyError(
            f"'{source.path}' is not a file of the run, and nothing is fetched over the network.",
            "Have the run write the metric to a file in its output directory.",
        )
    if source.kind == "stdout":
        return _stdout(source, log)
    paths = files_of(source, out)
    pattern = source.path or READERS[source.kind][1]
    if not paths:
        there = ", ".join(sorted(p.name for p in out.iterdir())[:10]) if out.is_dir() else "nothing"
        raise StudyError(f"No file matches '{pattern}' in the run's output; it holds: {there}.")
    found: Series = {}
    for path in paths:
        try:
            read = READERS[source.kind][0](path, source)
        except (OSError, ValueError, csv.Error, RecursionError, zipfile.BadZipFile) as error:
            raise StudyError(f"'{path.name}' cannot be read as {source.kind}: {error}.") from None
        for name, points in read.items():
            found.setdefault(name, []).extend(points)
    if source.key not in found:
        raise StudyError(
            f"The metric '{source.key}' is not in '{paths[0].name}'.",
            _known(source.key, found),
        )
    points = found[source.key]
    if any(math.isnan(step) for step, _ in points):
        raise StudyError(
            f"'{paths[0].name}': a row of '{source.key}' has no number for '{source.step}', so "
            "that the order of its values is not known.",
            "Leave the metric's 'step' out where the rows stand in their order.",
        )
    return sorted(points, key=lambda point: point[0])


def doubt(metric: Metric, out: Path, log: Path) -> str:
    """Return where else a metric that can be read would be read from, and how to choose, or ""."""
    source = metric.source
    if source.kind == "stdout":
        found = _other_lines(source, log)
        how = "A longer pattern names the one that is wanted (the metric's source.key)"
    else:
        found = _other_files(source, out)
        how = "The metric's source.path names the one that is wanted"
    value = f"{reduce(series(source, out, log), source):g} ({source.reduce})"
    return f"metric '{metric.name}' was read as {value}, and {found}. {how}" if found else ""


def _other_lines(source: MetricSource, log: Path) -> str:
    """Say which lines match a pattern that differ in more than their numbers."""
    pattern = re.compile(source.key)
    kinds: dict[str, str] = {}
    with open(log, errors="replace") as file:
        for line in file:
            matches = list(pattern.finditer(line))
            if len({match[1] for match in matches}) > 1:
                return f"'{line.strip()[:80]}' matches {len(matches)} times; its first is taken"
            for match in matches[:1]:
                before = re.sub(r"[\d\W_]+", " ", line[: match.start(1)])
                kinds.setdefault(before.strip(), line.strip()[:80])
    if len(kinds) < 2:
        return ""
    shown = " and ".join(f"'{line}'" for line in [*kinds.values()][:2])
    return f"{len(kinds)} kinds of lines match its pattern: {shown}"


def _other_files(source: MetricSource, out: Path) -> str:
    """Say which files hold a metric, where several do that are not parts of one log."""
    if source.kind == "sb3-monitor":  # one for each copy of the environment
        return ""
    reader = READERS[source.kind][0]
    paths = [path for path in files_of(source, out) if source.key in reader(path, source)]
    logs = {path.parent if source.kind == "tensorboard" else path for path in paths}
    shown = ", ".join(f"'{path.relative_to(out)}'" for path in paths[:3])
    return (
        f"{len(logs)} logs hold it, whose points are put together: {shown}" if len(logs) > 1 else ""
    )


def _known(key: str, found: Iterable[str]) -> str:
    """Return what to write instead of a key that is not there: what is nearest, and what is."""
    names = sorted(found)
    if not names:
        return "It holds no metrics."
    there = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
    hint = nearest(key, names)
    return f"{hint + ' ' if hint.startswith('Did') else ''}It holds: {there}."


def files_of(source: MetricSource, out: Path) -> list[Path]:
    """Return the files of a run's output that a metric is read from.

    Raises:
        StudyError: The pattern is malformed, or a file is a link that leaves the output.
    """
    if source.kind == "stdout":
        return []
    pattern = source.path or READERS[source.kind][1]
    try:
        # A pipe or device in a run's output would hold up whoever reads it.
        paths = sorted(p for p in out.glob(pattern) if p.is_file())
    except ValueError as error:
        raise StudyError(f"'{pattern}' is not a pattern for files: {error}.") from None
    inside = out.resolve()
    for path in paths:
        if not path.resolve().is_relative_to(inside):
            raise StudyError(
                f"'{path.relative_to(out)}' is a link that leaves the run's output: what it leads "
                "to is not a result of this run.",
                "Have the run write a file of its own.",
            )
    return paths


def reduce(points: list[Point], source: MetricSource) -> float:
    """Make one number of a series."""
    if not points:
        raise StudyError(f"The metric '{source.key}' has no points.")
    values = [value for _, value in points]
    if source.reduce == "tail-mean":
        values = values[-max(1, round(len(values) * source.tail)) :]
        return sum(values) / len(values)
    reducers: dict[str, Callable[[list[float]], Any]] = {
        "last": lambda v: v[-1],
        "max": np.max,  # of NaN as well, wherever it stands
        "min": np.min,
        "mean": lambda v: sum(v) / len(v),
    }
    return float(reducers[source.reduce](values))


def _stdout(source: MetricSource, log: Path) -> list[Point]:
    try:
        pattern = re.compile(source.key)
    except re.error as error:
        raise StudyError(f"'{source.key}' is not a pattern: {error}.") from None
    if pattern.groups < 1:
        raise StudyError(
            f"The pattern '{source.key}' has no group.", "Put the number in parentheses."
        )
    points: list[Point] = []
    try:
        with open(log, errors="replace") as file:
            for line in file:
                match = pattern.search(line)
                if match:
                    points.append((float(len(points)), number(match[1])))
    except OSError as error:
        raise StudyError(f"What the run printed cannot be read: {error.strerror}.") from None
    if not points:
        raise StudyError(f"No line of the run's output matches '{source.key}'.")
    return points


def _csv(path: Path, source: MetricSource) -> Series:
    return _rows(_csv_rows(path), source)


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, newline="", errors="replace") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def _jsonl(path: Path, source: MetricSource) -> Series:
    rows = []
    with open(path, "rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a torn last line
            if isinstance(row, dict):
                rows.append(_flat(row))
    return _rows(iter(rows), source)


def _json(path: Path, source: MetricSource) -> Series:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise StudyError(f"'{path.name}' is not readable JSON: {error}.") from None
    rows = value if isinstance(value, list) else [value]
    return _rows((_flat(row) for row in rows if isinstance(row, dict)), source)


def _rows(rows: Iterator[dict[str, Any]], source: MetricSource) -> Series:
    found: Series = {}
    for i, row in enumerate(rows):
        step = number(row.get(source.step)) if source.step else float(i)
        for name, value in row.items():
            if name is None or name == source.step:
                continue
            values = value if isinstance(value, list) else [value]
            for item in values:
                if _is_number(item):
                    found.setdefault(name, []).append((step, number(item)))
    return found


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested keys joined by dots; the names of metrics themselves may hold dots."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, one that is "not a number" among them."""
    if isinstance(value, float) or (isinstance(value, str) and value.strip().lower() == "nan"):
        return True
    return not math.isnan(number(value))


def number(value: Any) -> float:
    """Return a value as a float, NaN where it is none."""
    if isinstance(value, bool) or value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _assay(path: Path, source: MetricSource) -> Series:
    found: Series = {}
    for record in read_records(path):
        for name, value in record.metrics.items():
            found.setdefault(name, []).append((float(record.count), float(value)))
    return found


def _tensorboard(path: Path, source: MetricSource) -> Series:
    accumulators = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    tensors = importlib.import_module("tensorboard.util.tensor_util")
    everything = {"scalars": 0, "tensors": 0, "images": 1, "histograms": 1, "audio": 1}
    reader = accumulators.EventAccumulator(str(path), size_guidance=everything)
    reader.Reload()
    tags = reader.Tags()
    found: Series = {
        tag: [(float(event.step), float(event.value)) for event in reader.Scalars(tag)]
        for tag in tags["scalars"]
    }
    for tag in tags["tensors"]:  # how TensorFlow 2 writes scalars
        arrays = [(event.step, tensors.make_ndarray(event.tensor_proto))
                  for event in reader.Tensors(tag)]  # fmt: skip
        if all(array.size == 1 and array.dtype.kind in "fiu" for _, array in arrays):
            found[tag] = [(float(step), float(array.reshape(()))) for step, array in arrays]
    return found


def _sb3_monitor(path: Path, source: MetricSource) -> Series:
    """Read Stable-Baselines3's monitor: a comment, then r (return), l (length), t (seconds)."""
    steps = 0.0
    found: Series = {}
    for row in _csv_rows(path):
        length = number(row.get("l"))
        steps += 0.0 if math.isnan(length) else length
        for name, value in row.items():
            if _is_number(value):
                found.setdefault(name, []).append((steps, number(value)))
    return found


def _sb3_evaluations(path: Path, source: MetricSource) -> Series:
    """Read Stable-Baselines3's `evaluations.npz`: the mean over episodes of each evaluation."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            steps = np.asarray(arrays["timesteps"], float)
            tables = {n: np.asarray(arrays[n], float) for n in arrays.files if n != "timesteps"}
    except (OSError, ValueError, KeyError) as error:
        raise StudyError(f"'{path.name}' is not an evaluations file of SB3: {error}.") from None
    return {
        name: [(float(step), float(np.mean(row))) for step, row in zip(steps, table, strict=True)]
        for name, table in tables.items()
        if len(table) == len(steps)
    }


def _wandb(path: Path, source: MetricSource) -> Series:
    found: Series = {}
    for i, row in enumerate(wandb_history(path)):
        step = number(row.get(source.step or "_step", i))
        for name, value in row.items():
            if _is_number(value):
                found.setdefault(name, []).append((step, number(value)))
    return found


# Each format's reader, and where its files are if the contract does not say.
READERS: dict[str, tuple[Callable[[Path, MetricSource], Series], str]] = {
    "assay": (_assay, "**/metrics.jsonl"),
    "csv": (_csv, "**/*.csv"),
    "json": (_json, "**/*.json"),
    "jsonl": (_jsonl, "**/*.jsonl"),
    "sb3-evaluations": (_sb3_evaluations, "**/evaluations.npz"),
    "sb3-monitor": (_sb3_monitor, "**/*monitor.csv"),
    "tensorboard": (_tensorboard, "**/events.out.tfevents.*"),
    "wandb": (_wandb, "**/*.wandb"),
}
