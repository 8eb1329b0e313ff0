"""Scorecards, the analysis of one run, the review of a draft, and plans of batches."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_reflection as reflected
from faked_runs import add, fake, judged, measured
from study_samples import candidate_values, make_study
from typer.testing import CliRunner

from assay.cli.app import app
from assay.runs import provenance
from assay.study.agree import setup
from assay.study.files.base import Kind
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract, Metrics
from assay.study.files.documents import ROOT, StudyError, read_yaml, write_yaml_document
from assay.study.files.records import ProbePlan, QueueManifest
from assay.study.measure import reflection
from assay.study.record.opening import open_study
from assay.study.record.study import Study
from assay.study.report import pages
from assay.study.report.analysis import analyze
from assay.study.report.scorecard import Line, scorecard
from assay.study.run.queue import Queue
from assay.study.steps import batch, candidates, proposers
from assay.study.steps.review import literals, review


def lines_of(study: Study, name: str) -> dict[str, Line]:
    return {line.metric: line for line in scorecard(study, study.history(), name).lines}


class TestScorecard:
    def test_every_role_is_on_it_and_effects_wait_for_the_verdict(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        add(study, "good")
        fake(study, "good", "promotion", gain=8.0, falls=-1.0, speed=20.0)
        found = lines_of(study, "good")
        assert [line.role for line in found.values()] == [
            "primary", "guardrail", "component", "component", "diagnostic", "diagnostic",
            "training reward", "honeypot",
        ]  # fmt: skip
        assert found["return"].state == "not judged" and "effect" not in found["return"].detail
        # 100 and 108 plus a noise whose mean is 0; falls are to be few.
        assert found["return"].mean == pytest.approx(108) and found["return"].seeds == 5
        assert found["falls"].better == pytest.approx(1.0)
        assert found["falls"].state == "not judged"
        # 23 of 25: one component has taken over.
        assert (found["speed"].state, found["speed"].detail) == ("dominant", "92% of the reward")

    def test_a_verdict_fills_in_effects_and_guardrails(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        add(study, "good")
        fake(study, "good", "promotion", gain=8.0)
        assert judged(study, "good") == "accept"
        found = lines_of(study, "good")
        assert found["return"].state == "accept" and "effect +8.00 [" in found["return"].detail
        assert found["falls"].state == "kept"
        assert "## Scorecards" in pages.report(study)

    def test_a_violated_guardrail_is_named(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        add(study, "bad")
        fake(study, "bad", "promotion", gain=8.0, falls=9.0)
        judged(study, "bad")
        card = scorecard(study, study.history(), "bad")
        assert card.violated == ["falls"] and card.rival == "base"

    def test_a_bound_needs_no_verdict(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        values = study.contract().model_dump(mode="json")
        values["metrics"]["guardrails"][0] |= {"bound": 4.0, "margin": None}
        write_yaml_document(study.contract_path, Contract(**values))
        assert lines_of(study, "base")["falls"].state == "violated"

    def test_what_was_not_written_says_where_it_was_looked_for(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        add(study, "mute")
        fake(study, "mute", "promotion", without="cheat")
        line = lines_of(study, "mute")["cheat"]
        assert line.state == "not written" and "cheat in result.json" in line.detail
        values = study.contract().model_dump(mode="json")
        values["metrics"]["honeypot"]["source"] |= {"kind": "assay", "path": ""}
        write_yaml_document(study.contract_path, Contract(**values))
        assert "cheat in **/metrics.jsonl" in lines_of(study, "mute")["cheat"].detail

    @pytest.mark.parametrize("name", ["bse", "early"])
    def test_without_runs(self, tmp_path: Path, name: str) -> None:
        study = measured(tmp_path)
        add(study, "early")
        words = "Did you mean 'base'" if name == "bse" else "no run that is over"
        with pytest.raises(StudyError, match=words):
            scorecard(study, study.history(), name)


class TestAnalysis:
    @pytest.mark.parametrize(
        ("gain", "shifts", "kind"),
        [
            (0.0, {}, "like the rival"),
            (9.0, {}, "better"),
            (-9.0, {}, "worse"),
            (0.0, {"return": -2.0, "reward": 30.0}, "exploiting"),
        ],
    )
    def test_scores_against_the_rival(
        self, tmp_path: Path, gain: float, shifts: dict[str, float], kind: str
    ) -> None:
        study = measured(tmp_path)
        add(study, "c1")
        fake(study, "c1", "promotion", gain, **shifts)
        seen = analyze(study, "c1-promotion-3")
        assert (seen.kind, seen.rival, seen.outcome) == (kind, "base", "done")
        # The noise of the third seed is 0.1; the baseline's has a deviation of sqrt(2.5).
        wanted = (gain + shifts.get("return", 0.0) + 0.1) / 2.5**0.5
        assert seen.metrics[0].deviations == pytest.approx(wanted)
        assert seen.metrics[0].value == seen.metrics[0].recorded

    def test_the_incumbent_is_compared_with_whom_it_beat(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        add(study, "good")
        for phase in ("promotion", "validation"):
            fake(study, "good", phase, gain=8.0)
            assert judged(study, "good", phase) == "accept"
        assert study.history().incumbent == "good"
        seen = analyze(study, "good-promotion-3")
        assert (seen.kind, seen.rival) == ("better", "base")
        assert analyze(study, "base-promotion-3").rival == "good"

    def test_a_metric_that_is_gone(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        (study.path / "runs/base-promotion-1/out/result.json").unlink()
        assert analyze(study, "base-promotion-1").kind == "incomplete"

    def test_a_run_that_stands_still(self, tmp_path: Path) -> None:
        study = reflected.make(tmp_path)
        reflected.put(study, "r1", **reflected.healthy(**{"return": reflected.LEVEL}))
        assert analyze(study, "r1").kind == "not learning"
        fell = np.concatenate([reflected.UP[::2], reflected.DOWN[::2]])
        reflected.put(study, "r2", **reflected.healthy(**{"return": fell}))
        assert analyze(study, "r2").kind == "unstable"

    @pytest.mark.parametrize(
        ("log", "kind"),
        [
            ("RuntimeError: No CUDA GPUs are available", "blocked"),
            ("wandb.errors.UsageError: api_key not configured", "blocked"),
            ("ZeroDivisionError: division by zero", "crashed"),
        ],
    )
    def test_what_ended_a_run(self, tmp_path: Path, log: str, kind: str) -> None:
        study = measured(tmp_path)
        with study.ledger.transaction() as writer:
            facts = {
                "run": "x", "candidate": "base", "phase": "short", "seed": 0, "argv": [],
                "protocol": "", "registration": "",
            }  # fmt: skip
            writer.append("run.prepared", facts, actor="test")
            end = {"run": "x", "outcome": "failed", "reason": "exit code 1", "hours": 0.0}
            writer.append("run.ended", end, actor="test")
        (study.path / "runs/x").mkdir()
        (study.path / "runs/x/stdout.log").write_text(log + "\n")
        seen = analyze(study, "x")
        assert seen.kind == kind and log in seen.log

    def test_an_unknown_run(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="Did you mean 'base-promotion-1'"):
            analyze(measured(tmp_path), "base-promotion1")


class TestReview:
    def study(self, root: Path, **components: Any) -> Study:
        values = reflected.contract().model_dump(mode="json")
        values["scope"]["parameters"] = {
            "speed_weight": {"kind": "float", "low": -100, "high": 100}
        }
        values["baseline"]["parameters"] = {"speed_weight": 1.0}
        study = reflected.make(root, Contract(**values))
        reflected.put(study, "r1", **reflected.healthy(**components))
        reflection.reflect(study, "r1")
        return study

    def checks(self, study: Study, value: float, **changes: Any) -> dict[str, tuple[str, str]]:
        values = candidate_values(
            kind="reward-tuning", change={"parameters": {"speed_weight": value}}, reflection="r1"
        )
        candidates.propose(study, Candidate(**values | changes), "agent")
        return {check.name: (check.level, check.detail) for check in review(study, "c1")}

    @pytest.mark.parametrize(
        ("value", "level", "words"),
        [
            (2.0, "ok", "is 2 times"),
            (50.0, "warn", "is 50 times"),
            (-1.0, "warn", "changes the sign"),
            (0.0, "warn", "turns it off"),
            (1.0, "warn", "changes nothing"),
        ],
    )
    def test_scale(self, tmp_path: Path, value: float, level: str, words: str) -> None:
        found = self.checks(self.study(tmp_path), value)["scale"]
        assert found[0] == level and words in found[1]

    def test_the_contract_may_say_what_the_incumbent_did_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        study = self.study(tmp_path)
        monkeypatch.setattr(candidates, "standing", lambda *_: ("", {}))
        assert "is 2 times" in self.checks(study, 2.0)["scale"][1]

    def test_signal_is_predicted_from_the_reflection(self, tmp_path: Path) -> None:
        # Both components weigh 5 on average: 4 times one is 20 of 25, 5 times is 25 of 30.
        found = self.checks(self.study(tmp_path), 4.0)["signal"]
        assert found == ("ok", "speed goes from 50% to about 80% of the reward")

    def test_what_would_take_over_stops(self, tmp_path: Path) -> None:
        level, detail = self.checks(self.study(tmp_path), 5.0)["signal"]
        assert level == "stop" and "about 83%" in detail

    def test_more_of_a_saturated_component(self, tmp_path: Path) -> None:
        study = self.study(tmp_path, speed=np.minimum(reflected.UP, 2.0))
        level, detail = self.checks(study, 2.0)["signal"]
        assert level == "warn" and "saturated" in detail

    def test_prediction_and_scope(self, tmp_path: Path) -> None:
        found = self.checks(self.study(tmp_path), 2.0, expected="everything gets better")
        assert found["prediction"][0] == "warn" and found["inside the contract"][0] == "ok"
        other = candidate_values(id="c2", change={"parameters": {"width": 3}})
        study = Study(tmp_path, "cartpole", "lr")
        candidates.propose(study, Candidate(**other), "agent")
        assert review(study, "c2")[0].level == "stop"

    def test_an_edited_reflection_stops(self, tmp_path: Path) -> None:
        study = self.study(tmp_path)
        path = study.path / "runs/r1/reward_reflection.json"
        path.write_text(path.read_text().replace('"low"', '"medium"'))
        assert self.checks(study, 2.0)["reward reflection"][0] == "stop"

    def test_numbers_in_a_patch(self) -> None:
        patch = (
            "--- a/r.py\n+++ b/r.py\n@@ -1,3 +1,3 @@\n-a = 1.5 * x1\n-b = y\n+a = 3 * x1\n+b = z\n"
        )
        assert list(literals(patch)) == [("a = 3 * x1", 1.5, 3.0)]


GPUS = [
    {"index": str(i), "uuid": f"GPU-{i}", "name": "H", "memory.total": "80 GiB"} for i in range(2)
]


class TestBatch:
    def test_the_baseline_comes_first_and_fits_the_budget(self, tmp_path: Path) -> None:
        study = make_study(tmp_path, {"wall_clock_hours": 9, "runs": 12, "parallel": 4})
        assert batch.plan(study).jobs == ()  # no baseline is planned yet
        candidates.validate(study, candidates.plan_baseline(study, None, "agent"), "agent")
        planned = batch.plan(study)
        assert [job.seed for job in planned.jobs] == [1, 2, 3, 4, 5, 11, 12, 13, 14, 15]
        assert [job.wave for job in planned.jobs] == [1] * 4 + [2] * 4 + [3] * 2
        job = planned.jobs[0]
        assert job.worktree == f"{ROOT}/tasks/cartpole/studies/lr/worktrees/baseline-promotion-1"
        assert job.output == (
            f"{ROOT}/tasks/cartpole/studies/lr/runs/baseline-promotion-1/out/metrics.jsonl",
        )
        assert "A/A test" in job.rule and job.gpus == ()
        assert len(batch.plan(study, 3).jobs) == 3

    def test_every_job_of_a_wave_has_gpus_of_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(provenance, "gpus", lambda: GPUS)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        study = make_study(tmp_path, {"wall_clock_hours": 9, "runs": 99, "parallel": 9})
        values = study.contract().model_dump(mode="json") | {"hardware": {"kind": "gpu"}}
        write_yaml_document(study.contract_path, Contract(**values))
        candidates.plan_baseline(study, None, "agent")
        candidates.validate(study, "baseline", "agent")
        planned = batch.plan(study)
        assert planned.at_once == 2
        assert [job.gpus for job in planned.jobs[:4]] == [("0",), ("1",), ("0",), ("1",)]

    def test_what_does_not_fit_is_said(self, tmp_path: Path) -> None:
        study = make_study(tmp_path, {"wall_clock_hours": 9, "runs": 11})
        candidates.validate(study, candidates.plan_baseline(study, None, "agent"), "agent")
        values = study.contract().model_dump(mode="json")
        values["budget"]["runs"] = 7
        write_yaml_document(study.contract_path, Contract(**values))
        planned = batch.plan(study)
        assert (len(planned.jobs), planned.left_out) == (7, 3)


def command(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["study", *map(str, words)], env={"COLUMNS": "300"})
    assert done.exit_code == code, done.output
    return done.output


def test_the_commands(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    root = ("--root", tmp_path)
    candidates.validate(study, candidates.plan_baseline(study, None, "agent"), "agent")
    told = json.loads(command("batch", "--limit", 2, "--queue", "--json", *root))
    assert told["queued"] == ["baseline-promotion-1", "baseline-promotion-2"]
    assert [item.id for item in Queue(study).manifest().items] == told["queued"]
    assert "baseline-promotion-1" in command("batch", *root)
    assert "inside the contract" in command("review", "c1", *root)
    other = measured(tmp_path / "faked")
    write_yaml_document(
        tmp_path / "faked" / ROOT / "registry.yaml", setup.Registry(task="cartpole", study="lr")
    )
    assert other.path.is_dir()
    place = ("--root", tmp_path / "faked")
    assert json.loads(command("scorecard", "base", "--json", *place))["violated"] == []
    assert "Class: like the rival" in command("analyze", "base-promotion-1", *place)


def test_init_leaves_a_report_and_templates(tmp_path: Path) -> None:
    command("init", "--root", tmp_path, "--task", "t")
    study = open_study(tmp_path)
    assert "# Study t/first" in (study.path / "report.md").read_text()
    assert read_yaml(study.path / "experiments.yaml")[0]["experiments"] == []
    assert study.problems() == []
    names = {path.name for path in (tmp_path / ROOT / "shared/templates").iterdir()}
    assert {"contract.yaml", "metrics.yaml", "probe-plan.yaml", "queue.yaml"} <= names


def test_templates_are_what_the_commands_take(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    found = setup.templates()
    kinds = set(Kind.__args__) - {"baseline", "dr-probe"}  # which commands plan themselves
    assert {f"candidate-{kind}.yaml" for kind in kinds} <= set(found)
    for name, text in found.items():
        path = tmp_path / name
        path.write_text(text)
        values = read_yaml(path)[0]
        if name.startswith("candidate-"):
            assert Candidate(task="t", study="s", **values).kind == name[10:-5]
            with pytest.raises(StudyError, match="still to be filled in: hypothesis"):
                proposers.from_file(study, path, "agent")
    assert ProbePlan(**read_yaml(tmp_path / "probe-plan.yaml")[0]).nominal == 1.0
    assert len(QueueManifest(**read_yaml(tmp_path / "queue.yaml")[0]).items) == 1
    assert len(Metrics(**read_yaml(tmp_path / "metrics.yaml")[0]["metrics"]).all()) == 5


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ledger.jsonl", '{"event": "experiment_started", "ts": "2025-01-01"}\n'),
        ("contract.yaml", "task_name: walk\nprimary_metric: success_rate\n"),
        ("state.json", '{"status": "idle"}'),
    ],
)
def test_flat_files_of_another_program_are_refused(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / ROOT).mkdir()
    (tmp_path / ROOT / file).write_text(text)
    for words in (["status"], ["next"], ["migrate"], ["init", "--task", "t"]):
        said = " ".join(command(*words, "--root", tmp_path, code=2).split())
        assert f"such as rlxp 0.2.0: {file} has no" in said, said
    assert [path.name for path in (tmp_path / ROOT).iterdir()] == [file]


def test_a_card_is_plain_data(tmp_path: Path) -> None:
    study = measured(tmp_path)
    assert json.dumps(dataclasses.asdict(scorecard(study, study.history(), "base")))
