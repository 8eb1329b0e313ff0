"""`assay envs new` and `assay envs suite`: output and exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium as gym
import pytest
from command_line import Cli


@pytest.fixture
def new_env(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a package for an environment, and return its id."""
    result = cli("envs", "new", "cli_made")
    assert result.exit_code == 0, result.output
    assert "assay envs check cli_made:CliMade-v0" in result.stderr
    monkeypatch.syspath_prepend(str(tmp_path / "cli_made"))
    yield "cli_made:CliMade-v0"
    for name in [name for name in sys.modules if name.startswith("cli_made")]:
        del sys.modules[name]
    gym.registry.pop("CliMade-v0", None)


def test_algorithms_for_particular_environments_are_not_offered(cli: Cli) -> None:
    result = cli("envs", "check", "CartPole-v1", "--steps", "50", "--json")
    rows = {one["name"]: one["detail"] for one in json.loads(result.stdout)["checks"]}
    offered = rows["algorithms"].partition(": ")[2].split(", ")
    assert {"ppo", "dqn"} <= set(offered)
    assert not {"alphazero", "cfr", "paired", "nfsp"} & set(offered)


def test_what_is_new_passes_the_suite(cli: Cli, new_env: str, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "suite.html"
    options = ("--steps", 60, "--no-processes", "--html", page)
    result = cli("envs", "suite", new_env, *options, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["ok"] and found["envs"][0]["env"] == new_env
    assert {"copies", "memory", "determinism"} <= {c["name"] for c in found["envs"][0]["checks"]}
    assert "all 1 passed" in page.read_text()


def test_failures_exit_with_1_and_mistakes_with_2(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--steps", 20, "--no-processes")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fails_when_made.py").write_text("def make():\n    raise OSError('no robot')\n")
    result = cli("envs", "suite", "FrozenLake-v1", "fails_when_made:make", *options)
    assert result.exit_code == 1
    assert "1 of 2 environments failed." in result.stdout and "no robot" in result.stdout
    assert "1/2 FrozenLake-v1: ok" in result.stderr
    result = cli("envs", "suite", "FrozenLake-v1", "CartPole-v1", *options, "--html", "/proc/x/y")
    assert result.exit_code == 2 and "/proc/x" in result.stderr and "ok" not in result.stderr
    for unknown in ("Nowhere-v0", "Nowhere*", "nowhere:Any-v0"):
        page = tmp_path / "page.html"
        result = cli("envs", "suite", "FrozenLake-v1", unknown, *options, "--html", page)
        assert result.exit_code == 2 and unknown.partition(":")[0] in result.stderr
        assert not result.stdout and "FrozenLake" not in result.stderr and not page.exists()
    assert cli("envs", "suite").exit_code == 2
    assert cli("envs", "new", "Not-A-Name").exit_code == 2


def test_patterns_are_ids(cli: Cli) -> None:
    result = cli("envs", "suite", "CliffWalk*", "CliffWalking-v1", "--steps", 20,
                 "--no-processes", "--json")  # fmt: skip
    names = [env["env"] for env in json.loads(result.stdout)["envs"]]
    assert "CliffWalking-v1" in names and len(names) == len(set(names))


def test_parameters_are_listed_with_their_values(cli: Cli) -> None:
    found = json.loads(cli("envs", "parameters", "Pendulum-v1", "--json").stdout)
    assert found == {"g": 10.0, "m": 1.0, "l": 1.0, "dt": 0.05, "max_torque": 2.0}
