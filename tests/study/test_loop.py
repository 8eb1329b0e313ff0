"""The loop: it goes on until everything is decided, and stops where a person is needed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from study_samples import add, candidate_values, make_study

from assay.study.agree import spending
from assay.study.agree.approvals import approve
from assay.study.files.candidate import Candidate
from assay.study.files.contract import APPROVALS, Contract
from assay.study.files.documents import StudyError, write_yaml_document
from assay.study.judge import verdict
from assay.study.record import kinds
from assay.study.record.book import Book
from assay.study.record.history import History
from assay.study.record.study import Study
from assay.study.run import planning, recovery, switch
from assay.study.run.queue import Queue
from assay.study.steps import advice, agenda, candidates
from assay.study.steps.agenda import Step
from assay.study.steps.loop import Loop

PLENTY = {"wall_clock_hours": 5.0, "runs": 100, "parallel": 2}


def prepared(root: Path, limits: dict[str, Any] = PLENTY, **experiment: Any) -> Study:
    """Return a study whose return is 1000 times lr, with a baseline and without c1."""
    study = make_study(root, budget=limits, **({"mode": "supervised"} | experiment))
    values = study.contract().model_dump(mode="json")
    values["metrics"]["primary"]["minimum_effect"] = 2.0
    values["evaluation"] |= {"expected_candidates": 4, "test": "welch"}
    write_yaml_document(study.contract_path, Contract(**values))
    for item in APPROVALS:
        approve(study, item, "ada")
    candidates.discard(study, "c1", "ada", "it was frozen under another contract")
    base = candidate_values(id="base", kind="baseline", change={})
    candidates.propose(study, Candidate(**base), "agent")
    return study


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return a prepared study whose baseline has been run."""
    study = prepared(tmp_path_factory.mktemp("measured"))
    assert loop(study)[0] == "everything that was proposed is decided"
    assert study.history().usage.runs == 10
    return study


@pytest.fixture
def study(measured: Study, tmp_path: Path) -> Study:
    """Return a copy of it."""
    shutil.copytree(measured.root, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Study(tmp_path, measured.task, measured.name)


def change(study: Study, part: str, **values: Any) -> None:
    """Change a part of the contract and approve it."""
    agreed = study.contract().model_dump(mode="json")
    agreed[part] |= values
    write_yaml_document(study.contract_path, Contract(**agreed))
    approve(study, part, "ada")


def propose(study: Study, name: str, **parameters: object) -> None:
    values = candidate_values(id=name, change={"parameters": parameters})
    candidates.propose(study, Candidate(**values), "agent")


def loop(study: Study, **options: Any) -> tuple[str, list[str]]:
    lines: list[str] = []
    made = Loop(study, "RUN_CANDIDATE", "agent", say=lines.append, **options)
    return made.run().reason, lines


def steps(study: Study) -> list[Step]:
    return agenda.steps_of(study.history(), study.contract())


def now(study: Study) -> dict[str, str]:
    return dict(study.history().status)


class TestLoop:
    def test_a_run_that_failed_with_a_score_says_why(self, study: Study) -> None:
        record = study.run("base-promotion-1").model_copy(
            update={"outcome": "failed", "reason": "it loaded 'train.py', which was changed"}
        )
        lines: list[str] = []
        made = Loop(study, "RUN_CANDIDATE", "agent", say=lines.append)
        made._running = {record.id: None}  # type: ignore[dict-item]
        made._collect(SimpleNamespace(poll=lambda lease, run: record))  # type: ignore[arg-type]
        assert lines[0] == f"{record.id}: failed, it loaded 'train.py', which was changed"

    @pytest.mark.slow
    def test_it_decides_everything_that_was_proposed(self, tmp_path: Path) -> None:
        study = prepared(tmp_path, keep=2 / 3)
        propose(study, "better", lr=0.009)
        propose(study, "worse", lr=0.0005)
        propose(study, "last", lr=0.0001)
        reason, lines = loop(study)
        assert reason == "everything that was proposed is decided", lines
        assert now(study) | {"c1": "", "base": ""} == {
            "c1": "", "base": "", "better": "accepted", "worse": "rejected", "last": "rejected",
        }  # fmt: skip
        events = list(study.ledger.events())
        last = [e for e in events if e.kind == kinds.STATE and e.data["candidate"] == "last"][-1]
        assert last.data["why"] == "number 3 of 3 in the short trials; 2 went on"
        # 10 of the baseline, 3 short trials, 2 promotions and 1 validation.
        used = History.read(events).usage
        assert (used.runs, used.open) == (10 + 3 + 2 * 5 + 5, ())
        spent = [e.data["alpha"] for e in events if e.kind == kinds.GIVEN]
        assert spent == [0.0125, 0.0125, 0.05] or spent == [0.0125, 0.05, 0.0125]
        assert Book.read(events).incumbent == "better"
        assert study.ledger.read().problems == []
        assert steps(study) == []
        # What comes now is laid over the incumbent's settings.
        with pytest.raises(StudyError, match="only a completed one is judged"):
            verdict.judge(study, "better", "validation", "agent")
        propose(study, "slower", sleep=0.01)
        candidates.validate(study, "slower", "agent")
        planned = planning.plan(study, "slower", "short", 0)
        assert planned.argv[-2:] == ("lr=0.009", "sleep=0.01")

    @pytest.mark.slow
    def test_a_killed_loop_goes_on_where_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        study = prepared(tmp_path)
        propose(study, "better", lr=0.009)
        monkeypatch.setattr(recovery, "START_SECONDS", 10.0)
        code = (
            "import sys; from pathlib import Path; from assay.study.record.study import Study\n"
            "from assay.study.run import recovery; from assay.study.steps.loop import Loop\n"
            "recovery.START_SECONDS = 10.0\n"
            "Loop(Study(Path(sys.argv[1]), 'cartpole', 'lr'), 'RUN_CANDIDATE', 'agent').run()"
        )
        words = [sys.executable, "-c", code, str(tmp_path)]
        for _ in range(3):
            process = subprocess.Popen(words)
            before = study.history().usage.runs
            while study.history().usage.runs < before + 3:
                time.sleep(0.2)  # reading a history takes its time
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
        reason, lines = loop(study)
        assert reason == "everything that was proposed is decided", "\n".join(lines)
        assert now(study)["better"] == "accepted"
        # Every seed has one result, and what a kill prevented from starting never started.
        done = study.history().over()
        counted = [(run.candidate, run.phase, run.seed) for run in done if run.outcome == "done"]
        assert len(counted) == len(set(counted)) == 10 + 1 + 5 + 5
        assert len({run.id for run in done}) == len(done)
        for run in done:
            started = study.path / "runs" / run.id / "out" / "starts"
            times = len(started.read_text()) if started.exists() else 0
            assert times == int(run.outcome == "done"), run

    def test_the_budget_ends_it_and_what_is_complete_is_still_judged(self, study: Study) -> None:
        change(study, "budget", runs=16)
        propose(study, "better", lr=0.009)
        reason, _ = loop(study)
        assert reason == "all 16 runs of the budget are used"
        assert spending.decisions(study.history()) == 1
        with pytest.raises(StudyError, match="was judged in the promotion phase already"):
            verdict.judge(study, "better", "promotion", "agent")
        assert spending.decisions(study.history()) == 1
        assert [s.phase for s in steps(study)] == ["validation"]

    def test_hours_end_it_before_a_launch(self, tmp_path: Path) -> None:
        study = prepared(tmp_path, PLENTY | {"wall_clock_hours": 0.06})
        reason, _ = loop(study)
        assert "wall-clock hours" in reason
        assert not study.history().usage.open

    def test_crashes_in_a_row_end_it(self, study: Study) -> None:
        change(study, "experiment", stop={"failures": 2})
        for name in ("a", "b", "c"):
            propose(study, name, exit=3)
        reason, _ = loop(study)
        assert reason == "the last 2 runs failed"
        assert "debug" in now(study).values()

    def test_a_candidate_that_crashes_is_left_to_a_person(self, study: Study) -> None:
        propose(study, "broken", exit=3)
        reason, _ = loop(study)
        assert reason.startswith("a person is needed: run broken-short-0 failed (it exited with 3)")
        candidates.discard(study, "broken", "ada", "its exit code is wanted")
        assert steps(study) == []

    def test_waiting_runs_of_what_was_discarded_are_not_spoken_of(self, study: Study) -> None:
        propose(study, "gone", lr=0.002)
        candidates.validate(study, "gone", "agent")
        Queue(study).add("gone", "short", [0])
        candidates.discard(study, "gone", "ada", "a typo")
        propose(study, "broken", exit=3)
        reason, lines = loop(study)
        assert reason.startswith("a person is needed: run broken-short-0 failed")
        assert not [line for line in lines if line.startswith("gone")]

    def test_a_draft_that_breaks_the_contract_is_left_alone(self, study: Study) -> None:
        propose(study, "wild", lr=5.0)
        propose(study, "better", lr=0.009)
        reason, lines = loop(study)
        refusal = (
            "lr=5.0 is out of scope: expected 0.0001 to 0.01. To allow it: assay study contract "
            "set 'scope.parameters.lr.high=5', and have the scope approved."
        )
        assert f"wild is left alone: {refusal}" in lines
        assert now(study)["wild"] == "draft"
        assert reason == f"nothing is left but what was refused: {refusal}"

    def test_nothing_is_run_that_could_not_be_judged(self, study: Study) -> None:
        change(study, "evaluation", expected_candidates=1)
        propose(study, "worse", lr=0.0005)
        loop(study)
        propose(study, "better", lr=0.009)
        reason, lines = loop(study)
        assert reason.startswith(
            "a person is needed: better cannot be judged any more: the study's"
        )
        assert advice.next_step(study).command == "assay study discard better --why TEXT"
        assert now(study)["better"] == "validated" and lines == [
            "better keeps to the contract and is frozen"
        ]

    def test_another_number_of_candidates_voids_nothing(self, study: Study) -> None:
        change(study, "evaluation", expected_candidates=5)
        propose(study, "better", lr=0.009)
        reason, lines = loop(study)
        assert reason == "everything that was proposed is decided", lines
        assert now(study)["better"] == "accepted"

    def test_what_voids_the_baseline_ends_it_before_anything_is_run(self, study: Study) -> None:
        change(study, "evaluation", episodes=30)
        propose(study, "better", lr=0.009)
        before = study.history().usage.runs
        reason, _ = loop(study)
        assert "evaluation.episodes changed after base was registered" in reason
        assert study.history().usage.runs == before

    def test_early_looks_spend_fewer_seeds(self, study: Study) -> None:
        pools = {"promotion": list(range(1, 11)), "validation": list(range(11, 21))}
        change(study, "evaluation", looks=[5], pools={"development": [0], **pools})
        propose(study, "better", lr=0.009)
        reason, lines = loop(study)
        assert reason == "everything that was proposed is decided", lines
        assert now(study)["better"] == "accepted"
        # The baseline has both pools, the candidate its trial, the look and its validation.
        assert study.history().usage.runs == 20 + 1 + 5 + 10

    def test_two_loops_share_a_study(self, study: Study) -> None:
        change(study, "budget", parallel=3)
        propose(study, "better", lr=0.009)
        propose(study, "worse", lr=0.0005)
        others: list[tuple[str, list[str]]] = []
        thread = threading.Thread(target=lambda: others.append(loop(study)))
        thread.start()
        mine = loop(study)
        thread.join()
        assert {mine[0], others[0][0]} == {"everything that was proposed is decided"}, mine[1]
        assert not [line for line in mine[1] + others[0][1] if "left alone" in line]
        events = list(study.ledger.events())
        given = [(e.data["candidate"], e.data["phase"]) for e in events if e.kind == kinds.GIVEN]
        assert len(given) == len(set(given))

    def test_the_kill_switch_ends_what_runs(self, tmp_path: Path) -> None:
        study = prepared(tmp_path)
        add(study, "slow", sleep=60)
        seen: list[float] = []

        def wait(seconds: float) -> None:
            seen.append(seconds)
            if len(seen) == 5:
                switch.stop(study, "enough", "ada")
            time.sleep(seconds)

        candidates.discard(study, "base", "ada", "replaced by a slow one")
        values = candidate_values(id="base2", kind="baseline", change={})
        candidates.propose(study, Candidate(**values), "agent")
        made = Loop(study, "RUN_CANDIDATE", "agent", wait=wait)
        ending = made.run()
        assert "enough" in ending.reason and not ending.done
        assert not study.history().usage.open

    def test_a_proposer_is_asked_until_the_stop_rule(self, study: Study) -> None:
        change(study, "experiment", mode="autonomous", stop={"candidates": 2}, keep=1.0)
        rates = iter((0.0011, 0.009, 0.005, 0.004))

        def proposer(study: Study) -> list[str]:
            rate = next(rates)
            propose(study, f"lr-{rate}", lr=rate)
            return [f"lr-{rate}"]

        study_states = now(study)
        assert study_states["c1"] == "rejected"  # one of the two that are decided
        reason, lines = loop(study, proposer=proposer)
        assert reason == "2 candidates are decided, as many as the contract asks for", lines
        assert next(rates) == 0.009  # so it was asked once

    def test_a_proposer_goes_on_beside_a_candidate_that_waits_for_a_person(self, study) -> None:
        change(study, "experiment", mode="autonomous")
        propose(study, "broken", exit=1)
        asked: list[str] = []
        looks: list[float] = []

        def wait(seconds: float) -> None:
            looks.append(seconds)
            assert len(looks) < 500, "it waits for nothing"
            time.sleep(seconds)

        def proposer(study: Study) -> list[str]:
            asked.append("more")
            return []

        made = Loop(study, "RUN_CANDIDATE", "agent", proposer=proposer, wait=wait)
        assert made.run() == ("the proposer has no more candidates", False)
        assert asked == ["more"] and now(study)["broken"] == "debug"
        alone = Loop(study, "RUN_CANDIDATE", "agent", wait=wait).run()
        assert alone.reason.startswith("a person is needed: run broken-short-0 failed")
        assert not alone.done


class TestRefusals:
    @pytest.mark.parametrize(
        ("experiment", "options", "match"),
        [
            ({"mode": "manual"}, {}, "'manual': a person starts every run"),
            ({}, {"proposer": lambda study: []}, "proposes nothing by itself"),
        ],
    )
    def test_what_the_contract_does_not_allow(
        self, tmp_path: Path, experiment: Any, options: Any, match: str
    ) -> None:
        study = prepared(tmp_path, **experiment)
        with pytest.raises(StudyError, match=match):
            loop(study, **options)
        assert study.history().usage.runs == 0

    def test_a_wrong_word(self, tmp_path: Path) -> None:
        study = prepared(tmp_path)
        with pytest.raises(StudyError, match="does not confirm a loop"):
            Loop(study, "yes", "agent").run()

    def test_an_approval_that_is_voided_under_way(self, tmp_path: Path) -> None:
        study = prepared(tmp_path)
        text = study.contract_path.read_text()

        def wait(seconds: float) -> None:
            study.contract_path.write_text(text.replace("episodes: 20", "episodes: 2"))
            time.sleep(seconds)

        reason = Loop(study, "RUN_CANDIDATE", "agent", wait=wait).run().reason
        assert "1 of 8 approvals are missing" in reason


class TestAgenda:
    def test_nothing_is_on_it_before_the_baseline(self, tmp_path: Path) -> None:
        study = prepared(tmp_path)
        propose(study, "better", lr=0.009)
        assert [(s.action, s.candidate) for s in steps(study)] == [("validate", "base")]
        candidates.validate(study, "base", "agent")
        assert [(s.action, s.phase, s.seeds) for s in steps(study)] == [
            ("run", "promotion", (1, 2, 3, 4, 5)),
            ("run", "validation", (11, 12, 13, 14, 15)),
        ]

    def test_without_one(self, tmp_path: Path) -> None:
        study = make_study(tmp_path)
        assert [s.action for s in steps(study)] == ["baseline"]
        assert agenda.take(study, steps(study)[0], "agent") == "baseline is planned"
        assert [(s.action, s.candidate) for s in steps(study)] == [("validate", "baseline")]
        with pytest.raises(StudyError, match="is not a step"):
            agenda.take(study, agenda.Step("extend", "", "c1"), "agent")

    def test_ranking_needs_trials(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="No short trial is complete"):
            agenda.promote(make_study(tmp_path), "agent")
