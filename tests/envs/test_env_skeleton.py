"""`assay envs new` writes a package that passes its own tests and the checks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

import assay
from assay.core.errors import AssayError, ConfigError, EnvError, RunError
from assay.envs import skeleton
from assay.envs.checks import check_env
from assay.envs.skeleton import write_skeleton


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forget the packages that a test wrote and imported."""
    yield
    for name in [name for name in sys.modules if name.startswith("fresh_")]:
        del sys.modules[name]
    for name in [name for name in gym.registry if name.startswith("Fresh")]:
        del gym.registry[name]


@pytest.mark.parametrize(("actions", "kind"), [("discrete", "Discrete"), ("box", "Box")])
def test_it_passes_its_own_tests_and_the_checks(
    tmp_path: Path, actions: skeleton.Actions, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, env = write_skeleton(f"fresh_{actions}", tmp_path, actions)
    assert env == f"fresh_{actions}:Fresh{actions.title()}-v0"
    source = str(Path(assay.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"],
        cwd=path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    monkeypatch.chdir(path)
    monkeypatch.syspath_prepend(str(path))
    checks = {one.name: one for one in check_env(env, steps=200)}
    assert all(one.ok for one in checks.values())
    assert kind in checks["actions"].detail and "can be saved" in checks["state"].detail


def test_it_can_be_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, env = write_skeleton("fresh_learned", tmp_path)
    monkeypatch.syspath_prepend(str(path))
    options = {"num_envs": 8, "horizon": 32, "minibatch_size": 64, "epochs": 6, "lr": 3e-3}
    options |= {"compile": False, "sinks": [], "eval_episodes": 20}
    run = assay.train("ppo", env, root=tmp_path / "runs", env_steps=8192, **options)
    steps, success = run.metrics()["eval/success_rate"]
    assert steps[-1] == 8192 and success[-1] > 0.5  # random actions: about 0.3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Env", "cannot be the name of a package"),
        ("x", "cannot be the name of a package"),
        ("../up", "cannot be the name of a package"),
        ("class", "cannot be the name of a package"),
        ("1st", "cannot be the name of a package"),
        ("", "cannot be the name of a package"),
        ("numpy", "is the name of a module that is installed"),
        ("json", "is the name of a module that is installed"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write_skeleton(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "my_env").mkdir()
    (tmp_path / "my_env" / "mine.txt").write_text("mine")
    with pytest.raises(EnvError, match="exists already"):
        write_skeleton("my_env", tmp_path)
    assert [p.name for p in (tmp_path / "my_env").iterdir()] == ["mine.txt"]


def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunError, match="the disk is full") as caught:
        write_skeleton("my_env", tmp_path)
    assert isinstance(caught.value, AssayError) and not (tmp_path / "my_env").exists()
