"""That `benchmarks/wrappers.py` measures, and how it judges."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import wrappers


def test_a_tiny_measurement() -> None:
    small = {"num_envs": 4, "horizon": 256, "hidden": (8,), "epochs": 1, "compile": False}
    content = wrappers.result(["none", "time_in_obs"], turns=1, skipped=1, counted=1, **small)
    assert content["microseconds"].keys() == {"none", "time_in_obs"}
    assert all(value > 0 for (value,) in content["microseconds"].values())
    assert wrappers.costs(content)["none"] == 0


def test_costs_are_of_the_same_turns() -> None:
    taken = {"none": [10.0, 20.0, 30.0], "noise": [16.0, 32.0, 30.0], "three": [20.0, 30.0, 60.0]}
    machine = {"cpu": "a processor", "versions": {"torch": "1"}}
    content = {"microseconds": taken, "rollouts": 40, "machine": machine}
    # 10 / 16 = 20 / 32 = 0.625, and 10 / 20 = 30 / 60 = 0.5
    assert wrappers.costs(content) == pytest.approx({"none": 0.0, "noise": 0.375, "three": 0.5})
    text = wrappers.lines(content)
    assert "| `noise` | 30.0 us | 37.5 % |" in text and "**missed** by noise, three" in text
    content["microseconds"] = {"none": [10.0], "noise": [11.0]}
    assert "reached by all" in wrappers.lines(content)
