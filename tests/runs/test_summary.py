import json

import numpy as np
import pytest

from assay.runs.checkpoint import Section, write_checkpoint
from assay.runs.directory import RunDirectory
from assay.runs.metrics import MetricsWriter, Record
from assay.runs.summary import summary


@pytest.fixture
def run(tmp_path):
    facts = {"algorithm": "ppo", "env": "CartPole-v1", "seed": 3}
    run = RunDirectory.create(tmp_path, "x", config={"run": {"env_steps": 1000}}, **facts)
    yield run
    run.unlock()


def test_a_run_that_has_just_started(run):
    facts = summary(run)
    assert facts["status"] == "running"
    assert (facts["env_steps"], facts["unit"], facts["total"]) == (0, "env_steps", 1000)
    assert facts["eval_mean"] is facts["checkpoint"] is None
    json.dumps(facts)


def test_a_run_with_metrics_evaluations_and_a_checkpoint(run):
    writer = MetricsWriter(run.metrics_path)
    writer.write(Record(400, 4, 40, 1.0, {"rollout/return": 10.0}))
    writer.write(Record(500, 5, 50, 2.0, {"rollout/return": 20.0}))
    writer.close()
    run.write_eval({"episodes": [{"return": 9.0}, {"return": 9.0}]}, count=400, label="train")
    run.write_eval({"episodes": [{"return": 10.0}, {"return": 13.0}]}, count=500, label="train")
    path = write_checkpoint(run.checkpoints_path, 500, {"x": Section({"a": np.zeros(1)})})
    run.set_status("failed", error="NaN")
    run.unlock()
    facts = summary(RunDirectory.open(run.path))
    assert facts["status"] == "failed"
    assert facts["error"] == "NaN"
    assert (facts["env_steps"], facts["updates"], facts["episodes"]) == (500, 5, 50)
    assert facts["metrics"] == {"rollout/return": 20.0}
    assert (facts["eval_mean"], facts["eval_count"]) == (11.5, 500)
    assert facts["checkpoint"] == str(path)


def test_damaged_files_lose_only_their_own_facts(run):
    run.write_eval({"episodes": [{"return": 1.0}, {"return": 3.0}]}, count=100, label="train")
    run.write_eval({"episodes": []}, count=200, label="train")
    (run.eval_path / "000000000300-train.json").write_text("{")
    (run.path / "config.yaml").unlink()
    run.metrics_path.write_bytes(b"rubbish\n")
    run.unlock()
    facts = summary(RunDirectory.open(run.path))
    assert facts["status"] == "interrupted"
    assert (facts["eval_mean"], facts["eval_count"]) == (2.0, 100)
    assert facts["total"] is None
    assert facts["env_steps"] == 0
