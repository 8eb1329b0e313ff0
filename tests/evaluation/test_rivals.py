"""Where one agent gets what another loses, the team's return is 0, and that is said."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces

import assay
from assay.cli.results import read_result, show_results
from assay.core.errors import ConfigError
from assay.envs.checks import check_env
from assay.testing.teams import Signals

TINY: dict[str, Any] = {
    "env_steps": 64, "num_envs": 2, "horizon": 8, "minibatch_size": 8, "hidden": (8,),
    "eval_every": 0, "eval_episodes": 6, "sinks": (), "compile": False, "preset": False,
}  # fmt: skip


class Rivals(Signals):
    """The first agent is paid for its answer, by the second."""

    def __init__(self) -> None:
        super().__init__([spaces.Discrete(3)] * 2)

    def step(self, actions: Mapping[str, Any]) -> Any:
        seen, rewards, *rest = super().step(actions)
        first, second = self.possible_agents
        return seen, {first: rewards[first], second: -rewards[first]}, *rest


def test_returns_that_cancel_out_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(UserWarning, match="returns of agents in .*Rivals' cancel out"):
        run = assay.train("ippo", Rivals, root=tmp_path, **TINY)
    own = run.evaluate(6).agent_means
    assert own["kinda_0"] == -own["kinda_1"] > 0
    show_results([read_result(run.path)])
    assert "Mean return of each agent, seed 1: kinda_0 " in capsys.readouterr().out


def test_a_team_is_not_warned(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assay.train("ippo", lambda: Signals([spaces.Discrete(3)] * 2), root=tmp_path, **TINY)


def test_the_check_advises_against_learning_from_the_teams_reward() -> None:
    rewards = {check.name: check for check in check_env(Rivals, steps=100)}["rewards"]
    assert rewards.ok and "agents get -1 to 1, which cancels out" in rewards.detail
    assert "not vdn or qmix" in str(rewards.fix)


def test_a_run_is_not_evaluated_with_other_agents(tmp_path: Path) -> None:
    agents = [spaces.Discrete(2)] * 2
    run = assay.train("ippo", lambda: Signals(agents), root=tmp_path, **TINY)
    agents.append(agents[0])
    with pytest.raises(ConfigError, match="agents are kinda_0, kinda_1, kinda_2; the run was"):
        run.evaluate(episodes=1)
