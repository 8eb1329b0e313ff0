"""Runs of several agents: trained, evaluated, resumed, loaded, exported, and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import assay
from assay.core.errors import ConfigError
from assay.evaluation.evaluate import load_evaluations
from assay.policies.export import export_policy
from assay.recording import record
from assay.runs.directory import RunDirectory

OPTIONS = {
    "num_envs": 4, "env_steps": 400, "horizon": 25, "minibatch_size": 50, "hidden": (16,),
    "sinks": (), "eval_episodes": 3, "preset": False, "compile": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> assay.Run:
    place = tmp_path_factory.mktemp("runs")
    return assay.train("mappo", "simple_speaker_listener_v4", root=place, name="team", **OPTIONS)


def test_evaluations_have_the_return_of_each_agent_and_their_mean(run: assay.Run) -> None:
    result = run.evaluate(episodes=5)
    assert result.agents is not None and list(result.agents) == ["speaker_0", "listener_0"]
    mean = np.mean(list(result.agents.values()), 0)
    np.testing.assert_allclose(mean, result.returns, rtol=1e-5)
    [*_, (_, stored)] = load_evaluations(RunDirectory.open(run.path))
    assert stored.agents is not None
    assert run.metrics()["eval/listener_0/return_mean"][1][-1] == stored.agent_means["listener_0"]


def test_a_loaded_team_acts_as_it_was_evaluated(run: assay.Run) -> None:
    agent = assay.load(run.path)
    obs = {
        "obs": np.zeros((2, 11), np.float32), "alive": np.ones(2, np.int8),
        "action_mask": np.ones(10, np.int8), "state": np.zeros(14, np.float32),
    }  # fmt: skip
    action = agent.act(obs)
    assert action.shape == (2,) and action[0] < 3
    assert list(agent.policy.policies) == ["speaker", "listener"]


def test_each_policy_is_exported_by_itself(run: assay.Run, tmp_path: Path) -> None:
    policy = assay.load(run.path).policy
    done = export_policy(policy.policies["listener"], tmp_path / "listener.pt", "torchscript")
    assert done.max_difference == 0 and done.inputs[0][1] == (11,)
    with pytest.raises(ConfigError, match="not a policy of one agent"):
        export_policy(policy, tmp_path / "team.pt", "torchscript")


def test_what_is_for_one_agent_is_refused(run: assay.Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Recording works for one agent; .* 2: speaker_0"):
        record(run.path, tmp_path / "set.npz", episodes=2)
