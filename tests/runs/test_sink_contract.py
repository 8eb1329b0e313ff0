"""The shipped sinks keep the contract."""

from __future__ import annotations

import csv
from pathlib import Path

from assay.runs.sinks import CsvSink, Sink, TensorBoardSink
from assay.testing.sinks import Points, SinkContract


class TestCsv(SinkContract):
    def make(self, directory: Path) -> Sink:
        return CsvSink(directory / "metrics.csv")

    def read(self, directory: Path) -> Points:
        points: Points = {}
        with open(directory / "metrics.csv", newline="") as file:
            for row in csv.DictReader(file):
                for name, text in row.items():
                    if "/" in name and text:
                        points.setdefault(name, []).append((int(row["env_steps"]), float(text)))
        return points


class TestTensorBoard(SinkContract):
    def make(self, directory: Path) -> Sink:
        return TensorBoardSink(directory)

    def read(self, directory: Path) -> Points:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        reader = EventAccumulator(str(directory))
        reader.Reload()
        return {
            name: [(event.step, event.value) for event in reader.Scalars(name)]
            for name in reader.Tags()["scalars"]
        }
