"""Help appears immediately, and a mistake gets one message and exit code 2."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY, TRAIN, Cli, process_environment

import assay
from assay.cli.app import app

HEAVY = {"torch", "gymnasium", "scipy", "matplotlib", "numpy"}
IMPORTED = """
import sys
from assay.cli import main

try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code, stop.code
print("imported", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""
VERBS = (
    "train", "resume", "evaluate", "evaluate equilibria", "compare", "plot", "diagnose", "runs",
    "algorithms", "envs", "export", "predict", "doctor", "demo", "league", "explain", "test",
    "design", "prefer", "skills",
)  # fmt: skip


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments],
        capture_output=True,
        text=True,
        env=process_environment(),
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def failed(result: object) -> str:
    """Return the message of a user's mistake, having checked its form."""
    assert result.exit_code == 2, result.output  # type: ignore[attr-defined]
    before, _, message = str(result.stderr).rpartition("Error: ")  # type: ignore[attr-defined]
    assert before == "" or before.endswith("\n")
    assert message and "Traceback" not in message
    return message


def test_help_names_every_verb(cli: Cli) -> None:
    result = cli("--help")
    assert result.exit_code == 0
    shown = re.findall(r"^\W+(\w+(?: \w+)?)  ", result.output, flags=re.MULTILINE)
    assert set(VERBS) <= set(shown)
    assert {command.name for command in app.registered_commands} <= set(VERBS)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert imported(*arguments) & HEAVY == set()


def test_listing_runs_needs_no_torch(runs: Path) -> None:
    assert "torch" not in imported("runs", "--root", str(runs))
    assert "torch" not in imported("runs", "show", str(runs / "a" / "seed-1"))


def test_python_dash_m_assay_is_the_same_command() -> None:
    command = [sys.executable, "-m", "assay", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=process_environment())
    assert (done.returncode, done.stdout.strip()) == (0, assay.__version__)


def test_a_wrong_option_is_a_mistake_too(cli: Cli) -> None:
    result = cli("train", "ppo", "CartPole-v1", "--sed", "1")
    assert result.exit_code == 2
    assert "--seed" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "pppo", "CartPole-v1"], ["'pppo'", "Did you mean 'ppo'?"]),
        (["train", "paired", "CartPole-v1"], ["designs levels", "assay/Maze-v0"]),
        (["train", "ppo", "CartPol-v1"], ["'CartPol-v1'", "Did you mean 'CartPole-v1'?"]),
        (["train", "ppo", "CartPole-v1", "lrr=1e-3"], ["'lrr'", "Did you mean 'lr'?"]),
        (["train", "ppo", "CartPole-v1", "lr=-1"], ["lr=-1", "at least 0"]),
        (["train", "ppo", "CartPole-v1", "gamma=2"], ["gamma=2", "less than or equal to 1"]),
        (["train", "ppo", "CartPole-v1", "hidden"], ["'hidden' is not a setting", "key=value"]),
        (["train", "dqn", "Pendulum-v1"], ["dqn handles Discrete actions", "Box"]),
        (["train", "td3", "CartPole-v1"], ["td3 handles Box actions", "Discrete"]),
        (["train", "ppo", "CartPole-v1", "--device", "gpu"], ["'gpu'", "auto, cpu or cuda"]),
        (
            ["train", "ppo", "CartPole-v1", "horizon=3", "minibatch_size=64"],
            ["minibatch_size=64", "does not divide"],
        ),
        (["train", "ppo", "CartPole-v1", "seed=2", "--seed", "3"], ["seed is given twice"]),
        (["train", "ppo", "CartPole-v1", "env=Pendulum-v1"], ["env: Pendulum-v1", "CartPole-v1"]),
        (["train", "ppo", "CartPole-v1", "--config", "none.yaml"], ["'none.yaml'"]),
        (["train"], ["Nothing names the algorithm", "assay train ALGO ENV", "--config"]),
        (["train", "lr=1e-3"], ["Nothing names the algorithm"]),
        (["train", "ppo", "lr=1e-3"], ["Nothing names the environment", "ENV"]),
        (
            ["train", "ppo", "CartPole-v1", "wrappers=[{frame_stack: 4"],
            ["'wrappers=[{frame_stack: 4' is not a list", "Close every bracket"],
        ),
        (["train", "ppo", "lr=1e-3", "CartPole-v1"], ["'CartPole-v1' is not a setting"]),
        (["train", "ppo", "CartPole-v1", "--name", "../up"], ["'../up' cannot be the name"]),
        (["train", "ppo", "CartPole-v1", "--root", "/dev/null/runs"], ["/dev/null/runs"]),
        (["train", "ppo", "no_such_module:Maze-v0"], ["no module 'no_such_module'"]),
        (["train", "ppo", "CartPole-v1", "--name", "x" * 300, "--root", "."], ["too long"]),
        (["resume", "x" * 300], ["too long", "a shorter one"]),
        (["resume", "nowhere"], ["no run at", "nowhere"]),
        (["evaluate", "nowhere"], ["no run at", "nowhere"]),
        (["export", "nowhere", "--onnx"], ["no run at", "nowhere"]),
        (["export", "nowhere"], ["Neither --onnx nor --torchscript"]),
        (["runs", "show", "nowhere"], ["no run at", "nowhere"]),
        (["runs", "--root", "nowhere"], ["no directory 'nowhere'"]),
        (["compare", "one"], ["expected at least two"]),
        (["algorithms", "ppq"], ["'ppq'", "Did you mean 'ppo'?"]),
    ],
)
def test_a_mistake_gets_one_message(
    cli: Cli, root: Path, arguments: list[str], expected: list[str]
) -> None:
    message = failed(cli(*arguments))
    for part in expected:
        assert part in message
    assert not root.exists() or list(root.iterdir()) == []


def test_the_command_line_overrides_settings_of_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("lr: 2\nhidden: [16]\n")
    assert "lr=-1" in failed(cli(*TRAIN, "lr=-1", "--config", file))
    file.write_text("lrr: 2\n")
    assert "'lrr'" in failed(cli(*TRAIN, "--config", file))
    file.write_text("algorithm: sac\n")
    assert "algorithm: sac" in failed(cli(*TRAIN, "--config", file))
    file.write_text("lr: [\n")
    assert "not readable YAML" in failed(cli(*TRAIN, "--config", file))
    file.write_text("run: {lr: 1, lr: 2}\n")
    assert "'lr' is there twice" in failed(cli(*TRAIN, "--config", file))
    assert "'a' is there twice" in failed(cli(*TRAIN, "env_kwargs={a: 1, a: 2}"))


def test_a_file_that_does_not_name_a_task(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("algorithm: ppo\n")
    assert "Nothing names the environment" in failed(cli("train", "--config", file))
    file.write_text("algorithm: ppo\nenv: CartPole-v1\n")
    message = failed(cli("train", "ppo", "Acrobot-v1", "--config", file))
    assert "The file says env: CartPole-v1, but the command line says Acrobot-v1" in message
    message = failed(cli("train", "--config", file, "env=Acrobot-v1"))
    assert "env: CartPole-v1" in message and "Acrobot-v1" in message
    file.write_text("algorithm: ppo\nenv: Maze\nenv_is_object: true\n")
    assert "was given as an object" in failed(cli("train", "--config", file))


def test_a_name_that_is_taken_offers_to_resume(cli: Cli, runs: Path) -> None:
    message = failed(cli(*TRAIN, "--name", "a/seed-1"))
    assert f"assay resume {runs / 'a' / 'seed-1'}" in message
    message = failed(cli(*TRAIN, "--seeds", 2, "--seed", 3, "--name", "a"))
    assert f"assay resume {runs / 'a' / 'seed-3'}" in message
    assert not (runs / "a" / "seed-4").exists()


ENVIRONMENTS = """
import gymnasium as gym
import numpy as np


class Bad(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, kind):
        self.kind, self.steps = kind, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        bad = self.steps == 100
        if bad and self.kind == "raises":
            raise ValueError("the motor is on fire")
        reward = np.nan if bad and self.kind == "reward" else 1.0
        obs = np.full(2, np.nan if bad and self.kind == "observation" else 0.0, np.float32)
        return obs, reward, self.steps % 10 == 0, False, {}


for kind in ("raises", "reward", "observation"):
    if f"Bad-{kind}-v0" not in gym.registry:
        gym.register(f"Bad-{kind}-v0", Bad, kwargs={"kind": kind})
"""


@pytest.mark.parametrize(
    ("kind", "backend", "expected"),
    [
        ("reward", "sync", ["reward", "nan", "Bad-reward-v0"]),
        ("observation", "sync", ["observation", "nan", "Bad-observation-v0"]),
        ("raises", "sync", ["the motor is on fire", "ValueError"]),
        ("raises", "processes", ["the motor is on fire", "ValueError"]),
    ],
)
def test_a_broken_environment_fails_the_run_and_keeps_its_checkpoint(
    cli: Cli, root: Path, kind: str, backend: str, expected: list[str]
) -> None:
    module = root.parent / "bad_environments.py"
    module.write_text(ENVIRONMENTS)
    sys.modules.pop("bad_environments", None)
    settings = ("num_envs=2", "horizon=8", "minibatch_size=16", f"backend={backend}")
    result = cli(
        "train", "ppo", f"bad_environments:Bad-{kind}-v0", "env_steps=1000", *TINY, *settings,
        "checkpoint_every=16", "eval_every=0", "--name", "bad", "--quiet",
    )  # fmt: skip
    assert result.exit_code == 2, result.output
    message = result.stderr
    assert message.startswith("Error: ")
    for part in expected:
        assert part.lower() in message.lower()
    shown = cli("runs", "show", "bad").output
    assert "status:     failed" in shown
    assert "checkpoint: " in shown


def test_a_missing_extra_is_named(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = failed(cli("export", runs / "a" / "seed-1", "--onnx"))
    assert "pip install 'assay[onnx]'" in message


def test_an_export_that_nothing_can_run_says_so(
    cli: Cli, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    real = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "onnxruntime" else real(name, *rest)  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", hidden)
    done = cli("export", runs / "a" / "seed-1", "--onnx", "--out", tmp_path / "policy.onnx")
    assert done.exit_code == 0 and "Checked" not in done.output and "nan" not in done.output
    assert "Not checked, because onnxruntime is missing: pip install 'assay[onnx]'" in done.stderr


def test_a_bug_shows_its_traceback() -> None:
    code = (
        "import assay.cli.find_run as places\n"
        "def broken(text, root=None): raise ZeroDivisionError('oops')\n"
        "places.locate = broken\n"
        "import assay.cli\n"
        "assay.cli.main(['runs', 'show', 'x'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=process_environment()
    )
    assert done.returncode == 1
    assert "ZeroDivisionError: oops" in done.stderr
    assert "This is a bug in Assay" in done.stderr


def test_an_error_in_the_user_s_code_is_not_called_a_bug_of_assay(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def locate(text, root=None):\n    return {}['x']\n")
    code = (
        "import mine, assay.cli.find_run as places, assay.cli\n"
        "places.locate = mine.locate\n"
        "assay.cli.main(['runs', 'show', 'x'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path,
        env=process_environment(),
    )  # fmt: skip
    assert done.returncode == 1 and "KeyError: 'x'" in done.stderr
    assert done.stderr.endswith(f"your own code: {tmp_path / 'mine.py'}, line 2.\n")


def test_a_closed_stdout_is_not_a_bug(runs: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    for arguments in (["runs"], ["runs", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "assay", *arguments],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            env=process_environment(),
        )
        assert "Traceback" not in done.stderr
    os.close(write)


@pytest.mark.parametrize("option", ["--out", "--log-dir", "--output-dir"])
def test_an_option_for_the_runs_folder_names_ours(cli: Cli, option: str) -> None:
    message = failed(cli("train", "ppo", "CartPole-v1", option, "results/mine"))
    assert "no option for the run's folder, such as 'results/mine'" in message
    assert "Use --root results --name mine instead." in message


@pytest.mark.parametrize("setting", ["out", "name", "log_dir"])
def test_a_setting_for_the_runs_folder_names_the_options(cli: Cli, setting: str) -> None:
    message = failed(cli("train", "ppo", "CartPole-v1", f"{setting}=mine"))
    assert f"Unknown setting for ppo: '{setting}'. The run's folder is ROOT/NAME" in message
    assert "--root ROOT --name NAME" in message
