"""A study begins with files alone, and always says what comes next."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from study_samples import add, candidate_values, make_study

from assay.core.errors import AssayError
from assay.study.agree.approvals import approve
from assay.study.agree.setup import initialise
from assay.study.files.candidate import BudgetRequest, Candidate
from assay.study.files.contract import APPROVALS, Contract
from assay.study.files.documents import ROOT, StudyError, write_yaml_document
from assay.study.record.opening import open_study
from assay.study.record.study import Study
from assay.study.run import switch
from assay.study.steps import candidates, proposers
from assay.study.steps.advice import next_step


class TestInit:
    def test_the_tree(self, tmp_path: Path) -> None:
        study = initialise(tmp_path, "cartpole", "lr", actor="ada")
        place = tmp_path / ROOT
        for name in ("schemas", "metric_extractors", "templates"):
            assert (place / "shared" / name).is_dir()
        for name in ("candidates", "runs", "audits"):
            assert (study.path / name).is_dir()
        assert (place / "tasks/cartpole/adapter.yaml").exists()
        assert open_study(tmp_path).path == study.path
        assert [e.kind for e in study.ledger.events()] == ["study.created"]
        assert study.problems() == []

    def test_the_template_is_yaml_that_says_what_is_missing(self, tmp_path: Path) -> None:
        study = initialise(tmp_path, "cartpole", "lr", actor="ada")
        text = study.contract_path.read_text()
        values = yaml.safe_load(text)
        assert "FILL IN" in text and values["study"] == "lr"
        filled = yaml.safe_load(text.replace("FILL IN", "Said"))
        assert Contract(**filled).task.id == "cartpole"

    def test_a_second_study_needs_a_word(self, tmp_path: Path) -> None:
        initialise(tmp_path, "cartpole", "lr", actor="ada")
        with pytest.raises(StudyError, match="cartpole/lr is the active study"):
            initialise(tmp_path, "cartpole", "clip", actor="ada")
        second = initialise(tmp_path, "cartpole", "clip", actor="ada", activate=True)
        assert open_study(tmp_path).path == second.path
        with pytest.raises(StudyError, match="already"):
            initialise(tmp_path, "cartpole", "lr", actor="ada", activate=True)

    def test_nowhere(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="not a directory"):
            initialise(tmp_path / "none", "a", "b", actor="ada")


class TestNext:
    def test_from_an_empty_study_to_a_decision(self, tmp_path: Path) -> None:
        study = make_study(tmp_path)
        assert next_step(study).action == "baseline"
        base = candidate_values(id="base", kind="baseline", change={})
        candidates.propose(study, Candidate(**base), "agent")
        step = next_step(study)
        assert (step.action, step.command) == ("validate", "assay study validate base")
        candidates.validate(study, "base", "agent")
        step = next_step(study)
        assert step.action == "run" and not step.safe
        assert step.command == "assay study run base --phase promotion --seed 1"

    def test_approvals_come_before_everything(self, tmp_path: Path) -> None:
        study = initialise(tmp_path, "cartpole", "lr", actor="ada")
        step = next_step(study)
        assert step.action == "contract" and "still to be filled in: question, task" in step.reason
        text = study.contract_path.read_text()
        study.contract_path.write_text(text.replace("FILL IN", "Said"))
        assert next_step(study).action == "approve"
        study.contract_path.write_text("study: [")
        assert next_step(study).action == "contract"

    def test_damage_and_the_kill_switch_come_first(self, tmp_path: Path) -> None:
        study = make_study(tmp_path)
        switch.stop(study, "enough", "ada")
        assert next_step(study).action == "wait"
        text = study.ledger.path.read_text()
        study.ledger.path.write_text(text.replace('"ada"', '"eve"', 1))
        assert next_step(study).action == "verify"

    def test_a_thousand_candidates_change_nothing(self, tmp_path: Path) -> None:
        study = make_study(tmp_path)
        base = candidate_values(id="base", kind="baseline", change={})
        candidates.propose(study, Candidate(**base), "agent")
        for i in range(30):
            add(study, f"n{i}", lr=0.003)
        assert next_step(study).command == "assay study validate base"


class TestProposers:
    def study(self, root: Path) -> Study:
        return make_study(root)

    def test_a_list(self, tmp_path: Path) -> None:
        study = self.study(tmp_path)
        path = tmp_path / "more.yaml"
        rows = [candidate_values(id=name) for name in ("a", "b")]
        for row in rows:
            del row["task"], row["study"]
        path.write_text(yaml.safe_dump(rows))
        assert proposers.from_file(study, path, "agent") == ["a", "b"]
        assert study.history().status["b"] == "draft"

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("a: [", "line [12], column"),
            ("[]", "holds no candidate"),
            ("3", "holds int where a candidate"),
            ("id: x\nkind: nonsense", "Bad settings"),
        ],
    )
    def test_bad_files_propose_nothing(self, tmp_path: Path, text: str, reason: str) -> None:
        study = self.study(tmp_path)
        before = study.history().status
        path = tmp_path / "more.yaml"
        path.write_text(text)
        with pytest.raises(AssayError, match=reason):
            proposers.from_file(study, path, "agent")
        assert study.history().status == before

    def test_one_bad_among_good_ones_proposes_nothing(self, tmp_path: Path) -> None:
        study = self.study(tmp_path)
        path = tmp_path / "more.yaml"
        rows = [candidate_values(id="good"), candidate_values(id="bad", kind="nonsense")]
        path.write_text(yaml.safe_dump(rows))
        with pytest.raises(AssayError):
            proposers.from_file(study, path, "agent")
        assert "good" not in study.history().status

    def test_optuna_samples_inside_the_scope_and_goes_on(self, tmp_path: Path) -> None:
        pytest.importorskip("optuna")
        study = self.study(tmp_path)
        request = BudgetRequest(wall_clock_hours=0.01)
        names = proposers.from_optuna(study, 3, request, "agent")
        assert names == ["optuna-001", "optuna-002", "optuna-003"]
        scope = study.contract().scope.parameters
        for name in names:
            found = study.candidate(name).change.parameters
            assert set(found) == set(scope)
            assert all(scope[key].refusal(value) is None for key, value in found.items())
            candidates.validate(study, name, "agent")
        assert proposers.from_optuna(study, 1, request, "agent") == ["optuna-004"]


def test_everything_above_ran_nothing(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    next_step(study)
    assert study.history().usage.runs == 0
    assert set(study.contract().approvals) == set(APPROVALS)
    values = study.contract().model_dump(mode="json")
    values["question"] = "Another?"
    write_yaml_document(study.contract_path, Contract(**values))
    assert next_step(study).action == "approve"
    approve(study, "task", "ada")
    assert next_step(study).action == "baseline"
