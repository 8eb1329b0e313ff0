import csv
import errno
import importlib
import math
import os
import subprocess
import sys
import textwrap
import types
import warnings

import pytest

from assay.core.errors import ConfigError, MissingExtraError, RunError
from assay.runs.directory import RunDirectory
from assay.runs.files import RunWarning
from assay.runs.metrics import MetricsWriter, Record, read_records
from assay.runs.sinks import CsvSink, SinkSet, TensorBoardSink, make_sinks


def record(env_steps, **metrics):
    return Record(env_steps, env_steps // 10, 0, 1000.0 + env_steps, metrics)


@pytest.fixture
def run(tmp_path):
    facts = {"algorithm": "ppo", "env": "CartPole-v1", "seed": 1}
    run = RunDirectory.create(tmp_path, "g/seed-1", config={"lr": 0.1, "hidden": [64]}, **facts)
    yield run
    run.unlock()


class Recorder:
    """A sink that remembers what was done to it, and fails in one of its methods."""

    name = "recorder"

    def __init__(self, fail_in=None):
        self.fail_in = fail_in
        self.calls = []

    def _note(self, call, *values):
        if call == self.fail_in:
            raise ConnectionError("server is away")
        self.calls.append((call, *values))

    def log(self, record):
        self._note("log", record.env_steps)

    def rewind(self, kept):
        self._note("rewind", [r.env_steps for r in kept])

    def flush(self):
        self._note("flush")

    def close(self):
        self._note("close")


# The set


def test_every_sink_gets_every_call(tmp_path):
    copy = Recorder()
    sinks = SinkSet(MetricsWriter(tmp_path / "metrics.jsonl"), [copy])
    sinks.log(record(1, a=1.0))
    state = sinks.state()
    sinks.log(record(2, a=2.0))
    sinks.flush()
    assert [r.env_steps for r in read_records(tmp_path / "metrics.jsonl")] == [1, 2]
    sinks.load_state(state)
    sinks.log(record(3, a=3.0))
    sinks.close()
    assert [r.env_steps for r in read_records(tmp_path / "metrics.jsonl")] == [1, 3]
    assert copy.calls == [
        ("log", 1),
        ("log", 2),
        ("flush",),
        ("rewind", [1]),
        ("log", 3),
        ("close",),
    ]


@pytest.mark.parametrize("method", ["log", "flush", "rewind", "close"])
def test_a_failing_copy_warns_once_and_the_rest_continue(tmp_path, method):
    bad, good = Recorder(fail_in=method), Recorder()
    sinks = SinkSet(MetricsWriter(tmp_path / "metrics.jsonl"), [bad, good])
    state = sinks.state()
    with pytest.warns(RunWarning) as caught:
        for env_steps in (1, 2):
            sinks.log(record(env_steps, a=1.0))
            sinks.flush()
            sinks.load_state(state)
        sinks.close()
    [warning] = caught
    assert "'recorder' failed" in str(warning.message)
    assert "ConnectionError: server is away" in str(warning.message)
    assert [call for call, *_ in good.calls] == ["log", "flush", "rewind"] * 2 + ["close"]


def test_jsonl_on_a_full_disk_is_an_error_and_the_copies_are_still_closed(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    copy = Recorder()
    sinks = SinkSet(MetricsWriter(tmp_path / "metrics.jsonl"), [copy])
    sinks.log(record(1, a=1.0))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=r"metrics\.jsonl': the disk is full"):
        sinks.flush()
    with pytest.raises(RunError, match="the disk is full"):
        sinks.close()
    assert copy.calls[-1] == ("close",)


def test_interrupting_a_copy_is_not_taken_for_its_failure(tmp_path):
    class Interrupted(Recorder):
        def log(self, record):
            raise KeyboardInterrupt

    sinks = SinkSet(MetricsWriter(tmp_path / "metrics.jsonl"), [Interrupted()])
    with pytest.raises(KeyboardInterrupt):
        sinks.log(record(1, a=1.0))
    assert len(sinks.copies) == 1
    sinks.close()


# Making them


def test_jsonl_is_there_whether_it_is_named_or_not(run):
    for names in ([], ["jsonl"], ["csv", "csv", "jsonl"]):
        sinks = make_sinks(names, run, {})
        assert isinstance(sinks.truth, MetricsWriter)
        assert [copy.name for copy in sinks.copies] == sorted(set(names) - {"jsonl"})
        sinks.close()


def test_an_unknown_sink_gets_the_nearest_name(run):
    with pytest.raises(ConfigError, match=r"'tensorbord'\. Did you mean 'tensorboard'"):
        make_sinks(["tensorbord"], run, {})


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio", "tensorboard"])
def test_a_missing_package_names_the_extra(run, monkeypatch, name):
    for loaded in list(sys.modules):
        if loaded.split(".")[0] == name:
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    # What Assay needs itself comes with no extra.
    wanted = name if name == "tensorboard" else rf"'assay\[{name}\]'"
    with pytest.raises(MissingExtraError, match=rf"pip install {wanted}, or leave it out of sinks"):
        make_sinks(["csv", name], run, {})


def test_a_package_that_is_there_but_broken_is_a_failing_sink(run, monkeypatch):
    real = importlib.import_module

    def broken(name):
        if name == "wandb":
            raise ImportError("cannot import name 'x'", name="requests.adapters")
        return real(name)

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.warns(RunWarning, match="'wandb' failed.*cannot import name 'x'"):
        sinks = make_sinks(["wandb", "csv"], run, {})
    assert [copy.name for copy in sinks.copies] == ["csv"]
    sinks.close()


# CSV


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_csv_grows_columns_and_keeps_values_exact(tmp_path):
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    sink.log(record(1, a=1 / 3))
    sink.log(record(2, b=math.nan))
    sink.log(record(3, a=2.0, b=1.0))
    sink.close()
    sink = CsvSink(path)
    sink.log(record(4, b=5.0))
    sink.log(record(5, c=6.0))
    sink.close()
    table = rows(path)
    assert list(table[0]) == ["env_steps", "updates", "episodes", "time", "a", "b", "c"]
    assert [row["env_steps"] for row in table] == ["1", "2", "3", "4", "5"]
    assert [row["a"] for row in table] == [repr(1 / 3), "", "2.0", "", ""]
    assert [row["b"] for row in table] == ["", "nan", "1.0", "5.0", ""]
    assert [row["c"] for row in table] == ["", "", "", "", "6.0"]


def test_csv_rewinds_to_the_records_that_are_kept(tmp_path):
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    kept = [record(1, a=1.0), record(2, a=2.0)]
    for item in [*kept, record(3, a=3.0, late=1.0)]:
        sink.log(item)
    sink.close()
    sink = CsvSink(path)
    sink.rewind(kept)
    sink.log(record(3, a=30.0))
    sink.flush()
    assert [row["a"] for row in rows(path)] == ["1.0", "2.0", "30.0"]
    assert "late" not in rows(path)[0]
    sink.close()


def test_csv_that_is_empty_is_started_again(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("")
    sink = CsvSink(path)
    sink.log(record(1, a=1.0))
    sink.close()
    assert [row["a"] for row in rows(path)] == ["1.0"]


# TensorBoard


def points(directory):
    accumulator = importlib.import_module(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(directory))
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_shows_what_was_logged_and_drops_what_was_rewound(tmp_path):
    kept = [Record(10, 1, 0, 1.0, {"train/loss": 0.5}), Record(20, 2, 0, 2.0, {"train/loss": 0.25})]
    sink = TensorBoardSink(tmp_path)
    for item in [*kept, Record(30, 3, 0, 3.0, {"train/loss": 9.0, "eval/return": 1.0})]:
        sink.log(item)
    sink.close()
    assert points(tmp_path)["train/loss"] == [(10, 0.5), (20, 0.25), (30, 9.0)]
    assert points(tmp_path)["eval/return"] == [(30, 1.0)]

    sink = TensorBoardSink(tmp_path)
    sink.rewind(kept)
    sink.log(Record(30, 3, 0, 4.0, {"train/loss": 0.125}))
    sink.flush()
    assert points(tmp_path)["train/loss"] == [(10, 0.5), (20, 0.25), (30, 0.125)]
    sink.close()


def test_event_files_sort_in_the_order_they_were_opened(tmp_path):
    opened = [tmp_path / "events.out.tfevents.9000000000.host.1.9"]  # the clock was set back
    opened[0].touch()
    for _ in range(11):
        TensorBoardSink(tmp_path).close()
        opened += set(tmp_path.iterdir()) - set(opened)
    assert opened == sorted(opened)


def test_tensorboard_is_written_without_torch(tmp_path):
    code = """
        import sys
        from pathlib import Path
        from assay.runs.metrics import Record
        from assay.runs.sinks import TensorBoardSink
        sink = TensorBoardSink(Path(sys.argv[1]))
        sink.log(Record(1, 1, 1, 1.0, {"a": 1.0}))
        sink.close()
        print("torch" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Trackers, against stand-ins for their packages


class Calls(types.ModuleType):
    """A module whose functions, and what they return, write down how they are called."""

    def __init__(self, name, log=None):
        super().__init__(name)
        self.log_of_calls = [] if log is None else log

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args, **kwargs):
            self.log_of_calls.append((name, args, kwargs))
            return Calls("result", self.log_of_calls)

        return call


def test_wandb_is_given_the_run_and_its_own_step(run, monkeypatch):
    fake = Calls("wandb")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    sinks = make_sinks(["wandb"], run, {"lr": 0.1})
    sinks.log(Record(10, 2, 3, 1.0, {"train/loss": 0.5}))
    sinks.close()
    names = [name for name, _, _ in fake.log_of_calls]
    assert names == ["init", "define_metric", "define_metric", "log", "finish"]
    settings = fake.log_of_calls[0][2]
    assert settings["id"] == run.id
    assert settings["name"] == "g/seed-1"
    assert settings["project"] == "assay"
    assert settings["resume"] == "allow"
    assert fake.log_of_calls[3][1][0] == {
        "train/loss": 0.5,
        "env_steps": 10,
        "updates": 2,
        "episodes": 3,
    }


def test_trackio_is_given_the_run_and_the_step(run, monkeypatch):
    fake = Calls("trackio")
    monkeypatch.setitem(sys.modules, "trackio", fake)
    sinks = make_sinks(["trackio"], run, {"lr": 0.1})
    sinks.log(Record(10, 2, 3, 1.0, {"train/loss": 0.5}))
    sinks.close()
    (_, _, settings), log, finish = fake.log_of_calls
    assert settings["name"] == f"g/seed-1-{run.id[:6]}"
    assert settings["resume"] == "allow"
    assert log == ("log", ({"train/loss": 0.5},), {"step": 10})
    assert finish[0] == "finish"


class FakeMlflow(types.ModuleType):
    """The few calls of MLflow that the sink uses, on a list."""

    def __init__(self):
        super().__init__("mlflow")
        self.runs = []
        self.metrics = []
        self.params = {}
        self.statuses = []
        self.entities = types.SimpleNamespace(Metric=lambda *facts: facts)

    def set_experiment(self, name):
        return types.SimpleNamespace(experiment_id=name)

    def MlflowClient(self):
        return self

    def search_runs(self, experiments, query):
        return [run for run in self.runs if f"'{run.tags['assay_id']}'" in query]

    def create_run(self, experiment, tags, run_name):
        info = types.SimpleNamespace(run_id=f"m{len(self.runs)}", name=run_name)
        self.runs.append(types.SimpleNamespace(info=info, tags=tags))
        return self.runs[-1]

    def update_run(self, run_id, status):
        self.statuses.append(status)

    def log_param(self, run_id, key, value):
        self.params[key] = value

    def log_batch(self, run_id, metrics):
        self.metrics.append((run_id, metrics))

    def set_terminated(self, run_id):
        self.statuses.append("FINISHED")


def test_mlflow_finds_its_run_again_and_sends_in_batches(run, monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    for env_steps in (10, 20):
        sinks = make_sinks(["mlflow"], run, {"lr": 0.1, "long": "x" * 9000})
        sinks.log(Record(env_steps, 2, 3, 1.5, {f"m{i}": float(i) for i in range(1001)}))
        sinks.close()
    assert len(fake.runs) == 1
    assert fake.runs[0].info.name == "g/seed-1"
    assert fake.params["lr"] == "0.1"
    assert len(fake.params["long"]) == 500
    assert [len(metrics) for _, metrics in fake.metrics] == [1000, 1, 1000, 1]
    assert fake.metrics[0][1][7] == ("m7", 7.0, 1500, 10)
    assert fake.statuses == ["FINISHED", "RUNNING", "FINISHED"]


def test_a_tracker_that_cannot_start_does_not_stop_the_run(run, monkeypatch):
    fake = types.ModuleType("wandb")
    fake.init = lambda **settings: (_ for _ in ()).throw(ConnectionError("not logged in"))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.warns(RunWarning, match="'wandb' failed.*not logged in"):
        sinks = make_sinks(["wandb"], run, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sinks.log(record(1, a=1.0))
        sinks.close()
    assert [r.env_steps for r in read_records(run.metrics_path)] == [1]
