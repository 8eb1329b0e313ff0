"""The measurement of the imitators: its expert, its scores and its verdicts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import evidence
import imitation_speed
import imitators
import report

from assay import data
from assay.core.errors import ConfigError


def test_the_controller_swings_the_pendulum_up() -> None:
    env = gym.make("Pendulum-v1")
    ends = []
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        for _ in range(200):
            obs, *_ = env.step(imitators.swing_up(obs))
        ends.append(float(obs[0]))
    assert min(ends) > 0.95  # upright


def stored(out: Path, case: str, scores: list[float]) -> None:
    for seed, score in enumerate(scores, 1):
        content = {"schema": evidence.SCHEMA, "case": case, "score": score, "mean": -100 * score}
        evidence.write_json(imitators.result_path(out, imitators.CASES[case], seed), content)


@pytest.mark.parametrize(("scores", "passed"), [([0.95] * 5, True), ([0.85] * 5, False)])
def test_an_imitator_passes_by_reaching_its_goal(
    tmp_path: Path, scores: list[float], passed: bool
) -> None:
    stored(tmp_path, "gail-pendulum", scores)
    found = imitators.collect(tmp_path)
    assert found["cases"]["gail-pendulum"]["passed"] is passed


@pytest.mark.parametrize(("scores", "passed"), [([0.1] * 5, True), ([0.7] * 5, False)])
def test_a_control_passes_by_failing(tmp_path: Path, scores: list[float], passed: bool) -> None:
    stored(tmp_path, "gail-pendulum-random", scores)
    found = imitators.collect(tmp_path)
    assert found["cases"]["gail-pendulum-random"]["passed"] is passed
    assert ("yes" if passed else "**no**") in imitators.table(found)


def test_dagger_is_compared_with_bc(tmp_path: Path) -> None:
    stored(tmp_path, "dagger-pendulum", [0.9, 1.0])
    stored(tmp_path, "bc-pendulum", [0.3, 0.5])
    text = imitators.table(imitators.collect(tmp_path))
    # Variances 0.005 and 0.02: error sqrt(0.0125), df 0.0125^2 / (0.0025^2 + 0.01^2) = 1.4706,
    # of which Student's 97.5 % point is 6.1881.
    assert "DAgger less BC, means: +0.55 [-0.14, +1.24] (Welch, 95 %, p = 0.069)." in text


def test_a_score_is_0_for_chance_and_1_for_the_expert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Run:
        class config:
            @staticmethod
            def to_dict() -> dict[str, Any]:
                return {}

        @staticmethod
        def evaluate(episodes: int, seed: int) -> Any:
            return type("Result", (), {"mean": -300.0})

    monkeypatch.setattr(imitators, "_imitate", lambda *args: Run)
    monkeypatch.setattr(imitators, "anchors", lambda *args: {"random": -1200.0, "expert": -200.0})
    result = imitators.run_seed(imitators.CASES["gail-pendulum"], 1, tmp_path)
    assert result["score"] == pytest.approx(0.9)


def test_the_same_episodes_are_shown_again(tmp_path: Path) -> None:
    case = imitators.CASES["bc-pendulum"]
    one, two = (imitators.demonstrations(case, tmp_path, 2, 3) for _ in range(2))
    assert one.content_hash == two.content_hash and len(one) == 400
    assert float(np.mean([e.reward.sum() for e in one.episodes()])) > -400


def test_an_unknown_case_is_named() -> None:
    with pytest.raises(ConfigError, match="Unknown case 'gail-moon'"):
        imitators.parse(["--cases", "gail-moon"])


def test_a_page_shows_the_cases_of_its_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for case, score in (("gail-pendulum", 0.95), ("dagger-pendulum", 0.97), ("bc-pendulum", 0.4)):
        stored(tmp_path, case, [score])
    found = imitators.collect(tmp_path)
    assert list(imitators.cases_of(found)) == ["gail-pendulum", "dagger-pendulum", "bc-pendulum"]
    machine = {"cpu": "an abacus", "versions": {"torch": "2"}}
    for one in found["cases"].values():
        one["seeds"][0]["machine"] = machine
    path = tmp_path / "imitation.json"
    evidence.write_json(path, found)
    monkeypatch.setattr(imitators, "EVIDENCE", path)
    shown = report.wanted_blocks(report.DOCS / "algorithms" / "dagger.md")["evidence"]
    assert "dagger-pendulum" in shown and "bc-pendulum" in shown and "gail" not in shown
    assert "Measured on an abacus (torch 2)." in shown
    monkeypatch.setattr(imitators, "EVIDENCE", tmp_path / "nothing.json")
    assert "Not measured yet" in report.imitation_table()


def test_a_race_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[str, int]] = []

    def launch(spec: dict[str, Any], cache: str) -> dict[str, Any]:
        launched.append((spec["library"], spec["seed"]))
        if len(launched) == 4:
            raise KeyboardInterrupt
        return {"mean": -200.0, "steps": 20_480, "seconds": 1.0, "reached": True}

    monkeypatch.setattr(imitation_speed, "_launch", launch)
    monkeypatch.setattr(imitation_speed.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(imitators, "anchors", lambda *args: {"random": -1200.0, "expert": -200.0})
    (tmp_path / "race.npz").touch()
    with pytest.raises(KeyboardInterrupt):
        imitation_speed.measure(0, tmp_path, quick=False)
    found = imitation_speed.measure(0, tmp_path, quick=False)
    # First to compile, then in turns; what was done before it was stopped is not done again.
    sides = ["imitation", "assay"]
    assert launched[:4] == [("assay", 0), ("imitation", 1), ("assay", 1), ("imitation", 2)]
    rest = [("imitation", 2), ("assay", 2), ("imitation", 3), ("assay", 3)]
    assert launched[4:] == [("assay", 0), *rest]
    assert [(run["library"], run["repeat"]) for run in found["runs"]] == [
        (side, repeat) for repeat in range(3) for side in sides
    ]


def test_the_race_is_of_medians_and_names_who_did_not_arrive() -> None:
    def runs(library: str, seconds: list[float], **more: Any) -> list[dict[str, Any]]:
        common = {"library": library, "steps": 20_480, "reached": True, **more}
        return [common | {"seconds": s, "repeat": k} for k, s in enumerate(seconds)]

    theirs = runs("imitation", [100.0, 130.0, 90.0])
    content = {"goal": -240.0, "runs": theirs + runs("assay", [20.0, 26.0, 10.0])}
    text = imitation_speed.table(content)
    assert "| 20 | 100 | 5.0x [5.0x, 9.0x] | 4x | yes |" in text and "Not reached" not in text
    content["runs"] = theirs + runs("assay", [20.0, 26.0, 10.0], reached=False)
    text = imitation_speed.table(content)
    assert "| 4x | no |" in text and "assay 1, assay 2, assay 3" in text
    assert "Not measured" in imitation_speed.table(None)


def test_our_side_of_the_race_stops_at_the_goal(tmp_path: Path) -> None:
    path = tmp_path / "race.npz"
    controlled = imitators.CASES["dagger-pendulum"]
    data.save(imitators.demonstrations(controlled, tmp_path, 2, 0), path)
    spec = {"episodes": str(path), "every": 4_096, "most": 8_192, "compile": False, "seed": 1}
    [(steps, seconds, _)] = imitation_speed._assay({**spec, "goal": -1e6})
    assert steps == 4_096 and seconds > 0
    curve = imitation_speed._assay({**spec, "goal": 0.0})
    assert [steps for steps, *_ in curve] == [4_096, 8_192] and curve[0][1] < curve[1][1]
