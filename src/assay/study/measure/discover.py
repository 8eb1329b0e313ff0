"""Find out which metrics a run has written, and where each of them can be read again."""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import AssayError
from assay.study.files.base import PRINTED
from assay.study.files.contract import MetricSource
from assay.study.measure.extractors import READERS, Series

_AXES = ("env_steps", "global_step", "total_timesteps", "timesteps", "step", "steps", "iteration")
_PRINTED = re.compile(
    r"(?:^|[\s|,;(])([A-Za-z][A-Za-z_/ .-]{1,30}?)\s*[:=|]\s*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)"
)
# Timestamps, and numbers of processes.
_CHANGES = re.compile(r"\d{4,}(?:[T_.:-]*\d)*|\d+(?=\.[0-9a-f-]{6,}$)")
_NUMBERS = re.compile(r"\d+")
_LARGEST = 256 * 2**20  # bytes of a file that is looked into
_MOST_FILES = 200


@dataclass(frozen=True, slots=True)
class Written:
    """A metric that a run wrote."""

    source: MetricSource
    values: tuple[float, ...]


def discover(out: Path, log: Path) -> list[Written]:
    """Return the metrics in a run's output directory; those it printed only if there are none."""
    files = sorted(path for path in out.rglob("*") if path.is_file())[:_MOST_FILES]
    found: dict[tuple[str, str, str], Written] = {}
    for path in files:
        kind = kind_of(path)
        if not kind or path.stat().st_size > _LARGEST:
            continue
        for written in _in_file(path, kind, _pattern(path, out, files)):
            source = written.source
            found.setdefault((source.kind, source.path, source.key), written)
    return list(found.values()) or list(_printed(log))


def kind_of(path: Path) -> str:
    """Return the kind of metric source that a file is, by its name; "" if it is none."""
    name = path.name
    if name.endswith("monitor.csv"):
        return "sb3-monitor"
    if name == "evaluations.npz":
        return "sb3-evaluations"
    if "tfevents" in name:
        return "tensorboard"
    if name == "metrics.jsonl" and (path.parent / "config.yaml").exists():
        return "assay"
    kinds = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".wandb": "wandb"}
    return kinds.get(path.suffix, "")


def _pattern(path: Path, out: Path, files: list[Path]) -> str:
    """Return a pattern that finds the same file of another run, whose directories may differ."""
    # Names that differ in every run: of W&B, a random word.
    named = {"tensorboard": "events.out.tfevents.*", "wandb": "*.wandb"}
    name = named.get(kind_of(path)) or _CHANGES.sub("*", path.name)
    alike = [other for other in files if other.match(name)]
    if len({other.parent for other in alike}) == 1:
        return name if path.parent == out else f"**/{name}"
    # A directory may be named by its seed: every number, unless it tells files apart.
    for changes in (_NUMBERS, _CHANGES):
        parts = [changes.sub("*", part) for part in path.relative_to(out).parts[:-1]]
        pattern = "/".join([*parts, name])
        if len({other.parent for other in out.glob(pattern)}) == 1:
            break
    return pattern


def _in_file(path: Path, kind: str, pattern: str) -> Iterator[Written]:
    source = MetricSource.model_validate({"kind": kind, "path": pattern, "key": "any"})
    try:
        columns = READERS[kind][0](path, source)
        step = next((axis for axis in _AXES if axis in columns), None)
        step = step if kind in ("csv", "json", "jsonl") else None
        source = source.model_copy(update={"step": step})
        columns = READERS[kind][0](path, source) if step else columns
    except (OSError, ValueError, csv.Error, RecursionError, zipfile.BadZipFile, AssayError):
        return
    except ModuleNotFoundError:  # TensorBoard is an extra
        return
    yield from _metrics(columns, source)


def _metrics(columns: Series, source: MetricSource) -> Iterator[Written]:
    for key, points in columns.items():
        values = [value for _, value in points if math.isfinite(value)]
        if not values or not str(key).strip():
            continue
        whole = not any(math.isnan(step) for step, _ in points)  # some rows may lack their step
        reading = MetricSource(
            kind=source.kind, path=source.path, key=str(key),
            step=source.step if whole else None, reduce="last",
        )  # fmt: skip
        yield Written(reading, tuple(values))


def _printed(log: Path) -> Iterator[Written]:
    seen: dict[str, list[float]] = {}
    try:
        with open(log, errors="replace") as file:
            for line in file:
                for name, value in _PRINTED.findall(line):
                    seen.setdefault(name.strip(), []).append(float(value))
    except OSError:
        return
    for name, values in seen.items():
        pattern = re.escape(name).replace(r"\ ", r"\s+") + rf"\s*[:=|]\s*{PRINTED}"
        yield Written(MetricSource(kind="stdout", path="", key=pattern), tuple(values))
