"""The benchmark harness: its cases, its evidence, its tables. It measures nothing here."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
# The benchmarks are scripts, which import each other by name.
sys.path.insert(0, str(ROOT / "benchmarks"))

import cases  # noqa: E402
import contestants  # noqa: E402
import evidence  # noqa: E402
import learning  # noqa: E402
import memory  # noqa: E402
import phases  # noqa: E402
import priorities  # noqa: E402
import report  # noqa: E402
import speed  # noqa: E402

from assay import api, events  # noqa: E402
from assay.core import registry  # noqa: E402
from assay.core.errors import ConfigError  # noqa: E402
from assay.envs.make import look_at  # noqa: E402
from assay.loops.config import preset, resolve  # noqa: E402

CASE = cases.CASES["sac-pendulum"]
ANY: Any = mock.ANY
MACHINE = {"cpu": "a processor", "versions": {"python": "3.12", "torch": "2"}}


# ---------------------------------------------------------------------- cases


@pytest.mark.parametrize("case", cases.CASES.values(), ids=lambda case: case.name)
def test_a_case_is_its_shipped_preset_with_budget_and_evaluation_settings(case: cases.Case) -> None:
    shipped = preset(case.algorithm, case.env)
    assert shipped or case.control_of, "no preset is shipped for this case"
    config = learning.resolved(case, seed=3)
    assert (config["algorithm"], config["env"]) == (case.algorithm, case.env)
    assert (config["run"]["env_steps"], config["run"]["seed"]) == (case.env_steps, 3)
    plain = resolve(case.algorithm, case.env, case.overrides).to_dict()
    assert config["hyperparameters"] == plain["hyperparameters"]
    changed = {k for k, v in config["run"].items() if v != plain["run"][k]}
    allowed = {"env_steps", "seed", "device", "threads", "sinks", "eval_every", "eval_episodes"}
    assert changed <= allowed | {"checkpoint_every", "log_every"}  # these follow the budget


def test_the_goals_are_those_the_project_set() -> None:
    ours = [c for c in cases.CASES.values() if c.control_of is None]
    goals = {c.name: (c.env_steps, c.goal) for c in ours}
    assert goals == {
        "ppo-cartpole": (100_000, "≥ 500"),
        "dqn-cartpole": (50_000, "≥ 475"),
        "a2c-cartpole": (500_000, "≥ 475"),
        "sac-pendulum": (20_000, "> -160"),
        "td3-pendulum": (20_000, "> -160"),
        "ddpg-pendulum": (20_000, "> -160"),
        "ppo-acrobot": (1_000_000, "> -74"),
        "ppo-lunarlander": (1_000_000, "> 220"),
        "sac-halfcheetah": (100_000, "> 4000"),  # half of the 200,000 that are allowed
        "c51-cartpole": (50_000, "≥ 475"),
        "qrdqn-cartpole": (50_000, "≥ 475"),
        "iqn-cartpole": (50_000, "≥ 475"),
        "fqf-cartpole": (50_000, "≥ 475"),
        "rainbow-cartpole": (50_000, "≥ 475"),
        "qrdqn-acrobot": (100_000, "> -80"),
        "recurrent_ppo-novel": (200_000, "≥ 475"),
        "tqc-pendulum": (20_000, "> -160"),
        "crossq-pendulum": (20_000, "> -160"),
        "crossq-halfcheetah": (100_000, "> 4000"),
        "crossq-halfcheetah-4": (100_000, "> 8000"),
        "sac-her-fetchreach": (3_500, "≥ 95% success"),
        "mbpo-pendulum": (5_000, "> -200"),
        "sac-pendulum-5k": (5_000, "> -200"),  # beside it, at the same budget
        # The project sets no budget for these, or an upper limit.
        "dreamerv3-catch": (ANY, "≥ 0.95"),
        "dreamerv3-catch-blind": (ANY, "≥ 0.95"),
        "tdmpc2-pendulum": (ANY, "> -160"),
        "recurrent_ppo-recall": (ANY, "≥ 0.95"),
        "r2d2-recall": (ANY, "≥ 0.95"),
        "redq-pendulum": (ANY, "> -160"),
        "impala-lag": (ANY, "≥ 475"),
        "qmix-twostep": (ANY, "≥ 8"),
        "hiro-longmaze": (ANY, "> 0.6"),
        "hiro-umaze": (ANY, "> 60% success"),
        "hiro-smaze": (ANY, "> 60% success"),
        "ppo-rnd-chain": (ANY, ANY),
    }
    assert cases.CASES["redq-pendulum"].env_steps <= 20_000
    controls = {c.name: c.goal for c in cases.CASES.values() if c.control_of is not None}
    assert controls.keys() == {
        "ppo-novel", "ppo-recall", "dqn-recall", "sac-fetchreach", "vdn-twostep",
        "impala-lag-uncorrected",
        "ppo-chain", "sac-longmaze", "sac-umaze", "sac-smaze",
    }  # fmt: skip
    assert controls["ppo-novel"] == "< 150" and controls["sac-fetchreach"] == "< 20% success"
    assert cases.CASES["ppo-cartpole"].met(500.0) and not cases.CASES["ppo-cartpole"].met(499.9)
    assert CASE.met(-159.9) and not CASE.met(-160.0)


def test_a_control_is_its_case_without_what_is_special() -> None:
    for control in cases.CASES.values():
        if control.control_of is None:
            continue
        case = cases.CASES[control.control_of]
        assert (control.env, control.measure) == (case.env, case.measure)
        assert control.env_steps == case.env_steps  # as much time to succeed
        assert control.threshold < case.threshold
        different = control.algorithm != case.algorithm or control.overrides != case.overrides
        assert different, f"{control.name} is {case.name} again"
        # It passes by failing.
        assert control.met(control.threshold - 0.01) and not control.met(case.threshold)
        assert control.title.startswith("control: ")


def test_cases_belong_to_their_algorithm_with_their_controls() -> None:
    assert [c.name for c in cases.cases_of("recurrent_ppo")] == [
        "recurrent_ppo-novel", "ppo-novel", "recurrent_ppo-recall", "ppo-recall",
    ]  # fmt: skip
    # Where PPO serves as a control it says nothing about PPO.
    names = [c.name for c in cases.cases_of("ppo")]
    assert names == [
        "ppo-cartpole", "ppo-acrobot", "ppo-lunarlander", "ppo-rnd-chain", "ppo-chain",
    ]  # fmt: skip
    assert cases.CASES["impala-lag-uncorrected"].title == (
        "control: IMPALA CartPole-v1 (actor_lag=8, correction=none)"
    )


def test_cases_are_parsed_by_name() -> None:
    assert [c.name for c in cases.parse_cases("dqn-cartpole, ppo-acrobot,dqn-cartpole")] == [
        "dqn-cartpole",
        "ppo-acrobot",
    ]
    assert cases.parse_cases("all") == list(cases.CASES.values())
    with pytest.raises(ConfigError, match="Did you mean 'ppo-cartpole'"):
        cases.parse_cases("ppo-cartpol")
    with pytest.raises(ConfigError, match="No case"):
        cases.parse_cases(" , ")


def test_every_comparison_is_between_entries_of_its_race() -> None:
    for comparison in cases.COMPARISONS:
        names = {entry.name for entry in cases.RACES[comparison.race].entries}
        assert {comparison.ours, comparison.peer} <= names
        assert comparison.ours.startswith("assay-") and not comparison.peer.startswith("assay-")
    assert len(cases.ENTRIES) == sum(len(race.entries) for race in cases.RACES.values())
    assert all(race.repeats >= 3 for race in cases.RACES.values())
    targets = sorted(c.target for c in cases.COMPARISONS if c.target is not None)
    assert targets == [1.2, 1.5, 1.5, 1.5, 1.9, 2, 4, 5, 5, 6, 10, 12, 12]


@pytest.mark.parametrize(
    "entry",
    [e for e in cases.ENTRIES.values() if e.library == "assay" and not e.preset],
    ids=lambda entry: entry.name,
)
def test_what_is_fitted_to_an_environment_changes_no_race_of_equal_settings(
    entry: cases.Entry,
) -> None:
    given = {"env_steps": entry.env_steps, **entry.settings}
    plain, fitted = (
        resolve(entry.algorithm, entry.env, given, use_preset=False, look=look).hyperparameters
        for look in (None, lambda settings: look_at(entry.env, settings))
    )
    assert fitted == plain


def test_entries_of_assay_resolve_and_equal_settings_are_equal() -> None:
    for entry in cases.ENTRIES.values():
        if entry.library == "assay":
            resolve(entry.algorithm, entry.env, entry.settings, use_preset=entry.preset)

    def config(name: str) -> dict[str, Any]:
        entry = cases.ENTRIES[name]
        found = resolve(entry.algorithm, entry.env, entry.settings, use_preset=entry.preset)
        return {**found.hyperparameters, "num_envs": found.run.num_envs}

    def same(ours: dict[str, Any], theirs: Any, names: dict[str, str]) -> None:
        assert {ours[a] for a in names} and all(ours[a] == theirs[b] for a, b in names.items())

    tuned = cases.ENTRIES["sb3-ppo"].settings
    names = {"num_envs": "n_envs", "horizon": "n_steps", "minibatch_size": "batch_size"}
    names |= {"epochs": "n_epochs", "gamma": "gamma", "gae_lambda": "gae_lambda"}
    same(config("assay-ppo-equal-compiled"), tuned, names)
    assert config("assay-ppo-equal-compiled")["lr"] == "linear:0.001:0.0"
    assert config("assay-ppo-equal-compiled")["hidden"] == [64, 64]
    skrl = cases.ENTRIES["skrl-ppo-preset"].settings
    ours = config("assay-ppo-compiled")
    same(ours, skrl, {"num_envs": "num_envs", "horizon": "rollouts", "epochs": "learning_epochs"})
    size = ours["num_envs"] * ours["horizon"]
    assert size // ours["minibatch_size"] == skrl["mini_batches"]
    names = {"lr": "learning_rate", "buffer_size": "buffer_size", "batch_size": "batch_size"}
    names |= {"learning_starts": "learning_starts", "train_every": "train_freq"}
    for peer_name in ("sb3-dqn", "sb3-sac", "contrib-qrdqn", "contrib-tqc"):
        peer, algorithm = cases.ENTRIES[peer_name].settings, peer_name.partition("-")[2]
        same(config(f"assay-{algorithm}-compiled"), peer, names | {"updates": "gradient_steps"})
    for name in ("assay-dqn-compiled", "assay-qrdqn-compiled"):
        dqn = config(name)
        assert dqn["target_every"] * dqn["train_every"] == 10_000
    tqc, theirs = config("assay-tqc-compiled"), cases.ENTRIES["contrib-tqc"].settings
    same(tqc, theirs["policy_kwargs"], {"n_critics": "n_critics", "n_quantiles": "n_quantiles"})
    recurrent, theirs = (
        config("assay-recurrent_ppo-compiled"), cases.ENTRIES["contrib-recurrent_ppo"].settings,
    )  # fmt: skip
    names = {"num_envs": "n_envs", "horizon": "n_steps", "epochs": "n_epochs"}
    same(recurrent, theirs, names | {"gamma": "gamma", "gae_lambda": "gae_lambda"})
    assert recurrent["memory_size"] == theirs["policy_kwargs"]["lstm_hidden_size"]


# ---------------------------------------------------------------------- learning evidence


def seed_result(seed: int, mean: float) -> dict[str, Any]:
    config = learning.resolved(CASE, seed)
    returns = [mean - 10.0, mean + 10.0] * 50
    return {
        "schema": 1, "case": CASE.name, "algorithm": "sac", "env": CASE.env,
        "env_steps": CASE.env_steps, "seed": seed, "config": config,
        "config_hash": evidence.config_hash(config), "machine": MACHINE,
        "evaluation": {"episodes": 100, "seed": 9, "mean": mean, "iqm": mean, "std": 10.0,
                       "returns": returns},
        "curve": {"env_steps": [1000, 20_000], "mean": [-900.0, mean]},
        "train_seconds": 10.0, "env_steps_per_second": 2000.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    means = [-150.0, -140.0, -145.0, -155.0, -170.0]
    return [seed_result(seed, mean) for seed, mean in enumerate(means, start=1)]


@pytest.fixture
def collected(results: list[dict[str, Any]], tmp_path: Path) -> Path:
    for result in results:
        evidence.write_json(learning.result_path(tmp_path, CASE, result["seed"]), result)
    (path,) = report.collect(tmp_path, tmp_path / "evidence")
    return path


def test_seeds_become_one_file_with_the_interquartile_mean(collected: Path) -> None:
    found = evidence.read_learning(collected)
    # Of five values the outer ones count for nothing but a quarter: (.75 a + b + .75 c) / 2.5.
    assert found["iqm"] == pytest.approx((0.75 * -155 - 150 + 0.75 * -145) / 2.5, abs=1e-3)
    low, high = found["interval"]
    assert -170 <= low < found["iqm"] < high <= -140
    assert found["passed"] is True
    assert [entry["seed"] for entry in found["seeds"]] == [1, 2, 3, 4, 5]
    assert "seed" not in found["config"]["run"]
    # One line per list: a hundred returns must not be a hundred lines.
    assert len(collected.read_text().splitlines()) < 300


def test_a_case_may_need_fewer_seeds_and_judge_by_success(
    results: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = dataclasses.replace(CASE, threshold=0.95, measure="success", seeds=2, inclusive=True)
    monkeypatch.setitem(cases.CASES, CASE.name, case)
    seeds = copy.deepcopy(results[:2])
    for result, failures in zip(seeds, (0, 10), strict=True):
        success = [1] * (100 - failures) + [0] * failures
        result["evaluation"] |= {"success": success, "success_rate": sum(success) / 100}
    with pytest.raises(evidence.EvidenceError, match="expected 2 or more"):
        evidence.aggregate(case, seeds[:1])
    found = evidence.aggregate(case, seeds)
    assert (found["iqm"], found["goal"], found["passed"]) == (0.95, "≥ 95% success", True)
    path = tmp_path / f"{case.name}.json"
    evidence.write_json(path, found)
    shown = report.evidence_block(report.DOCS / "hindsight.md", [case], tmp_path)
    assert "| 95% [90%, 100%] | 100%, 90% | yes | 0.2 to 0.2 |" in shown
    assert "](pictures/hindsight.svg)" in shown
    for change in ({"success_rate": 1.0}, {"success": [1] * 99}, {"success": [2] * 100}):
        broken = copy.deepcopy(found)
        broken["seeds"][1]["evaluation"].update(change)
        evidence.write_json(path, broken)
        with pytest.raises(evidence.EvidenceError, match=r"succe"):
            evidence.read_learning(path)


def test_an_environment_that_tells_no_success_cannot_be_judged_by_it() -> None:
    case = dataclasses.replace(CASE, measure="success")
    with pytest.raises(ConfigError, match="does not report them"):
        learning._successes(case, SimpleNamespace(success=None))
    found = learning._successes(case, SimpleNamespace(success=np.array([True, False])))
    assert found == {"success_rate": 0.5, "success": [1, 0]}
    assert learning._successes(CASE, SimpleNamespace(success=None)) == {}


def test_a_rival_is_compared_seed_against_seed(collected: Path) -> None:
    content = evidence.read_learning(collected)
    better = copy.deepcopy(content)
    for entry in better["seeds"]:
        entry["evaluation"]["mean"] += 100.0
    found = evidence.difference(better, content)
    assert found.point == pytest.approx(100.0) and found.low < 100.0 < found.high
    rival = dataclasses.replace(CASE, rival=CASE.name)
    (line,) = report._rivalry(rival, better, collected.parent)
    assert "SAC Pendulum-v1 less SAC Pendulum-v1 after 20,000 steps: +100 [" in line
    assert report._rivalry(CASE, content, collected.parent) == []


def test_the_table_shows_what_the_file_holds(collected: Path) -> None:
    lines = report.learning_table(collected.parent).splitlines()
    row = next(line for line in lines if "SAC Pendulum" in line)
    assert "| 20,000 | > -160 | -150.0 [" in row
    assert "| -150.0, -140.0, -145.0, -155.0, -170.0 | yes |" in row
    assert next(line for line in lines if "PPO CartPole" in line).count("not measured") == 1
    assert "a processor (Python 3.12, torch 2)" in lines[-1]


def test_seeds_that_do_not_belong_together_are_refused(results: list[dict[str, Any]]) -> None:
    with pytest.raises(evidence.EvidenceError, match="seeds"):
        evidence.aggregate(CASE, results[:4])
    with pytest.raises(evidence.EvidenceError, match="each once"):
        evidence.aggregate(CASE, [*results[:4], results[0]])
    other = copy.deepcopy(results)
    other[2]["config"]["hyperparameters"]["gamma"] = 0.5
    with pytest.raises(evidence.EvidenceError, match=r"Seed 3 .* other settings"):
        evidence.aggregate(CASE, other)


def _flip(content: dict[str, Any]) -> None:
    content["passed"] = not content["passed"]


BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "schema": lambda c: c.update(schema=0),
    "another case": lambda c: c.update(case="ppo-cartpole"),
    "fewer steps": lambda c: c.update(env_steps=30_000),
    "easier goal": lambda c: c.update(goal="> -200"),
    "better summary": lambda c: c.update(iqm=-100.0),
    "narrower interval": lambda c: c.update(interval=[-150.0, -149.0]),
    "passed": _flip,
    "a seed twice": lambda c: c["seeds"].append(c["seeds"][0]),
    "a seed less": lambda c: c["seeds"].pop(),
    "an episode less": lambda c: c["seeds"][1]["evaluation"]["returns"].pop(),
    "a better mean": lambda c: c["seeds"][1]["evaluation"].update(mean=-120.0),
    "other returns": lambda c: c["seeds"][1]["evaluation"].update(returns=[0.0] * 100),
    "no list of returns": lambda c: c["seeds"][1]["evaluation"].update(returns="many"),
    "no evaluation": lambda c: c["seeds"][1].pop("evaluation"),
    "another configuration": lambda c: c["config"]["hyperparameters"].update(gamma=0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_evidence_is_refused_by_name(name: str, collected: Path) -> None:
    content = json.loads(collected.read_text())
    BROKEN[name](content)
    collected.write_text(json.dumps(content))
    with pytest.raises(evidence.EvidenceError, match=r"sac-pendulum\.json"):
        evidence.read_learning(collected)
    with pytest.raises(evidence.EvidenceError):
        report.learning_table(collected.parent)


def test_a_torn_or_missing_file_is_refused(collected: Path) -> None:
    collected.write_text(collected.read_text()[:500])
    with pytest.raises(evidence.EvidenceError, match="cannot be read"):
        evidence.read_learning(collected)
    with pytest.raises(evidence.EvidenceError, match="no evidence file"):
        evidence.read_learning(collected.with_name("ppo-cartpole.json"))


def test_evidence_for_settings_no_longer_shipped_is_stale(collected: Path) -> None:
    content = evidence.read_learning(collected)
    assert report.stale(CASE, content) == []
    content["config"]["hyperparameters"]["gamma"] = 0.5
    content["config"]["run"]["num_envs"] = 77
    assert report.stale(CASE, content) == ["gamma", "num_envs"]


# ---------------------------------------------------------------------- speed evidence


def speed_content(file: str = "speed") -> dict[str, Any]:
    runs = []
    for race in (race for race in cases.RACES.values() if race.file == file):
        for repeat, entry in itertools.product(range(race.repeats), race.entries):
            factor = 12.0 if entry.library == "assay" else 1.0
            seconds = (repeat + 1) * 10.0 / factor
            steps = entry.env_steps
            runs.append(
                {
                    "race": race.name, "entry": entry.name, "repeat": repeat, "updates": 1000,
                    "seconds": seconds, "env_steps": steps, "env_steps_per_second": steps / seconds,
                    "updates_per_second": 1000 / seconds, "final_return": 500.0,
                    "seconds_to_return": seconds if entry.until_return else None,
                }
            )  # fmt: skip
    return {"schema": 1, "quick": False, "date": "2026-01-01", "machine": MACHINE, "runs": runs}


def test_a_ratio_is_of_medians_and_its_range_of_neighbours() -> None:
    comparison = cases.Comparison("x", "sac", "a", "b", "updates_per_second", 1.9)
    rates = {"a": [200.0, 100.0, 240.0], "b": [100.0, 100.0, 80.0]}
    runs = [
        {"race": "sac", "entry": name, "repeat": k, "updates_per_second": v, "final_return": 1.0}
        for name, values in rates.items()
        for k, v in enumerate(values)
    ]
    found = evidence.compare(comparison, runs)
    assert found is not None
    assert (found.ours, found.peer, found.ratio) == (200.0, 100.0, 2.0)
    assert (found.low, found.high, found.met) == (1.0, 3.0, True)
    assert (
        evidence.compare(cases.Comparison("x", "dqn", "a", "b", "updates_per_second"), runs) is None
    )


def test_less_time_is_faster_and_a_goal_not_reached_takes_for_ever() -> None:
    comparison = cases.Comparison("x", "ppo-475", "a", "b", "seconds_to_return", 10)
    runs = [
        {"race": "ppo-475", "entry": e, "repeat": 0, "seconds_to_return": s, "final_return": 1.0}
        for e, s in (("a", 2.0), ("b", 10.0))
    ]
    found = evidence.compare(comparison, runs)
    assert found is not None and found.ratio == 5.0 and found.met is False
    runs[0]["seconds_to_return"] = None
    lost = evidence.compare(comparison, runs)
    assert lost is not None and lost.ratio == 0.0 and math.isinf(lost.ours)
    runs[1]["seconds_to_return"] = None
    both = evidence.compare(comparison, runs)
    assert both is not None and math.isnan(both.ratio) and both.met is False
    assert "not reached" in report._speed_cells(both)[1]


def test_the_speed_table_states_every_target_and_whether_it_is_met(tmp_path: Path) -> None:
    found = []
    for name in ("speed", "speed-contrib", "speed-default"):
        path = tmp_path / f"{name}.json"
        evidence.write_json(path, speed_content(name))
        found.append(evidence.read_speed(path))
    table = report.speed_table(found)
    assert table.count("Measured on 2026-01-01 on one core") == 1
    rows = [line for line in table.splitlines() if line.startswith("| ") and " / " in line]
    assert len(rows) == len(cases.COMPARISONS)
    assert all("| 12.0x [12.0x, 12.0x] |" in row for row in rows)
    assert sum("| yes |" in row for row in rows) == 13
    slow = speed_content()
    for run in slow["runs"]:
        if run["entry"] == "assay-dqn-compiled":
            run["env_steps_per_second"] /= 10
    lines = report.speed_table([slow]).splitlines()
    rows = [line for line in lines if "| DQN" in line and "compiled" in line]
    assert "| 1.2x [1.2x, 1.2x] | 5x | **no** |" in rows[0]


BROKEN_SPEED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "quick": lambda c: c.update(quick=True),
    "lacks the repeats": lambda c: c["runs"].pop(),
    "a rate that is not": lambda c: c["runs"][0].update(env_steps_per_second=1.0),
    "updates, sb3-ppo": lambda c: [
        r.update(updates=999) for r in c["runs"] if r["entry"] == "assay-ppo-equal-compiled"
    ],
    "the races that belong": lambda c: c["runs"].append({**c["runs"][0], "race": "tqc"}),
    "missing or malformed": lambda c: c["runs"][0].pop("seconds"),
    "does not name the machine": lambda c: c.update(machine={}),
}


@pytest.mark.parametrize("reason", BROKEN_SPEED)
def test_broken_speed_evidence_is_refused(reason: str, tmp_path: Path) -> None:
    content = speed_content()
    BROKEN_SPEED[reason](content)
    path = tmp_path / "speed.json"
    evidence.write_json(path, content)
    with pytest.raises(evidence.EvidenceError, match=reason):
        evidence.read_speed(path)


# ---------------------------------------------------------------------- the committed files


def test_the_benchmarks_readme_has_all_tables() -> None:
    text = report.BENCHMARKS_README.read_text()
    assert [name for name in report.NAMES if not report.block(text, name)] == []


@pytest.mark.parametrize("path", report.pages(), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_committed_tables_are_what_the_committed_evidence_says(path: Path) -> None:
    if all(report.block(path.read_text(), name) is None for name in report.wanted_blocks(path)):
        pytest.skip("shows no table")
    assert report.outdated(path) == []


def test_the_index_lists_every_algorithm_and_links_its_page() -> None:
    table = report.block(report.INDEX.read_text(), "algorithms")
    assert table is not None
    rows = {line.split("|")[1].strip() for line in table.splitlines()[2:]}
    assert rows == {f"[{name}]({name}.md)" for name in registry.names()}
    assert "| value | Discrete | arXiv:1710.10044 |" in table


def test_committed_evidence_holds_for_the_shipped_presets() -> None:
    assert report.check() == []


def test_an_edited_table_is_out_of_date_until_it_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(report.BENCHMARKS_README.read_text().replace("| 500,000 |", "| 500 |"))
    assert report.outdated(path) == ["learning"]
    report.write_blocks([path])
    assert report.outdated(path) == []
    assert path.read_text() == report.BENCHMARKS_README.read_text()


def test_a_picture_of_other_curves_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = report.DOCS / "algorithms" / "dqn.md"
    monkeypatch.setattr(report, "picture_of", lambda page: tmp_path / f"{page.stem}.svg")
    assert not report.drawn(page)
    report.draw(page)
    first = (tmp_path / "dqn.svg").read_text()
    assert report.drawn(page) and "CartPole-v1" in first and "5 seeds" in first
    (tmp_path / "dqn.svg").write_text(first.replace("curves ", "curves 0"))
    assert not report.drawn(page)
    report.draw(page)
    assert (tmp_path / "dqn.svg").read_text() == first


def test_a_table_is_replaced_between_its_markers_only() -> None:
    text = "a\n<!-- speed:begin -->\nold\n<!-- speed:end -->\nb <!-- learning:begin -->x"
    new = report.with_block(text, "speed", r"| \1 new |")
    assert new == text.replace("old", r"| \1 new |")
    assert report.block(new, "speed") == r"| \1 new |"
    assert report.block(new, "learning") is None
    assert report.with_block(text, "memory", "new") == text


# ---------------------------------------------------------------------- learning.py


@pytest.fixture
def small() -> cases.Case:
    return cases.Case("ppo-cartpole", "ppo", "CartPole-v1", 8_192, 500, 0.1)


def test_a_seed_is_trained_evaluated_and_not_run_again(small: cases.Case, tmp_path: Path) -> None:
    assert not learning.finished(tmp_path, small, 1)
    assert learning.run_seed(small, 1, tmp_path, "cpu", keep=False) == 0
    result = evidence.read_json(learning.result_path(tmp_path, small, 1))
    assert len(result["evaluation"]["returns"]) == 100
    assert result["evaluation"]["mean"] == pytest.approx(
        sum(result["evaluation"]["returns"]) / 100, abs=1e-3
    )
    assert result["curve"]["env_steps"][-1] == 8_192
    assert result["train_seconds"] > 0 and result["machine"]["versions"]["torch"]
    assert result["config"] == learning.resolved(small, 1)
    assert list((tmp_path / "runs").iterdir()) == []
    assert learning.finished(tmp_path, small, 1)
    assert not learning.finished(tmp_path, small, 2)
    longer = cases.Case(small.name, "ppo", "CartPole-v1", 16_384, 500, 0.1)
    assert not learning.finished(tmp_path, longer, 1)


def test_an_interrupted_seed_goes_on_and_ends_the_same(small: cases.Case, tmp_path: Path) -> None:
    def stop(event: Any) -> Any:
        return events.STOP if isinstance(event, events.CheckpointSaved) else None

    config = learning.resolved(small, 1)
    run = api.train(
        "ppo", small.env, root=tmp_path / "b" / "runs", name="ppo-cartpole-1", config=config,
        callbacks=[stop],
    )  # fmt: skip
    assert run.status == "interrupted"
    results = []
    for place in ("a", "b"):
        assert learning.run_seed(small, 1, tmp_path / place, "cpu", keep=True) == 0
        results.append(evidence.read_json(learning.result_path(tmp_path / place, small, 1)))
    assert results[0]["evaluation"] == results[1]["evaluation"]
    assert results[0]["curve"] == results[1]["curve"]


def test_seconds_of_all_sessions_are_added_up() -> None:
    elapsed = learning.np.array([1.0, 2.0, 3.0, 0.5, 1.0])
    assert learning._training_seconds(elapsed) == 4.0


class FakePool(learning.Pool):
    """Start harmless programs instead of seeds, and note the order."""

    def __init__(self, options: argparse.Namespace, program: str) -> None:
        super().__init__(options)
        self.program = program
        self.order: list[str] = []
        self.most = 0

    def _start(self, case: cases.Case, seed: int) -> learning.Job:
        self.order.append(case.name)
        self.most = max(self.most, len(self.running) + 1)
        log = self.options.out / "logs" / f"{case.name}-{seed}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text("the reason\n")
        process = subprocess.Popen([sys.executable, "-S", "-c", self.program])
        return learning.Job(case, seed, process, time.monotonic())


def pool_options(out: Path, *extra: str) -> argparse.Namespace:
    return learning.parse(["--out", str(out), "--jobs", "2", *extra])


def test_the_pool_starts_the_longest_first_and_reports_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = FakePool(pool_options(tmp_path), "raise SystemExit(5)")
    pool.run([(case, 1) for case in cases.CASES.values()])
    assert pool.order[0] == "crossq-halfcheetah" and pool.order[-1] == "qmix-twostep"
    assert pool.most == 2 and pool.failures == len(cases.CASES)
    assert (
        "sac-halfcheetah seed 1: failed with exit code 5\n  the reason" in capsys.readouterr().out
    )


def test_the_pool_stops_what_takes_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = FakePool(pool_options(tmp_path, "--case-timeout", "0.1"), "import time; time.sleep(60)")
    pool.run([(CASE, 1)])
    assert pool.failures == 1
    assert "interrupted; the same command goes on" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--jobs is 0"):
        learning.parse(["--jobs", "0"])


# ---------------------------------------------------------------------- speed.py


def test_races_and_entries_are_checked_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'dqn'"):
        speed.parse(["--races", "dqnn"])
    with pytest.raises(ConfigError, match="Unknown entry 'nobody'"):
        speed.parse(["--only", "nobody"])
    with pytest.raises(ConfigError, match="--core -1"):
        speed.parse(["--core", "-1"])
    assert speed.parse([]).races == list(cases.RACES)


def test_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_installed", lambda library: library != "sb3")
    with pytest.raises(ConfigError, match="Not installed here: sb3"):
        speed.measure(["sac"], [], core=0, quick=False)


def test_only_files_whose_races_were_all_run_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tuple(tmp_path / path.name for path in evidence.SPEED_FILES)
    monkeypatch.setattr(evidence, "SPEED_FILES", files)
    content = speed_content("speed-contrib")
    assert speed.store(content, ["qrdqn", "tqc"]) == []
    (stored,) = speed.store(content, ["qrdqn", "recurrent_ppo", "tqc", "sac"])
    assert stored.name == "speed-contrib.json" and not any(
        path.exists() for path in files if path.name != stored.name
    )
    assert len(evidence.read_speed(stored)["runs"]) == 3 * 3 * 3


def test_time_from_the_command_starts_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "GOAL_RETURN", 0.0)
    monkeypatch.setattr(contestants, "EVAL_EVERY", 1024)
    entry = dataclasses.replace(cases.ENTRIES["assay-ppo-475-first"], env_steps=4096)
    launched = time.monotonic() - 1_000_000.0
    found = [contestants.run(entry, 1, start) for start in (None, launched)]
    assert found[0]["seconds_to_return"] < 1_000_000.0 < found[1]["seconds_to_return"]
    assert all(one["env_steps"] == 1024 for one in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "assay-ppo-eager",
        "assay-ppo-default",
        "sb3-ppo",
        "skrl-ppo-tuned",
        "sb3-sac",
        "contrib-recurrent_ppo",
    ],
)
def test_an_entry_is_measured_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    entry = cases.ENTRIES[name]
    if importlib.util.find_spec(speed.MODULES[entry.library]) is None:
        pytest.skip(f"{entry.library} is installed by make bench alone")
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    found = speed.launch(entry, 1, core, tmp_path, steps=256)
    assert found["env_steps"] >= 256 and found["updates"] > 0
    assert found["env_steps_per_second"] == pytest.approx(
        found["env_steps"] / found["seconds"], rel=0.01
    )
    assert found["seconds_to_return"] is None and math.isfinite(found["final_return"])
    assert found["pinned"] is hasattr(os, "sched_setaffinity")


# ---------------------------------------------------------------------- phases.py, memory.py


def test_a_stopwatch_counts_each_second_once() -> None:
    clock = iter([0.0, 1.0, 3.0, 10.0])  # outer begins, inner begins, inner ends, outer ends
    watch = phases.Stopwatch(now=lambda: next(clock))
    inner = watch.timed("inner", lambda: 7)
    assert watch.timed("outer", lambda: inner())() == 7
    assert dict(watch.seconds) == {"inner": 2.0, "outer": 8.0}


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_phases_of_a_real_loop_add_up_and_leave_no_trace(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = phases.WORKLOADS[name]
    small = {"algorithm": name, "env": workload.env, "env_steps": 256, "warm_steps": 256}
    options = {"num_envs": 4, "horizon": 32, "minibatch_size": 64} if name == "ppo" else {}
    monkeypatch.setitem(phases.WORKLOADS, name, phases.Workload(**small, settings=options))
    before = phases.Step.__call__
    text = phases.breakdown(name, compile=False)
    assert phases.Step.__call__ is before
    for phase in ("environment step", "act", "buffer write", "update: optimizer step"):
        assert f"| {phase} | " in text
    shares = [float(line.split("|")[4].strip(" %")) for line in text.splitlines() if "% |" in line]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert "Floor: " in text


def test_operations_of_an_update_are_counted() -> None:
    settings = {"num_envs": 4, "horizon": 32, "minibatch_size": 64, "hidden": [8]}
    workload = phases.Workload("ppo", "CartPole-v1", 1, 1, settings=settings)
    with phases.prepared(workload, compile=False) as training:
        found = phases.flops_per_update(training)
    # Forward and weight gradients of 4-8-2 and 4-8-1, and the gradients of the two hidden layers.
    forward = 64 * 2 * (2 * 4 * 8 + 8 * 2 + 8 * 1)
    assert found == 2 * forward + 64 * 2 * (8 * 2 + 8 * 1)


def test_all_sum_trees_draw_the_same_and_learn_the_same() -> None:
    """A race between trees that differ in what they find would mean nothing."""
    sides = priorities.contestants(1_000)
    for _ in range(3):
        drawn = [side.draw(np.random.default_rng(1), 64) for side in sides.values()]
        for slots, weights in drawn[1:]:
            np.testing.assert_array_equal(slots, drawn[0][0])
            np.testing.assert_allclose(weights, drawn[0][1])
        errors = np.random.default_rng(2).exponential(size=64)
        distinct = np.unique(drawn[0][0], return_index=True)[1]
        for side in sides.values():
            side.update(drawn[0][0][distinct], errors[distinct])


def test_the_cost_of_a_sample_is_shown_with_its_target() -> None:
    content = priorities.result(1_000, batches=1, repeats=1)
    for name, draw in (("assay", 100.0), ("textbook", 450.0), ("levelwise", 200.0)):
        content["nanoseconds"][name] = {"draw": [draw], "update": [100.0]}
    text = priorities.lines(content)
    assert "| textbook, one sample at a time | 450 ns | 100 ns | 4.5x | 2.8x |" in text
    assert "4.5 times as fast as from the textbook's tree (target 5: **missed**)" in text


def test_a_replay_of_frames_stays_within_its_limit() -> None:
    assert memory.planned_bytes(memory.CAPACITY) <= memory.LIMIT * 84 * 84 * 1_000_000
    found = memory.fill(3_000)
    assert found["stored"] == 3_000
    assert found["allocated_bytes"] == memory.planned_bytes(3_000)
