"""`assay diagnose`: what it prints, its JSON and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml
from command_line import Cli, process_environment

from assay.runs.directory import RunDirectory
from assay.runs.metrics import MetricsWriter, Record


def break_run(path: Path) -> None:
    """Let a run's settings and losses look like those of a step size of 5."""
    run = RunDirectory.open(path)
    config = run.config
    config["hyperparameters"]["lr"] = 5.0
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    writer = MetricsWriter(run.metrics_path)
    for i in range(1, 20):
        writer.write(Record(512 + i, 10, 5, 1.0, {"train/policy_loss": float("nan")}))
    writer.close()


def test_errors_are_shown_with_what_to_type_and_exit_with_1(cli: Cli, runs: Path) -> None:
    break_run(runs / "a" / "seed-1")
    result = cli("diagnose", "a/seed-1")
    assert result.exit_code == 1
    assert "ERROR    diverged: train/policy_loss is nan at env_steps=513" in result.stdout
    assert "Likely cause: " in result.stdout and "Next: " in result.stdout
    config = runs / "a" / "seed-1" / "config.yaml"
    assert f"assay train --config {config} lr=0.0003" in result.stdout


def test_json(cli: Cli, runs: Path) -> None:
    break_run(runs / "a" / "seed-1")
    result = cli("diagnose", "a", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["healthy"] is False and len(found["runs"]) == 3
    assert {run["algorithm"] for run in found["runs"]} == {"ppo"}
    first = found["runs"][0]["findings"][0]
    assert (first["name"], first["severity"], first["at"]) == ("diverged", "error", 513)
    assert first["value"] is None  # JSON has no NaN


def test_a_run_without_errors_exits_with_0(cli: Cli, runs: Path) -> None:
    result = cli("diagnose", "a/seed-2")
    assert result.exit_code == 0, result.output
    assert "ERROR" not in result.stdout and "ppo, CartPole-v1, done" in result.stdout


def test_a_log_shows_how_its_columns_are_read(cli: Cli, root: Path) -> None:
    rows = "".join(f"{i},{10 + i},0.5\n" for i in range(50))
    Path("progress.csv").write_text("time/total_timesteps,rollout/ep_rew_mean,loss\n" + rows)
    result = cli("diagnose", "progress.csv")
    assert result.exit_code == 0, result.output
    assert "rollout/ep_rew_mean -> rollout/return_mean" in result.stderr
    assert "healthy: no errors, no warnings" in result.stdout
    given = cli("diagnose", "progress.csv", "--column", "train/alpha=loss", "--json")
    assert json.loads(given.stdout)["runs"][0]["columns"]["train/alpha"] == "loss"


def test_bad_input_is_one_message_and_exit_code_2(cli: Cli, runs: Path) -> None:
    Path("x.csv").write_text("apples\n1\n")
    for arguments, message in [
        (("nowhere",), "There is no run at"),
        ((), "RUN is missing"),
        (("x.csv",), "No column of 'x.csv'"),
        (("x.csv", "--column", "apples"), "expected METRIC=COLUMN"),
        (("a/seed-1", "--column", "train/lr=x"), "is a run"),
    ]:
        result = cli("diagnose", *arguments)
        assert result.exit_code == 2, result.output
        assert message in result.stderr and "Traceback" not in result.output


def test_rules_are_listed(cli: Cli) -> None:
    listed = json.loads(cli("diagnose", "--rules", "--json").stdout)
    names = {one["name"] for one in listed}
    assert {"diverged", "entropy_collapse", "dead_units", "seed_variance"} <= names
    assert "entropy_collapse" in cli("diagnose", "--rules").stdout


def test_torch_is_not_imported(runs: Path) -> None:
    code = (
        "import sys, pathlib; from assay.diagnosis.report import diagnose;"
        f"diagnose(pathlib.Path({str(runs / 'a')!r})); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=process_environment(), check=False)
    assert done.returncode == 0


def test_a_log_without_a_number_is_not_healthy(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "text.csv"
    log.write_text("time/total_timesteps,rollout/ep_rew_mean\n1,x\n2,nan\n")
    result = cli("diagnose", str(log))
    assert result.exit_code == 2
    assert "that is diagnosed holds a number: rollout/ep_rew_mean." in result.stderr
    result = cli("diagnose", str(tmp_path / "nosuch.csv"))
    assert result.exit_code == 2 and "There is no file" in result.stderr


def test_a_short_log_says_that_it_is_short_and_counts_its_rows(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "short.csv"
    log.write_text("a,b\n1,2\n2,3\n3,4\n")
    result = cli("diagnose", str(log), "--column", "rollout/return_mean=b")
    assert result.exit_code == 0
    assert "(csv, rows=2)" in result.stdout and "with 3 points of each curve" in result.stdout
