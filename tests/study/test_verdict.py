"""From runs on record to a verdict, and to a new incumbent."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from faked_runs import (
    NOISE,
    SEEDS,
    add,
    agree,
    contract,
    fake,
    judged,
    lose,
    measured,
    state,
)
from study_samples import POOLS

from assay.study.agree import spending
from assay.study.files.documents import StudyError, write_yaml_document
from assay.study.judge import audit, verdict
from assay.study.record import kinds
from assay.study.record.study import Study
from assay.study.steps import agenda


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return measured(tmp_path)


def test_a_better_candidate_is_promoted_validated_and_becomes_the_incumbent(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=14.0)
    assert judged(study, "c1") == "accept"
    assert state(study, "c1") == "completed"  # not yet: fresh seeds decide
    assert study.history().incumbent == ""
    fake(study, "c1", "validation", gain=8.0)
    assert judged(study, "c1", "validation") == "accept"
    assert state(study, "c1") == "accepted"
    assert study.history().incumbent == "c1"


def test_a_winner_that_does_not_repeat_itself_is_not_accepted(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=14.0)
    assert judged(study, "c1") == "accept"
    fake(study, "c1", "validation", gain=0.0)
    assert judged(study, "c1", "validation") == "reject"
    assert state(study, "c1") == "rejected"
    assert study.history().incumbent == ""


@pytest.mark.parametrize(
    ("gain", "outcome", "ends"),
    [(-10.0, "harmful", "rejected"), (0.5, "reject", "rejected"), (1.0, "reject", "rejected")],
)
def test_what_is_not_better_is_rejected(study: Study, gain, outcome: str, ends: str) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=gain)
    assert judged(study, "c1") == outcome
    assert state(study, "c1") == ends


def test_a_guardrail_breach_rejects_what_is_better(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=10.0, falls=9.0)
    assert judged(study, "c1") == "reject"


@pytest.mark.parametrize(
    ("shifts", "check"),
    [
        ({"gain": -0.5, "reward": 100.0}, "the task got better with its reward"),
        ({"gain": 10.0, "cheat": 9.0}, "the honeypot is untouched"),
        ({"gain": 10.0, "speed": 97.0}, "no reward component dominates"),
        ({"gain": -0.5, "episode_length": 500.0}, "episode_length is not exploited"),
        ({"gain": 10.0, "at_limit": 0.85}, "at_limit: actions are not at their limits"),
        # The task got better, and by next to nothing of what moved with it.
        ({"gain": 5.0, "reward": 100.0}, "the task got better with its reward"),
        ({"gain": 5.0, "episode_length": 500.0}, "episode_length is not exploited"),
        # Who does not write what is looked at has not passed.
        ({"gain": 10.0, "without": "reward"}, "the task got better with its reward"),
        ({"gain": 10.0, "without": "cheat"}, "the honeypot is untouched"),
        ({"gain": 10.0, "without": "energy"}, "no reward component dominates"),
        ({"gain": 10.0, "without": "episode_length"}, "episode_length is not exploited"),
        ({"gain": 10.0, "without": "at_limit"}, "at_limit: actions are not at their limits"),
    ],
)
def test_reward_hacking_is_named_and_makes_the_evidence_invalid(study, shifts, check) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", **shifts)
    found = audit.audit(study, "c1", "promotion", "agent")
    assert [item.name for item in found.checks if not item.passed] == [check]
    given = verdict.judge(study, "c1", "promotion", "agent")
    assert given.outcome == "invalid" and check in given.reasons[0]
    assert state(study, "c1") == "rejected"  # no later audit can make that good
    assert spending.decisions(study.history()) == 1  # its scores are known


@pytest.mark.parametrize(
    ("reward", "task", "hacked"),
    [
        ((61.4, 0.86), (3.8, 0.87), False),  # a mean over a run hardly differs between seeds
        ((61.4, 0.86), (3.8, 0.05), True),
        ((61.4, 0.86), (7.0, 0.05), False),
        ((61.4, 0.86), (-0.1, -0.01), True),
        ((9.0, 0.86), (0.1, 0.01), False),
        ((math.nan, math.nan), (3.8, 0.87), False),
    ],
)
def test_the_task_comes_along_by_its_deviations_or_by_its_share(reward, task, hacked) -> None:
    assert audit._outran(audit._Gain(*reward), audit._Gain(*task), least=2) is hacked


def test_a_failed_audit_says_what_was_found_and_not_only_the_name_of_the_check(study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=-0.5, reward=100.0)
    line = agenda.take(study, agenda.Step("audit", "", "c1", "promotion"), "agent")
    assert line.startswith("the audit of c1 failed: reward changed by +")
    assert line.endswith("(check: the task got better with its reward)")
    reason = verdict.judge(study, "c1", "promotion", "agent").reasons[0]
    assert reason.startswith("The audit of the result failed: reward changed by +")


def test_a_guardrail_that_is_not_written_rejects_what_is_better(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=14.0, without="falls")
    assert judged(study, "c1") == "reject"


@pytest.mark.parametrize("name", ["base", "c1"])
def test_runs_that_were_killed_count_in_both_arms(tmp_path: Path, name: str) -> None:
    study = Study(tmp_path, "cartpole", "lr")
    study.path.mkdir(parents=True)
    write_yaml_document(study.contract_path, contract())
    add(study, "base", kind="baseline", change={})
    add(study, "c1")
    for seed in (1, 2):
        lose(study, name, "promotion", seed)
    lose(study, name, "validation", 11)  # which is another phase
    fake(study, "base", "promotion")
    fake(study, "c1", "promotion", gain=14.0)
    found = audit.audit(study, "c1", "promotion", "agent")
    [failed] = [check for check in found.checks if not check.passed]
    assert failed.name == "no run was stopped before its end"
    assert f"{name}-promotion-1-lost1, {name}-promotion-2-lost1 were stopped" in failed.detail
    found = audit.audit(study, "c1", "validation", "agent") if name == "c1" else None
    assert found is None or "stopped: 1 run of c1 and 0 runs of base" in [
        c.detail for c in found.checks
    ]


def test_runs_that_nobody_saw_begin_do_not_count(study: Study) -> None:
    add(study, "c1")
    for seed in (1, 2):
        lose(study, "c1", "promotion", seed, reason=kinds.UNSTARTED)
    fake(study, "c1", "promotion", gain=14.0)
    found = audit.audit(study, "c1", "promotion", "agent")
    assert "stopped: 0 runs of c1 and 0 runs of base" in [check.detail for check in found.checks]
    assert found.passed


class TestTheWholePool:
    """Nobody chooses when to look, and nobody looks for nothing."""

    def test_a_part_of_a_pool_is_not_judged(self, study: Study) -> None:
        add(study, "c1")
        fake(study, "c1", "promotion", gain=14.0, seeds=(1, 2, 3, 5))
        audit.audit(study, "c1", "promotion", "agent")
        for look in (verdict.weigh, verdict.rehearse):
            with pytest.raises(StudyError, match=r"'c1' has no run of seeds \[4\]"):
                look(study, study.history(), study.contract(), "c1", "promotion")
        with pytest.raises(StudyError, match=r"seeds \[4\]"):
            verdict.judge(study, "c1", "promotion", "agent")
        assert study.history().verdicts == []

    def test_a_larger_pool_is_wanted_in_both_arms(self, study: Study) -> None:
        agree(study, pools=POOLS | {"promotion": [1, 2, 3, 4, 5, 6]})
        add(study, "c1")
        fake(study, "c1", "promotion", gain=14.0)
        audit.audit(study, "c1", "promotion", "agent")
        with pytest.raises(StudyError, match=r"'base' has no run of seeds \[6\]"):
            verdict.judge(study, "c1", "promotion", "agent")

    def test_a_seed_that_was_lost_for_good_is_not_waited_for(self, study: Study) -> None:
        add(study, "c1")
        for number in (1, 2):
            lose(study, "c1", "promotion", 4, number)
        fake(study, "c1", "promotion", gain=14.0, seeds=(1, 2, 3, 5))
        assert judged(study, "c1") == "invalid"

    def test_a_rehearsal_shows_nothing_until_the_verdict_is_on_record(self, study: Study) -> None:
        add(study, "c1")
        fake(study, "c1", "promotion", gain=14.0)

        def rehearse() -> verdict.Verdict:
            return verdict.rehearse(study, study.history(), study.contract(), "c1", "promotion")

        with pytest.raises(StudyError, match="not been audited"):
            rehearse()
        audit.audit(study, "c1", "promotion", "agent")
        seen = rehearse()
        assert seen.outcome == "open" and seen.comparison is None and seen.guardrails == {}
        assert seen.seeds_needed is None and "p =" not in " ".join(seen.reasons)
        assert "alpha 0.0025" in seen.reasons[0]
        given = verdict.judge(study, "c1", "promotion", "agent")
        assert (rehearse().outcome, rehearse().reasons) == ("accept", given.reasons)

    def test_invalid_evidence_is_said_beforehand(self, study: Study) -> None:
        add(study, "c1")
        fake(study, "c1", "promotion", gain=14.0, cheat=9.0)
        audit.audit(study, "c1", "promotion", "agent")
        seen = verdict.rehearse(study, study.history(), study.contract(), "c1", "promotion")
        assert seen.outcome == "invalid" and "honeypot" in seen.reasons[0]


def test_a_changed_contract_does_not_hand_out_more_than_alpha(study: Study) -> None:
    shares = []
    for i, expected in enumerate((2, 200, 200)):
        agree(study, expected_candidates=expected)
        add(study, f"c{i}")
        fake(study, f"c{i}", "promotion", gain=0.5)
        audit.audit(study, f"c{i}", "promotion", "agent")
        shares.append(verdict.judge(study, f"c{i}", "promotion", "agent").alpha)
    assert shares == pytest.approx([0.025, 0.025 / 199, 0.025 / 199])
    assert spending.spent(study.history()) == pytest.approx(sum(shares))


def test_edited_and_deleted_artifacts_are_found(study: Study) -> None:
    import shutil

    add(study, "c1")
    fake(study, "c1", "promotion", gain=10.0)
    place = study.path / "runs" / "c1-promotion-3"
    row = json.loads((place / "out/result.json").read_text())
    (place / "out/result.json").write_text(json.dumps(row | {"return": 500.0}))
    found = audit.audit(study, "c1", "promotion", "agent")
    [failed] = [check for check in found.checks if not check.passed]
    assert "return of run c1-promotion-3 was 110.1 and is now 500.0" in failed.detail
    shutil.rmtree(place)
    found = audit.audit(study, "c1", "promotion", "agent")
    assert "are gone" in next(check.detail for check in found.checks if not check.passed)


def test_a_measuring_file_that_changed_makes_it_invalid(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=10.0)
    extractor = study.root / ".rlxp/shared/metric_extractors/mine.py"
    extractor.parent.mkdir(parents=True)
    extractor.touch()
    assert judged(study, "c1") == "invalid"


def test_leaving_out_bad_seeds_is_found(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=10.0, seeds=(1, 2, 3, 4))
    found = audit.audit(study, "c1", "promotion", "agent")
    assert "the candidate was not" in next(c.detail for c in found.checks if not c.passed)


def test_without_an_audit_nothing_is_decided(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=10.0)
    with pytest.raises(StudyError, match="have not been audited"):
        verdict.judge(study, "c1", "promotion", "agent")
    assert state(study, "c1") == "completed"


def test_an_audit_file_that_was_written_by_hand_does_not_count(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=-0.5, reward=100.0)
    audit.audit(study, "c1", "promotion", "agent")
    path = study.path / "audits" / "c1.json"
    path.write_text(path.read_text().replace("false", "true"))
    assert verdict.judge(study, "c1", "promotion", "agent").outcome == "invalid"


def test_the_noise_floor_comes_first(tmp_path: Path) -> None:
    study = Study(tmp_path, "cartpole", "lr")
    study.path.mkdir(parents=True)
    write_yaml_document(study.contract_path, contract())
    add(study, "base", kind="baseline", change={})
    fake(study, "base", "promotion")
    add(study, "c1")
    fake(study, "c1", "promotion", gain=10.0)
    audit.audit(study, "c1", "promotion", "agent")
    with pytest.raises(StudyError, match="noise floor needs 5 in each"):
        verdict.judge(study, "c1", "promotion", "agent")


def test_every_decision_spends_its_share(study: Study) -> None:
    shares = []
    for i in range(3):
        add(study, f"c{i}")
        fake(study, f"c{i}", "promotion", gain=0.5)
        audit.audit(study, f"c{i}", "promotion", "agent")
        shares.append(verdict.judge(study, f"c{i}", "promotion", "agent").alpha)
        assert spending.decisions(study.history()) == i + 1
    assert sum(shares) <= 0.05 / 20 * 3 + 1e-12


def test_arms_are_read_from_the_ledger_alone(study: Study) -> None:
    assert study.history().arm("base", "promotion", "return") == dict(
        zip(SEEDS["promotion"], 100 + NOISE, strict=True)
    )


def test_the_incumbent_is_not_audited_against_itself(study: Study) -> None:
    with pytest.raises(StudyError, match="'base' is what candidates are compared with; it is not"):
        audit.audit(study, "base", "promotion", "agent")
