"""Terms of the reward, from the infos of environments to the metrics of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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
from assay.testing.teams import Signals


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
        terms: dict[str, Any] = {"reward/word": "much", "reward/none": None, "reward/nan": np.nan}
        terms |= {"reward/time": self.t, "reward/life": self.life, "reward/list": [1, 2]}
        terms["other"] = 3
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
    names = {name for name in logged if name.startswith("reward/")} | logged.keys() & {"other"}
    assert names == {"reward/time", "reward/life", "reward/bonus"}


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


class Weighted(Told):
    """Told, with a parameter that is a term."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = 1.0

    def step(self, action: Any) -> Any:
        *result, terms = super().step(action)
        return *result, terms | {"reward/weight": self.weight}


def test_the_trial_of_ranges_before_a_run_is_not_in_them(tmp_path: Path) -> None:
    run = assay.train(
        "ppo", Weighted, root=tmp_path, num_envs=2, env_steps=32, horizon=8, hidden=[4], sinks=(),
        log_every=16, eval_every=0, compile=False, device="cpu", backend="sync",
        randomize={"weight": {"choice": [1.0, 9.0]}}, curriculum=None,
    )  # fmt: skip
    life = read_metrics(run.path / "metrics.jsonl")["reward/life"][1]
    # Each copy has lived for 8 steps at either end, and for 8 steps when it is first logged.
    assert life[0] == pytest.approx(16 + 4.5)


class Telling(Signals):
    """Agents that act at once, and tell a term each: 0, 1, ..."""

    def _infos(self, agents: Sequence[str]) -> dict[str, Any]:
        told = super()._infos(agents)
        return {a: told[a] | {"reward/part": self.possible_agents.index(a)} for a in agents}


def test_several_agents_have_the_mean_over_them(tmp_path: Path) -> None:
    make = partial(Telling, [gym.spaces.Discrete(2)] * 3)
    run = assay.train(
        "ippo", make, root=tmp_path, num_envs=2, env_steps=32, horizon=8, hidden=[4], sinks=(),
        log_every=16, eval_every=0, compile=False, device="cpu",
    )  # fmt: skip
    logged = read_metrics(run.path / "metrics.jsonl")["reward/part"][1]
    assert logged == pytest.approx([1.0, 1.0])
