"""That `benchmarks/mazes.py` trains, tests and writes what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import mazes


@pytest.mark.parametrize("method", ["learnability", "paired"])
def test_a_tiny_run(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mazes, "TINY", {"steps": 1024, "episodes": 2, "num_envs": 4})
    monkeypatch.setattr(mazes, "LIMIT", 20)
    assert mazes.main(["--method", method, "--tiny", "--out", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["solved"].keys() == found["greedy"].keys() == mazes.HELD_OUT.keys()
    assert all(0 <= rate <= 1 for rate in found["solved"].values())
    # An agent gets the same steps by every method; the antagonist's come on top.
    assert found["settings"]["env_steps"] == {"learnability": 1024, "paired": 2048}[method]


def test_gains_are_differences_of_means_with_their_interval() -> None:
    def seeds(*rates: float) -> list[Any]:
        solved = {"corridors": 0.4, "random": 0.9}
        return [{"named_mean": rate, "solved": solved, "length": 50.0} for rate in rates]

    methods = {"random": seeds(0.2, 0.3), "plr": seeds(0.5, 0.6)}
    _, _, random, plr, *_ = mazes.table({"steps": 10, "methods": methods}).split("\n")
    # Both deviate by sqrt(50) per cent, so that the error of the difference is sqrt(50 / 2 * 2) =
    # 7.07; of two degrees of freedom, 97.5 % are below 4.303.
    assert "| `random` | 25.0 [-38.5, 88.5] |  | 40 | 90 | 50 | 20.0, 30.0 |" == random
    assert "| +30.0 [-0.4, +60.4] |" in plr
