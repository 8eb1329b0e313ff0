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
import imitation

from assay.core.errors import ConfigError


def test_the_controller_swings_the_pendulum_up() -> None:
    env = gym.make("Pendulum-v1")
    ends = []
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        for _ in range(200):
            obs, *_ = env.step(imitation.swing_up(obs))
        ends.append(float(obs[0]))
    assert min(ends) > 0.95  # upright


def stored(out: Path, case: str, scores: list[float]) -> None:
    for seed, score in enumerate(scores, 1):
        content = {"schema": evidence.SCHEMA, "case": case, "score": score, "mean": -100 * score}
        evidence.write_json(imitation.result_path(out, imitation.CASES[case], seed), content)


@pytest.mark.parametrize(("scores", "passed"), [([0.95] * 5, True), ([0.85] * 5, False)])
def test_an_imitator_passes_by_reaching_its_goal(
    tmp_path: Path, scores: list[float], passed: bool
) -> None:
    stored(tmp_path, "gail-pendulum", scores)
    found = imitation.collect(tmp_path)
    assert found["cases"]["gail-pendulum"]["passed"] is passed


@pytest.mark.parametrize(("scores", "passed"), [([0.1] * 5, True), ([0.7] * 5, False)])
def test_a_control_passes_by_failing(tmp_path: Path, scores: list[float], passed: bool) -> None:
    stored(tmp_path, "gail-pendulum-random", scores)
    found = imitation.collect(tmp_path)
    assert found["cases"]["gail-pendulum-random"]["passed"] is passed
    assert ("yes" if passed else "**no**") in imitation.table(found)


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

    monkeypatch.setattr(imitation, "_imitate", lambda *args: Run)
    monkeypatch.setattr(imitation, "anchors", lambda *args: {"random": -1200.0, "expert": -200.0})
    result = imitation.run_seed(imitation.CASES["gail-pendulum"], 1, tmp_path)
    assert result["score"] == pytest.approx(0.9)


def test_the_same_episodes_are_shown_again(tmp_path: Path) -> None:
    case = imitation.CASES["bc-pendulum"]
    one, two = (imitation.demonstrations(case, tmp_path, 2, 3) for _ in range(2))
    assert one.content_hash == two.content_hash and len(one) == 400
    assert float(np.mean([e.reward.sum() for e in one.episodes()])) > -400


def test_an_unknown_case_is_named() -> None:
    with pytest.raises(ConfigError, match="Unknown case 'gail-moon'"):
        imitation.parse(["--cases", "gail-moon"])
