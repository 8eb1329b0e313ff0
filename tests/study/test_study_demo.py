"""The demo: a real study of four candidates, of which the gate accepts the better one alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from assay.study.agree import approvals, scope
from assay.study.demo import walkthrough
from assay.study.demo.walkthrough import Judged, Outcome
from assay.study.files.documents import StudyError
from assay.study.judge import verify
from assay.study.record import kinds
from assay.study.record.study import Study
from assay.study.run import planning, worktree
from assay.study.steps import agenda


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return walkthrough.prepare(tmp_path_factory.mktemp("demo") / "repository")


def test_everything_is_approved_and_nothing_was_run(study: Study) -> None:
    assert approvals.missing(study) == {}
    assert not any(e.kind == kinds.PREPARED for e in study.ledger.events())
    steps = agenda.steps_of(study.history(), study.contract())
    assert {(step.action, step.candidate) for step in steps} == {("run", "baseline")}
    assert study.problems() == []


def test_the_repository_is_clean_and_stands_alone(study: Study) -> None:
    status = ["git", "status", "--porcelain"]
    assert not subprocess.run(status, cwd=study.root, capture_output=True, check=True).stdout
    for path in study.root.glob("*.py"):
        assert "assay" not in path.read_text()


def test_the_hacker_patches_the_reward_alone(study: Study) -> None:
    patch = study.candidate("hacker").change.patch
    assert scope.changed_files(study.root, patch) == ["reward.py"]
    with worktree.worktree(study, study.contract(), "hacker", patch) as place:
        assert "speed" in (place / "reward.py").read_text()


def test_a_seed_trains_and_is_measured_alike_every_time(study: Study, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        out = tmp_path / name
        out.mkdir()
        planned = planning.plan(study, "baseline", "short", 1)
        place = str((study.path / "runs" / planned.run / "out").resolve())
        for words in (planned.argv, planned.evaluation):
            argv = [word.replace(place, str(out)) for word in words]
            subprocess.run(argv, cwd=study.root, env=planned.env, check=True)
        found.append((out / "evaluation.jsonl").read_text())
    assert found[0] == found[1]
    last = json.loads(found[0].splitlines()[-1])
    assert 40_000 <= last["step"] < 45_000 and 30 < last["return"] < 100


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("do not touch")
    with pytest.raises(StudyError, match="not empty"):
        walkthrough.prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [(("better",), True), ((), False), (("better", "lucky"), False), (("hacker",), False)],
)
def test_another_verdict_than_the_truth_is_said(study: Study, accepted, expected) -> None:
    names = ("better", "worse", "lucky", "hacker")
    judged = tuple(Judged(n, "accepted" if n in accepted else "rejected", 1.0, ()) for n in names)
    outcome = Outcome(study, 7.0, 0.5, judged, 40, 60.0, (study.path, study.path))
    assert outcome.as_expected is expected
    assert outcome.facts()["as_expected"] is expected
    assert any("should have accepted better alone" in line for line in outcome.lines()) is (
        not expected
    )


def test_what_is_proposed_differs_from_the_baseline_in_one_thing(study: Study) -> None:
    changes = {
        name: study.candidate(name).change for name in (walkthrough.WINNER, *walkthrough.LOSERS)
    }
    assert all(len(c.parameters) + bool(c.patch) == 1 for c in changes.values())


@pytest.mark.slow
def test_the_gate_accepts_the_better_one_alone_and_says_why(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = walkthrough.run(tmp_path / "demo", said.append)
    assert outcome.as_expected, "\n".join([*said, *outcome.lines()])
    state = {one.name: one.state for one in outcome.judged}
    assert state["worse"] == state["hacker"] == "rejected"
    why = {one.name: " ".join(one.reasons) for one in outcome.judged}
    assert "better" in why["better"]
    assert "worse" in why["worse"]
    assert "the task got better with its reward" in why["hacker"]
    assert "training-reward changed by +" in why["hacker"]
    # The one that is picked for its luck on the development seed is not any better on others.
    trial = {one.name: one.trial for one in outcome.judged}
    assert trial["lucky"] > 0 and "p is not below alpha" in why["lucky"]
    assert outcome.runs == 40 and outcome.noise > 0 and outcome.same > 0.05
    for page in outcome.pages:
        text = page.read_text()
        assert all(name in text for name in state)
    assert verify.verify(outcome.study) == []
    assert any("better-validation-21: done" in line for line in said)
