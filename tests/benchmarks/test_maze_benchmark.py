"""That `benchmarks/mazes.py` trains, tests and writes what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import mazes


@pytest.mark.parametrize("method", ["plr", "paired"])
def test_a_tiny_run(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mazes, "TINY", {"steps": 1024, "episodes": 2, "num_envs": 4})
    monkeypatch.setattr(mazes, "LIMIT", 20)
    assert mazes.main(["--method", method, "--tiny", "--out", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["solved"].keys() == found["greedy"].keys() == mazes.HELD_OUT.keys()
    assert all(0 <= rate <= 1 for rate in found["solved"].values())
    # An agent gets the same steps by every method; the antagonist's come on top.
    assert found["settings"]["env_steps"] == {"plr": 1024, "paired": 2048}[method]
