"""Terms of the reward, from the infos of environments to the metrics of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import assay
from assay.core.errors import AssayError
from assay.loops.events import Event, Logged
from assay.runs.metrics import read_metrics
from assay.testing.algorithms import assert_same_run


class Told(gym.Env[Any, Any]):
    """Tells terms of the reward: the step, that of its life, and a bonus in every second one."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.t = self.life = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t, self.life = self.t + 1, self.life + 1
        terms = {"reward/time": self.t, "reward/life": self.life, "reward/list": [1, 2], "other": 3}
        if self.t % 2 == 0:
            terms["reward/bonus"] = np.float32(4.0)
        return np.zeros(1, np.float32), float(self.t), self.t == 4, False, terms

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t, "life": self.life}

    def set_state(self, state: dict[str, Any]) -> None:
        self.t, self.life = state["t"], state["life"]


def train(root: Path, name: str, algorithm: str = "ppo", **settings: Any) -> Any:
    few = {"ppo": {"horizon": 8}, "dqn": {"learning_starts": 8, "batch_size": 4}}[algorithm]
    return assay.train(
        algorithm, Told, root=root, name=name, num_envs=2, env_steps=64, hidden=[4], sinks=(),
        log_every=16, checkpoint_every=24, eval_every=0, compile=False, device="cpu", **few,
        **settings,
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize("backend", ["sync", "processes"])
def test_they_are_logged_as_means_over_steps(tmp_path: Path, algorithm: str, backend: str) -> None:
    run = train(tmp_path, "told", algorithm, backend=backend)
    logged = read_metrics(run.path / "metrics.jsonl")
    # Episodes are 1, 2, 3, 4, so that both numbers are the same in every eight steps of a copy.
    assert logged["reward/time"][1] == pytest.approx([2.5] * 4)
    assert logged["reward/bonus"][1] == pytest.approx([4.0] * 4)
    assert logged["reward/life"][1] == pytest.approx([4.5, 12.5, 20.5, 28.5])
    assert "reward/list" not in logged and "other" not in logged


def test_a_resumed_run_logs_the_same(tmp_path: Path) -> None:
    def die(event: Event) -> None:
        if isinstance(event, Logged) and event.clock.env_steps >= 48:
            raise KeyError("the power is out")

    whole = train(tmp_path, "whole", "dqn")
    with pytest.raises(KeyError, match="power"):
        train(tmp_path, "killed", "dqn", callbacks=[die])
    assert_same_run(whole.path, assay.resume(tmp_path / "killed", env=Told).path)


def test_the_design_desk_reads_them(tmp_path: Path) -> None:
    from assay.design.problem import Problem
    from assay.design.reward_runs import read_terms
    from assay.runs.directory import RunDirectory

    terms = [{"name": "time"}, {"name": "bonus"}]
    run = RunDirectory.open(train(tmp_path, "told").path)
    assert read_terms(Problem(reward={"terms": terms}), run)["bonus"] == [4.0] * 4
    with pytest.raises(AssayError, match="Did you mean 'reward/time'"):
        read_terms(Problem(reward={"terms": [{"name": "tine"}]}), run)
