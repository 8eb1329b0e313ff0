"""A place for runs, the command line in this process and as a process, and small runs to look at.

The runs are trained once per test session; tests that change one work on a copy.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, process_environment
from typer.testing import CliRunner

import assay
from assay.cli.app import app
from assay.loops.events import STOP, CheckpointSaved, Event


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a directory for runs the default one, and the current directory an empty one."""
    place = tmp_path / "runs"
    monkeypatch.setenv("ASSAY_RUNS", str(place))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return place


@pytest.fixture
def cli(root: Path) -> Cli:
    """Return `cli(*arguments) -> result`, which runs the command in this process."""

    def call(*arguments: Any, **options: Any) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)

    return call


@pytest.fixture
def start(root: Path) -> Any:
    """Return `start(*arguments) -> Popen`, and let no process outlive its test."""
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "assay", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=process_environment(),
            start_new_session=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def train_small(path: Path, name: str, seed: int, **options: Any) -> None:
    settings = {"num_envs": 8, "horizon": 32, "minibatch_size": 64, "compile": False, "sinks": []}
    settings |= {"env_steps": 512, "eval_every": 256, "eval_episodes": 4, "seed": seed}
    callbacks = options.pop("callbacks", ())
    assay.train(
        "ppo", "CartPole-v1", name=name, root=path, callbacks=callbacks, **(settings | options)
    )


@pytest.fixture(scope="session")
def made_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train two groups of three seeds, and one run that was interrupted after two checkpoints."""
    place = tmp_path_factory.mktemp("runs")
    for seed in range(1, 4):
        train_small(place, f"a/seed-{seed}", seed)
        train_small(place, f"b/seed-{seed}", seed, lr=1e-5)
    saved = []

    def stop_at_second(event: Event) -> Any:
        if isinstance(event, CheckpointSaved):
            saved.append(event.path)
        return STOP if len(saved) >= 2 else None

    train_small(
        place, "stopped", 9, env_steps=4096, checkpoint_every=256, callbacks=[stop_at_second]
    )
    return place


@pytest.fixture
def runs(made_runs: Path, root: Path) -> Path:
    """Return a copy of the made runs, as the default place for runs."""
    shutil.copytree(made_runs, root)
    return root
