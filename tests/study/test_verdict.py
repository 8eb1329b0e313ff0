"""From runs on record to a verdict, and to a new incumbent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_samples import candidate_values, contract_values

from assay.study.agree import protocol
from assay.study.files.base import Phase
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, write_yaml_document
from assay.study.judge import audit, verdict
from assay.study.record import kinds
from assay.study.record.history import History
from assay.study.record.study import Study
from assay.study.record.transaction import Transaction
from assay.study.steps import agenda, candidates

NOISE = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
OTHER = np.array([0.3, -0.3, 0.1, -0.2, 0.1])
SEEDS = {"promotion": (1, 2, 3, 4, 5), "validation": (11, 12, 13, 14, 15)}


def contract(**metrics: Any) -> Contract:
    values = contract_values()
    source = {"kind": "json", "path": "result.json"}
    values["metrics"] = {
        "primary": {"name": "return", "minimum_effect": 3.0, "source": source | {"key": "return"}},
        "guardrails": [
            {
                "name": "falls", "direction": "minimize", "margin": 2.0,
                "source": source | {"key": "falls"},
            }
        ],
        "training_reward": {"name": "reward", "source": source | {"key": "reward"}},
        "honeypot": {"name": "cheat", "source": source | {"key": "cheat"}},
        "components": [
            {"name": n, "source": source | {"key": n}} for n in ("speed", "energy")
        ],
        "diagnostics": [
            {"name": n, "source": source | {"key": n}} for n in ("episode_length", "at_limit")
        ],
    }  # fmt: skip
    return Contract(**values)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    study = Study(tmp_path, "cartpole", "lr")
    study.path.mkdir(parents=True)
    write_yaml_document(study.contract_path, contract())
    add(study, "base", kind="baseline", change={})
    for phase in SEEDS:
        fake(study, "base", phase)
    return study


def add(study: Study, name: str, **changes: Any) -> None:
    candidates.propose(study, Candidate(**candidate_values(id=name, **changes)), "agent")
    candidates.validate(study, name, "agent")


def fake(
    study: Study,
    name: str,
    phase: Phase,
    gain: float = 0.0,
    *,
    seeds: Sequence[int] = (),
    without: str = "",
    **shifts: float,
) -> None:
    """Put finished runs on record, artifacts included, without training anything.

    Args:
        study: Whose.
        name: The candidate.
        phase: What for.
        gain: Of the primary metric and the training reward.
        seeds: Those that are run; all of the pool if empty.
        without: A metric that is not written.
        **shifts: Of other metrics.
    """
    measured = protocol.protocol_hash(study.root, study.contract())
    # Arms whose seeds differ by a constant would leave a paired test without any spread.
    noises = NOISE if name.startswith("base") else NOISE + OTHER
    for seed, noise in zip(SEEDS[phase], noises, strict=True):
        if seeds and seed not in seeds:
            continue
        row = {
            "return": 100 + noise + gain, "falls": 5 + noise / 10, "reward": 50 + noise + gain,
            "cheat": 1 + noise, "speed": 3 + noise / 10, "energy": 2, "episode_length": 200 + noise,
            "at_limit": 0.1,
        }  # fmt: skip
        row |= {key: row[key] + shift for key, shift in shifts.items()}
        row.pop(without, None)
        run = f"{name}-{phase}-{seed}"
        out = study.path / "runs" / run / "out"
        out.mkdir(parents=True)
        (out / "result.json").write_text(json.dumps(row))
        with study.ledger.transaction() as writer:
            frozen = History.read(writer.events()).registration(name).data["hash"]
            facts = {
                "run": run, "candidate": name, "phase": phase, "seed": seed, "argv": [],
                "protocol": measured, "registration": frozen,
            }  # fmt: skip
            writer.append(kinds.PREPARED, facts, actor="test")
            seen = {metric.name: row.get(metric.name) for metric in study.contract().metrics.all()}
            writer.append(kinds.MEASURED, {"run": run, "metrics": seen}, actor="test")
            end = {"run": run, "outcome": "done", "reason": "", "hours": 0.01, "exit_code": 0}
            writer.append(kinds.ENDED, end, actor="test")
    with study.ledger.transaction() as writer:
        for to in ("launched", "completed"):
            if History.read(writer.events()).status[name] != "accepted":
                Transaction(writer).move(name, to, actor="test", why="test")


def judged(study: Study, name: str, phase: Phase = "promotion") -> str:
    audit.audit(study, name, phase, "agent")
    return verdict.judge(study, name, phase, "agent").outcome


def state(study: Study, name: str) -> str:
    return study.history().status[name]


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
        ({"gain": 10.0, "speed": 97.0}, "no reward component took over"),
        ({"gain": -0.5, "episode_length": 500.0}, "episode_length is not exploited"),
        ({"gain": 10.0, "at_limit": 0.85}, "at_limit: actions do not ride their limits"),
        # The task got better, and by next to nothing of what moved with it.
        ({"gain": 5.0, "reward": 100.0}, "the task got better with its reward"),
        ({"gain": 5.0, "episode_length": 500.0}, "episode_length is not exploited"),
        # Who does not write what is looked at has not passed.
        ({"gain": 10.0, "without": "reward"}, "the task got better with its reward"),
        ({"gain": 10.0, "without": "cheat"}, "the honeypot is untouched"),
        ({"gain": 10.0, "without": "energy"}, "no reward component took over"),
        ({"gain": 10.0, "without": "episode_length"}, "episode_length is not exploited"),
        ({"gain": 10.0, "without": "at_limit"}, "at_limit: actions do not ride their limits"),
    ],
)
def test_reward_hacking_is_named_and_makes_the_evidence_invalid(study, shifts, check) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", **shifts)
    found = audit.audit(study, "c1", "promotion", "agent")
    assert [item.name for item in found.checks if not item.passed] == [check]
    given = verdict.judge(study, "c1", "promotion", "agent")
    assert given.outcome == "invalid" and check in given.reasons[0]
    assert verdict.decisions(study.history()) == 0  # no alpha is spent on it


def test_a_failed_audit_says_what_was_found_and_not_only_the_name_of_the_check(study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=-0.5, reward=100.0)
    line = agenda.take(study, agenda.Step("audit", "", "c1", "promotion"), "agent")
    assert line.startswith("the audit of c1 failed: reward moved by +")
    assert line.endswith("(check: the task got better with its reward)")
    reason = verdict.judge(study, "c1", "promotion", "agent").reasons[0]
    assert reason.startswith("The audit of the result failed: reward moved by +")


def test_a_guardrail_that_is_not_written_rejects_what_is_better(study: Study) -> None:
    add(study, "c1")
    fake(study, "c1", "promotion", gain=14.0, without="falls")
    assert judged(study, "c1") == "reject"


def lose(study: Study, name: str, phase: Phase, seed: int, number: int = 1) -> None:
    """Put a run on record whose supervisor was killed."""
    run = f"{name}-{phase}-{seed}-lost{number}"
    with study.ledger.transaction() as writer:
        facts = {
            "run": run, "candidate": name, "phase": phase, "seed": seed, "argv": [],
            "protocol": "", "registration": "",
        }  # fmt: skip
        writer.append(kinds.PREPARED, facts, actor="test")
        end = {"run": run, "outcome": "lost", "reason": "killed", "hours": 0.01, "exit_code": None}
        writer.append(kinds.ENDED, end, actor="test")


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
    assert failed.name == "no run was lost on the way"
    assert f"{name}-promotion-1-lost1, {name}-promotion-2-lost1 were stopped" in failed.detail
    found = audit.audit(study, "c1", "validation", "agent") if name == "c1" else None
    assert found is None or "1 of c1 and 0 of base were lost" in [c.detail for c in found.checks]


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
        assert verdict.decisions(study.history()) == 0

    def test_a_larger_pool_is_wanted_in_both_arms(self, study: Study) -> None:
        values = study.contract().model_dump(mode="json")
        values["evaluation"]["pools"]["promotion"] = [1, 2, 3, 4, 5, 6]
        write_yaml_document(study.contract_path, Contract(**values))
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
    values = study.contract().model_dump(mode="json")
    shares = []
    for i, expected in enumerate((2, 200, 200)):
        values["evaluation"]["expected_candidates"] = expected
        write_yaml_document(study.contract_path, Contract(**values))
        candidates.give_up(study, f"base{i or ''}", "ada", "it was measured by another contract")
        add(study, f"base{i + 1}", kind="baseline", change={})
        for phase in SEEDS:
            fake(study, f"base{i + 1}", phase)
        add(study, f"c{i}")
        fake(study, f"c{i}", "promotion", gain=0.5)
        audit.audit(study, f"c{i}", "promotion", "agent")
        shares.append(verdict.judge(study, f"c{i}", "promotion", "agent").alpha)
    assert shares == pytest.approx([0.025, 0.025 / 199, 0.025 / 199])
    assert verdict.spent(study.history()) == pytest.approx(sum(shares))


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


def test_leaving_out_bad_seeds_is_found(study: Study, monkeypatch) -> None:
    add(study, "c1")
    monkeypatch.setitem(SEEDS, "promotion", (1, 2, 3, 4))
    with pytest.raises(ValueError):
        fake(study, "c1", "promotion", gain=10.0)
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
        assert verdict.decisions(study.history()) == i + 1
    assert sum(shares) <= 0.05 / 20 * 3 + 1e-12


def test_arms_are_read_from_the_ledger_alone(study: Study) -> None:
    assert study.history().arm("base", "promotion", "return") == dict(
        zip(SEEDS["promotion"], 100 + NOISE, strict=True)
    )
