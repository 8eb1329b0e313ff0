"""Early looks: clear cases end sooner, and all looks together spend one share."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from faked_runs import add, fake, judged, measured, state
from study_samples import POOLS, contract_values

from assay.study.agree import spending
from assay.study.files.contract import Contract, Evaluation
from assay.study.judge import gate, verdict, verify
from assay.study.record.study import Study
from assay.study.report import facts, verdicts
from assay.study.report.scorecard import scorecard
from assay.study.steps import agenda

TEN = POOLS | {"promotion": list(range(1, 11)), "validation": list(range(11, 21))}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return measured(tmp_path, pools=TEN, looks=[5])


def due(study: Study) -> list[tuple[str, tuple[int, ...]]]:
    found = agenda.steps_of(study.history(), study.contract())
    return [(step.action, step.seeds) for step in found if step.candidate == "c1"]


def follows(study: Study) -> list[str]:
    return [p.reason for p in verify.verify(study) if "does not follow" in p.reason]


def test_a_clear_case_ends_at_the_look(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=14.0, seeds=range(1, 6))
    assert judged(study, "c1") == "accept"
    assert due(study) == [("run", tuple(range(11, 21)))]  # validation has its whole pool
    fake(study, "c1", "validation", gain=14.0)
    assert judged(study, "c1", "validation") == "accept"
    assert state(study, "c1") == "accepted" and follows(study) == []


def test_a_hopeless_case_too(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=0.0, seeds=range(1, 6))
    assert judged(study, "c1") == "reject"
    assert state(study, "c1") == "rejected" and follows(study) == []


def test_what_is_not_clear_goes_on_to_the_whole_pool(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=4.0, seeds=range(1, 6))
    assert judged(study, "c1") == "continue"
    assert state(study, "c1") == "completed" and due(study) == [("run", tuple(range(6, 11)))]
    state_file = study.history().state(study.task, study.name)
    from assay.study.record.book import Book

    assert Book(state_file).looked == {("c1", "promotion"): 5}
    fake(study, "c1", "promotion", gain=4.0, seeds=range(6, 11))
    assert due(study) == [("audit", ())]
    assert judged(study, "c1") == "accept"
    given = [event.data for event in study.history().verdicts]
    assert [len(data["seeds"]) for data in given] == [5, 10]
    assert math.fsum(data["alpha"] for data in given) == pytest.approx(0.0025)
    assert spending.decisions(study.history()) == 1  # one share for both
    assert spending.spent(study.history()) == pytest.approx(0.0025)
    assert follows(study) == []


def test_means_at_a_look_are_of_the_seeds_that_it_looks_at(study: Study) -> None:
    """They were of all ten seeds of the baseline, beside five of the candidate."""
    add(study, "c1")
    fake(study, "c1", "promotion", gain=4.0, seeds=range(1, 6))
    with study.transaction() as transaction:  # what the look does not see
        for event in transaction.history.runs.values():
            if event.candidate == "base" and event.seed > 5:
                event.metrics["return"] = 1000.0
        shown = verdict.iqm(study, transaction.history, study.contract(), "c1", "promotion")
    # The middle three of 98, 99, 100, 101, 102, weighed as the interquartile mean does.
    assert shown["base"][0] == pytest.approx(100.0) and shown["base"][3] == 5
    assert shown["c1"][3] == 5 and shown["c1"][0] < 110


def test_the_report_shows_the_seeds_that_the_look_saw(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=14.0, seeds=range(1, 6))
    judged(study, "c1")
    read = facts.read(study)
    arms = dict(verdicts._arms(read, read.judgements[-1]))
    assert list(arms["base"]) == list(arms["c1"]) == [1, 2, 3, 4, 5]


def test_a_scorecard_compares_the_same_seeds_before_a_verdict(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=4.0, seeds=[1])
    line = scorecard(study, study.history(), "c1").lines[0]
    # Seed 1 has a noise of -2 in the baseline and of -1.7 in the candidate.
    assert (line.seeds, line.mean, line.rival_mean) == (1, pytest.approx(102.3), 98.0)


def test_nobody_looks_where_the_contract_names_no_look(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=14.0, seeds=range(1, 5))
    with pytest.raises(Exception, match=r"'c1' has no run of seeds \[5\]"):
        judged(study, "c1")


def test_looks_are_rising_numbers_of_seeds() -> None:
    values = contract_values()
    for looks in ([3], [7, 6], [5, 5]):
        values["evaluation"]["looks"] = looks
        with pytest.raises(ValueError, match="looks are rising numbers of seeds, from 5 on"):
            Contract(**values)


def test_looks_do_not_err_more_often_than_their_share() -> None:
    """Null simulation: two looks at a share of 0.05 accept a useless candidate in at most 5 %."""
    rng = np.random.default_rng(0)
    metric = Contract(**contract_values()).metrics.primary
    metric = metric.model_copy(update={"minimum_effect": 1e-9})
    evaluation = Evaluation(episodes=1, pools=TEN, looks=(5,))
    trials, wrong = 400, 0
    for _ in range(trials):
        base, new = rng.normal(size=(2, 10))
        used = 0.0
        for n in (5, 10):
            level = spending.level(0.05, used, n, 10)
            arms = (dict(enumerate(arm[:n])) for arm in (base, new))
            found = gate.decide(metric, *arms, alpha=level, evaluation=evaluation, noise_floor=1.0)
            used += level
            if found.outcome == "accept":
                wrong += 1
                break
    assert wrong / trials <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)


def test_a_rehearsal_names_the_look(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=4.0, seeds=range(1, 6))
    from assay.study.judge import audit

    audit.audit(study, "c1", "promotion", "agent")
    seen = verdict.rehearse(study, study.history(), study.contract(), "c1", "promotion")
    assert seen.outcome == "open" and "5 seeds of the promotion pool are there" in seen.reasons[0]
