"""Listing, showing and deleting runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Cli

from assay.runs.directory import RunDirectory


def test_runs_are_listed(cli: Cli, runs: Path) -> None:
    result = cli("runs")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    names = [row[0] for row in rows if len(row) > 5 and row[1] == "ppo"]
    assert sorted(names) == sorted(
        [*(f"{arm}/seed-{seed}" for arm in "ab" for seed in (1, 2, 3)), "stopped"]
    )
    assert any(row[:5] == ["stopped", "ppo", "CartPole-v1", "9", "interrupted"] for row in rows)


def test_the_list_as_json_has_the_facts(cli: Cli, runs: Path) -> None:
    listed = {run["name"]: run for run in json.loads(cli("runs", "--json").stdout)}
    run = listed["a/seed-2"]
    assert (run["status"], run["seed"], run["env_steps"]) == ("done", 2, 512)
    assert run["path"] == str(runs / "a" / "seed-2")
    assert (run["unit"], run["total"]) == ("env_steps", 512)
    stored = RunDirectory.open(runs / "a" / "seed-2").evals()
    assert run["eval_mean"] == pytest.approx(stored[-1]["mean"])
    assert "512 of 4,096" in cli("runs").stdout


def test_an_empty_directory_says_how_to_start_a_run(cli: Cli, root: Path) -> None:
    result = cli("runs")
    assert result.exit_code == 0
    assert "assay train" in result.stdout


def test_a_run_is_shown_by_name_or_path(cli: Cli, runs: Path) -> None:
    by_name = cli("runs", "show", "a/seed-1")
    assert by_name.exit_code == 0
    assert cli("runs", "show", runs / "a" / "seed-1").stdout == by_name.stdout
    assert "    env_steps: 512" in by_name.stdout
    assert "status:     done" in by_name.stdout
    shown = json.loads(cli("runs", "show", "a/seed-1", "--json").stdout)
    assert shown["config"]["hyperparameters"]["horizon"] == 32
    stored = RunDirectory.open(runs / "a" / "seed-1").evals()
    assert [e["env_steps"] for e in shown["evaluations"]] == [256, 512]
    assert shown["evaluations"][-1]["mean"] == stored[-1]["mean"]
    assert shown["evaluations"][-1]["episodes"] == 4


def test_a_damaged_run_does_not_hide_the_others(cli: Cli, runs: Path) -> None:
    (runs / "a" / "seed-1" / "run.json").write_text("{")
    result = cli("runs", "--json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)) == 6
    assert result.stderr.startswith("Warning: ")
    assert str(runs / "a" / "seed-1" / "run.json") in result.stderr


def test_deleting_asks_first(cli: Cli, runs: Path) -> None:
    assert cli("runs", "delete", "stopped", input="n\n").exit_code == 1
    assert (runs / "stopped").exists()
    assert cli("runs", "delete", "stopped", input="").exit_code == 1
    assert (runs / "stopped").exists()
    assert cli("runs", "delete", "stopped", input="y\n").exit_code == 0
    assert not (runs / "stopped").exists()


def test_a_group_is_deleted_as_a_whole(cli: Cli, runs: Path) -> None:
    result = cli("runs", "delete", "a", "--yes")
    assert result.exit_code == 0
    assert "Deleted 3 runs." in result.stdout
    assert not (runs / "a").exists()
    assert (runs / "b" / "seed-1").exists()


def test_a_run_in_training_is_not_deleted(cli: Cli, runs: Path) -> None:
    trained = RunDirectory.open(runs / "a" / "seed-3")
    trained.lock()
    try:
        trained.set_status("running")
        result = cli("runs", "delete", "a", "--yes")
    finally:
        trained.unlock()
    assert result.exit_code == 2
    assert "seed-3" in result.stderr
    assert len(list((runs / "a").glob("*/run.json"))) == 3


def test_a_run_and_a_group_that_are_done_go_on_to_a_larger_budget(cli: Cli, runs: Path) -> None:
    done = cli("resume", "a/seed-1")
    assert done.exit_code == 2 and "a/seed-1 --budget N" in done.stderr
    total = RunDirectory.open(runs / "a/seed-1").budget[1]
    larger = total + 512
    assert cli("resume", "a/seed-1", "--budget", larger, "--quiet").exit_code == 0
    assert cli("resume", "b", "--budget", larger, "--quiet").exit_code == 0
    for name in ("a/seed-1", "b/seed-1", "b/seed-3"):
        run = RunDirectory.open(runs / name)
        assert run.status == "done" and run.budget[1] == larger
    assert RunDirectory.open(runs / "a/seed-2").budget[1] == total
    refused = cli("resume", "a/seed-1", "--budget", total)
    assert refused.exit_code == 2 and "Give a larger one" in refused.stderr
