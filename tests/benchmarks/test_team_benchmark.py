"""The comparison with BenchMARL: what it adds up, what it goes on with, and our side of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import teams


def test_a_race_is_judged_against_the_faster_of_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"benchmarl-vmas": 10, "benchmarl-mpe2": 40, "assay-eager": 4, "assay": 2}

    def measure(spec: dict[str, Any]) -> dict[str, Any]:
        late = 3 if spec["seed"] == 3 else 1  # one disturbed repeat changes no median
        return spec | {"seconds": late * seconds[spec["side"]]}

    monkeypatch.setattr(teams, "measure", measure)
    found = teams.race(core=0, repeats=3, steps=100)
    assert found["ratios"] == {
        "benchmarl-vmas": 1.0, "benchmarl-mpe2": 0.2, "assay-eager": 2.5, "assay": 5.0,
    }  # fmt: skip


def test_returns_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def measure(spec: dict[str, Any]) -> dict[str, Any]:
        if len(asked) == 5:
            raise KeyboardInterrupt
        asked.append((spec["side"], spec["algorithm"], spec["task"]))
        return {k: spec[k] for k in ("side", "algorithm", "task", "seed", "asked")}

    monkeypatch.setattr(teams, "measure", measure)
    path = tmp_path / "teams.json"
    with pytest.raises(KeyboardInterrupt):
        teams.collect(path, steps=50, seeds=1, jobs=1)
    asked, before = [], list(asked)
    teams.collect(path, steps=50, seeds=1, jobs=1)
    assert len(asked) == 5 and not {*asked} & {*before}
    assert len(json.loads(path.read_text())["returns"]) == 10


@pytest.mark.parametrize(("race", "side"), [(True, "assay-eager"), (False, "assay")])
def test_our_side(race: bool, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COPIES": 2, "HORIZON": 4, "MINIBATCH": 4, "EPISODES": 2}.items():
        monkeypatch.setattr(teams, name, value)
    spec = {"algorithm": "ippo", "task": "simple_spread_v3", "core": None, "seed": 1, "steps": 64}
    found = teams.child(spec | {"race": race, "side": side})
    assert found["steps"] == 64 and found["seconds"] > 0
    assert found["return"] is None if race else found["return"] < 0
