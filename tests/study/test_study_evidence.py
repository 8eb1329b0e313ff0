"""A whole study is checked: every file that a run wrote, its record, and its audits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from study_samples import candidate_values, make_study

from assay.study import candidates, evidence, result_audit, runner
from assay.study.layout import Study
from assay.study.models import Candidate

RUN = "c1-promotion-1"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return a study with one seed of the baseline and one of a candidate, audited."""
    root = tmp_path_factory.mktemp("evidence")
    study = make_study(root)
    baseline = candidate_values(id="base", kind="baseline", change={})
    candidates.propose(study, Candidate(**baseline), "agent")
    candidates.validate(study, "base", "agent")
    for name in ("base", "c1"):
        planned = runner.launch(study, name, "promotion", 1, confirm="RUN_CANDIDATE", actor="a")
        assert runner.wait(study, planned.run, 60).outcome == "done"
    result_audit.audit(study, "c1", "promotion", "agent")
    study.sync()
    return study


@pytest.fixture
def study(original: Study, tmp_path: Path) -> Study:
    shutil.copytree(original.root, tmp_path / "copy", symlinks=True)
    return Study(tmp_path / "copy", original.task, original.name)


def reasons(study: Study) -> list[str]:
    return [problem.reason for problem in evidence.verify(study)]


def test_a_study_that_nobody_touched(study: Study) -> None:
    assert reasons(study) == []


def out(study: Study) -> Path:
    return study.path / "runs" / RUN / "out"


def edit_artifact(study: Study) -> None:
    path = out(study) / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"103", b"193"))


def edit_record(study: Study) -> None:
    path = study.path / "runs" / RUN / "run.json"
    values = json.loads(path.read_bytes())
    values["metrics"]["return"] = 500.0
    path.write_text(json.dumps(values))


def edit_audit(study: Study) -> None:
    path = study.path / "audits" / "c1.json"
    values = json.loads(path.read_bytes())
    values["checks"][0]["detail"] = "all is well"
    path.write_text(json.dumps(values))


def edit_state(study: Study) -> None:
    path = study.path / "state.json"
    values = json.loads(path.read_bytes())
    values["candidates"]["c1"] = "accepted"
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (edit_artifact, f"'metrics.jsonl' of run {RUN} was changed after the run had ended"),
        (lambda s: (out(s) / "metrics.jsonl").unlink(), f"'metrics.jsonl' of run {RUN} is gone"),
        (lambda s: (out(s) / "b.jsonl").write_text("{}"), f"'b.jsonl' of run {RUN} appeared after"),
        (lambda s: shutil.rmtree(s.path / "runs" / RUN), f"the files of run {RUN} are gone"),
        (edit_record, f"the record of run {RUN} (run.json) was edited"),
        (edit_record, f"the metrics in the record of run {RUN} are not those that were measured"),
        (lambda s: (out(s).parent / "run.json").unlink(), f"the record of run {RUN} cannot be"),
        (edit_audit, "the audit of c1 was edited"),
        (lambda s: (s.path / "audits" / "c1.json").unlink(), "the audit of c1 cannot be read"),
        (edit_state, "it calls c1 accepted, and the ledger completed"),
    ],
)  # fmt: skip
def test_what_was_touched_is_named(
    study: Study, tamper: Callable[[Study], object], words: str
) -> None:
    tamper(study)
    found = reasons(study)
    assert any(words in reason for reason in found), found


def test_the_line_of_a_problem_is_that_of_its_event(study: Study) -> None:
    edit_artifact(study)
    (problem,) = evidence.verify(study)
    event = list(study.ledger.events())[problem.line - 1]
    assert (event.kind, event.data["run"]) == (runner.ENDED, RUN)
