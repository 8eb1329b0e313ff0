"""Every rule finds what breaks it, and nothing in a problem that does not."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium import spaces

from assay.data.collect import from_episodes
from assay.data.dataset import Episode
from assay.data.files import save
from assay.design import checks, reward_runs
from assay.design.problem import SECTIONS, Problem
from assay.design.rules import SEVERITIES, DesignError
from assay.runs.directory import RunDirectory
from assay.runs.metrics import MetricsWriter, Record

EXAMPLES: Mapping[str, Any] = yaml.safe_load(
    resources.files("assay.design").joinpath("examples.yaml").read_text()
)
ON_RUNS = {rule.name for rule in reward_runs.RULES}
ON_DATA = {"demonstrations.doubtful"}  # needs a file; see below


def names(problem: Mapping[str, Any], section: str | None = None) -> set[str]:
    return {one.rule for one in checks.check(Problem(**problem), section)}


def test_every_rule_has_examples_and_a_section() -> None:
    assert set(EXAMPLES) == set(checks.RULES) - ON_RUNS - ON_DATA
    assert {rule.section for rule in checks.RULES.values()} == set(SECTIONS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_finds_what_breaks_it_and_nothing_else(name: str) -> None:
    section = checks.RULES[name].section
    assert name in names(EXAMPLES[name]["bad"], section)
    assert name not in names(EXAMPLES[name]["good"], section)


@pytest.mark.parametrize("rule", checks.RULES.values(), ids=lambda rule: rule.name)
def test_a_rule_explains_itself(rule: Any) -> None:
    assert rule.severity in SEVERITIES
    for text in (rule.summary, rule.why):
        assert text[0].isupper() and text.endswith("."), text
    assert rule.fix


def test_a_finding_names_field_reason_and_fix() -> None:
    problem = Problem(**EXAMPLES["action.bounds_order"]["bad"])
    one = next(f for f in checks.check(problem) if f.rule == "action.bounds_order")
    assert one.to_dict() == {
        "rule": "action.bounds_order",
        "severity": "error",
        "field": "action.low",
        "message": "low=1.0 and high=-1.0",
        "why": "No action lies between them.",
        "fix": "Correct one of them.",
    }


def test_errors_come_first() -> None:
    problem = Problem(**EXAMPLES["state.leakage"]["bad"])
    found = [SEVERITIES.index(one.severity) for one in checks.check(problem)]
    assert found == sorted(found) and found[0] == 0 and len(set(found)) > 1


class TestSizes:
    def test_the_reward_of_an_episode_is_computed_by_hand(self) -> None:
        terms = [
            {"name": "dense", "weight": 2.0, "low": -1, "high": 0.5},
            {"name": "end", "kind": "terminal", "low": 0, "high": 10},
        ]
        problem = Problem(reward={"terms": terms}, mdp={"gamma": 0.5, "horizon": 3})
        found = checks.facts(problem)["reward"]
        # 2 * 1 * (1 + 0.5 + 0.25) = 3.5, and 10 * 0.5^3 = 1.25
        assert found["per_episode"] == {"dense": 3.5, "end": 1.25}
        assert found["share"] == pytest.approx({"dense": 3.5 / 4.75, "end": 1.25 / 4.75}, abs=1e-4)

    def test_bytes_and_width_of_a_state(self) -> None:
        entries = [
            {"name": "view", "kind": "image", "shape": [8, 8, 3], "dtype": "uint8"},
            {"name": "speed", "shape": [3], "history": 4},
            {"name": "gear", "kind": "category", "size": 6},
        ]
        action = {"kind": "box", "shape": [2], "low": -1, "high": 1}
        problem = Problem(
            state={"entries": entries}, action=action,
            architecture={"buffer": {"kind": "replay", "capacity": 1000}},
        )  # fmt: skip
        found = checks.facts(problem)
        assert found["state"]["flat_width"] == 3 * 4 + 6
        assert found["state"]["bytes_per_step"] == 192 + 48 + 8
        # Two observations, two numbers of the action, and 16 bytes of reward and ends.
        assert found["architecture"]["buffer_bytes"] == 1000 * (2 * 248 + 8 + 16)

    def test_the_head_of_a_policy_and_the_algorithms_that_fit(self) -> None:
        box = {"kind": "box", "shape": [3], "low": -1, "high": 1}
        found = checks.facts(Problem(action=box))["action"]
        assert found["head"] == 6
        assert {"sac", "ppo"} <= set(found["algorithms"])
        assert not {"dqn", "iql", "qmix", "alphazero"} & set(found["algorithms"])


class TestNames:
    def test_an_unknown_section_names_the_nearest(self) -> None:
        with pytest.raises(DesignError, match=r"no section 'rewards'.*\n.*'reward'"):
            checks.known_section("rewards")

    def test_an_unknown_rule_names_the_nearest(self) -> None:
        with pytest.raises(DesignError, match=r"reward\.suicide"):
            checks.known_rule("reward.sucide")
        with pytest.raises(DesignError, match=r"'agents\.sharing_unknown'"):
            checks.known_rule("sharing_unknown")


def test_contradictions_are_refused_by_name() -> None:
    problem = Problem(mdp={"observability": "full", "memory": 9})
    with pytest.raises(DesignError, match=r"mdp\.memory.*mdp\.full_memory"):
        checks.refuse_contradictions(problem)
    checks.refuse_contradictions(Problem(mdp={"gamma": 0.5, "horizon": 100_000}))


# ---------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a dataset whose actions cover their space, and one that always does the same."""
    space, action = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(8)
    made = {}
    for name, choices in (("covering", np.arange(8)), ("constant", np.zeros(8, int))):
        obs = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
        ends = np.arange(8) == 7
        episode = Episode(obs, choices, np.arange(8.0), ends, ends & False, {})
        path = tmp_path_factory.mktemp("data") / f"{name}.npz"
        save(from_episodes([episode], space, action, name=name), path)
        made[name] = str(path)
    return made


def test_demonstrations_are_validated_as_assay_data_does(data: dict[str, str]) -> None:
    covering = names({"demonstrations": {"data": data["covering"]}}, "demonstrations")
    constant = names({"demonstrations": {"data": data["constant"]}}, "demonstrations")
    assert covering == set()
    assert constant == {"demonstrations.doubtful"}
    other = {"env": "CartPole-v1", "demonstrations": {"data": data["covering"]}}
    assert "demonstrations.invalid" in names(other, "demonstrations")


def logged(root: Path, series: Mapping[str, list[float]]) -> RunDirectory:
    run = RunDirectory.create(
        root, "r", algorithm="ppo", env="CartPole-v1", seed=1, config={"algorithm": "ppo"}
    )
    writer = MetricsWriter(run.metrics_path)
    for step in range(len(next(iter(series.values())))):
        metrics = {name: values[step] for name, values in series.items()}
        writer.write(Record(step, step, step, float(step), metrics))
    writer.close()
    run.unlock()
    return run


TERMS = [
    {"name": "laps", "goal": True, "low": 0, "high": 10},
    {"name": "coins", "low": 0, "high": 10},
]


@pytest.mark.parametrize(
    ("laps", "coins", "expected"),
    [
        ([1.0, 2, 3], [1.0, 2, 3], set()),
        ([0.1, 0.2, 0.3], [5.0, 6, 7], {"reward.run_dominance"}),
        ([1.0, 2, 3], [2.0, 2, 2], {"reward.run_constant"}),
        ([1.0, 2, 3], [1.0, 2, 11], {"reward.run_range"}),
        ([3.0, 2, 1], [1.0, 2, 3], {"reward.run_proxy"}),
    ],
)
def test_the_reward_of_a_run(
    tmp_path: Path, laps: list[float], coins: list[float], expected: set[str]
) -> None:
    problem = Problem(reward={"terms": TERMS})
    run = logged(tmp_path, {"reward/laps": laps, "reward/coins": coins})
    assert problem.reward is not None
    series = reward_runs.read_terms(problem, run)
    assert series == {"laps": laps, "coins": coins}
    assert {one.rule for one in reward_runs.check_series(problem.reward, series)} == expected


def test_terms_that_a_run_does_not_have_are_named(tmp_path: Path) -> None:
    run = logged(tmp_path, {"reward/lap": [1.0]})
    with pytest.raises(DesignError, match=r"'laps', 'coins'.*Did you mean 'reward/lap'"):
        reward_runs.read_terms(Problem(reward={"terms": TERMS}), run)
    other = logged(tmp_path / "other", {"train/loss": [1.0], "eval/return_mean": [2.0]})
    with pytest.raises(DesignError, match=r"'laps', 'coins'.*no metric reward/NAME at all") as no:
        reward_runs.read_terms(Problem(reward={"terms": TERMS}), other)
    assert "train/loss" not in str(no.value)
    with pytest.raises(DesignError, match="no reward terms"):
        reward_runs.read_terms(Problem(), run)
