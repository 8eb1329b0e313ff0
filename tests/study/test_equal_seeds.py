"""A script that ignores its seed gives one measurement, however often it is run."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from study_samples import approved_study, candidate_values, contract_values, launch

from assay.study.agree.approvals import approve
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import write_yaml_document
from assay.study.record.study import Study
from assay.study.run import recovery
from assay.study.steps import advice, agenda, candidates

# What it saves depends on the seed or not; its score never does.
TRAIN = """
    import json, pathlib, sys
    seed, out = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    weights = seed if "weights" in sys.argv else 0
    (out / "weights.json").write_text(json.dumps({"weights": weights}))
    (out / "metrics.jsonl").write_text(json.dumps({"eval/return_mean": 7.0, "time/elapsed": 1.0}))
    if "printed" in sys.argv:
        for path in out.iterdir():
            path.unlink()
        print("return:", 7.0)
"""
PRINTED = {"kind": "stdout", "key": r"return: (\S+)"}


def measured(root: Path, *words: str) -> Study:
    """Return a study whose baseline has run on the first three seeds."""
    (root / "train.py").write_text(textwrap.dedent(TRAIN))
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    values = contract_values()
    values["baseline"] = {"command": ["{python}", "train.py", "{seed}", "{out}", *words]}
    values["scope"] = {}
    if "printed" in words:
        values["metrics"]["primary"]["source"] = PRINTED
        values["metrics"]["guardrails"] = []
    study = approved_study(root, values)
    base = candidate_values(id="base", kind="baseline", change={})
    candidates.propose(study, Candidate(**base), "agent")
    candidates.validate(study, "base", "agent")
    for seed in (1, 2, 3):
        recovery.wait(study, launch(study, "base", "promotion", seed), 300)
    return study


def voided(study: Study) -> str:
    found = agenda.voided(study, study.history(), study.contract())
    return found.reason if found else ""


@pytest.mark.parametrize("words", [(), ("printed",)])
def test_a_person_is_asked_and_may_waive_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    study = measured(tmp_path, *words)
    assert "base scored the same and wrote the same on seeds [1, 2, 3]" in voided(study)
    asked = advice.next_step(study)
    assert (asked.action, asked.safe) == ("debug", False) and "'equal-seeds'" in asked.reason
    agreed = study.contract().model_dump(mode="json")
    agreed["experiment"]["exceptions"] = {"equal-seeds": "the task has no chance in it"}
    write_yaml_document(study.contract_path, Contract(**agreed))
    approve(study, "experiment", "ada")
    assert voided(study) == "" and advice.next_step(study).action == "run"


def test_equal_scores_of_runs_that_differ_are_no_reason(tmp_path: Path) -> None:
    study = measured(tmp_path, "weights")
    assert voided(study) == ""
    shutil.rmtree(study.path / "runs")
    assert voided(study) == ""  # files that are gone say nothing
