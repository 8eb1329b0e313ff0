"""Attacks 10, 40, 43 and 47: launch unseen, forge the state, fill the disk, set the clock."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from faked_runs import add, fake, measured
from study_samples import launch, make_study
from typer.testing import CliRunner

from assay.cli.app import app
from assay.study.agree.approvals import approve
from assay.study.files.documents import StudyError
from assay.study.judge import verify
from assay.study.record.ledger import Ledger
from assay.study.record.study import Study
from assay.study.run import launcher, planning, recovery
from assay.study.steps import candidates


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return make_study(tmp_path)


class TestTokens:
    """10: launch without having seen what is launched."""

    @pytest.mark.parametrize("token", ["RUN_CANDIDATE", "RUN_CANDIDATE:", "yes", ""])
    def test_only_the_token_of_the_dry_run_launches(self, study: Study, token: str) -> None:
        right = planning.plan(study, "c1", "short", 0).token
        with pytest.raises(StudyError, match="does not confirm this launch") as refused:
            launcher.launch(study, "c1", "short", 0, confirm=token, actor="agent")
        assert right.partition(":")[2] not in str(refused.value) + refused.value.fix
        assert "assay study run c1 --phase short --seed 0" in refused.value.fix
        assert study.history().runs == {}

    def test_control(self, study: Study) -> None:
        assert recovery.wait(study, launch(study, "c1", "short", 0), 300).outcome == "done"


class TestTheState:
    """40: write into state.json that the candidate was accepted."""

    def test_status_reads_the_ledger(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        add(study, "bad")
        study.sync()
        path = study.path / "state.json"
        state = json.loads(path.read_text())
        state["candidates"]["bad"], state["incumbent"] = "accepted", "bad"
        state["progress"]["holders"] = ["bad"]
        path.write_text(json.dumps(state))
        told = invoke("status", "--json", "--root", str(tmp_path), *names(study), code=2)
        assert (told["candidates"]["bad"], told["incumbent"]) == ("validated", "")
        assert any("state.json disagrees" in problem for problem in told["problems"])

    def test_control(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        study.sync()
        told = invoke("status", "--json", "--root", str(tmp_path), *names(study))
        assert told["problems"] == [] and told["candidates"] == {"base": "completed"}


def names(study: Study) -> list[str]:
    registry = study.root / ".rlxp/registry.yaml"
    registry.write_text(f"schema_version: 1\ntask: {study.task}\nstudy: {study.name}\n")
    return []


def invoke(*words: str, code: int = 0) -> dict:
    result = CliRunner().invoke(app, ["study", *words])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


class TestOutput:
    """43: write until the disk is full."""

    def limited(self, study: Study, gigabytes: float) -> None:
        values = yaml.safe_load(study.contract_path.read_text())
        values["experiment"]["stop"] = {"output_gb": gigabytes}
        study.contract_path.write_text(yaml.safe_dump(values))
        approve(study, "experiment", "ada")
        candidates.validate(study, "c1", "agent")

    def test_a_run_that_writes_too_much_fails(self, study: Study) -> None:
        self.limited(study, 1e-8)  # ten bytes
        record = recovery.wait(study, launch(study, "c1", "short", 0), 300)
        assert record.outcome == "killed"
        assert "GB; the contract allows 1e-08 (experiment.stop.output_gb)" in record.reason

    def test_control(self, study: Study) -> None:
        self.limited(study, 1e-3)
        assert recovery.wait(study, launch(study, "c1", "short", 0), 300).outcome == "done"


class TestClocks:
    """47: set the clock back, so that a run seems to have come before its candidate."""

    def clocked(self, study: Study, back: timedelta) -> list[str]:
        def clock() -> str:
            return (datetime.now(UTC) - back).isoformat(timespec="milliseconds")

        study.ledger = Ledger(study.ledger.path, clock)
        add(study, "c1")
        fake(study, "c1", "promotion")
        return [str(problem) for problem in verify.verify(study) if "clock" in problem.reason]

    def test_verify_finds_it(self, tmp_path: Path) -> None:
        found = self.clocked(measured(tmp_path), timedelta(days=10_000))
        assert len(found) == 1 and "before the event that it follows" in found[0]

    def test_control_machines_whose_clocks_differ_a_little(self, tmp_path: Path) -> None:
        assert self.clocked(measured(tmp_path), timedelta(seconds=90)) == []
