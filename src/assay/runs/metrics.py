"""`metrics.jsonl`: one line per record, append-only, the authoritative record of a run.

A line counts once its newline is written. So an incomplete last line, left by a crash, is ignored
by readers and dropped by the next writer.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import RunError
from assay.core.types import Unit
from assay.runs.files import RunWarning, dump_json, run_error

Series = tuple[NDArray[np.int64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Record:
    """What is known about a run at one moment.

    Attributes:
        env_steps: Real environment transitions so far.
        updates: Optimizer steps so far.
        episodes: Finished episodes so far.
        time: Seconds since the epoch.
        metrics: Values by name: `train/...`, `rollout/...`, `eval/...`, `time/...`.
        unit: What the run is counted in.
    """

    env_steps: int
    updates: int
    episodes: int
    time: float
    metrics: Mapping[str, float]
    unit: Unit = "env_steps"

    @property
    def count(self) -> int:
        """Return how far the run was, in its unit."""
        return self.env_steps if self.unit == "env_steps" else self.updates

    def to_line(self) -> bytes:
        """Render the record as one line of JSON, with NaN and infinities as strings."""
        counts = {
            "env_steps": int(self.env_steps),
            "updates": int(self.updates),
            "episodes": int(self.episodes),
            "time": float(self.time),
        }
        unit = {} if self.unit == "env_steps" else {"unit": self.unit}
        metrics = {name: float(value) for name, value in self.metrics.items()}
        return dump_json({**counts, **unit, "metrics": metrics})

    @classmethod
    def from_line(cls, line: bytes) -> Record:
        """Read what `to_line` wrote.

        Raises:
            ValueError: The line is not a record.
        """
        try:
            raw = json.loads(line)
            # float() reads "NaN", "Infinity" and "-Infinity" back.
            metrics = {str(name): float(value) for name, value in raw["metrics"].items()}
            return cls(
                int(raw["env_steps"]),
                int(raw["updates"]),
                int(raw["episodes"]),
                float(raw["time"]),
                metrics,
                "updates" if raw.get("unit") == "updates" else "env_steps",
            )
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a record: {error!r}") from None


class MetricsWriter:
    """Append records to a JSONL file, in a few large writes.

    A record waits in memory for `flush_seconds` at most; `clock` is monotonic.
    """

    def __init__(
        self,
        path: Path,
        *,
        flush_seconds: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._flush_seconds = flush_seconds
        self._clock = clock
        self._pending: list[bytes] = []
        self._last_flush = clock()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._offset = self._drop_torn_tail()
        except OSError as error:
            raise run_error(error, f"write the metrics '{path}'") from None

    def write(self, record: Record) -> None:
        """Append one record; it reaches the file at the next flush."""
        self._pending.append(record.to_line())
        if self._clock() - self._last_flush >= self._flush_seconds:
            self.flush()

    def flush(self, *, sync: bool = False) -> None:
        """Hand all records to the system, and with `sync` wait until they are on the disk.

        Raises:
            RunError: The disk is full or gone. The file ends at its last complete record.
        """
        data = memoryview(b"".join(self._pending))
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self._offset + written)
            if sync:
                os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._offset)
            raise run_error(error, f"write the metrics '{self.path}'") from None
        self._offset += len(data)
        self._pending.clear()
        self._last_flush = self._clock()

    def position(self) -> int:
        """Return the byte offset after the last record, with all up to it on the disk."""
        self.flush(sync=True)
        return self._offset

    def truncate(self, offset: int) -> None:
        """Drop every record after `offset`, a value that `position` returned.

        Raises:
            RunError: The file is shorter than that, or no record ends there.
        """
        self.flush()
        inside = 0 <= offset <= self._offset
        if not inside or (offset and os.pread(self._descriptor, 1, offset - 1) != b"\n"):
            raise RunError(
                f"'{self.path}' has no record that ends at byte {offset}, where the checkpoint was "
                f"taken: the file ({self._offset} bytes) was changed or lost its end.",
                "Restore the file, or start a new run.",
            )
        try:
            os.ftruncate(self._descriptor, offset)
            os.fsync(self._descriptor)
        except OSError as error:
            raise run_error(error, f"truncate the metrics '{self.path}'") from None
        self._offset = offset

    def close(self) -> None:
        """Flush to the disk and close; a second call does nothing."""
        if self._descriptor >= 0:
            try:
                self.flush(sync=True)
            finally:
                os.close(self._descriptor)
                self._descriptor = -1

    def _drop_torn_tail(self) -> int:
        """Cut what follows the last newline, and return the length that is left."""
        size = os.fstat(self._descriptor).st_size
        end = size
        while end > 0:
            start = max(0, end - 65536)
            newline = os.pread(self._descriptor, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._descriptor, end)
        return end


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a metrics file, oldest first.

    An incomplete last line is skipped. So is a corrupt line, with a `RunWarning` that names its
    number. A file that does not exist yet has no records.

    Raises:
        RunError: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield Record.from_line(line)
                except ValueError:
                    warnings.warn(
                        f"Line {number} of '{path}' is corrupt and was left out.",
                        RunWarning,
                        stacklevel=2,
                    )
    except FileNotFoundError:
        return
    except OSError as error:
        raise run_error(error, f"read the metrics '{path}'") from None


def read_metrics(path: Path) -> dict[str, Series]:
    """Return `{name: (counts, values)}`, in the order in which they were logged.

    The counts are environment steps, or updates where the run has no others.
    """
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    for record in read_records(path):
        for name, value in record.metrics.items():
            steps.setdefault(name, []).append(record.count)
            values.setdefault(name, []).append(value)
    return {
        name: (np.array(steps[name], dtype=np.int64), np.array(values[name], dtype=np.float64))
        for name in steps
    }


def last_record(path: Path, *, tail_bytes: int = 1 << 16) -> Record | None:
    """Return the newest complete record without reading the rest of the file, or None."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - tail_bytes)
            file.seek(start)
            tail = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise run_error(error, f"read the metrics '{path}'") from None
    lines = tail[: tail.rfind(b"\n") + 1].splitlines()
    for line in reversed(lines):
        try:
            return Record.from_line(line)
        except ValueError:
            continue
    return None if start == 0 else last_record(path, tail_bytes=4 * tail_bytes)
