"""What a run says about its reward, and who may build on that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_samples import candidate_values, contract_values

from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, write_yaml_document
from assay.study.measure import reflection
from assay.study.record import kinds
from assay.study.record.study import Study
from assay.study.steps import candidates

UP = np.linspace(0, 10, 40)
DOWN = UP[::-1]
LEVEL = np.full(40, 5.0)


def contract(study: str = "lr", **metrics: Any) -> Contract:
    values = contract_values(study=study)
    source = {"kind": "jsonl", "path": "log.jsonl"}

    def metric(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "source": source | {"key": name}} | more

    values["metrics"] = {
        "primary": metric("return", minimum_effect=3.0),
        "training_reward": metric("reward"),
        "components": [metric("speed"), metric("energy", direction="minimize")],
    } | metrics
    return Contract(**values)


def make(root: Path, agreed: Contract | None = None) -> Study:
    agreed = agreed or contract()
    study = Study(root, "cartpole", agreed.study)
    study.path.mkdir(parents=True)
    write_yaml_document(study.contract_path, agreed)
    return study


def put(
    study: Study, run: str, *, candidate: str = "c1", seed: int = 0, ended: bool = True, **columns
) -> None:
    """Put a run with its series on record."""
    out = study.path / "runs" / run / "out"
    out.mkdir(parents=True)
    rows = [
        dict(zip(columns, map(float, row), strict=True))
        for row in zip(*columns.values(), strict=True)
    ]
    if rows:
        (out / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with study.ledger.transaction() as writer:
        facts = {
            "run": run, "candidate": candidate, "phase": "short", "seed": seed, "argv": [],
            "protocol": "0" * 64, "registration": "0" * 64,
        }  # fmt: skip
        writer.append(kinds.PREPARED, facts, actor="test")
        if ended:
            last = rows[-1] if rows else {}
            writer.append(kinds.MEASURED, {"run": run, "metrics": last}, actor="test")
            end = {"run": run, "outcome": "done", "reason": "", "hours": 0.1, "exit_code": 0}
            writer.append(kinds.ENDED, end, actor="test")


def healthy(**changes: Any) -> dict[str, Any]:
    return {"return": UP, "reward": UP, "speed": UP, "energy": DOWN} | changes


def test_shares_trends_and_task_metrics(tmp_path: Path) -> None:
    study = make(tmp_path)
    put(study, "r1", **healthy(speed=3 * UP + 1))
    found = reflection.reflect(study, "r1")
    speed, energy = found.components
    # Mean magnitudes are 16 and 5.
    assert (speed.share, energy.share) == (pytest.approx(16 / 21), pytest.approx(5 / 21))
    assert (speed.trend, energy.trend) == ("rising", "falling")
    assert not speed.dominant and not speed.saturated
    assert found.task_metrics == {"return": 10.0, "reward": 10.0}
    assert (found.hacking_risk, found.findings) == ("low", ())


def test_it_is_written_and_recorded(tmp_path: Path) -> None:
    study = make(tmp_path)
    put(study, "r1", **healthy())
    found = reflection.reflect(study, "r1", actor="ada")
    plain = json.loads((study.path / "runs/r1/reward_reflection.json").read_text())
    assert plain["run"] == "r1" and plain["hacking_risk"] == found.hacking_risk
    event = list(study.ledger.events())[-1]
    assert (event.kind, event.actor, event.data["run"]) == ("reward.reflected", "ada", "r1")


@pytest.mark.parametrize(
    ("changes", "risk"),
    [
        ({}, "low"),
        ({"return": DOWN}, "high"),
        ({"return": LEVEL}, "medium"),
        ({"return": LEVEL, "reward": LEVEL}, "low"),
        ({"return": LEVEL, "reward": LEVEL, "speed": 1000 * UP}, "medium"),
        ({"reward": DOWN}, "low"),
    ],
)
def test_the_reward_is_held_against_the_task(tmp_path: Path, changes: Any, risk: str) -> None:
    study = make(tmp_path)
    put(study, "r1", **healthy(**changes))
    assert reflection.reflect(study, "r1").hacking_risk == risk


def test_a_metric_that_should_fall(tmp_path: Path) -> None:
    values = contract().metrics.primary.model_dump(mode="json") | {"direction": "minimize"}
    study = make(tmp_path, contract(primary=values))
    put(study, "r1", **healthy())
    assert reflection.reflect(study, "r1").hacking_risk == "high"


def test_a_run_that_beats_the_baseline_only_in_its_own_reward(tmp_path: Path) -> None:
    study = make(tmp_path)
    values = candidate_values(id="base", kind="baseline", change={})
    candidates.propose(study, Candidate(**values), "agent")
    for i, last in enumerate((9.8, 10.0, 10.2)):
        series = np.array([*UP[:-1], last])
        columns = healthy(reward=series, **{"return": series})
        put(study, f"b{i}", candidate="base", seed=i, **columns)
    # Both rise inside the run; only against the baseline it shows.
    put(study, "r1", **healthy(reward=2 * UP, **{"return": UP * 0.9}))
    assert reflection.reflect(study, "r1").hacking_risk == "high"
    put(study, "r2", **healthy(reward=2 * UP, **{"return": UP * 1.1}))
    assert reflection.reflect(study, "r2").hacking_risk == "low"


def test_domination_and_saturation_are_named(tmp_path: Path) -> None:
    study = make(tmp_path)
    stuck = np.minimum(UP, 2.0)
    put(study, "r1", **healthy(speed=stuck, energy=0.001 * DOWN))
    speed, energy = reflection.reflect(study, "r1").components
    assert (speed.saturated, speed.dominant) == (True, True)
    assert (energy.saturated, energy.dominant) == (False, False)
    text = " ".join(reflection.reflect(study, "r1").findings)
    assert "speed is saturated" in text and "speed makes up 100%" in text
    assert "energy makes up 0.3%" in text


def test_standing_still_far_from_the_best_is_not_saturation() -> None:
    metric = contract().metrics.components[0]
    collapsed = [(float(i), v) for i, v in enumerate([*UP, *np.zeros(60)])]
    assert not reflection.saturated(metric, collapsed)
    assert not reflection.saturated(metric, [(float(i), 1.0) for i in range(20)])


def test_noise_is_no_trend() -> None:
    flat = [
        reflection.trend(list(enumerate(np.random.default_rng(s).normal(1, 5, 100))))
        for s in range(100)
    ]
    assert flat.count("flat") > 85


def test_without_series_the_ledger_still_speaks(tmp_path: Path) -> None:
    study = make(tmp_path)
    put(study, "r1", **{k: v[-1:] for k, v in healthy(speed=UP, energy=UP).items()})
    (study.path / "runs/r1/out/log.jsonl").unlink()
    found = reflection.reflect(study, "r1")
    assert [c.share for c in found.components] == [0.5, 0.5]
    assert {c.trend for c in found.components} == {"unknown"}
    assert any("fewer than 8 points" in finding for finding in found.findings)


def test_without_a_training_reward_the_components_are_summed(tmp_path: Path) -> None:
    study = make(tmp_path, contract(training_reward=None))
    put(study, "r1", **healthy(speed=3 * UP, **{"return": DOWN}))
    found = reflection.reflect(study, "r1")
    assert found.hacking_risk == "high" and "sum of the components" in found.findings[0]


def test_what_cannot_be_reflected_on(tmp_path: Path) -> None:
    study = make(tmp_path)
    with pytest.raises(StudyError, match="'r1' is not on record"):
        reflection.reflect(study, "r1")
    put(study, "r1", ended=False)
    with pytest.raises(StudyError, match="'r1' is still under way"):
        reflection.reflect(study, "r1")
    other = make(tmp_path, contract("bare", components=[]))
    with pytest.raises(StudyError, match="names no reward components"):
        reflection.reflect(other, "r1")


class TestNamed:
    @pytest.mark.parametrize("name", ["r1", "runs/r1/reward_reflection.json"])
    def test_by_its_run_or_its_path(self, tmp_path: Path, name: str) -> None:
        study = make(tmp_path)
        put(study, "r1", **healthy())
        made = reflection.reflect(study, "r1")
        assert reflection.named(study, name) == made

    @pytest.mark.parametrize(
        "name",
        ["", "r2", "../bare/runs/r1/reward_reflection.json", "/etc/passwd", "runs/r1/run.json"],
    )
    def test_what_this_study_did_not_make(self, tmp_path: Path, name: str) -> None:
        study, other = make(tmp_path), make(tmp_path, contract("bare"))
        put(other, "r2", **healthy())
        reflection.reflect(other, "r2")
        put(study, "r1", **healthy())
        reflection.reflect(study, "r1")
        with pytest.raises(StudyError, match="is not a reward reflection of cartpole/lr"):
            reflection.named(study, name)

    def test_one_that_was_edited(self, tmp_path: Path) -> None:
        study = make(tmp_path)
        put(study, "r1", **healthy(**{"return": DOWN}))
        reflection.reflect(study, "r1")
        path = study.path / "runs/r1/reward_reflection.json"
        path.write_text(path.read_text().replace('"high"', '"low"'))
        with pytest.raises(StudyError, match="it was edited"):
            reflection.named(study, "r1")

    def test_one_that_is_gone(self, tmp_path: Path) -> None:
        study = make(tmp_path)
        put(study, "r1", **healthy())
        reflection.reflect(study, "r1")
        (study.path / "runs/r1/reward_reflection.json").unlink()
        with pytest.raises(StudyError, match="reward_reflection"):
            reflection.named(study, "r1")
