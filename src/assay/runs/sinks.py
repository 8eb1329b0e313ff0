"""Where metrics go: JSONL is authoritative; TensorBoard, CSV and trackers are copies of it.

A copy that fails warns once and is switched off. Only a failure of JSONL stops a run.
"""

from __future__ import annotations

import csv
import importlib
import io
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from assay.core.errors import ConfigError, MissingExtraError, nearest
from assay.core.types import State
from assay.runs.directory import RunDirectory
from assay.runs.files import RunWarning, write_atomic
from assay.runs.metrics import MetricsWriter, Record, read_records

JSONL = "jsonl"  # the name of the one that is always there
PROJECT = "assay"  # what the trackers file runs under, unless their own settings say otherwise


class Sink(Protocol):
    """A destination of records."""

    name: str

    def log(self, record: Record) -> None:
        """Take one record."""

    def rewind(self, kept: Sequence[Record]) -> None:
        """Drop all records but `kept`, before the first new record of a resumed run."""

    def flush(self) -> None:
        """Write out what is buffered."""

    def close(self) -> None:
        """Finish; no record follows."""


class CsvSink:
    """`metrics.csv`: a row per record and a column per metric."""

    name = "csv"
    _COUNTS = ("env_steps", "updates", "episodes", "time")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: list[str] = []
        if path.exists():
            self._columns = self._read()[0][len(self._COUNTS) :]
        self._file = open(path, "a", newline="", encoding="utf-8")  # Held until `close`.

    def log(self, record: Record) -> None:
        """Append a row; a metric that was not seen before adds a column."""
        if self._learn_columns([record]):
            # The header is the first line, so a new column means writing the file again.
            self._file.flush()
            self._rewrite([*self._read()[1:], self._row(record)])
        else:
            csv.writer(self._file).writerow(self._row(record))

    def rewind(self, kept: Sequence[Record]) -> None:
        """Write the file again with the rows of `kept`."""
        self._columns.clear()
        self._learn_columns(kept)
        self._rewrite([self._row(record) for record in kept])

    def flush(self) -> None:
        """Hand the rows to the system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _learn_columns(self, records: Iterable[Record]) -> bool:
        known = dict.fromkeys(self._columns)
        for record in records:
            known.update(dict.fromkeys(record.metrics))
        grown = len(known) > len(self._columns)
        self._columns = list(known)
        return grown

    def _row(self, record: Record) -> list[str]:
        counts = [str(getattr(record, name)) for name in self._COUNTS]
        values = [record.metrics.get(name) for name in self._columns]
        return counts + ["" if value is None else repr(float(value)) for value in values]

    def _read(self) -> list[list[str]]:
        with open(self.path, newline="", encoding="utf-8") as file:
            return list(csv.reader(file)) or [list(self._COUNTS)]

    def _rewrite(self, rows: Iterable[list[str]]) -> None:
        header = [*self._COUNTS, *self._columns]
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows(row + [""] * (len(header) - len(row)) for row in rows)
        self._file.close()
        write_atomic(self.path, text.getvalue().encode())
        self._file = open(self.path, "a", newline="", encoding="utf-8")


class TensorBoardSink:
    """TensorBoard's event files, written without torch or TensorFlow."""

    name = "tensorboard"

    def __init__(self, directory: Path) -> None:
        records = _import(
            "tensorboard.summary.writer.record_writer", None, "Logging to TensorBoard"
        )
        self._event = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = records.RecordWriter(open(_next_event_file(directory), "xb"))
        self._write(self._event.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def log(self, record: Record) -> None:
        """Write the record's metrics as scalars at its count."""
        values = [
            self._summary.Summary.Value(tag=name, simple_value=float(value))
            for name, value in record.metrics.items()
        ]
        summary = self._summary.Summary(value=values)
        self._write(self._event.Event(wall_time=record.time, step=record.count, summary=summary))

    def rewind(self, kept: Sequence[Record]) -> None:
        """Make TensorBoard drop the points after the last one that is kept."""
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        step = kept[-1].count + 1 if kept else 0
        self._write(self._event.Event(step=step, session_log=start))

    def flush(self) -> None:
        """Write the events to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def _next_event_file(directory: Path) -> Path:
    """Return the name of a new event file that sorts after those that are there.

    TensorBoard reads event files in the order of their names, and its own writer's names within one
    second are not ordered: a rewind could be read before the points that it drops.
    """
    stamps = [path.name.split(".")[3] for path in directory.glob("events.out.tfevents.*")]
    taken = [int(stamp) for stamp in stamps if stamp.isdigit()]
    number = max(int(time.time()), max(taken, default=0) + 1)
    return directory / f"events.out.tfevents.{number:010d}.{socket.gethostname()}"


class _Tracker:
    """What a sink that sends records to a service need not do."""

    def rewind(self, kept: Sequence[Record]) -> None:
        """Do nothing: what was sent cannot be withdrawn, and is drawn over."""

    def flush(self) -> None:
        """Do nothing: records are sent immediately, or in the background."""


class WandbSink(_Tracker):
    """Weights & Biases; its own settings (WANDB_PROJECT, WANDB_MODE, ...) apply."""

    name = "wandb"

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        wandb = _import("wandb", "wandb", "Logging to Weights & Biases")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=run.id,
            dir=str(run.path),
            config=dict(config),
            resume="allow",
            reinit="create_new",
        )
        # Their own step may only grow, which a resumed run's does not.
        unit = run.budget[0]
        self._run.define_metric(unit)
        self._run.define_metric("*", step_metric=unit)

    def log(self, record: Record) -> None:
        """Send the record's metrics with its counts."""
        counts = {"updates": record.updates, "episodes": record.episodes}
        self._run.log({**record.metrics, **counts, "env_steps": record.env_steps})

    def close(self) -> None:
        """Wait until all is sent."""
        self._run.finish()


class MlflowSink(_Tracker):
    """MLflow; its own settings (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ...) apply."""

    name = "mlflow"
    _BATCH = 1000  # the most metrics that one request may carry
    _LONGEST = 500  # the most characters of a parameter that every server takes

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        mlflow = _import("mlflow", "mlflow", "Logging to MLflow")
        self._metric = mlflow.entities.Metric
        self._client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = mlflow.set_experiment(name).experiment_id
        known = self._client.search_runs([experiment], f"tags.assay_id = '{run.id}'")
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"assay_id": run.id}
        self._id = self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        for key, value in config.items():
            self._client.log_param(self._id, key, str(value)[: self._LONGEST])

    def log(self, record: Record) -> None:
        """Send the record's metrics."""
        when = int(record.time * 1000)
        metrics = [
            self._metric(name, float(value), when, record.count)
            for name, value in record.metrics.items()
        ]
        for start in range(0, len(metrics), self._BATCH):
            self._client.log_batch(self._id, metrics=metrics[start : start + self._BATCH])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._id)


class TrackioSink(_Tracker):
    """trackio; its own settings (TRACKIO_DIR, TRACKIO_SPACE_ID, ...) apply."""

    name = "trackio"

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        trackio = _import("trackio", "trackio", "Logging to trackio")
        self._run = trackio.init(
            project=PROJECT,
            # It identifies runs by name alone, and names recur under different roots.
            name=f"{run.name}-{run.id[:6]}",
            config=dict(config),
            resume="allow",
            embed=False,
        )

    def log(self, record: Record) -> None:
        """Send the record's metrics at its count."""
        self._run.log(dict(record.metrics), step=record.count)

    def close(self) -> None:
        """Wait until all is sent."""
        self._run.finish()


class SinkSet:
    """The JSONL file and its copies, as one sink.

    Args:
        truth: The JSONL file; its errors are raised.
        copies: May fail: each warns once and is then left out.
    """

    def __init__(self, truth: MetricsWriter, copies: Iterable[Sink] = ()) -> None:
        self.truth = truth
        self.copies = list(copies)

    def log(self, record: Record) -> None:
        """Pass the record to all sinks.

        Raises:
            RunError: The JSONL file cannot be written.
        """
        self.truth.write(record)
        self._each(lambda sink: sink.log(record))

    def flush(self) -> None:
        """Flush all, and sync the JSONL file to the disk."""
        self.truth.flush(sync=True)
        self._each(lambda sink: sink.flush())

    def state(self) -> State:
        """Return where the JSONL file ends, after syncing it to the disk."""
        return {"position": self.truth.position()}

    def load_state(self, state: State) -> None:
        """Drop the records logged after `state` was taken, from the JSONL file and its copies.

        Raises:
            RunError: The JSONL file was changed, so that it cannot be cut there.
        """
        self.truth.truncate(int(state["position"]))
        kept = list(read_records(self.truth.path))
        self._each(lambda sink: sink.rewind(kept))

    def close(self) -> None:
        """Close all sinks, the copies even when the JSONL file cannot be written."""
        try:
            self.truth.close()
        finally:
            self._each(lambda sink: sink.close())
            self.copies.clear()

    def _each(self, act: Callable[[Sink], None]) -> None:
        for sink in list(self.copies):
            try:
                act(sink)
            except Exception as error:
                self.copies.remove(sink)
                _warn_failed(sink.name, error)


def make_sinks(names: Iterable[str], run: RunDirectory, config: Mapping[str, Any]) -> SinkSet:
    """Open the sinks called `names` for `run`; JSONL is there whether it is named or not.

    Raises:
        ConfigError: A name is unknown.
        MissingExtraError: The package behind a sink is not installed.
        RunError: The metrics file cannot be written.
    """
    makers: dict[str, Callable[[], Sink]] = {
        "csv": lambda: CsvSink(run.path / "metrics.csv"),
        "mlflow": lambda: MlflowSink(run, config),
        "tensorboard": lambda: TensorBoardSink(run.tensorboard_path),
        "trackio": lambda: TrackioSink(run, config),
        "wandb": lambda: WandbSink(run, config),
    }
    wanted = dict.fromkeys(name for name in names if name != JSONL)
    for name in wanted:
        if name not in makers:
            raise ConfigError(f"Unknown sink '{name}'. {nearest(name, [*makers, JSONL])}")
    sinks = SinkSet(MetricsWriter(run.metrics_path))
    try:
        for name in wanted:
            try:
                sinks.copies.append(makers[name]())
            except MissingExtraError:
                raise
            except Exception as error:
                _warn_failed(name, error)
    except BaseException:
        sinks.close()
        raise
    return sinks


def _import(module: str, extra: str | None, purpose: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        # A package that is there but cannot be imported is its own failure, not a missing extra.
        if (error.name or package).partition(".")[0] != package:
            raise
        raise MissingExtraError(
            package, extra, purpose, ", or leave it out of sinks (sinks=[] keeps metrics.jsonl)."
        ) from None


def _warn_failed(name: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"The sink '{name}' failed and is switched off; training continues. {reason}",
        RunWarning,
        stacklevel=4,
    )
