"""Short trainings that are really broken, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import assay
from assay.algorithms.base import Algorithm
from assay.core.errors import AssayError
from assay.diagnosis.case import Finding
from assay.diagnosis.report import diagnose

TINY: dict[str, Any] = {
    "num_envs": 8, "horizon": 32, "minibatch_size": 64, "epochs": 4, "compile": False,
    "sinks": [], "eval_episodes": 2, "env_steps": 3072, "log_every": 256, "eval_every": 1024,
}  # fmt: skip
DQN: dict[str, Any] = {
    "env_steps": 1500, "learning_starts": 100, "hidden": [32], "compile": False, "sinks": [],
    "eval_episodes": 2, "batch_size": 32, "train_every": 4, "log_every": 50,
}  # fmt: skip


UNSCALED = {"normalize_reward": False}


class Times(gym.Wrapper[Any, Any, Any, Any]):
    """Multiply rewards, or end every episode at once."""

    def __init__(self, reward: float = 1.0, *, at_once: bool = False) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._reward, self._at_once = reward, at_once

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) * self._reward, terminated or self._at_once, truncated, info


def findings(path: Path, algorithm: str, env: Any, **settings: Any) -> dict[str, Finding]:
    base = TINY if algorithm == "ppo" else DQN
    with np.errstate(all="ignore"):
        try:
            assay.train(algorithm, env, root=path, name="x", preset=False, **(base | settings))
        except AssayError:
            assert (path / "x" / "run.json").exists()
    return {one.name: one for one in diagnose(path / "x").findings if one.severity != "info"}


CASES: dict[str, tuple[str, str, Callable[[], Any] | str, dict[str, Any]]] = {
    "a step size of 100": ("entropy_collapse", "ppo", "CartPole-v1", {"lr": 100.0}),
    "a step size of 0": ("policy_does_not_move", "ppo", "CartPole-v1", {"lr": 0.0}),
    "an entropy bonus of 10": ("stays_random", "ppo", "CartPole-v1", {"entropy_coef": 10.0}),
    "a clip range of 1e-5": ("clip_fraction", "ppo", "CartPole-v1", {"clip": 1e-5}),
    "rewards of 0": ("no_reward_signal", "ppo", lambda: Times(reward=0.0), {}),
    "rewards of 1e30": ("diverged", "ppo", lambda: Times(reward=1e30), UNSCALED),
    "rewards of 1e7": ("loss_explodes", "ppo", lambda: Times(reward=1e7), UNSCALED),
    "episodes of one step": ("episodes_end_at_once", "ppo", lambda: Times(at_once=True), {}),
    "dead units": ("dead_units", "dqn", "CartPole-v1", {"lr": 1.0}),
    "one update in a thousand steps": ("replay_ratio", "dqn", "CartPole-v1", {"train_every": 700}),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_it_is_found(tmp_path: Path, what: str) -> None:
    rule, algorithm, env, settings = CASES[what]
    assert rule in findings(tmp_path, algorithm, env, **settings)


def test_a_normaliser_that_stops_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = Algorithm.update_obs_stats, []

    def once(self: Algorithm, *data: Any) -> None:
        if not seen:
            real(self, *data)
        seen.append(1)

    monkeypatch.setattr(Algorithm, "update_obs_stats", once)
    found = findings(tmp_path, "ppo", "CartPole-v1", normalize_obs=True)
    assert "has seen 256 observations" in found["stale_normalizer"].evidence


def test_a_run_that_learns_is_healthy(tmp_path: Path) -> None:
    settings = {"normalize_obs": True, "lr": 3e-3, "env_steps": 8192}
    assert findings(tmp_path, "ppo", "CartPole-v1", **settings) == {}
