"""The benchmark of agents with levels: what it counts, and that it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.envs.native.four_rooms import CELLS, SIDE

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import hierarchy
import hierarchy_moved_goal as moved


def test_the_goal_moves_to_the_lower_right_room() -> None:
    goals = {moved.moved_goal(seed) for seed in range(200)}
    places = {divmod(int(CELLS[goal]), SIDE) for goal in goals}
    assert places == {(y, x) for y in range(8, 12) for x in range(7, 12)}


def test_recovery_is_two_good_evaluations_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = moved.Plan(every=256, num_envs=8, episodes=1)
    contestant = moved.Contestant("ppo", 0, plan)
    returns = iter([0.0, 0.95, 0.5, 0.9, 0.9, 0.9])

    def measured(steps: int) -> dict[str, Any]:
        return {"steps": steps, "return": next(returns)}

    monkeypatch.setattr(contestant, "_measured", measured)
    contestant.rig.collector.start()
    found = contestant.learn(4_000, stop=True)
    assert found["reached"] == 3 * 256 and len(found["curve"]) == 5


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = moved.Plan(before=256, after=256, every=256, episodes=2, limit=10, num_envs=8)
    monkeypatch.setattr(moved, "TINY", small)
    out = tmp_path / "found.json"
    asked = ["moved-goal", "--tiny", "--seed", "3", "--out", str(out)]
    hierarchy.main([*asked, "--agents", "option_critic", "ppo"])
    content = json.loads(out.read_text())
    assert content["goals"] == [62, moved.moved_goal(3)]
    assert set(content["agents"]) == {"option_critic", "ppo"}
    for agent in content["agents"].values():
        assert [point["steps"] for point in agent["after"]] == [0, 256]
    assert "option_length" in content["agents"]["option_critic"]["after"][0]
    with pytest.raises(SystemExit):
        hierarchy.main(["nothing"])
