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
