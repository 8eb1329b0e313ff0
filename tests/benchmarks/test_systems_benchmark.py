"""What `benchmarks/systems.py` makes of returns, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import evidence
import systems

RULES = {
    "a": {"settings": [], "returns": [-3.0, -5.0]},
    "b": {"settings": [0.5], "returns": [-2.0, -2.0]},
}


def test_the_margin_is_over_the_best_rule() -> None:
    seeds = [{"returns": [-1.0, -2.0]}, {"returns": [-2.0, -1.5]}, {"returns": [-1.0, -1.5]}]
    found = systems.summary(RULES, seeds)
    assert found["rules"] == {"a": -4.0, "b": -2.0} and found["best_rule"] == "b"
    # Means of seeds -1.5, -1.75, -1.25: mean -1.5, deviation 0.25, t(2) = 4.3027.
    half = 4.3027 * 0.25 / np.sqrt(3)
    assert found["learnt"]["mean"] == -1.5
    assert found["margin"]["mean"] == 0.5 and found["saved"] == 0.25
    assert found["margin"]["low"] == pytest.approx(0.5 - half, abs=1e-3)
    assert found["margin"]["high"] == pytest.approx(0.5 + half, abs=1e-3)
    # Episodes, averaged over seeds: -4/3 and -5/3 against -2 and -2, so 2/3 and 1/3.
    assert found["margin_over_episodes"]["mean"] == 0.5


def test_one_seed_has_no_interval() -> None:
    found = systems.summary(RULES, [{"returns": [-3.0, -3.0]}])
    assert found["margin"] == {"mean": -1.0, "low": None, "high": None}
    shown = systems.lines({"tasks": {"t": found}})
    assert "| t | b | -2.00 | -3.00 | -1.00 | -50.0% |" in shown


@pytest.mark.parametrize(
    "arguments", [["--tasks", "sorting"], ["--seeds", "0"], ["--quick", "--store"]]
)
def test_refuses(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        systems.main([*arguments, "--out", str(tmp_path)])
    assert ended.value.code == 2 and not list(tmp_path.iterdir())


def test_runs_quickly_and_is_not_run_again(tmp_path: Path) -> None:
    arguments = ["--quick", "--seeds", "1", "--tasks", "compaction", "--out", str(tmp_path)]
    assert systems.main(arguments) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
    assert sorted(path.name for path in before) == ["compaction-1.json", "compaction-rules.json"]
    assert systems.main(arguments) == 0
    assert {path: path.read_bytes() for path in before} == before
    content = evidence.read_json(tmp_path / "systems.json")
    task = content["tasks"]["compaction"]
    assert (
        content["quick"] and task["split"] == "train" and set(task["by_rule"]) == set(task["rules"])
    )
    assert all(len(rule["returns"]) == task["episodes"] for rule in task["by_rule"].values())


def test_a_failed_part_fails_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "run_part", lambda name, part, options: part != "1")
    assert systems.main(["--quick", "--seeds", "1", "--out", str(tmp_path)]) == 1
