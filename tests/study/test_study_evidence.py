"""A whole study is checked: every file that a run wrote, its record, and its audits."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from study_samples import add, candidate_values, make_study

from assay.study.agree import setup
from assay.study.agree.approvals import approve
from assay.study.agree.protocol import fingerprint
from assay.study.files.candidate import Candidate
from assay.study.files.documents import canonical, digest
from assay.study.judge import audit, verdict, verify
from assay.study.record import kinds
from assay.study.record.ledger import LedgerError
from assay.study.record.study import Study
from assay.study.run import launcher, recovery
from assay.study.steps import candidates

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
        planned = launcher.launch(study, name, "promotion", 1, confirm=None, actor="a")
        assert recovery.wait(study, planned.run, 300).outcome == "done"
    audit.audit(study, "c1", "promotion", "agent")
    study.sync()
    return study


@pytest.fixture
def study(original: Study, tmp_path: Path) -> Study:
    shutil.copytree(original.root, tmp_path / "copy", symlinks=True)
    return Study(tmp_path / "copy", original.task, original.name)


def reasons(study: Study) -> list[str]:
    return [problem.reason for problem in verify.verify(study)]


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
    (line,) = {problem.line for problem in verify.verify(study)}
    event = list(study.ledger.events())[line - 1]
    assert (event.kind, event.data["run"]) == (kinds.ENDED, RUN)


# ---------------------------------------------------------------------- what follows from what


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return a study with an incumbent that earned it; its contract was agreed on again once."""
    study = make_study(
        tmp_path_factory.mktemp("decided"), budget={"wall_clock_hours": 9, "runs": 60}
    )
    values = yaml.safe_load(study.contract_path.read_text())
    values["metrics"]["primary"]["minimum_effect"] = 5.0
    values["evaluation"]["expected_candidates"] = 1
    printed = {"kind": "stdout", "key": r"trained (\d+)"}
    values["metrics"]["diagnostics"] = [{"name": "printed", "source": printed}]
    study.contract_path.write_text(yaml.safe_dump(values, sort_keys=False))
    approve(study, "metrics", "ada")
    approve(study, "evaluation", "ada")
    baseline = candidate_values(id="base", kind="baseline", change={})
    candidates.propose(study, Candidate(**baseline), "agent")
    candidates.validate(study, "base", "agent")
    add(study, "c2", lr=0.01)
    for name, phase in (("base", "promotion"), ("base", "validation"), ("c2", "promotion")):
        run_all(study, name, phase)
    for phase in kinds.DECIDING:
        if phase == "validation":
            run_all(study, "c2", phase)
        assert audit.audit(study, "c2", phase, "agent").passed
        assert verdict.judge(study, "c2", phase, "agent").outcome == "accept"
    study.sync()
    return study


def run_all(study: Study, name: str, phase: kinds.Phase) -> None:
    for seed in getattr(study.contract().evaluation.pools, phase):
        planned = launcher.launch(study, name, phase, seed, confirm=None, actor="a")
        assert recovery.wait(study, planned.run, 300).outcome == "done"


@pytest.fixture
def won(decided: Study, tmp_path: Path) -> Study:
    shutil.copytree(decided.root, tmp_path / "copy", symlinks=True)
    return Study(tmp_path / "copy", decided.task, decided.name)


def rewritten(study: Study, change: Callable[[dict], object]) -> None:
    """Change events, chain them again and note that everywhere, as a thorough forger would."""
    previous, lines = "0" * 64, []
    for line in study.ledger.path.read_text().splitlines():
        event = json.loads(line)
        del event["hash"]
        change(event)
        event["prev"] = previous
        previous = digest(event)
        lines.append(canonical(event)[:-1] + f',"hash":"{previous}"}}\n'.encode())
    study.ledger.path.write_bytes(b"".join(lines))
    (study.path / "state.json").unlink()


def test_an_incumbent_that_earned_it(won: Study) -> None:
    assert reasons(won) == [] and won.book()[0].incumbent == "c2"


@pytest.mark.parametrize("steps", [("accepted",), ("launched", "completed", "accepted")])
def test_an_incumbent_without_runs_or_verdicts(study: Study, steps: tuple[str, ...]) -> None:
    add(study, "c9", lr=0.003)
    before = "validated"
    for to in steps:
        facts = {"candidate": "c9", "from": before, "to": to, "why": "it is mine"}
        study.ledger.append(kinds.STATE, facts, actor="eve")
        before = to
    study.sync()
    found = reasons(study)
    assert study.book()[0].incumbent == "c9" and found
    words = "cannot become accepted" if len(steps) == 1 else "no run of it was prepared"
    assert any(words in reason for reason in found), found
    if len(steps) > 1:
        assert any("its verdict in promotion is: none" in reason for reason in found), found


def test_a_measurement_that_was_changed_and_everything_chained_again(won: Study) -> None:
    def worse(event: dict) -> None:
        if event["kind"] == kinds.MEASURED and event["data"]["run"].startswith("base-promotion"):
            event["data"]["metrics"]["return"] -= 50.0

    rewritten(won, worse)
    subprocess.run(["git", "update-ref", "-d", won.ref.name], cwd=won.root, check=True)
    won.ref.note(won.ledger.head())
    found = reasons(won)
    for words in (
        "return of run base-promotion-1 is 102.0 by its files, not 52.0",
        "the verdict on c2 in promotion does not follow: its effect is 59",
        "the ref was made again",
    ):
        assert any(words in reason for reason in found), (words, found)


def test_a_history_that_was_rewritten_upon_the_old_one_in_git(study: Study) -> None:
    """The ref names the new head, and its commits still name the old ones."""
    rewritten(study, lambda event: event.update(actor="eve"))
    study.ref.note(study.ledger.head())
    assert study.ref.head() == study.ledger.head()
    (reason,) = reasons(study)
    assert "once noted event" in reason and "history was rewritten" in reason
    with pytest.raises(LedgerError, match="history was rewritten"):
        study.ledger.append("note", {}, actor="eve") and study.sync()


def test_a_verdict_that_was_made_up(won: Study) -> None:
    def better(event: dict) -> None:
        if event["kind"] == kinds.GIVEN:
            event["data"]["minimum_effect"] = 50.0

    rewritten(won, better)
    assert any("the runs come to" in reason for reason in reasons(won)), reasons(won)


def test_the_directory_of_another_study(won: Study) -> None:
    won.path.rename(won.path.parent / "mine")
    other = Study(won.root, won.task, "mine")
    text = other.contract_path.read_text().replace("study: lr", "study: mine")
    other.contract_path.write_text(text)
    assert any("it is the ledger of another study" in reason for reason in reasons(other))


def test_the_name_that_a_study_was_begun_under(tmp_path: Path) -> None:
    made = setup.initialise(tmp_path, "toy", "one", actor="ada")
    assert reasons(made) == []
    shutil.copytree(made.path, made.path.parent / "two")
    (reason,) = reasons(Study(tmp_path, "toy", "two"))
    assert reason == "it was begun as toy/one, and this is toy/two"


def edit_candidate(study: Study) -> None:
    path = study.candidate_path("c2")
    path.write_text(path.read_text().replace("learns faster", "is what I say"))


def edit_contract(study: Study) -> None:
    path = study.contract_path
    path.write_text(path.read_text().replace("minimum_effect: 5.0", "minimum_effect: 0.1"))


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (edit_candidate, "candidate c2 was edited after it was registered"),
        (lambda s: shutil.rmtree(s.path / "candidates"), "candidate base cannot be read"),
        (edit_contract, "was changed after ada approved it"),
        (lambda s: s.contract_path.write_text(""), "the contract cannot be read"),
        (
            lambda s: (s.path / "runs/c2-promotion-1/stdout.log").write_text("trained 7\n"),
            "printed of run c2-promotion-1 is 7.0 by its files, not None",
        ),
        (
            lambda s: (s.path / "runs/c2-promotion-1/plan.json").write_text('{"env": {}}'),
            "the plan of run c2-promotion-1 (plan.json) is not what it was given",
        ),
        (lambda s: (s.path / "runs/c2-promotion-1/plan.json").unlink(), "(plan.json) is not what"),
    ],
)  # fmt: skip
def test_files_that_the_record_rests_on(
    won: Study, tamper: Callable[[Study], object], words: str
) -> None:
    tamper(won)
    found = reasons(won)
    assert any(words in reason for reason in found), found


def test_an_end_without_a_beginning(study: Study) -> None:
    facts = {"run": "c9-promotion-1", "outcome": "done", "reason": "", "hours": 0.1}
    study.ledger.append(kinds.ENDED, facts, actor="eve")
    study.sync()
    assert reasons(study) == ["run c9-promotion-1 has ended, and was never prepared"]


def test_what_a_run_printed_is_sealed(study: Study) -> None:
    log = study.path / "runs" / RUN / "stdout.log"
    facts = {"run": RUN, "log": fingerprint(log)}
    study.ledger.append(kinds.EXITED, facts, actor="assay")
    study.sync()
    assert reasons(study) == []
    log.write_text("nothing\n")
    assert any("(stdout.log) was changed" in reason for reason in reasons(study))
