"""One parameter at a time, from its nominal value outwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from study_samples import candidate_values, contract_values

from assay.study.agree import protocol
from assay.study.files.candidate import BudgetRequest, Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, write_yaml_document
from assay.study.files.records import ProbePlan
from assay.study.measure import probe
from assay.study.record import kinds
from assay.study.record.history import History
from assay.study.record.study import Study
from assay.study.steps import candidates

REQUEST = BudgetRequest(wall_clock_hours=0.1)


def make(root: Path, name: str = "lr") -> Study:
    study = Study(root, "cartpole", name)
    study.path.mkdir(parents=True)
    values = contract_values(study=name)
    values["scope"]["parameters"] |= {
        "mass": {"kind": "float", "low": 0.1, "high": 10.0},
        "delay": {"kind": "int", "low": 0, "high": 8},
        "floor": {"kind": "choice", "choices": ["ice", "sand"]},
    }
    write_yaml_document(study.contract_path, Contract(**values))
    return study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return make(tmp_path)


def plan(**changes: Any) -> ProbePlan:
    values = {
        "id": "mass", "parameter": "mass", "nominal": 1.0, "values": [0.25, 0.5, 1.0, 2.0, 4.0],
        "success": "return >= 100 and hours < 2", "safety": "Torque is clipped.",
    }  # fmt: skip
    return ProbePlan(**(values | changes))


def propose(study: Study, *drafted: Candidate) -> None:
    for candidate in drafted:
        candidates.propose(study, candidate, "agent")
        candidates.validate(study, candidate.id, "agent")


def ran(study: Study, name: str, score: float | None, seed: int = 0, outcome: str = "done") -> None:
    """Put a finished run on record."""
    run = f"{name}-short-{seed}"
    with study.ledger.transaction() as writer:
        events = list(writer.events())
        facts = {
            "run": run, "candidate": name, "phase": "short", "seed": seed, "argv": [],
            "protocol": protocol.protocol_hash(study.root, study.contract()),
            "registration": History.read(events).registration(name).data["hash"],
        }  # fmt: skip
        writer.append(kinds.PREPARED, facts, actor="test")
        metrics = {"return": score, "hours": 1.0}
        writer.append(kinds.MEASURED, {"run": run, "metrics": metrics}, actor="test")
        end = {"run": run, "outcome": outcome, "reason": "why", "hours": 0.1, "exit_code": 0}
        writer.append(kinds.ENDED, end, actor="test")


def probed(study: Study, *scores: float | None) -> None:
    """Plan a probe and put one run per value on record."""
    made = plan()
    probe.plan_probe(study, made, "ada")
    for candidate, score in zip(probe.drafts(study, made, REQUEST), scores, strict=True):
        propose(study, candidate)
        ran(study, candidate.id, score, outcome="failed" if score is None else "done")


@pytest.mark.parametrize(
    ("scores", "lowest", "highest"),
    [
        ((150, 150, 150, 150, 150), 0.25, 4.0),
        ((50, 150, 150, 150, 99), 0.5, 2.0),
        ((150, 50, 150, 50, 150), 1.0, 1.0),  # what succeeds beyond a gap does not count
        ((150, 150, 50, 150, 150), None, None),  # it does not even work where it should
        ((150, 150, 150, None, 150), 0.25, 1.0),  # a crash is not a success
    ],
)
def test_the_range_ends_before_the_first_value_that_fails(study, scores, lowest, highest) -> None:
    probed(study, *scores)
    found = probe.summarise(study, "mass")
    assert (found.lowest, found.highest) == (lowest, highest)
    good = [float(score is not None and score >= 100) for score in scores]
    assert found.results == dict(zip(("0.25", "0.5", "1", "2", "4"), good, strict=True))


def test_one_bad_seed_is_enough(study: Study) -> None:
    probed(study, 150, 150, 150, 150, 150)
    ran(study, "mass-2", 20, seed=1)
    found = probe.summarise(study, "mass")
    assert (found.lowest, found.results["0.5"]) == (1.0, 0.5)


def test_every_condition_must_hold(study: Study) -> None:
    made = plan(success="return >= 100 and hours < 1")
    probe.plan_probe(study, made)
    for candidate in probe.drafts(study, made, REQUEST):
        propose(study, candidate)
        ran(study, candidate.id, 150)
    assert probe.summarise(study, "mass").lowest is None


def test_plan_and_summary_are_written_and_recorded(study: Study) -> None:
    probed(study, 150, 150, 150, 150, None)
    found = probe.summarise(study, "mass", "ada")
    place = study.path / "audits/probes/mass"
    assert json.loads((place / "plan.json").read_text())["safety"] == "Torque is clipped."
    assert json.loads((place / "summary.json").read_text())["highest"] == 2.0
    assert found.safety.startswith("Torque is clipped. 1 of 5 runs did not come to their end")
    kinds = {e.kind: e for e in study.ledger.events()}
    assert kinds["probe.planned"].actor == "ada"
    assert kinds["probe.summarised"].data["highest"] == 2.0


def test_runs_from_before_the_plan_do_not_count(study: Study) -> None:
    made = plan()
    for candidate in probe.drafts(study, made, REQUEST):
        propose(study, candidate)
        ran(study, candidate.id, 150)
    probe.plan_probe(study, made)
    with pytest.raises(StudyError, match=r"no finished run at mass = 0\.25, 0\.5, 1, 2, 4"):
        probe.summarise(study, "mass")


def test_a_value_that_was_not_run_is_named(study: Study) -> None:
    made = plan()
    probe.plan_probe(study, made)
    for candidate in probe.drafts(study, made, REQUEST)[:4]:
        propose(study, candidate)
        ran(study, candidate.id, 150)
    with pytest.raises(StudyError, match="no finished run at mass = 4"):
        probe.summarise(study, "mass")
    [*_, last] = probe.drafts(study, made, REQUEST)
    propose(study, last)
    ran(study, last.id, 150, outcome="lost")  # the machine's fault, no result
    with pytest.raises(StudyError, match="no finished run at mass = 4"):
        probe.summarise(study, "mass")


def test_a_candidate_that_moves_something_else_too_is_refused(study: Study) -> None:
    probed(study, 150, 150, 150, 150, 150)
    change = {"parameters": {"mass": 4.0, "lr": 1e-3}}
    values = candidate_values(id="both", kind="dr-probe", change=change, probe="mass")
    candidates.propose(study, Candidate(**values), "agent")
    with pytest.raises(StudyError, match="'both' names probe 'mass'"):
        probe.summarise(study, "mass")


def test_a_candidate_that_was_edited_after_its_run(study: Study) -> None:
    probed(study, 150, 150, 150, 150, 10)
    path = study.candidate_path("mass-4")
    path.write_text(path.read_text().replace("mass: 2.0", "mass: 4.0"))
    with pytest.raises(StudyError, match="'mass-4', or how it is measured, was changed"):
        probe.summarise(study, "mass")


def test_a_plan_that_was_edited_after_the_results(study: Study) -> None:
    probed(study, 150, 150, 150, 150, 50)
    path = study.path / "audits/probes/mass/plan.json"
    path.write_text(path.read_text().replace(">= 100", ">= 10"))
    with pytest.raises(StudyError, match="was edited after it was made"):
        probe.summarise(study, "mass")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameter": "gravity"}, "'gravity' is not in the contract's scope"),
        ({"parameter": "floor"}, "is a choice"),
        ({"values": [0.01, 1.0]}, "mass=0.01 is out of scope: expected 0.1 to 10"),
        ({"values": [0.5, 2.0]}, "nominal value 1 is not among the values"),
        ({"values": [1.0, 1.0]}, "name one twice"),
        ({"success": "it stands"}, "'it stands' does not say what success is"),
        ({"success": "return >= nan"}, "does not say what success is"),
        ({"success": "retrun >= 5"}, "'retrun' is not a metric of the contract"),
        ({"parameter": "delay", "nominal": 1, "values": [1, 1.5]}, "expected a whole number"),
    ],
)
def test_a_plan_that_cannot_be_carried_out(study: Study, changes: Any, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        probe.plan_probe(study, plan(**changes))
    assert not (study.path / "audits").exists() and not list(study.ledger.events())


def test_a_plan_is_made_once(study: Study) -> None:
    probe.plan_probe(study, plan())
    with pytest.raises(StudyError, match="There is a probe 'mass' already"):
        probe.plan_probe(study, plan(success="return >= 1"))
    with pytest.raises(StudyError, match="There is no probe 'mas'"):
        probe.summarise(study, "mas")


def test_whole_numbers_stay_whole(study: Study) -> None:
    made = plan(parameter="delay", nominal=0, values=[0, 2], id="delay")
    probe.plan_probe(study, made)
    drafted = probe.drafts(study, made, REQUEST)
    assert [repr(c.change.parameters["delay"]) for c in drafted] == ["0", "2"]
    propose(study, *drafted)


class TestNamed:
    @pytest.mark.parametrize("name", ["mass", "audits/probes/mass/summary.json"])
    def test_by_its_id_or_its_path(self, study: Study, name: str) -> None:
        probed(study, 150, 150, 150, 150, 150)
        made = probe.summarise(study, "mass")
        assert probe.named(study, name) == made

    def test_what_this_study_did_not_make(self, study: Study) -> None:
        other = make(study.root, "other")
        probe.plan_probe(other, plan())
        for name in ("", "mass", "../other/audits/probes/mass/summary.json"):
            with pytest.raises(StudyError, match="is not a probe summary of cartpole/lr"):
                probe.named(study, name)

    def test_one_that_was_edited(self, study: Study) -> None:
        probed(study, 150, 150, 150, 150, 50)
        probe.summarise(study, "mass")
        path = study.path / "audits/probes/mass/summary.json"
        path.write_text(path.read_text().replace('"highest": 2.0', '"highest": 4.0'))
        with pytest.raises(StudyError, match="it was edited"):
            probe.named(study, "mass")
