"""`assay league`, `assay evaluate --against` and `assay export` of an agent that searches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import Cli

import assay


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a small agent once."""
    return assay.train(
        "alphazero", "tictactoe", root=tmp_path_factory.mktemp("trained"), name="zero",
        env_steps=48, num_envs=4, hidden=(16,), batch_size=8, learning_starts=8, simulations=4,
        eval_every=0, checkpoint_every=24, sinks=(), compile=False, preset=False, buffer_size=400,
    ).path  # fmt: skip


@pytest.fixture
def run(trained: Path, root: Path) -> Path:
    """Return a copy of it among the runs."""
    shutil.copytree(trained, root / "zero")
    return root / "zero"


def test_against_a_player(cli: Cli, run: Path) -> None:
    done = cli("evaluate", "zero", "--against", "random", "--episodes", 10, "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["games"] == 10 and result["against"] == "random"
    assert sum(result[name]["count"] for name in ("wins", "draws", "losses")) == 10
    assert result["wins"]["low"] <= result["wins"]["share"] <= result["wins"]["high"]
    shown = cli("evaluate", "zero", "--against", "zero", "--episodes", 4, "--set", "simulations=8")
    assert shown.exit_code == 0 and "first seat" in shown.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--against", "nobody"), "nobody"),
        (("--against", "minimax:99"), "depth is from 1 to 12"),
        (("--against", "random", "--opening", "7"), "opening=7"),
        (("--against", "random", "--set", "hidden=[3]"), "cannot change it after training"),
        (("--against", "random", "--video"), "--video has a meaning only without --against"),
        (("--opening", "1"), "--opening has a meaning only with --against"),
    ],
)
def test_bad_matches(cli: Cli, run: Path, words: tuple[str, ...], message: str) -> None:
    done = cli("evaluate", "zero", *words)
    assert done.exit_code == 2 and message in done.stderr


def test_a_league_from_beginning_to_end(cli: Cli, run: Path, tmp_path: Path) -> None:
    place = tmp_path / "league"
    assert cli("league", "new", place, "--game", "tictactoe").exit_code == 0
    added = cli("league", "add", place, "zero", "--versions")
    assert added.exit_code == 0 and "zero@24" in added.stdout and "zero@48" in added.stdout
    assert cli("league", "add", place, "random", "perfect").exit_code == 0
    assert "random is in the league" in cli("league", "add", place, "random").stdout
    played = cli("league", "play", place, "--games", 2)
    assert played.exit_code == 0 and "Played 12 games" in played.stdout
    shown = cli("league", "table", place)
    assert shown.exit_code == 0 and "perfect" in shown.stdout
    assert all((place / f"table.{ending}").exists() for ending in ("md", "json", "png"))
    table = json.loads(cli("league", "table", place, "--json").stdout)
    assert len(table["players"]) == 4
    bad = cli("league", "add", place, "random", "perfect", "--name", "two")
    assert bad.exit_code == 2 and "--name is one name" in bad.stderr
    bad = cli("league", "new", tmp_path / "other", "--game", "chess")
    assert bad.exit_code == 2 and "no board game 'chess'" in bad.stderr


def test_only_the_network_is_exported(cli: Cli, run: Path) -> None:
    refused = cli("export", "zero", "--torchscript")
    assert refused.exit_code == 2 and "simulations=0" in refused.stderr
    done = cli("export", "zero", "--torchscript", "--set", "simulations=0", "--json")
    assert done.exit_code == 0, done.stderr
    assert (run / "policy.pt").exists()
