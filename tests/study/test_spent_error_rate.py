"""Once the error rate is spent, nobody is told to run what could not be judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from faked_runs import add, agree, fake, judged, measured, state
from study_samples import POOLS

from assay.study.agree import spending
from assay.study.agree.approvals import approve
from assay.study.files.contract import APPROVALS
from assay.study.files.records import State
from assay.study.record.book import Book
from assay.study.record.study import Study
from assay.study.steps import advice, agenda, candidates

LARGER = POOLS | {"promotion": [1, 2, 3, 4, 5, 6, 7]}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """A study with one share, which an inconclusive candidate has spent."""
    study = measured(tmp_path, expected_candidates=1)
    add(study, "c1")
    fake(study, "c1", "promotion", gain=1.5)
    assert judged(study, "c1") == "inconclusive"
    return study


def approved(study: Study) -> None:
    for item in APPROVALS:
        approve(study, item, "ada")


def steps(study: Study) -> list[tuple[str, str]]:
    found = agenda.steps_of(study.history(), study.contract())
    return [(step.action, step.candidate) for step in found]


@pytest.mark.parametrize("expected", [1, 3])  # of alpha nothing is left either way
def test_neither_an_extension_nor_runs_are_offered(study: Study, expected: int) -> None:
    agree(study, expected_candidates=expected)
    assert steps(study) == [("discard", "c1")]
    agree(study, pools=LARGER)  # and no baseline seeds are run for it
    assert steps(study) == [("discard", "c1")]
    approved(study)
    seen = advice.next_step(study)
    assert seen.command == "assay study discard c1 --why TEXT" and not seen.safe
    assert seen.reason.startswith("c1 is inconclusive, and more seeds are another look, which")
    assert "the study's error rate of 0.05 is spent (decided or looked at: 1 c" in seen.reason
    assert "assay study init --study NAME --activate" in seen.reason


def test_a_pool_that_nobody_can_be_judged_on_is_named(study: Study) -> None:
    book, agreed = study.book()[0], study.contract()
    assert agenda.pool_without_share(book, agreed) == ""
    agree(study, pools=LARGER)
    seen = agenda.pool_without_share(book, study.contract())
    assert seen.startswith("nobody can be judged on the seeds [6, 7] of evaluation.pools.promotion")


def test_with_a_share_left_the_extension_says_what_it_costs(tmp_path: Path) -> None:
    study = measured(tmp_path, expected_candidates=2)
    add(study, "c1")
    fake(study, "c1", "promotion", gain=1.5)
    assert judged(study, "c1") == "inconclusive"
    (step,) = agenda.steps_of(study.history(), study.contract())
    assert step.action == "extend" and "costs another share of the error rate" in step.reason
    assert "contract set 'evaluation.pools.promotion=[1, 2, 3, 4, 5, ...]'" in step.reason
    agree(study, pools=LARGER)
    assert agenda.pool_without_share(study.book()[0], study.contract()) == ""
    assert steps(study) == [("run", "base")]
    fake(study, "base", "promotion", seeds=(6, 7))
    fake(study, "c1", "promotion", gain=9.0, seeds=(6, 7))
    assert spending.decisions(study.history()) == 2
    judged(study, "c1")


def test_who_holds_the_last_share_goes_on(tmp_path: Path) -> None:
    study = measured(tmp_path, expected_candidates=1)
    add(study, "c1")
    add(study, "c2")
    fake(study, "c1", "promotion", gain=14.0, seeds=(1, 2))
    assert steps(study) == [("run", "c1"), ("discard", "c2")]
    fake(study, "c1", "promotion", gain=14.0, seeds=(3, 4, 5))
    assert judged(study, "c1") == "accept"
    agree(study, pools=POOLS | {"validation": [11, 12, 13, 14, 15, 16]})
    assert steps(study)[0] == ("run", "base")  # of the validation pool, which c1 waits for
    fake(study, "base", "validation", seeds=(16,))
    fake(study, "c1", "validation", gain=14.0)
    assert judged(study, "c1", "validation") == "accept" and state(study, "c1") == "accepted"


def test_a_larger_pool_does_not_stop_who_waits_for_validation(tmp_path: Path) -> None:
    study = measured(tmp_path, expected_candidates=2)
    for name, gain in (("c1", 14.0), ("c2", 1.5)):
        add(study, name)
        fake(study, name, "promotion", gain=gain)
    assert (judged(study, "c1"), judged(study, "c2")) == ("accept", "inconclusive")
    agree(study, pools=LARGER)  # no share is left for another look at either
    assert steps(study) == [("run", "c1"), ("discard", "c2")]
    assert "the seeds [6, 7]" in agenda.pool_without_share(study.book()[0], study.contract())
    fake(study, "c1", "validation", gain=14.0)
    assert judged(study, "c1", "validation") == "accept" and state(study, "c1") == "accepted"


def test_no_other_baseline_is_asked_for(study: Study) -> None:
    candidates.discard(study, "base", "ada", "its machine was busy")
    assert steps(study) == [("discard", "c1")]


def test_when_all_is_decided_the_report_is_next(study: Study) -> None:
    candidates.discard(study, "c1", "ada", "it is not worth a new study")
    approved(study)
    seen = advice.next_step(study)
    assert (seen.action, seen.command) == ("report", "assay study report")
    assert "further candidates need a new study" in seen.reason


def test_shares_are_kept_in_the_state_and_an_older_file_is_read(study: Study) -> None:
    kept = study.history().state(study.task, study.name)
    again = Book(State.model_validate_json(kept.model_dump_json()))
    assert again.shares == study.history().shares and again.share("c1") is None
    study.sync()
    plain = kept.model_dump(mode="json")
    del plain["progress"]["shares"]
    older = State.model_validate(plain | {"ledger": study.state().ledger})
    assert "shares" not in older.model_dump(mode="json")["progress"]
    (study.path / "state.json").write_text(older.model_dump_json())
    book, problems = study.book()
    assert problems == [] and spending.decisions(book) == 1
