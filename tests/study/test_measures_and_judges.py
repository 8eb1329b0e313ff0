"""What measures and what judges are two hashes: what voids evidence is named, and can be undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faked_runs import add, agree, contract, fake, judged, measured, state
from study_samples import POOLS, make_study

from assay.study.agree import protocol
from assay.study.agree.approvals import approve
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, write_yaml_document
from assay.study.judge import audit, verdict, verify
from assay.study.record.book import Book
from assay.study.record.study import Study
from assay.study.report.standings import answer, standings
from assay.study.run import planning
from assay.study.steps import advice, agenda, candidates


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return measured(tmp_path)


def steps(study: Study) -> list[tuple[str, str]]:
    found = agenda.steps_of(study.history(), study.contract())
    return [(step.action, step.candidate) for step in found]


def change(study: Study, part: str, **values: Any) -> None:
    agreed = study.contract().model_dump(mode="json")
    agreed[part] |= values
    write_yaml_document(study.contract_path, Contract(**agreed))


class TestWhatDoesNotVoidTheBaseline:
    @pytest.mark.parametrize(
        "judging",
        [{"expected_candidates": 3}, {"alpha": 0.1}, {"power": 0.9}, {"test": "paired"},
         {"looks": [5]}],
    )  # fmt: skip
    def test_another_way_to_judge(self, study: Study, judging: dict[str, Any]) -> None:
        agree(study, **judging)
        assert agenda.voided(study, study.history(), study.contract()) is None
        add(study, "c1")
        fake(study, "c1", "promotion", gain=14.0)
        assert judged(study, "c1") == "accept"

    def test_a_candidate_that_is_in_promotion_keeps_its_share(self, study: Study) -> None:
        add(study, "c1")
        fake(study, "c1", "promotion", gain=14.0, seeds=(1, 2))
        agree(study, expected_candidates=40)
        fake(study, "c1", "promotion", gain=14.0, seeds=(3, 4, 5))
        audit.audit(study, "c1", "promotion", "agent")
        seen = verdict.judge(study, "c1", "promotion", "agent")
        assert (seen.outcome, seen.alpha) == ("accept", 0.0025)

    def test_another_test_is_another_registration(self, study: Study) -> None:
        """Who has seen the scores does not choose the test; before them, it is registered again."""
        add(study, "c1")
        agree(study, test="permutation")
        candidates.validate(study, "c1", "agent")
        fake(study, "c1", "promotion", gain=14.0)
        agree(study, test="paired")
        with pytest.raises(StudyError, match="cannot become validated"):
            candidates.validate(study, "c1", "agent")
        assert judged(study, "c1") == "invalid"


class TestWhatVoidsIt:
    def test_it_is_said_before_anything_is_spent(self, study: Study) -> None:
        agree(study, episodes=30)
        step = agenda.voided(study, study.history(), study.contract())
        assert step is not None and step.reason.startswith(
            "evaluation.episodes changed after base was registered, so that its runs count for noth"
        )
        state = study.history().state(study.task, study.name)  # what `next` is answered from
        assert agenda.voided(study, Book(state), study.contract()) == step

    def test_next_and_a_launch_name_it(self, tmp_path: Path) -> None:
        study = make_study(tmp_path)
        from study_samples import candidate_values

        from assay.study.files.candidate import Candidate

        base = candidate_values(id="base", kind="baseline", change={})
        candidates.propose(study, Candidate(**base), "agent")
        candidates.validate(study, "base", "agent")
        change(study, "evaluation", episodes=30)
        approve(study, "evaluation", "ada")
        seen = advice.next_step(study)
        assert (seen.action, seen.safe) == ("debug", False)
        assert "evaluation.episodes changed after base was registered" in seen.reason
        with pytest.raises(StudyError, match=r"was registered: evaluation\.episodes"):
            planning.plan(study, "base", "promotion", 1)
        candidates.validate(study, "c1", "agent")  # registered by the contract as it is now
        with pytest.raises(StudyError, match=r"'base' was measured by another protocol.*episodes"):
            planning.plan(study, "c1", "short", 0)
        candidates.validate(study, "base", "agent")
        assert planning.plan(study, "c1", "short", 0).seed == 0


class TestInvalidIsNotTheEnd:
    def test_three_causes_three_messages(self, study: Study) -> None:
        reasons = []
        extractor = study.root / ".rlxp/shared/metric_extractors/mine.py"
        extractor.parent.mkdir(parents=True)

        add(study, "edited")
        fake(study, "edited", "promotion", gain=14.0)
        path = study.candidate_path("edited")
        text = path.read_text()
        path.write_text(text.replace("A larger step learns faster.", "It is better."))
        reasons.append(self.invalid(study, "edited"))
        path.write_text(text)
        assert judged(study, "edited") == "accept"

        add(study, "remeasured")
        fake(study, "remeasured", "promotion", gain=14.0)
        extractor.write_text("x = 1\n")
        reasons.append(self.invalid(study, "remeasured"))
        extractor.unlink()
        assert judged(study, "remeasured") == "accept"

        add(study, "rejudged")
        fake(study, "rejudged", "promotion", gain=14.0)
        agree(study, test="paired")
        reasons.append(self.invalid(study, "rejudged"))
        agree(study, test="auto")
        assert judged(study, "rejudged") == "accept"

        assert reasons[0].startswith(
            "Candidates/edited.yaml (hypothesis) was edited after 'edited' was registered."
        )
        assert ".rlxp/shared/metric_extractors/mine.py" in reasons[1]
        assert reasons[2].startswith(
            "How 'rejudged' is judged was changed after it was registered: evaluation.test."
        )
        found = [str(problem) for problem in verify.verify(study) if "verdict" in problem.reason]
        assert found == []

    def invalid(self, study: Study, name: str) -> str:
        audit.audit(study, name, "promotion", "agent")
        seen = verdict.judge(study, name, "promotion", "agent")
        assert (seen.outcome, state(study, name)) == ("invalid", "completed")
        assert ("debug", name) in steps(study)  # a person removes the cause
        return seen.reasons[0]

    def test_arms_that_were_measured_differently_say_how(self, study: Study) -> None:
        agree(study, episodes=30)
        add(study, "c1")
        fake(study, "c1", "promotion", gain=14.0)
        audit.audit(study, "c1", "promotion", "agent")
        seen = verdict.judge(study, "c1", "promotion", "agent")
        assert seen.outcome == "invalid"
        assert "evaluation.episodes changed in between" in seen.reasons[0]
        # A baseline that is measured in the same way is what it lacks.
        candidates.discard(study, "base", "ada", "the number of episodes was changed")
        add(study, "base2", kind="baseline", change={})
        for phase in ("promotion", "validation"):
            fake(study, "base2", phase)
        assert judged(study, "c1") == "accept"


def test_status_says_of_a_baseline_what_was_run(tmp_path: Path) -> None:
    study = Study(tmp_path, "cartpole", "lr")
    study.path.mkdir(parents=True)
    write_yaml_document(study.contract_path, contract())
    add(study, "base", kind="baseline", change={})
    fake(study, "base", "promotion", seeds=(1, 2))
    (row,) = standings(study.history(), study.contract())
    assert row.state == "completed"
    assert row.reason == "none of its runs is under way (2 done)"
    assert row.seeds_text() == "2 of 5"
    said = answer([row], "", study.contract().metrics.primary)
    assert "The baseline's return is 98.50 so far, by 2 of 5 promotion seeds." in said


class TestAnExtendedPool:
    def extended(self, study: Study) -> None:
        add(study, "c1")
        fake(study, "c1", "promotion", gain=3.0)
        assert judged(study, "c1") == "inconclusive"
        assert steps(study) == [("extend", "c1")]
        agree(study, pools=POOLS | {"promotion": list(range(1, 10))})
        assert steps(study) == [("run", "base")]
        fake(study, "base", "promotion", seeds=(6, 7, 8, 9))
        assert steps(study) == [("run", "c1")]
        fake(study, "c1", "promotion", gain=9.0, seeds=(6, 7, 8, 9))

    def test_it_is_audited_and_judged_again(self, study: Study) -> None:
        self.extended(study)
        assert steps(study) == [("audit", "c1")]
        audit.audit(study, "c1", "promotion", "agent")
        assert steps(study) == [("judge", "c1")]
        assert verdict.judge(study, "c1", "promotion", "agent").outcome == "accept"
        assert steps(study) == [("run", "c1")]  # in validation

    def test_status_shows_the_seeds_that_the_effect_is_of(self, study: Study) -> None:
        add(study, "c1")
        fake(study, "c1", "promotion", gain=3.0)
        assert judged(study, "c1") == "inconclusive"
        agree(study, pools=POOLS | {"promotion": list(range(1, 10))})
        fake(study, "base", "promotion", gain=50.0, seeds=(6, 7, 8, 9))
        row = standings(study.history(), study.contract())[-1]
        assert (row.name, row.seeds) == ("c1", 5)
        assert row.mean is not None and row.rival_mean == 100.0
        assert row.mean - row.rival_mean == pytest.approx(row.effect)

    def test_a_verdict_never_rests_on_an_audit_of_fewer_runs(self, study: Study) -> None:
        self.extended(study)
        with pytest.raises(StudyError, match=r"8 of the 18 runs that 'c1' is judged on .* audited"):
            verdict.judge(study, "c1", "promotion", "agent")

    def test_verify_says_if_one_did(self, study: Study, monkeypatch) -> None:
        self.extended(study)
        monkeypatch.setattr(
            verdict, "_audit_of", lambda history, name, phase, runs: history.audits[name, phase]
        )
        verdict.judge(study, "c1", "promotion", "agent")
        monkeypatch.undo()
        found = [p.reason for p in verify.verify(study) if "does not follow" in p.reason]
        assert len(found) == 1 and "its audit has not seen c1-promotion-6" in found[0]


def test_every_part_has_a_name(study: Study) -> None:
    agreed = study.contract()
    parts = protocol.measures(study.root, agreed)
    assert {"evaluation.episodes", "metric return", "task.env"} <= parts.keys()
    assert not {"evaluation.test", "evaluation.alpha", "evaluation.pools"} & parts.keys()
    frozen = protocol.frozen_parts(study.candidate("base"), agreed, "0" * 64)
    assert not {"evaluation.test", "limits of return"} & frozen.keys()  # a baseline is not judged


def test_who_has_no_verdict_is_shown_beside_nobody(tmp_path: Path) -> None:
    study = measured(tmp_path)
    add(study, "c2")
    fake(study, "c2", "promotion", gain=40.0)
    fake(study, "c2", "validation", gain=40.0)
    rows = {row.name: row for row in standings(study.history(), study.contract())}
    assert rows["base"].mean == 100.0 and rows["c2"].mean == 140.0
    assert [rows[name].rival_mean for name in ("base", "c2")] == [None, None]


def test_who_had_no_effect_is_shown_beside_its_rival(tmp_path: Path) -> None:
    study = measured(tmp_path, expected_candidates=4)
    add(study, "base-again")  # by its name, its noise is that of the baseline
    fake(study, "base-again", "promotion")
    audit.audit(study, "base-again", "promotion", "agent")
    assert verdict.judge(study, "base-again", "promotion", "agent").outcome == "no effect"
    add(study, "c2")
    fake(study, "c2", "promotion", gain=40.0)  # of whom nothing is shown beside the other
    row = standings(study.history(), study.contract())[1]
    assert (row.name, row.rival, row.mean, row.rival_mean) == ("base-again", "base", 100.0, 100.0)
