"""Ranges and curricula of our own training command as candidates of a study."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from made_repositories import put

from assay.cli.plan import make_plan, read_settings
from assay.study.repo.audit import inspect
from assay.study.run.planning import command

CHANGE: dict[str, Any] = {
    "randomize": {"gravity": [5, 15], "masspole": {"log_uniform": [1e-05, 0.5]}},
    "curriculum": {"adr": {"low": 100, "high": 400}},
}

_SCRIPT = """import assay
import yaml

if __name__ == "__main__":
    with open("settings.yaml") as file:
        assay.train("ppo", "CartPole-v1", config=yaml.safe_load(file))
"""


def test_settings_of_a_candidate_reach_the_training_command(tmp_path: Path) -> None:
    line = ("assay", "train", "ppo", "CartPole-v1", "seed={seed}", "{parameters}")
    agreed: Any = SimpleNamespace(
        baseline=SimpleNamespace(command=line, parameter_format="{name}={value}"),
        evaluation=SimpleNamespace(episodes=None),
    )
    words = command(agreed, 3, tmp_path, CHANGE)
    file, given = read_settings(list(words[4:]), None, {})
    run: Any = make_plan("ppo", "CartPole-v1", file, given, use_preset=True).config.run
    assert run.seed == 3 and run.curriculum == CHANGE["curriculum"]
    assert run.randomize["gravity"] == [5, 15]
    assert float(run.randomize["masspole"]["log_uniform"][0]) == 1e-05


def test_the_audit_finds_them_in_a_settings_file(tmp_path: Path) -> None:
    put(
        tmp_path,
        train_dot_py=_SCRIPT,
        settings_dot_yaml=yaml.safe_dump({"env_steps": 100_000, **CHANGE}),
    )
    found = inspect(tmp_path, None).adapter
    for slot in ("randomization", "curriculum"):
        assert [one.value["file"] for one in getattr(found, slot)] == ["settings.yaml"]
