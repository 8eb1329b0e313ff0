"""The promise: kill -9 at any moment, resume, and nobody can tell.

Every case is trained once undisturbed, and once in a process of its own that is killed at a random
moment and then resumed. Weights, optimizer, replay, generators, metrics and evaluations of the two
must be equal bit for bit. Environments: a native one, one of MuJoCo's (both can save themselves),
and one that cannot, where every checkpoint is a barrier.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import assay
from assay.buffers.rollout import Rollout
from assay.core.errors import RunError
from assay.core.seeding import derive_rng
from assay.envs.env_snapshot import load_env_state, save_env_state
from assay.envs.make import make_vector
from assay.loops.events import RunStarted
from assay.runs import checkpoint
from assay.testing.algorithms import (
    assert_same_run,
    last_checkpoint,
    run_metrics,
    stop_when_called,
)
from assay.testing.envs import Drifting

PATIENCE = 120.0  # seconds that a process may take, on a machine that is busy with other things
# A server that has imported torch once and forks: a process of our own costs milliseconds.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["assay.api", "assay.testing.algorithms"])

# 32 environment steps per iteration
ROLLOUTS = {
    "env_steps": 1280, "checkpoint_every": 128, "log_every": 64, "horizon": 16,
    "normalize_obs": True, "normalize_reward": True,
}  # fmt: skip
# By what a case's name begins with: an algorithm, and an option if it is not the plain one.
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": ROLLOUTS | {"minibatch_size": 16, "epochs": 2},
    # Two more networks, and statistics of their own.
    "ppo_rnd": ROLLOUTS | {"minibatch_size": 16, "epochs": 2, "rnd": 0.5},
    # A carry in the middle of episodes, and chunks that begin with one.
    "recurrent_ppo": ROLLOUTS | {"chunk": 8, "minibatch_size": 16, "epochs": 2, "memory_size": 8},
    # The parameters of past updates act.
    "impala": ROLLOUTS | {"actor_lag": 3},
    # The replay wraps around.
    "dqn": {
        "env_steps": 600, "checkpoint_every": 60, "log_every": 20, "buffer_size": 400,
        "learning_starts": 40, "train_every": 4, "batch_size": 8, "target_every": 10,
        "prioritized": True, "n_step": 3, "double": True,
    },
    "sac": {
        "env_steps": 400, "checkpoint_every": 40, "log_every": 20, "buffer_size": 300,
        "learning_starts": 40, "train_every": 4, "batch_size": 8,
    },
    # Prioritised sequences, of which windows are open at every checkpoint; they wrap around.
    "r2d2": {
        "env_steps": 600, "checkpoint_every": 60, "log_every": 20, "buffer_size": 300,
        "learning_starts": 40, "train_every": 8, "batch_size": 4, "target_every": 10,
        "sequence": 5, "burn_in": 3, "overlap": 2, "n_step": 2, "memory_size": 8,
        "epsilon_alpha": 2.0, "normalize_obs": True,
    },
}  # fmt: skip
COMMON: dict[str, Any] = {
    "num_envs": 2, "hidden": (16,), "eval_every": 200, "eval_episodes": 2, "sinks": (),
    "compile": False, "preset": False, "seed": 11,
}  # fmt: skip


class Pushed(gym.Env):
    """MuJoCo's inverted pendulum, pushed left, right or not at all."""

    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.inner = gym.make("InvertedPendulum-v5")
        self.observation_space = self.inner.observation_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.inner.reset(seed=seed)

    def step(self, action: Any) -> Any:
        return self.inner.step(np.array([action - 1.0], np.float32))

    def get_state(self) -> Any:
        return save_env_state(self.inner)

    def set_state(self, state: Any) -> None:
        load_env_state(self.inner, state)


class Unknown(gym.Wrapper):
    """A wrapper of which nobody knows what it keeps."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.last = 0.0

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        smooth = self.last = 0.5 * self.last + 0.5 * reward
        return obs, smooth, *rest

    def reset(self, **arguments: Any) -> Any:
        self.last = 0.0
        return self.env.reset(**arguments)


def unknown(discrete: bool = False) -> gym.Env:
    return Unknown(Drifting(discrete))


CASES: dict[str, tuple[str, Any]] = {
    "ppo-native": ("ppo", "CartPole-v1"),
    "dqn-native": ("dqn", "CartPole-v1"),
    "sac-native": ("sac", "Pendulum-v1"),
    "ppo-mujoco": ("ppo", "Hopper-v5"),
    "dqn-mujoco": ("dqn", Pushed),
    "sac-mujoco": ("sac", "HalfCheetah-v5"),
    "ppo-unsaved": ("ppo", unknown),
    "dqn-unsaved": ("dqn", partial(unknown, True)),
    "sac-unsaved": ("sac", unknown),
    "r2d2-native": ("r2d2", "CartPole-v1"),
    "r2d2-unsaved": ("r2d2", partial(unknown, True)),
    "ppo_rnd-native": ("ppo", "CartPole-v1"),
    "recurrent_ppo-native": ("recurrent_ppo", "CartPole-v1"),
    "recurrent_ppo-unsaved": ("recurrent_ppo", unknown),
    "impala-native": ("impala", "CartPole-v1"),
}


def case_settings(case: str) -> dict[str, Any]:
    return COMMON | SETTINGS[case.split("-")[0]]


def train(case: str, name: str, root: Path, **options: Any) -> Path:
    algorithm, env = CASES[case]
    settings = case_settings(case) | options
    return assay.train(algorithm, env, name=name, root=root, **settings).path


def resume(case: str, path: Path, **options: Any) -> Path:
    env = CASES[case][1]
    return assay.resume(path, env=None if isinstance(env, str) else env, **options).path


def process(target: Callable[..., Any], *args: Any) -> Any:
    """Start a process of our own; a daemon, so that none is left behind."""
    started = PROCESSES.Process(target=target, args=args, daemon=True)
    started.start()
    return started


def newest(path: Path) -> int:
    """Return where the newest checkpoint of a run is, or 0."""
    place = checkpoint.latest(path / "checkpoints")
    return 0 if place is None else int(place.name.split(".")[0])


def kill_after(child: Any, path: Path, env_steps: int, delay: float) -> bool:
    """Kill a process `delay` seconds after a checkpoint at `env_steps`; say if it came in time."""
    deadline = time.monotonic() + PATIENCE
    while child.is_alive() and newest(path) < env_steps:
        assert time.monotonic() < deadline, f"no checkpoint at {env_steps} in {path}"
        time.sleep(0.001)
    time.sleep(delay)
    child.kill()
    child.join(PATIENCE)
    assert child.exitcode in (-signal.SIGKILL, 0), f"the process failed: {child.exitcode}"
    return bool(child.exitcode == -signal.SIGKILL) and assay.open_run(path).status != "done"


def killed(case: str, root: Path) -> Path:
    """Return a run of a case that was killed at a random moment."""
    every = case_settings(case)["checkpoint_every"]
    rng = derive_rng(0, "kill", case)
    for attempt in range(8):
        path = root / f"killed-{attempt}"
        child = process(train, case, path.name, root)
        # After one of the first checkpoints and then somewhere before the end; where a machine is
        # so quick that the run is over by then, earlier.
        wait = every * int(rng.integers(1, 6 if attempt < 4 else 2))
        if kill_after(child, path, wait, rng.uniform(0, 0.1) / (1 + attempt)):
            return path
    pytest.fail("the run was over before it could be killed, eight times")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that trains a case without disturbance, once."""
    done: dict[str, Path] = {}

    def whole(case: str) -> Path:
        if case not in done:
            done[case] = train(case, "whole", tmp_path_factory.mktemp(case))
        return done[case]

    return whole


@pytest.fixture(autouse=True)
def _needs_mujoco(request: pytest.FixtureRequest) -> None:
    case = request.node.callspec.params["case"] if hasattr(request.node, "callspec") else ""
    if "mujoco" in case:
        pytest.importorskip("mujoco")


@pytest.mark.parametrize("case", CASES)
def test_environments_are_what_they_should_be(case: str) -> None:
    with make_vector(CASES[case][1], 2) as env:
        env.reset(0)
        assert (env.get_state() is None) == case.endswith("unsaved")


@pytest.mark.parametrize("case", CASES)
def test_killed_run_ends_like_the_undisturbed_one(
    case: str, undisturbed: Callable[[str], Path], tmp_path: Path
) -> None:
    path = killed(case, tmp_path)
    assert newest(path) < case_settings(case)["env_steps"]
    assert assay.open_run(path).status == "interrupted"
    resume(case, path)
    assert assay.open_run(path).status == "done"
    assert_same_run(undisturbed(case), path)
    assert_lines(case, path)


def assert_lines(case: str, path: Path) -> None:
    """Require one line for every moment that was due, none twice and none missing."""
    settings = case_settings(case)
    total, every = settings["env_steps"], settings["eval_every"]
    lines = run_metrics(path)
    logged = [steps for steps, _, _, metrics in lines if "eval/return_mean" not in metrics]
    assert logged == list(range(settings["log_every"], total + 1, settings["log_every"]))
    evaluated = [steps for steps, _, _, metrics in lines if "eval/return_mean" in metrics]
    stride = settings["num_envs"] * settings.get("horizon", 1)
    due = [-(-n // stride) * stride for n in range(every, total, every)]
    assert evaluated == [*due, total]


ON_POLICY = [case for case in CASES if "horizon" in case_settings(case)]


@pytest.mark.parametrize("case", [case for case in ON_POLICY if "unsaved" not in case])
def test_stopped_in_rollouts(
    case: str,
    undisturbed: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint in the middle of a rollout is as good as another, twice in a row."""
    whole = undisturbed(case)
    steps = stop_when_called(monkeypatch, Rollout, "write", 3, 10, 16 * 12 + 5)
    path = train(case, "stopped", tmp_path)
    assert len(steps) == 3 and newest(path) == 0
    resume(case, path)
    resume(case, path)
    assert len(steps) == 16 * 12 + 5 and assay.open_run(path).status == "interrupted"
    resume(case, path)
    assert_same_run(whole, path)
    assert_lines(case, path)


@pytest.mark.parametrize("case", [case for case in ON_POLICY if "unsaved" in case])
def test_stopped_in_a_rollout_where_nothing_can_be_saved(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was collected is kept, its episodes are cut there, and others begin."""
    steps = stop_when_called(monkeypatch, Rollout, "write", 16 + 5)
    path = train(case, "stopped", tmp_path)
    kept = last_checkpoint(path)
    assert newest(path) == 32 and kept["collector"]["filled"] == 5
    part = kept["rollout"]["columns"]
    assert len(part["reward"]) == 5 and part["truncated"][4].all()
    assert kept["rollout"]["finals"]["step"][-2:].tolist() == [4, 4]
    again = tmp_path / "again"
    shutil.copytree(path, again)
    for one in (path, again):
        resume(case, one)
        assert assay.open_run(one).status == "done"
    assert_same_run(path, again)
    assert len(steps) == 16 + 5 + 2 * (1280 // 2 - 16 - 5)
    assert_lines(case, path)


@pytest.mark.parametrize("case", ["dqn-native", "ppo-unsaved"])
def test_killed_twice(case: str, undisturbed: Callable[[str], Path], tmp_path: Path) -> None:
    path = killed(case, tmp_path)
    every = case_settings(case)["checkpoint_every"]
    if kill_after(process(resume, case, path), path, newest(path) + every, 0.0):
        resume(case, path)
    assert assay.open_run(path).status == "done"
    assert_same_run(undisturbed(case), path)


@pytest.mark.parametrize("case", ["ppo-native", "dqn-mujoco", "sac-unsaved"])
def test_same_seed_same_numbers(
    case: str, undisturbed: Callable[[str], Path], tmp_path: Path
) -> None:
    """A run in another process is the same run; with another seed it is another one."""
    child = process(train, case, "again", tmp_path)
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert_same_run(undisturbed(case), tmp_path / "again")
    other = train(case, "other", tmp_path, seed=12)
    assert run_metrics(other) != run_metrics(undisturbed(case))
    weights = [last_checkpoint(path)["weights"] for path in (undisturbed(case), other)]
    name, part = next(iter(weights[0].items()))
    assert any(not np.array_equal(value, weights[1][name][key]) for key, value in part.items())


def train_and_hang(case: str, name: str, root: Path) -> None:
    """Train until the run is at work, and stay there."""

    def hang(event: Any) -> None:
        if isinstance(event, RunStarted):
            (root / "started").touch()
            time.sleep(PATIENCE)
            os._exit(1)

    train(case, name, root, callbacks=[hang])


def test_two_processes_cannot_train_one_run(
    undisturbed: Callable[[str], Path], tmp_path: Path
) -> None:
    case = "ppo-native"
    child = process(train_and_hang, case, "a", tmp_path)
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline and child.is_alive()
        time.sleep(0.01)
    with pytest.raises(RunError, match=f"is being trained by pid {child.pid}"):
        resume(case, tmp_path / "a")
    assert assay.open_run(tmp_path / "a").status == "running"
    child.kill()
    child.join(PATIENCE)
    # The lock went with the process.
    resume(case, tmp_path / "a")
    assert_same_run(undisturbed(case), tmp_path / "a")
