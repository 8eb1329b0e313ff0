"""Attacks 24 to 26: look at scores first, and then choose which of them count."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from faked_runs import add, fake, judged, lose, measured, state
from study_samples import add as add_settings
from study_samples import launch, make_study

from assay.study.agree import spending
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, write_yaml_document
from assay.study.judge import audit, verdict
from assay.study.record import kinds
from assay.study.record.study import Study
from assay.study.report import pages
from assay.study.run import recovery, switch
from assay.study.steps import agenda, candidates


def check(study: Study, title: str, name: str = "c1") -> tuple[bool, str]:
    found = audit.audit(study, name, "promotion", "agent")
    [seen] = [check for check in found.checks if check.name == title]
    return seen.passed, seen.detail


class TestTheKillSwitch:
    """24: touch STOP while a run looks bad, remove it, and run the seed again."""

    def stop_by_hand(self, study: Study, seed: int) -> None:
        run = launch(study, "slow", "promotion", seed)
        process = study.path / "runs" / run / "process.json"
        while not process.exists():
            time.sleep(0.02)
        (study.path / kinds.STOP).touch()
        assert recovery.wait(study, run, 300).reason.startswith(kinds.SWITCHED)
        (study.path / kinds.STOP).unlink()

    def test_it_is_on_record_and_counts_as_a_lost_run(self, tmp_path: Path) -> None:
        study = make_study(tmp_path)
        add_settings(study, "slow", sleep=60)
        self.stop_by_hand(study, 1)
        assert [e.kind for e in study.ledger.events()].count(kinds.STOPPED) == 1
        with pytest.raises(StudyError, match="The study is stopped: the file STOP was found"):
            launch(study, "slow", "promotion", 1)  # removing the file is not enough
        switch.go_on(study, "agent")
        self.stop_by_hand(study, 2)
        switch.go_on(study, "agent")
        candidates.propose(study, baseline(), "agent")
        passed, detail = check(study, "no run was stopped before its end", "slow")
        assert not passed and "slow-promotion-1, slow-promotion-2 were stopped" in detail

    def test_control_one_stop_of_two_parallel_runs_is_one_loss(self, tmp_path: Path) -> None:
        budget = {"wall_clock_hours": 2.0, "runs": 40, "parallel": 2}
        study = make_study(tmp_path, budget)
        add_settings(study, "slow", sleep=60)
        candidates.propose(study, baseline(), "agent")
        title = "no run was stopped before its end"
        for seeds, passes in (((1, 2), True), ((3, 4), False)):
            runs = [launch(study, "slow", "promotion", seed) for seed in seeds]
            for run in runs:
                while not (study.path / "runs" / run / "process.json").exists():
                    time.sleep(0.02)
            switch.stop(study, "the machine is needed", "ada")
            for run in runs:
                assert recovery.wait(study, run, 300).outcome == "lost"
            switch.go_on(study, "ada")
            passed, detail = check(study, title, "slow")
            assert passed is passes, detail
            if passes:
                assert (
                    detail
                    == "stopped: 2 runs of slow, in one stop of the study, and 0 runs of base"
                )
        assert "slow-promotion-1, slow-promotion-2, slow-promotion-3, slow-promotion-4" in detail

    @pytest.mark.parametrize("seeds", [(1,), (1, 2)])
    def test_control_a_baseline_that_was_stopped_once_goes_on(self, tmp_path, seeds) -> None:
        study = measured(tmp_path)
        for seed in seeds:
            reason = f"{kinds.SWITCHED} (event 40 of the ledger)"
            lose(study, "base", "promotion", seed, reason=reason)
        assert [s.action for s in agenda.steps_of(study.history(), study.contract())] == []
        lose(study, "base", "promotion", 3, reason=f"{kinds.SWITCHED} (event 99 of the ledger)")
        [step] = agenda.steps_of(study.history(), study.contract())
        assert step.action == "debug" and "were lost, so that no candidate's audit" in step.reason

    def test_control_a_study_that_was_stopped_once_goes_on(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        add(study, "c1")
        lose(study, "c1", "promotion", 1, reason=kinds.SWITCHED)
        fake(study, "c1", "promotion", gain=14.0)
        seen = check(study, "no run was stopped before its end")
        assert seen == (True, "stopped: 1 run of c1 and 0 runs of base")
        assert judged(study, "c1") == "accept"


class TestGivingUp:
    """25: give up before the verdict, and propose the same change under another name."""

    def test_looking_has_spent_the_share(self, tmp_path: Path) -> None:
        study = measured(tmp_path, expected_candidates=2)
        for name in ("first", "second"):
            add(study, name)
            fake(study, name, "promotion", gain=1.0, seeds=(1,))  # one score is a look
            candidates.discard(study, name, "agent", "it does not look good")
        assert spending.decisions(study.history()) == 2
        assert spending.spent(study.history()) == pytest.approx(0.05)
        add(study, "third")
        with pytest.raises(StudyError, match=r"error rate of 0\.05 is spent .*: 2 candidates;"):
            fake(study, "third", "promotion", gain=14.0)

    def test_the_same_change_under_another_name_is_recognised(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        add(study, "bad", change={"parameters": {"lr": 0.002}})
        fake(study, "bad", "promotion", seeds=(1, 2))
        candidates.discard(study, "bad", "agent", "it does not look good")
        with pytest.raises(StudyError, match="'good' is the same change as 'bad', which is reject"):
            add(study, "good", change={"parameters": {"lr": 0.002}})

    def test_the_share_is_fixed_before_the_first_score(self, tmp_path: Path) -> None:
        """Who has seen a score cannot have the rest of alpha spent on it."""
        study = measured(tmp_path, expected_candidates=20)
        add(study, "lucky")
        fake(study, "lucky", "promotion", gain=14.0)
        values = study.contract().model_dump(mode="json")
        values["evaluation"]["expected_candidates"] = 1
        write_yaml_document(study.contract_path, Contract(**values))
        audit.audit(study, "lucky", "promotion", "agent")
        assert verdict.judge(study, "lucky", "promotion", "agent").alpha == pytest.approx(0.0025)

    def test_control_what_was_never_looked_at_costs_nothing(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        add(study, "c1", change={"parameters": {"lr": 0.002}})
        lose(study, "c1", "promotion", 1, alpha=0.0025)
        candidates.discard(study, "c1", "agent", "the idea was wrong")
        assert spending.decisions(study.history()) == 0
        add(study, "c2")
        fake(study, "c2", "promotion", gain=14.0)
        assert judged(study, "c2") == "accept"
        assert spending.decisions(study.history()) == 1


def baseline(name: str = "base"):
    from study_samples import candidate_values

    from assay.study.files.candidate import Candidate

    return Candidate(**candidate_values(id=name, kind="baseline", change={}))


class TestBaselines:
    """26: discard a baseline that scored well and measure another, until one is low."""

    def test_it_is_limited_and_shown(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        candidates.discard(study, "base", "agent", "too good")
        add(study, "base2", kind="baseline", change={})
        for phase in kinds.DECIDING:
            fake(study, "base2", phase)
        add(study, "c1")
        fake(study, "c1", "promotion", gain=14.0)
        passed, detail = check(study, "the baseline was not chosen among several")
        assert passed and "base was discarded after 10 seeds, with a mean of 100 (too goo" in detail
        pages.write(study)
        report = (study.path / "report.md").read_text()
        assert "The baseline base was discarded after 10 seeds, with a mean of 100" in report
        candidates.discard(study, "base2", "agent", "too good as well")
        with pytest.raises(StudyError, match=r"2 baselines with scores were discarded \(base, ba"):
            add(study, "base3", kind="baseline", change={})

    def test_more_of_them_fail_the_audit(self, tmp_path: Path) -> None:
        study = measured(tmp_path)
        why = {"discarded-baselines": "the machine was changed"}
        waive(study, why)
        for number in (2, 3):
            name = "base" if number == 2 else f"base{number - 1}"
            candidates.discard(study, name, "agent", "too good")
            add(study, f"base{number}", kind="baseline", change={})
            for phase in kinds.DECIDING:
                fake(study, f"base{number}", phase)
        add(study, "c1")
        fake(study, "c1", "promotion", gain=14.0)
        assert check(study, "the baseline was not chosen among several")[0]
        waive(study, {})  # and not if nobody approved it
        passed, detail = check(study, "the baseline was not chosen among several")
        assert not passed and "base was discarded" in detail and "base2 was discarded" in detail

    def test_control_a_baseline_without_scores_is_replaced_freely(self, tmp_path: Path) -> None:
        study = make_study(tmp_path)
        for name in ("base", "base2", "base3", "base4"):
            candidates.propose(study, baseline(name), "agent")
            candidates.discard(study, name, "agent", "its budget was wrong")
        assert state(study, "base4") == "rejected"


def waive(study: Study, why: dict[str, str]) -> None:
    values = study.contract().model_dump(mode="json")
    values["experiment"]["exceptions"] = why
    write_yaml_document(study.contract_path, Contract(**values))
