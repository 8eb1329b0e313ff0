"""What options did: figures of evaluations, and drawings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import assay
from assay.cli.app import app
from assay.core.errors import ConfigError
from assay.core.types import Action
from assay.envs.make import make_vector
from assay.evaluation.evaluate import EvaluationResult, evaluate
from assay.evaluation.option_plots import play_options, plot_options
from assay.policies.options import OptionMeter
from assay.testing.algorithms import make_algorithm


class Turns:
    """Goes right by option 0 for three steps, then by option 1 for two, and so on."""

    def act(self, obs: Any, carry: Any, explore: bool) -> Action:
        n, time = len(obs), carry["time"]
        first = time % 5 < 3
        option = np.stack([first, ~first], 1).astype(np.float32)
        extras = {"option": option, "drawn": np.isin(time % 5, (0, 3)).astype(np.float32)}
        return Action(np.ones(n, int), {**carry, "time": time + 1}, extras)

    def meter(self, n: int) -> OptionMeter:
        return OptionMeter(2, n)

    def initial_carry(self, n: int) -> Any:
        return {"time": np.zeros(n, int), "option": np.zeros((n, 2), np.float32)}


def rooms(copies: int = 2) -> Any:
    kwargs = {"goal": 0, "noise": 0.0}
    return make_vector("assay/FourRooms-v0", copies, env_kwargs=kwargs, max_episode_steps=11)


def test_an_evaluation_tells_what_options_did() -> None:
    with rooms() as vector:
        result = evaluate(Turns(), vector, episodes=3, seed=0)
    assert result.lengths.tolist() == [11, 11, 11]
    # Steps 0-2, 5-7 and 10 are of option 0; options begin at 0, 3, 5, 8 and 10.
    expected = {
        "option_0_share": 7 / 11, "option_1_share": 4 / 11,
        "option_length": 11 / 5, "termination_rate": 4 / 10,
    }  # fmt: skip
    assert result.figures == pytest.approx(expected)
    again = EvaluationResult.from_json(result.to_json())
    assert again.levels is not None and again.figures == pytest.approx(expected)


def test_episodes_know_where_options_acted(tmp_path: Path) -> None:
    with rooms() as vector:
        one, two, three = play_options(Turns(), vector, episodes=3)
        for episode in (one, two, three):
            assert episode.option.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0]
            assert np.flatnonzero(episode.chosen).tolist() == [0, 3, 5, 8, 10]
            assert episode.place is not None
            steps = np.diff(episode.place, axis=0)
            assert not steps[:, 0].any() and set(steps[:, 1]) <= {0, 1}
        path = plot_options(Turns(), vector, tmp_path / "map.svg", episodes=3)
    assert "which option acts most" in path.read_text()
    with make_vector("CartPole-v1", 2) as vector:
        path = plot_options(Turns(), vector, tmp_path / "line.svg", episodes=2)
    assert "which option acts" in path.read_text()


def test_an_agent_without_options_is_refused() -> None:
    with make_vector("CartPole-v1", 1) as vector:
        flat = make_algorithm("ppo", vector.spaces.observation, vector.spaces.action)
        with pytest.raises(ConfigError, match="no options to draw"):
            play_options(flat, vector, episodes=1)


def test_from_the_command_line(tmp_path: Path) -> None:
    run = assay.train(
        "option_critic", "assay/FourRooms-v0", root=tmp_path, env_steps=256, num_envs=2,
        horizon=32, minibatch_size=64, max_episode_steps=20, eval_episodes=2,
    )  # fmt: skip
    picture = tmp_path / "options.png"
    asked = ["plot", str(run.path), "--options", "--episodes", "2", "--out", str(picture)]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0 and picture.stat().st_size > 1000
    found = CliRunner().invoke(app, ["evaluate", str(run.path), "--episodes", "2"])
    assert "termination_rate" in found.output
    metrics = (run.path / "metrics.jsonl").read_text()
    assert '"eval/option_0_share"' in metrics and '"train/option_length"' in metrics
