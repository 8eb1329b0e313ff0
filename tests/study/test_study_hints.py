"""What is refused or looks odd says which field or command helps."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_study_commands as commands
from test_study_commands import place, repository, study, told

from assay.study.record.ledger import Ledger
from assay.study.record.opening import open_study

__all__ = ["repository"]  # a fixture


def refused(root: Path, *words: object) -> str:
    return commands.TestBadInput().refused(root, *words)


def test_a_second_study_belongs_to_the_active_task(repository: Path) -> None:
    assert told("init", "--study", "second", "--activate")["task"] == "toy"
    said = study("start", "train.py", "--root", repository, "--study", "third", "--activate")
    assert open_study(repository).task == "toy"
    assert f"assay study start --root {repository} --study third --execute" in " ".join(
        said.split()
    )


def test_discard_takes_a_reason_by_either_name(repository: Path) -> None:
    study("propose", "--set", "lr=0.2", "--name", "a", "--hypothesis", "It learns more.")
    assert "a is discarded." in study("discard", "a", "--reason", "enough")


def test_a_contract_that_waits_for_approval_is_not_called_damaged(repository: Path) -> None:
    study("contract", "approve", "all", "--by", "Ada")
    assert "intact" in study("verify")
    study("contract", "set", "metrics.primary.minimum_effect=2")
    said = study("verify", code=1)
    assert "the contract waits for approval" in said and "DAMAGED" not in said
    path = place(repository) / "ledger.jsonl"
    path.write_text(path.read_text().replace('"Ada"', '"Eve"'))
    assert "DAMAGED" in study("verify", code=1)


def test_a_value_that_no_field_takes(repository: Path) -> None:
    said = refused(repository, "contract", "set", "metrics.primary.direction=up")
    assert "'maximize' or 'minimize'" in said and "The contract stays as it was" in said


def test_a_setting_that_is_spelt_otherwise(repository: Path) -> None:
    study("contract", "set", "scope.parameters.learning-rate={kind: float, low: 0, high: 1}")
    change = ("propose", "--set", "learning_rate=0.1", "--hypothesis", "It learns more.")
    assert "Did you mean 'learning-rate'?" in refused(repository, *change)


@pytest.mark.parametrize(
    "words",
    [
        ("propose", "--set", "lr=0.1", "--set", "lr=0.2", "--hypothesis", "It learns more."),
        ("contract", "set", "lr=0.1", "lr=0.2"),
        ("start", "train.py", "--set", "lr=0.1", "--set", "lr=0.2"),
    ],
)
def test_a_setting_that_is_given_twice(repository: Path, words: tuple[str, ...]) -> None:
    said = refused(repository, *words)
    assert "'lr' is given twice: lr=0.1 and lr=0.2.\nLeave one of them out." in said


def test_a_budget_that_does_not_suffice_for_the_baseline(repository: Path) -> None:
    study("contract", "set", "budget.runs=3")
    reason = "budget.runs is 3, and the baseline alone takes 10 (5 seeds of the promotion pool"
    for words in (["contract", "check"], ["baseline"]):
        said = " ".join(refused(repository, *words).split())
        assert reason in said and "assay study contract set budget.runs=21" in said


def test_a_budget_in_which_no_candidate_can_be_accepted(repository: Path) -> None:
    study("contract", "approve", "all", "--by", "Ada")
    assert not any("budget.runs" in warning for warning in told("contract", "check")["warnings"])
    study("contract", "set", "budget.runs=20")
    study("contract", "approve", "budget", "--by", "Ada")
    (warning,) = told("contract", "check")["warnings"]
    assert warning.startswith("budget.runs is 20: the baseline takes 10 and a candidate that is")


def test_a_share_of_the_hours_that_the_trial_exceeds(repository: Path) -> None:
    tried = {"argv": [], "seconds": 90.0, "exit_code": 0}
    Ledger(place(repository) / "ledger.jsonl").append("study.tried", tried, actor="ada")
    study("contract", "set", "budget.wall_clock_hours=0.6")  # 36 s for each of 60 runs
    said = " ".join(refused(repository, "contract", "check").split())
    assert "A run would be stopped after 54 s, and the trial took 90 s" in said
    assert "assay study contract set budget.wall_clock_hours=3" in said


def test_a_file_that_is_protected_and_open_to_patches(repository: Path) -> None:
    said = told("contract", "set", "scope.files=[train.py]", "evaluation.changeable=[train.py]")
    assert [warning.split(" names")[0] for warning in said["warnings"]] == [
        "scope.files", "evaluation.changeable",
    ]  # fmt: skip
    assert "contract set 'evaluation.files=[]'" in said["warnings"][0]
    study("contract", "approve", "all", "--by", "Ada")
    assert set(said["warnings"]) <= set(told("contract", "check")["warnings"])
    # A glob that allows other files too is not a contradiction.
    (repository / "agent.py").write_text("x = 1\n")
    said = told("contract", "set", "scope.files=['*.py']", "evaluation.changeable=[]")
    assert said["warnings"] == []
    patch = repository / "change.diff"
    patch.write_text(
        "--- a/train.py\n+++ b/train.py\n@@ -1,1 +1,1 @@\n"
        "-import argparse, json, pathlib, random\n+import argparse, json, random, pathlib\n"
    )
    change = ("propose", "--patch", patch, "--hypothesis", "It is faster.")
    said = " ".join(refused(repository, *change).split())
    assert "it measures the result, according to evaluation.files" in said
    assert "assay study contract set 'evaluation.files=[]'" in said
