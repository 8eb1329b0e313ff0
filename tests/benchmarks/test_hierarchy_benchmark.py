"""The benchmark of agents with levels: what it counts, and that it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import DataError
from assay.envs.native.four_rooms import CELLS, SIDE

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import evidence
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


def test_the_evidence_is_the_steps_to_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hierarchy, "EVIDENCE", tmp_path / "evidence.json")
    machine = {"cpu": "a chip", "versions": {"torch": "2"}}
    for seed, (options, flat) in enumerate([(100, 300), (500, None)]):
        agents = {
            name: {"reached": 1_000, "recovered": steps, "before": [1], "after": [2]}
            for name, steps in (("option_critic", options), ("ppo", flat))
        }
        content = {
            "schema": evidence.SCHEMA,
            "seed": seed,
            "plan": {"after": 900},
            "agents": agents,
            "machine": machine,
        }
        evidence.write_json(tmp_path / "seeds" / f"{seed}.json", content)
    hierarchy.main(["collect", str(tmp_path / "seeds")])
    found = evidence.read_json(tmp_path / "evidence.json")
    assert "after" not in found["seeds"][0]["agents"]["ppo"]
    shown = hierarchy.lines(found)
    assert "| option_critic | 1,000, 1,000 | 100, 500 | 300 |" in shown
    assert "| ppo | 1,000, 1,000 | 300, never | 600 |" in shown  # never: the budget of 900
    assert "takes 0.50 of the steps that PPO takes; asked: 0.5, reached" in shown
    with pytest.raises(DataError, match="does not hold seeds"):
        hierarchy.main(["collect", str(tmp_path / "none")])
