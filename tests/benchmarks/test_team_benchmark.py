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
        return spec | {"seconds": late * seconds[spec["side"]], "machine": "a core"}

    monkeypatch.setattr(teams, "measure", measure)
    found = teams.race(core=0, repeats=3, steps=100)
    assert found["ratios"] == {
        "benchmarl-vmas": 1.0, "benchmarl-mpe2": 0.2, "assay-eager": 2.5, "assay": 5.0,
    }  # fmt: skip


def test_returns_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    most = 5

    def measure(spec: dict[str, Any]) -> dict[str, Any]:
        if len(asked) == most:
            raise KeyboardInterrupt
        asked.append((spec["side"], spec["algorithm"], spec["task"]))
        return {k: spec[k] for k in ("side", "algorithm", "task", "seed", "asked")}

    monkeypatch.setattr(teams, "measure", measure)
    path = tmp_path / "teams.json"
    with pytest.raises(KeyboardInterrupt):
        teams.collect(path, steps=50, seeds=1, jobs=1)
    asked, before, most = [], list(asked), 100
    teams.collect(path, steps=50, seeds=1, jobs=1)
    assert len(asked) == 9 and not {*asked} & {*before}
    assert len(json.loads(path.read_text())["returns"]) == 14


@pytest.mark.parametrize(
    ("race", "side", "task", "best"),
    [
        (True, "assay-eager", "simple_spread_v3", 0.0),
        (False, "assay", "simple_spread_v3", 0.0),
        (False, "assay", teams.FORAGING, 0.5),
    ],
)
def test_our_side(
    race: bool, side: str, task: str, best: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COPIES": 2, "HORIZON": 4, "MINIBATCH": 4, "EPISODES": 2}.items():
        monkeypatch.setattr(teams, name, value)
    spec = {"algorithm": "ippo", "task": task, "core": None, "seed": 1, "steps": 64}
    found = teams.child(spec | {"race": race, "side": side})
    assert found["steps"] == 64 and found["seconds"] > 0 and "torch" in found["machine"]
    assert found["return"] is None if race else found["return"] <= best


def test_foraging_is_given_to_torchrl_as_assay_plays_it() -> None:
    env = teams._foraging()
    observations, infos = env.reset(seed=1)
    assert [*observations] == [*infos] == ["agent_0", "agent_1"]
    for steps in range(1, 51):
        *_, ended, cut, infos = env.step({agent: 0 for agent in env.agents})
        assert any(cut.values()) == (steps == 50) and not any(ended.values())
    assert env.agents == [] and infos == {"agent_0": {}, "agent_1": {}}


def test_returns_are_judged_by_the_side_that_they_belong_to() -> None:
    returns = {"benchmarl": (-30, -32, -31), "assay": (-20, -22, -21)}
    records = [
        {"algorithm": "ippo", "task": "simple_spread_v3", "asked": 60_000, "side": side,
         "return": value, "machine": "a core"}
        for side, values in returns.items()
        for value in values
    ]  # fmt: skip
    shown = teams.lines({"returns": records})
    row = "| ippo | simple_spread_v3 | 60,000 | -21.0 ± 1.0 (3) | -31.0 ± 1.0 (3) | +10.0 "
    assert f"{row}[+7.7, +12.3] | better |" in shown
    assert shown.endswith("Measured on a core.")
