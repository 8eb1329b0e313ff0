"""Training, interrupting and resuming, alone and in groups, through the command line."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command_line import TINY, TRAIN, Cli, process_environment

from assay.buffers.allocation import human_bytes
from assay.cli.plan import make_plan
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory
from assay.testing.algorithms import assert_same_run

Start = Callable[..., "subprocess.Popen[str]"]

# An environment that can be made slow from outside, so that a test can interrupt a run in the
# middle for certain and see it finish at once afterwards.
SLOW = """
import os
import time

import gymnasium as gym
import numpy as np


class Slow(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if os.path.exists("slow"):
            with open("steps", "a") as file:
                file.write(".")
            if os.path.exists("hang"):
                open("hangs", "w").close()
                time.sleep(60)
            time.sleep(0.05)
        return np.zeros(2, np.float32), float(action), self.steps == 10, False, {}


gym.register("Slow-v0", Slow)
"""
SLOW_RUN = (
    "train", "ppo", "slow_environment:Slow-v0", "env_steps=400", *TINY, "num_envs=1", "horizon=8",
    "minibatch_size=8", "epochs=1", "checkpoint_every=16", "log_every=16", "eval_every=0",
    "eval_episodes=2",
)  # fmt: skip


@pytest.fixture
def slow(root: Path) -> Path:
    """Provide the slow environment; it is fast once the returned file is deleted."""
    (root.parent / "slow_environment.py").write_text(SLOW)
    flag = root.parent / "slow"
    flag.touch()
    return flag


def stop_twice(process: subprocess.Popen[str], number: signal.Signals, slow: Path) -> str:
    """Stop a run in a step of a minute, and stop it again once it has said what it waits for."""
    slow.with_name("hang").touch()
    wait_for(slow.with_name("hangs").exists, process)
    process.send_signal(number)
    assert process.stderr is not None
    said = ""
    while "stopping" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    process.send_signal(number)
    return said + process.communicate(timeout=60)[1]


def wait_for(happened: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / "checkpoints").glob("0*/MANIFEST.json"))


def status(path: Path) -> str:
    return RunDirectory.open(path).effective_status


def test_train_reports_the_final_evaluation_and_where_the_run_is(cli: Cli, root: Path) -> None:
    result = cli(*TRAIN, "--seed", 3, "--name", "x")
    assert result.exit_code == 0, result.output
    assert f"Run: {root / 'x'}" in result.stdout
    header, _, row = [line for line in result.stdout.splitlines() if line.strip()][:3]
    figures = dict(zip(header.split(), row.split(), strict=False))
    (evaluation,) = [e for e in RunDirectory.open(root / "x").evals() if e["env_steps"] == 1024]
    assert (figures["seed"], figures["status"], figures["env_steps"]) == ("3", "done", "1,024")
    assert float(figures["mean"]) == pytest.approx(evaluation["mean"], abs=0.06)
    assert float(figures["IQM"]) == pytest.approx(evaluation["iqm"], abs=0.06)
    assert int(figures["episodes"]) == 4
    plan = result.stderr.splitlines()[0]
    assert plan == (
        "ppo on CartPole-v1: 1,024 env_steps, 8 environments, on cpu, preset used, eager updates"
    )
    assert "ppo: 1,024 of 1,024 env_steps (100%)" in result.stderr


def test_what_is_set_is_what_is_run(cli: Cli, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("hyperparameters:\n  gamma: 0.5\n  epochs: 1\nrun:\n  eval_episodes: 3\n")
    arguments = (
        *TRAIN,
        "epochs=2",
        "--config",
        file,
        "--name",
        "x",
        "--no-preset",
        "--device",
        "cpu",
    )
    assert cli(*arguments).exit_code == 0
    config = yaml.safe_load((root / "x" / "config.yaml").read_text())
    assert config["hyperparameters"]["gamma"] == 0.5
    assert config["hyperparameters"]["epochs"] == 2
    assert config["hyperparameters"]["gae_lambda"] == 0.95  # the preset says 0.9
    assert config["run"]["eval_episodes"] == 4
    assert config["run"]["device"] == "cpu"


def test_a_run_s_own_configuration_starts_it_again(cli: Cli, root: Path) -> None:
    """Bit for bit, alone and as the settings of a group, without ALGO and ENV."""
    assert cli(*TRAIN, "epochs=2", "--seed", 5, "--no-preset", "--name", "x").exit_code == 0
    file = root / "x" / "config.yaml"
    result = cli("train", "--config", file, "--name", "y")
    assert result.exit_code == 0, result.output
    assert (root / "y" / "config.yaml").read_text() == file.read_text()
    assert_same_run(root / "x", root / "y")
    result = cli("train", "--config", file, "threads=1", "--seeds", 1, "--name", "g")
    assert result.exit_code == 0, result.output
    assert_same_run(root / "x", root / "g" / "seed-5")


def test_a_file_may_name_the_environment_alone(cli: Cli, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("env: CartPole-v1\nenv_steps: 256\n")
    result = cli("train", "ppo", *TINY, "eval_episodes=1", "--config", file, "--name", "x")
    assert result.exit_code == 0, result.output
    assert RunDirectory.open(root / "x").info["env"] == "CartPole-v1"


def test_json_is_all_there_is_on_stdout(start: Start, root: Path) -> None:
    process = start(*TRAIN, "--json", "--name", "x")
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    result = json.loads(stdout)
    assert (result["status"], result["env_steps"], result["seed"]) == ("done", 1024, 1)
    assert Path(result["path"]) == root / "x"
    assert result["evaluation"]["episodes"] == 4
    assert result["seconds"] > 0
    argv = json.loads((root / "x" / "provenance.json").read_text())["argv"]
    assert argv[1:] == [*TRAIN, "--json", "--name", "x"]


def test_quiet_prints_the_result_only(cli: Cli) -> None:
    result = cli(*TRAIN, "--quiet")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "Run: " in result.stdout


@pytest.mark.parametrize(
    ("settings", "gpu", "words"),
    [
        ({"env_steps": 1000}, False, "eager updates unless compiled ones are cached"),
        ({"env_steps": 10_000_000}, False, "eager updates until compiled ones are ready"),
        ({"env_steps": 10_000_000, "compile": False}, False, "eager updates"),
        ({"env_steps": 1000, "compile": True}, False, "compiled updates"),
        ({"env_steps": 1000}, True, "cuda graph updates"),
        ({"env_steps": 1000, "compile": False}, True, "eager updates"),
    ],
)
def test_the_plan_says_how_updates_will_run(
    settings: dict[str, Any], gpu: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_COMPILE", "auto")
    for module in ("optim.mode", "algorithms.base"):
        monkeypatch.setattr(f"assay.{module}.has_compiler", lambda: True)
    device = torch.device("cuda" if gpu else "cpu")
    monkeypatch.setattr(
        "assay.loops.training.choose_device",
        lambda name: device if name == "auto" else torch.device(name),
    )
    assert make_plan("ppo", "CartPole-v1", {}, settings).updates == words


def test_whole_rollouts_that_take_more_than_the_budget_are_told() -> None:
    given = {"num_envs": 8, "horizon": 128}
    told = make_plan("ppo", "CartPole-v1", {}, {**given, "env_steps": 512}).source
    assert told == "8 environments, in whole rollouts of 1,024 env_steps: 1,024 in all"
    assert make_plan("ppo", "CartPole-v1", {}, {**given, "env_steps": 100_000}).source == (
        "8 environments"
    )


def test_learning_of_the_preset_starts_within_a_short_budget_and_that_is_told() -> None:
    """A first try of a few steps is not refused for what the preset says."""
    short = make_plan("dqn", "CartPole-v1", {}, {"env_steps": 600})
    assert short.config.hyperparameters["learning_starts"] == 30
    assert short.describe().splitlines()[1:] == [
        "The preset's learning_starts=1,000 leaves nothing of env_steps=600: learning_starts=30 is "
        "used. Set another one with learning_starts=N."
    ]
    for given in ({"env_steps": 1001}, {"env_steps": 600, "learning_starts": 1000}):
        plan = make_plan("dqn", "CartPole-v1", {}, given)
        assert plan.config.hyperparameters["learning_starts"] == 1000
        assert "leaves nothing" not in plan.describe()


def test_a_minibatch_of_the_preset_that_is_cut_is_told() -> None:
    cut = make_plan("ppo", "CartPole-v1", {}, {"num_envs": 4})
    assert cut.config.hyperparameters["minibatch_size"] == 128
    assert cut.describe().splitlines()[1:] == [
        "The preset's minibatch_size=256 does not fit the rollout of 128 = num_envs 4 x horizon "
        "32: minibatch_size=128 is used. Set another one with minibatch_size=N."
    ]
    own = {"hyperparameters": {"minibatch_size": 32}}
    for file, given in (({}, {}), ({}, {"num_envs": 4, "minibatch_size": 32}), (own, {})):
        assert "minibatch" not in make_plan("ppo", "CartPole-v1", file, given).describe()


def test_the_memory_of_the_replay_is_printed_before_it_is_needed(cli: Cli) -> None:
    result = cli(
        "train", "dqn", "CartPole-v1", "env_steps=64", "buffer_size=1000", "num_envs=1",
        "learning_starts=60", "eval_episodes=1", "compile=false", "sinks=[]",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    # Two observations of 4 floats, an action (int64), a reward and two flags (floats).
    # Of 1,000 that it may keep, the run fills 64.
    size = human_bytes(64 * (2 * 4 * 4 + 8 + 3 * 4))
    said = f"a replay of 64 transitions that grows to {size}"
    assert result.stderr.splitlines()[0].endswith(said)


def test_a_replay_that_does_not_fit_is_refused_with_advice(cli: Cli, root: Path) -> None:
    size = "1_000_000_000_000"
    big = ("dqn", "CartPole-v1", f"buffer_size={size}", f"env_steps={size}", "compile=false")
    for options in ([], ["--seeds", 2]):
        result = cli("train", *big, *options)
        assert result.exit_code == 2
        assert "TiB" in result.stderr.rpartition("Error: ")[2]
        assert not root.exists() or list(root.rglob("run.json")) == []


def test_ctrl_c_saves_and_resume_finishes(start: Start, cli: Cli, slow: Path, root: Path) -> None:
    run = root / "x"
    process = start(*SLOW_RUN, "--name", "x")
    wait_for(lambda: checkpoints(run), process)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "interrupted" in stdout
    saved = int(checkpoints(run)[-1].parent.name)
    said = rf"Saved at env_steps={saved:,}(, with \d steps after it)?\. Resume with: assay resume "
    assert re.search(said + str(run), stderr)
    assert "Traceback" not in stderr
    assert status(run) == "interrupted"

    slow.unlink()
    result = cli("resume", "x", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["env_steps"] == 400
    assert status(run) == "done"
    again = cli("resume", "x")
    assert again.exit_code == 2
    assert "is done" in again.stderr


@pytest.mark.slow
def test_a_second_ctrl_c_ends_immediately_and_keeps_the_checkpoint(
    start: Start, slow: Path, root: Path
) -> None:
    long_rollouts = ("horizon=64", "minibatch_size=64", "checkpoint_every=64")
    process = start(*SLOW_RUN, *long_rollouts, "--name", "x")
    wait_for(lambda: checkpoints(root / "x"), process)
    stderr = stop_twice(process, signal.SIGINT, slow)
    assert process.returncode == 130, stderr
    assert "ppo: stopping; it saves when this step is over. A second Ctrl-C" in stderr
    assert f"the last checkpoint is kept. Resume with: assay resume {root / 'x'}" in stderr
    assert "Traceback" not in stderr
    assert [int(path.parent.name) for path in checkpoints(root / "x")] == [64]
    assert status(root / "x") == "interrupted"


@pytest.mark.slow
def test_a_run_that_is_ended_before_its_first_checkpoint_says_that_nothing_is_saved(
    start: Start, cli: Cli, slow: Path, root: Path
) -> None:
    process = start(*SLOW_RUN, "horizon=400", "minibatch_size=400", "--name", "x")
    steps = slow.with_name("steps")
    wait_for(lambda: steps.exists() and steps.stat().st_size > 40, process)
    stderr = stop_twice(process, signal.SIGTERM, slow)
    assert process.returncode == 130, stderr
    assert "before the first checkpoint: nothing is saved. Start it again with: assay re" in stderr
    slow.unlink()
    result = cli("resume", "x", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["env_steps"] == 400


def test_resume_refuses_a_damaged_checkpoint_and_force_uses_the_one_before(
    cli: Cli, runs: Path
) -> None:
    run = runs / "stopped"
    older, newest = checkpoints(run)[-2:]
    weights = newest.parent / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)

    result = cli("resume", "stopped")
    assert result.exit_code == 2, result.output
    assert str(weights) in result.stderr
    assert older.parent.name in result.stderr
    assert status(run) == "interrupted"

    result = cli("resume", "stopped", "--force")
    assert result.exit_code == 0, result.output
    assert f"resumed at env_steps={int(older.parent.name):,}" in result.stderr
    assert status(run) == "done"


@pytest.mark.slow
def test_several_seeds_are_a_group(start: Start, root: Path) -> None:
    process = start(*TRAIN, "--seeds", 2, "--seed", 5, "--name", "g", "--jobs", 2)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert sorted(p.name for p in (root / "g").iterdir()) == ["seed-5", "seed-6"]
    assert "IQM over 2 seeds" in stdout
    assert f"Runs: {root / 'g'}" in stdout
    assert "2 runs, 2 at a time" in stderr
    for seed in (5, 6):
        run = RunDirectory.open(root / "g" / f"seed-{seed}")
        assert (run.status, run.info["seed"]) == ("done", seed)
        assert run.config["run"]["env_steps"] == 1024
        assert (run.path / "stdout.log").exists()


@pytest.mark.slow
def test_a_seed_that_fails_is_reported_and_the_others_finish(cli: Cli, root: Path) -> None:
    (root / "g" / "seed-2").mkdir(parents=True)
    result = cli(*TRAIN, "seed=1", "--seeds", 2, "--name", "g", "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert [run["seed"] for run in found["runs"]] == [1]
    assert found["runs"][0]["status"] == "done"
    (failure,) = found["failed"]
    assert failure["run"] == str(root / "g" / "seed-2")
    assert failure["message"].startswith(f"'{root / 'g' / 'seed-2'}' exists already.")
    assert "seed 2 failed: " in result.stderr


@pytest.mark.slow
def test_ctrl_c_reaches_every_seed_and_resume_continues_the_group(
    start: Start, cli: Cli, slow: Path, root: Path
) -> None:
    process = start(*SLOW_RUN, "--seeds", 3, "--jobs", 2, "--name", "g")
    group = root / "g"
    wait_for(lambda: all(checkpoints(group / f"seed-{seed}") for seed in (1, 2)), process)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert f"Resume with: assay resume {group}" in stderr
    assert "Not started: seed 3. Start with: assay train ppo" in stderr
    assert "--name g --seed 3 --seeds 1" in stderr
    for seed in (1, 2):
        info = RunDirectory.open(group / f"seed-{seed}").info
        # A child that gets one Ctrl-C twice would have ended immediately, with an error.
        assert (info["status"], info["error"]) == ("interrupted", None)
    assert not (group / "seed-3").exists()

    slow.unlink()
    result = cli("resume", "g", "--json")
    assert result.exit_code == 0, result.output
    assert [run["env_steps"] for run in json.loads(result.stdout)["runs"]] == [400, 400]
    assert "are done" in cli("resume", "g").stderr


@pytest.mark.slow
def test_no_child_outlives_a_parent_that_was_killed(start: Start, slow: Path, root: Path) -> None:
    process = start(*SLOW_RUN, "--seeds", 2, "--jobs", 2, "--name", "g")
    paths = [root / "g" / f"seed-{seed}" for seed in (1, 2)]
    wait_for(lambda: all(checkpoints(path) for path in paths), process)
    children = [int(RunDirectory.open(path).info["pid"]) for path in paths]
    assert os.getpid() not in children and process.pid not in children
    process.kill()
    deadline = time.monotonic() + 120
    while any(status(path) == "running" for path in paths) and time.monotonic() < deadline:
        time.sleep(0.1)
    # Saved, and not only gone: a run that died would have the status "running" in its file.
    assert [RunDirectory.open(path).status for path in paths] == ["interrupted"] * 2


# ---------------------------------------------------------------------- a full disk

# As many checkpoints as fit; each is some tens of kilobytes.
FILLS = (*TRAIN, "eval_every=0", "checkpoint_every=256", "log_every=256", "keep_checkpoints=50")


def assert_one_clear_message(stderr: str) -> None:
    assert stderr.count("Error: ") == 1 and "the disk is full" in stderr
    assert "Free some space and try again." in stderr
    assert "Traceback" not in stderr and "bug in Assay" not in stderr


def assert_last_checkpoint_is_whole(path: Path) -> None:
    place = checkpoint.latest(path / "checkpoints")
    assert place is not None
    checkpoint.verify_checkpoint(place)


@pytest.mark.parametrize("what", ["checkpoint", "metrics"])
def test_a_disk_that_refuses_a_write_ends_the_run_with_one_message(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """From one write on, all of them fail, also that of the run's status."""
    cli(*FILLS, "--name", "whole")
    real_pwrite, real_fsync = os.pwrite, os.fsync
    full = False

    def refuse(descriptor: int) -> None:
        nonlocal full
        saved = (root / "a" / "checkpoints").is_dir() and checkpoints(root / "a")
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        sign = ".tmp-000000000512" if what == "checkpoint" else "metrics.jsonl"
        full |= bool(saved) and sign in place
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        refuse(descriptor)
        return real_pwrite(descriptor, data, offset)

    def fsync(descriptor: int) -> None:
        refuse(descriptor)
        real_fsync(descriptor)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fsync", fsync)
    result = cli(*FILLS, "--name", "a")
    monkeypatch.undo()
    assert result.exit_code == 2, result.output
    assert_one_clear_message(result.stderr)
    assert f"Cannot write the {what}" in result.stderr
    assert [int(place.parent.name) for place in checkpoints(root / "a")] == [256]
    assert_last_checkpoint_is_whole(root / "a")
    assert cli("resume", root / "a").exit_code == 0
    assert_same_run(root / "whole", root / "a")


FULL_DISK = """
mount -t tmpfs -o size=$SIZE tmpfs disk || exit 77
{command} --root disk --name a
code=$?
cp -a disk/a broken
mount -o remount,size=64m disk
{resume} disk/a --quiet && cp -a disk/a finished
exit $code
"""


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_free_space_lets_it_finish(
    cli: Cli, root: Path, tmp_path: Path
) -> None:
    """The real thing: a file system of a few checkpoints, in its own mount namespace."""
    cli(*FILLS, "--name", "whole")
    sizes = [f.stat().st_size for f in (root / "whole").rglob("*") if f.is_file()]
    python = shlex.join([sys.executable, "-m", "assay"])
    script = FULL_DISK.format(
        command=f"{python} {shlex.join(map(str, FILLS))}", resume=f"{python} resume"
    )
    (tmp_path / "disk").mkdir()
    try:
        done = subprocess.run(
            ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=process_environment() | {"SIZE": str(sum(sizes) * 2 // 3)},
        )
    except FileNotFoundError:
        pytest.skip("no unshare")
    if not (tmp_path / "broken").exists():
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    assert done.returncode == 2, done.stderr
    assert_one_clear_message(done.stderr)
    assert_last_checkpoint_is_whole(tmp_path / "broken")
    assert_same_run(root / "whole", tmp_path / "finished")
