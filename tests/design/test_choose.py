"""The selector on described problems whose right family is known."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.core import registry
from assay.design import choose as selector
from assay.design.choose import choose, evidence
from assay.design.problem import (
    Architecture,
    Budget,
    Hierarchy,
    Mdp,
    Problem,
    Simulator,
)
from assay.loops.run_settings import settings_model

HERE = Path(__file__).parent
DESCRIBED = yaml.safe_load((HERE / "described.yaml").read_text())
HELD_OUT = yaml.safe_load((HERE / "held_out.yaml").read_text())


def mismatch(described: dict[str, Any]) -> str:
    """Return in what the first choice is not what is known to be right, or ""."""
    fitting, _ = choose(Problem(**described["problem"]))
    if not fitting:
        return "nothing fits"
    spec, expect = fitting[0].spec, described["expect"]
    for key in ("family", "loop"):
        if key in expect and getattr(spec, key) not in expect[key]:
            return f"{spec.name}: {key} is {getattr(spec, key)}, expected {expect[key]}"
    if "expert" in expect and spec.expert != expect["expert"]:
        return f"{spec.name}: expert is {spec.expert}"
    for key in ("traits", "actions"):
        missing = set(expect.get(key, ())) - set(getattr(spec, key))
        if missing:
            return f"{spec.name}: lacks {missing}"
    return ""


@pytest.mark.parametrize("described", DESCRIBED, ids=lambda one: one["about"][:40])
def test_the_first_choice_is_of_the_right_family(described: dict[str, Any]) -> None:
    assert mismatch(described) == ""


@pytest.mark.parametrize("described", HELD_OUT, ids=lambda one: one["about"][:40])
def test_also_where_it_was_not_looked_at(described: dict[str, Any]) -> None:
    assert mismatch(described) == ""


def test_who_plays_against_others() -> None:
    poker = next(one["problem"] for one in HELD_OUT if "Leduc" in one["about"])
    fitting, _ = choose(Problem(**poker))
    assert {"cfr", "nfsp"} == {one.spec.name for one in fitting}
    open_cards = poker | {"agents": poker["agents"] | {"information": "perfect"}}
    _, ruled_out = choose(Problem(**open_cards))
    assert "nfsp" in str(ruled_out)


def test_agents_that_see_little_get_a_memory() -> None:
    team = next(one["problem"] for one in HELD_OUT if "one reward, global state" in one["about"])
    settings = {one.spec.name: one.settings for one in choose(Problem(**team))[0]}
    assert settings["mappo"]["memory"] == settings["qmix"]["memory"] == "gru"
    assert "memory" not in settings["maddpg"]
    seen = team | {"mdp": team["mdp"] | {"observability": "full"}}
    assert all("memory" not in one.settings for one in choose(Problem(**seen))[0])


def test_agents_with_several_choices_at_once_are_refused_as_training_does() -> None:
    team = next(one["problem"] for one in HELD_OUT if "one reward, global state" in one["about"])
    several = team | {"action": {"kind": "multi_discrete", "n": 9}}
    fitting, ruled_out = choose(Problem(**several))
    assert fitting == []
    assert ruled_out["ippo"] == "it takes Discrete or Box actions, not MultiDiscrete"


def test_there_are_enough_problems() -> None:
    assert len(HELD_OUT) >= 15 and len(DESCRIBED) >= 15
    assert len(HELD_OUT) >= len(DESCRIBED)


@pytest.mark.parametrize("described", DESCRIBED + HELD_OUT, ids=lambda one: one["about"][:40])
def test_every_algorithm_is_ranked_or_ruled_out_with_a_reason(described: dict[str, Any]) -> None:
    fitting, ruled_out = choose(Problem(**described["problem"]))
    ranked = [one.spec.name for one in fitting]
    assert sorted([*ranked, *ruled_out]) == registry.names()
    assert all(reason for reason in ruled_out.values())
    assert [one.points for one in fitting] == sorted((o.points for o in fitting), reverse=True)


def test_settings_are_those_of_the_algorithm() -> None:
    for described in DESCRIBED + HELD_OUT:
        for one in choose(Problem(**described["problem"]))[0]:
            cls = registry.get(one.spec.name)
            own = cls.Hyperparameters.model_fields
            assert set(one.settings) <= {*own, *settings_model(cls).model_fields}, one.spec.name
            cls.Hyperparameters(**{k: v for k, v in one.settings.items() if k in own})


def test_the_command_has_the_settings_that_the_problem_asks_for() -> None:
    goals = next(one for one in HELD_OUT if "block to a goal" in one["about"])
    first = choose(Problem(env="FetchPush-v4", **goals["problem"]))[0][0]
    assert first.command == f"assay train {first.spec.name} FetchPush-v4 her=future"
    risk = next(one for one in HELD_OUT if "CVaR" in one["about"])
    assert choose(Problem(**risk["problem"]))[0][0].command == "assay train iqn ENV cvar=0.25"


def test_steps_and_cost_are_those_that_were_measured() -> None:
    problem = Problem(env="Pendulum-v1", action={"kind": "box", "shape": [1], "low": -2, "high": 2})
    sac = next(one for one in choose(problem)[0] if one.spec.name == "sac")
    row = next(r for r in evidence() if (r["algorithm"], r["env"]) == ("sac", "Pendulum-v1"))
    assert (sac.expected.count, sac.expected.seconds) == (row["env_steps"], row["seconds"])
    assert "measured" in sac.expected.source and sac.preset
    # Elsewhere: the problem's budget, at no more than the simulator's speed.
    slow = problem.model_copy(
        update={
            "env": None,
            "mdp": Mdp(simulator=Simulator(steps_per_second=2.0)),
            "architecture": Architecture(budget=Budget(env_steps=1000)),
        }
    )
    sac = next(one for one in choose(slow)[0] if one.spec.name == "sac")
    assert (sac.expected.count, sac.expected.seconds, sac.preset) == (1000, 500.0, False)
    assert sac.expected.source.endswith("the environment's 2 steps/s, learning not counted")


def test_another_environments_time_is_told_as_such_or_left_out() -> None:
    box = {"kind": "box", "shape": [1], "low": -2, "high": 2}
    layers = {"budget": {"env_steps": 7000}}
    unknown = Problem(action=box, architecture=layers)
    sac = next(one for one in choose(unknown)[0] if one.spec.name == "sac")
    assert (sac.expected.count, sac.expected.seconds) == (7000, None)
    assert sac.expected.source == "the problem's budget; the environment's speed is not known"
    fast = Problem(action=box, architecture=layers, mdp={"simulator": {"steps_per_second": 1e6}})
    sac = next(one for one in choose(fast)[0] if one.spec.name == "sac")
    least = min((r for r in evidence() if r["algorithm"] == "sac"), key=lambda r: r["env_steps"])
    assert sac.expected.seconds == pytest.approx(7000 * least["seconds"] / least["env_steps"], 0.01)
    assert f"that were measured on {least['env']}" in sac.expected.source


def test_an_algorithm_with_levels_is_preferred_for_a_hierarchy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = registry.spec_of("ppo")
    levels = dataclasses.replace(known, name="option_critic", traits=("levels",))
    monkeypatch.setattr(selector, "specs", lambda: [known, levels])
    flat = Problem(action={"kind": "discrete", "n": 4})
    tall = flat.model_copy(update={"hierarchy": Hierarchy()})
    assert choose(flat)[0][0].spec.name == "ppo"
    assert choose(tall)[0][0].spec.name == "option_critic"


def test_nothing_takes_hybrid_actions() -> None:
    fitting, ruled_out = choose(Problem(action={"kind": "hybrid"}))
    assert not fitting and set(ruled_out.values()) == {"no algorithm takes hybrid actions"}


def test_choosing_and_checking_import_no_torch(tmp_path: Path) -> None:
    file = tmp_path / "problem.yaml"
    file.write_text("action: {kind: discrete, n: 3}\n")
    code = (
        "import sys\nfrom assay.cli import main\n"
        "for verb in ('check', 'choose'):\n"
        f"    sys.argv = ['assay', 'design', verb, '-f', {str(file)!r}, '--json']\n"
        "    try:\n        main()\n    except SystemExit as stop:\n        assert not stop.code\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
