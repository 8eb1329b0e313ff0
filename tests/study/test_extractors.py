"""Metrics are read from every format, and what is missing is named."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.runs.metrics import MetricsWriter, Record
from assay.runs.sinks import TensorBoardSink
from assay.study.files.contract import Metric, MetricSource
from assay.study.files.documents import StudyError
from assay.study.measure.extractors import doubt, extract, reduce, series
from assay.study.measure.wandb_file import BLOCK, wandb_history


def source(kind: str, key: str, **more: Any) -> MetricSource:
    return MetricSource(kind=kind, key=key, **more)


def points(found: MetricSource, out: Path) -> list[tuple[float, float]]:
    return series(found, out, out / "stdout.log")


class TestFormats:
    def test_csv(self, tmp_path: Path) -> None:
        (tmp_path / "log.csv").write_text("step,loss,ret\n10,0.5,\n20,0.25,7\n30,,8\n")
        assert points(source("csv", "ret", step="step"), tmp_path) == [(20, 7), (30, 8)]
        assert points(source("csv", "loss"), tmp_path) == [(0, 0.5), (1, 0.25)]

    def test_jsonl_with_nested_keys_and_a_torn_end(self, tmp_path: Path) -> None:
        rows = [{"t": 1, "eval": {"return": 3}}, {"t": 2, "eval": {"return": 4.5}}]
        text = "".join(json.dumps(row) + "\n" for row in rows) + '{"t": 3, "ev'
        (tmp_path / "log.jsonl").write_text(text)
        found = points(source("jsonl", "eval.return", step="t"), tmp_path)
        assert found == [(1, 3), (2, 4.5)]

    def test_json_of_one_row_and_of_a_list(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text('{"score": 12, "curve": [1, 2, 3]}')
        assert points(source("json", "score"), tmp_path) == [(0, 12)]
        assert [v for _, v in points(source("json", "curve"), tmp_path)] == [1, 2, 3]
        (tmp_path / "a.json").write_text('[{"s": 5, "x": 1}, {"s": 3, "x": 2}]')
        assert points(source("json", "x", step="s"), tmp_path) == [(3, 2), (5, 1)]

    def test_stdout(self, tmp_path: Path) -> None:
        (tmp_path / "stdout.log").write_text("start\nreturn: -1.5e2 (10)\nx\nreturn: 20 (11)\n")
        found = points(source("stdout", r"return: (\S+)"), tmp_path)
        assert [value for _, value in found] == [-150.0, 20.0]

    def test_assay(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        writer = MetricsWriter(tmp_path / "run" / "metrics.jsonl")
        writer.write(Record(100, 1, 1, 0.0, {"eval/return_mean": 20.0, "train/loss": 1.0}))
        writer.write(Record(200, 2, 2, 0.0, {"eval/return_mean": 30.0}))
        writer.close()
        found = points(source("assay", "eval/return_mean"), tmp_path)
        assert found == [(100, 20.0), (200, 30.0)]

    def test_tensorboard(self, tmp_path: Path) -> None:
        sink = TensorBoardSink(tmp_path / "tb")
        for step in (10, 20, 30):
            sink.log(Record(step, 0, 0, 0.0, {"eval/ret": step / 10}))
        sink.close()
        assert points(source("tensorboard", "eval/ret"), tmp_path) == [(10, 1), (20, 2), (30, 3)]

    def test_sb3_monitor(self, tmp_path: Path) -> None:
        text = '#{"t_start": 1.0, "env_id": "CartPole-v1"}\nr,l,t\n9.0,9,0.1\n21.0,21,0.2\n'
        (tmp_path / "0.monitor.csv").write_text(text)
        assert points(source("sb3-monitor", "r"), tmp_path) == [(9, 9), (30, 21)]

    def test_sb3_evaluations(self, tmp_path: Path) -> None:
        np.savez(
            tmp_path / "evaluations.npz",
            timesteps=np.array([100, 200]),
            results=np.array([[1.0, 3.0], [10.0, 20.0]]),
            ep_lengths=np.array([[5, 7], [8, 8]]),
        )
        assert points(source("sb3-evaluations", "results"), tmp_path) == [(100, 2), (200, 15)]
        assert points(source("sb3-evaluations", "ep_lengths"), tmp_path) == [(100, 6), (200, 8)]

    def test_an_npz_that_holds_a_pickle_is_not_opened(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "evaluations.npz", timesteps=np.array([{"a": 1}], object))
        with pytest.raises(StudyError, match="not an evaluations file"):
            points(source("sb3-evaluations", "results"), tmp_path)


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def history(row: dict[str, Any]) -> bytes:
    items = b""
    for key, value in row.items():
        name = b"".join(field(2, part.encode()) for part in key.split(".")) if "." in key else (
            field(1, key.encode())
        )  # fmt: skip
        items += field(1, name + field(16, json.dumps(value).encode()))
    return varint(1 << 3) + varint(7) + field(2, items)


def wandb_bytes(records: list[bytes]) -> bytes:
    """Write a LevelDB log as W&B does."""
    data = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    for record in records:
        first = True
        while True:
            left = BLOCK - len(data) % BLOCK
            if left < 7:
                data += b"\0" * left
                left = BLOCK
            piece, record = record[: left - 7], record[left - 7 :]
            kind = (1 if not record else 2) if first else (4 if not record else 3)
            data += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
            if not record:
                break
    return data


class TestWandb:
    ROWS = tuple({"_step": i, "loss": i / 2, "eval.ret": -i, "text": "x" * 900} for i in range(150))

    def test_rows_across_blocks(self, tmp_path: Path) -> None:
        path = tmp_path / "run-1.wandb"
        path.write_bytes(wandb_bytes([field(5, b"cfg"), *(history(row) for row in self.ROWS)]))
        assert path.stat().st_size > 3 * BLOCK
        assert list(wandb_history(path)) == list(self.ROWS)
        assert points(source("wandb", "eval.ret"), tmp_path)[3] == (3.0, -3.0)

    def test_a_torn_end(self, tmp_path: Path) -> None:
        path = tmp_path / "run-1.wandb"
        path.write_bytes(wandb_bytes([history(row) for row in self.ROWS])[:-500])
        assert list(wandb_history(path)) == list(self.ROWS[:-1])

    @pytest.mark.parametrize("data", [b"", b"PK\x03\x04aaaaaaaaa"])
    def test_another_file(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "x.wandb").write_bytes(data)
        with pytest.raises(StudyError, match="not an offline file"):
            points(source("wandb", "loss"), tmp_path)


class TestReduce:
    POINTS = tuple((float(i), float(v)) for i, v in enumerate([5, 1, 9, 2, 4, 4, 4, 4, 6, 8]))

    @pytest.mark.parametrize(
        ("how", "value"),
        [("last", 8), ("max", 9), ("min", 1), ("mean", 4.7), ("tail-mean", 7)],
    )
    def test_by_hand(self, how: str, value: float) -> None:
        found = source("csv", "x", reduce=how, tail=0.2)
        assert reduce(list(self.POINTS), found) == pytest.approx(value)

    @pytest.mark.parametrize("how", ["max", "min", "mean", "tail-mean"])
    @pytest.mark.parametrize("values", [(math.nan, 1.0, 2.0), (1.0, 2.0, math.nan)])
    def test_no_number_is_not_passed_over_wherever_it_stands(self, how: str, values) -> None:
        found = source("csv", "x", reduce=how, tail=1.0)
        assert math.isnan(reduce([(0.0, value) for value in values], found))

    def test_nothing(self) -> None:
        with pytest.raises(StudyError, match="has no points"):
            reduce([], source("csv", "x"))


class TestMissing:
    def metric(self, found: MetricSource) -> Metric:
        return Metric(name="score", source=found)

    def test_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "other.txt").touch()
        with pytest.raises(StudyError, match=r"'\*\.csv' .* it holds: other.txt"):
            extract(self.metric(source("csv", "x", path="*.csv")), tmp_path, tmp_path / "log")

    def test_the_metric(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("loss,return_mean\n1,2\n")
        with pytest.raises(StudyError, match="Did you mean 'return_mean'"):
            extract(self.metric(source("csv", "retrun_mean")), tmp_path, tmp_path / "log")

    def test_a_bare_nan_of_json_is_not_passed_over(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"ret": 5}\n{"ret": NaN}\n')
        with pytest.raises(StudyError, match="is nan"):
            extract(self.metric(source("jsonl", "ret")), tmp_path, tmp_path / "log")

    def test_a_row_without_the_step_that_orders_it(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("step,ret,loss\n9,1,3\n,2,\n3,4,\n")
        with pytest.raises(StudyError, match="a row of 'ret' has no number for 'step'"):
            extract(self.metric(source("csv", "ret", step="step")), tmp_path, tmp_path / "log")
        found = self.metric(source("csv", "loss", step="step"))
        assert extract(found, tmp_path, tmp_path / "log") == 3

    @pytest.mark.parametrize(
        ("kind", "name", "data"),
        [
            ("sb3-evaluations", "evaluations.npz", b"PK\x03\x04 torn"),
            ("csv", "a.csv", b"x\n" + b"1" * 200_000 + b"\n"),
            ("json", "a.json", b"[" * 100_000),
            ("jsonl", "a.jsonl", b"[" * 100_000 + b"\n"),
        ],
    )
    def test_a_damaged_file_is_named(self, tmp_path: Path, kind: str, name: str, data) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(StudyError, match=name.replace(".", r"\.")):
            extract(self.metric(source(kind, "x")), tmp_path, tmp_path / "log")

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "a.csv")
        with pytest.raises(StudyError, match="No file matches"):
            extract(self.metric(source("csv", "x")), tmp_path, tmp_path / "log")

    def test_no_number(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("loss\nnan\n")
        with pytest.raises(StudyError, match="is nan"):
            extract(self.metric(source("csv", "loss")), tmp_path, tmp_path / "log")

    @pytest.mark.parametrize(
        ("pattern", "reason"), [("(", "not a pattern"), ("x", "no group"), ("y(.)", "No line")]
    )
    def test_patterns(self, tmp_path: Path, pattern: str, reason: str) -> None:
        (tmp_path / "log").write_text("x 1\n")
        with pytest.raises(StudyError, match=reason):
            extract(self.metric(source("stdout", pattern)), tmp_path, tmp_path / "log")


class TestDoubt:
    """What could be read from several places is said, with how to name the one wanted."""

    def said(self, out: Path, found: MetricSource) -> str:
        return doubt(Metric(name="return", source=found), out, out / "stdout.log")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("[10:01] step 1 return: 5\n[10:02] step 20 return: -6.5e3 (best so far)\n", ""),
            (
                "return: 5\nreturn: 6\nbest return: 9\n",
                "was read as 9 (last), and 2 kinds of lines match its pattern: 'return: 5' and "
                "'best return: 9'. A longer pattern names the one that is wanted",
            ),
            (
                "return: 5, greedy return: 7\n",
                "was read as 5 (last), and 'return: 5, greedy return: 7' matches 2 times; its "
                "first is taken. A longer",
            ),
            ("return: 5, return: 5\n", ""),
        ],
    )
    def test_lines(self, tmp_path: Path, text: str, expected: str) -> None:
        (tmp_path / "stdout.log").write_text(text)
        said = self.said(tmp_path, source("stdout", r"return: ([-+.\de]+)"))
        assert expected in said and bool(said) == bool(expected)

    def test_files(self, tmp_path: Path) -> None:
        for name in ("eval", "train"):
            (tmp_path / f"{name}.csv").write_text(f"return\n{len(name)}\n")
        (tmp_path / "other.csv").write_text("loss\n1\n")
        assert "2 logs hold it, whose points are put together: 'eval.csv', 'train.csv'. The " in (
            self.said(tmp_path, source("csv", "return"))
        )
        assert self.said(tmp_path, source("csv", "return", path="eval.csv")) == ""
        assert self.said(tmp_path, source("csv", "loss")) == ""
