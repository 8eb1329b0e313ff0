from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

import assay
from assay.algorithms.shared.team_rollout import ValueScales, team_advantages
from assay.core.errors import SpaceError
from assay.testing.algorithms import Rig
from assay.testing.teams import Signals, TeamContract, TurnSignals

SMALL = {"horizon": 8, "minibatch_size": 32, "hidden": (32,), "lr": 3e-3, "gamma": 0.5}


class TestContract(TeamContract):
    algorithm = "ippo"
    settings: ClassVar = {"hidden": (16,), "horizon": 4, "minibatch_size": 4, "epochs": 2}


def rollout(**columns: Any) -> Any:
    """Return two steps of one environment with two agents."""
    plain = {
        "reward": np.array([[1.5], [3.5]], np.float32),
        "terminated": np.array([[False], [True]]),
        "truncated": np.zeros((2, 1), bool),
        "valid": np.ones((2, 1), bool),
        "obs": {"alive": np.array([[[1, 1]], [[1, 0]]], np.int8)},
        "extras": {
            "agent_reward": np.array([[[1, 2]], [[7, 0]]], np.float32),
            "agent_terminated": np.array([[[False, True]], [[True, False]]]),
            "agent_truncated": np.zeros((2, 1, 2), bool),
        },
    }
    return SimpleNamespace(**(plain | columns))


def test_an_agents_own_return_ends_with_its_death() -> None:
    hp = SimpleNamespace(reward="own", gamma=0.5, gae_lambda=1.0)
    value = np.array([[[10, 20]], [[30, 40]]], np.float32)
    advantage, target, acts, counts = team_advantages(rollout(), hp, value, value + 100)
    # Agent 0: 7 - 30 = -23 at the end; before, 1 + 0.5 * 30 - 10 + 0.5 * (-23) = -5.5.
    # Agent 1 dies with the first step: 2 - 20 = -18.
    assert advantage.reshape(-1).tolist() == pytest.approx([-5.5, -18, -23, 0])
    assert target.reshape(-1).tolist() == pytest.approx([4.5, 2, 7, 0])
    assert acts.reshape(-1).tolist() == counts.reshape(-1).tolist() == [1, 1, 1, 0]


def test_the_teams_return_goes_on_after_a_death() -> None:
    hp = SimpleNamespace(reward="team", gamma=0.5, gae_lambda=1.0)
    value = np.array([[[10, 20]], [[30, 40]]], np.float32)
    next_value = np.array([[[30, 40]], [[99, 99]]], np.float32)
    advantage, target, acts, counts = team_advantages(rollout(), hp, value, next_value)
    # Both: 3.5 at the end and 1.5 + 0.5 * 3.5 = 3.25 before; only actors' weights know of deaths.
    assert target.reshape(-1).tolist() == pytest.approx([3.25, 3.25, 3.5, 3.5])
    assert advantage.reshape(-1).tolist() == pytest.approx([-6.75, -16.75, -26.5, -36.5])
    assert acts.reshape(-1).tolist() == [1, 1, 1, 0]
    assert counts.reshape(-1).tolist() == [1, 1, 1, 1]


def test_values_are_learned_in_units_of_their_returns() -> None:
    scales = ValueScales(2, on=True)
    scales.update(1, np.array([10.0, 14.0]))  # mean 12, deviation 2
    assert scales.scaled(1, np.array([16.0])).tolist() == [2.0]
    assert scales.real(1, np.array([2.0])).tolist() == [16.0]
    assert scales.scaled(0, np.array([16.0])).tolist() == [16.0]
    again = ValueScales(2, on=True)
    again.load_state(scales.state())
    assert again.real(1, np.array([2.0])).tolist() == [16.0]


def test_the_loss_is_the_one_computed_by_hand() -> None:
    rig = Rig("ippo", lambda: Signals([spaces.Discrete(2)] * 2), num_envs=1, **{
        **SMALL, "hidden": (), "minibatch_size": 8, "agent_id": False,
        "normalize_advantage": False, "entropy_coef": 0.1,
    })  # fmt: skip
    net = rig.algorithm.nets[0]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()  # both actions 1/2, V = 0
    batch = {
        "obs/obs": torch.ones(1, 2, 2), "obs/alive": torch.ones(1, 2),
        "action": torch.tensor([[0, 1]]), "log_prob": torch.log(torch.tensor([[0.5, 0.25]])),
        "advantage": torch.tensor([[2.0, 3.0]]), "value": torch.zeros(1, 2),
        "target": torch.tensor([[4.0, 6.0]]), "weight": torch.tensor([[1.0, 1.0]]),
        "value_weight": torch.tensor([[1.0, 0.0]]), "clip": torch.tensor(0.2),
        "entropy_coef": torch.tensor(0.1),
    }  # fmt: skip
    loss, metrics = rig.algorithm._loss(rig.algorithm.crews[0], net, batch)
    # Ratios 1 and 2: -(1 * 2 + min(2 * 3, 1.2 * 3)) / 2 = -2.8. Values: only agent 0 counts,
    # 0.5 * 16 = 8 per the paper's half, times 2 * 0.5. Entropy log 2.
    assert metrics["policy_loss"].item() == pytest.approx(-2.8)
    assert metrics["value_loss"].item() == pytest.approx(8.0)
    assert loss.item() == pytest.approx(-2.8 + 8.0 - 0.1 * np.log(2.0), rel=1e-6)


def test_values_of_all_agents_are_those_of_their_networks() -> None:
    rig = Rig("ippo", lambda: Signals([spaces.Discrete(2)] * 3), num_envs=4, **SMALL)
    algorithm, [crew], [net] = rig.algorithm, rig.algorithm.crews, rig.algorithm.nets
    algorithm.scales.update(0, np.array([10.0, 14.0]))  # mean 12, deviation 2
    obs = {"obs": np.random.default_rng(0).random((5, 3, 2), np.float32)}
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1)  # what is learned is seen at once
        seen = crew.see({"obs": torch.from_numpy(obs["obs"])})
        right = 12 + 2 * net(seen)[1].reshape(5, 3).numpy()
    np.testing.assert_allclose(algorithm.team_value(obs), right, rtol=1e-5)


def test_dead_agents_teach_their_policy_nothing() -> None:
    rig = Rig("ippo", lambda: Signals([spaces.Discrete(2)] * 2), num_envs=4, **SMALL)
    crew, net = rig.algorithm.crews[0], rig.algorithm.nets[0]
    batch = {
        "obs/obs": torch.rand(3, 2, 2), "obs/alive": torch.ones(3, 2),
        "action": torch.zeros(3, 2, dtype=torch.int64), "log_prob": torch.full((3, 2), -0.7),
        "advantage": torch.randn(3, 2), "value": torch.zeros(3, 2), "target": torch.randn(3, 2),
        "weight": torch.tensor([[1.0, 0.0]] * 3), "value_weight": torch.tensor([[1.0, 0.0]] * 3),
        "clip": torch.tensor(0.2), "entropy_coef": torch.tensor(0.01),
    }  # fmt: skip
    before = rig.algorithm._loss(crew, net, dict(batch))[0].item()
    for name in ("advantage", "target", "log_prob"):
        batch[name] = batch[name].clone()
        batch[name][:, 1] = 1000.0
    assert rig.algorithm._loss(crew, net, batch)[0].item() == pytest.approx(before)


def test_agents_learn_to_answer_in_their_turns() -> None:
    def turns() -> Signals:
        return TurnSignals([spaces.Discrete(4)] * 2, masked=True)

    rig = Rig("ippo", turns, num_envs=8, env_steps=3000, **SMALL)
    assert rig.train().score(20) > 3.6  # of 4; by chance 1.3


@pytest.mark.slow
def test_agents_of_two_kinds_learn_to_reach_points() -> None:
    def kinds() -> Signals:
        one = spaces.Box(-1.0, 1.0, (2,), np.float32)
        two = spaces.Box(np.array([0.0, -2.0, 1.0], np.float32), np.array([1.0, 2.0, 5.0], "f4"))
        return Signals([one, one, two], moving=True)

    before = Rig("ippo", kinds, num_envs=8, **SMALL)
    rig = Rig("ippo", kinds, num_envs=8, env_steps=1200, log_std_init=-1.0, **SMALL)
    assert [crew.name for crew in rig.algorithm.crews] == ["kinda", "kindb"]
    # Paid at most 1, 9 times in an episode of 3 agents; standing still is paid about 0.6.
    assert before.score(20) < 2.1
    assert rig.train().score(20) > 2.5


@pytest.mark.parametrize("sharing", ["all", "type", "none"])
def test_who_shares_a_network(sharing: str) -> None:
    rig = Rig(
        "ippo", lambda: Signals([spaces.Discrete(2)] * 3), num_envs=4, sharing=sharing, **SMALL
    )
    names = {"all": ["all"], "type": ["kinda"], "none": ["kinda_0", "kinda_1", "kinda_2"]}
    assert list(rig.algorithm.policy.policies) == names[sharing]


def test_a_shared_network_can_tell_agents_apart() -> None:
    rig = Rig("ippo", "assay/PrisonersDilemma-v0", num_envs=4, **SMALL)
    crew = rig.algorithm.crews[0]
    seen = crew.see(rig.obs)
    assert seen["agent"].tolist() == [0, 1] * 4
    assert seen["agent"].flags.writeable  # torch warns of arrays that are not
    torch_seen = crew.see({k: torch.as_tensor(v) for k, v in rig.obs.items()})
    assert torch_seen["agent"].tolist() == [0, 1] * 4


def test_one_agent_and_several_do_not_mix(tmp_path: Any) -> None:
    with pytest.raises(SpaceError, match="ppo trains one agent; this environment has 2") as caught:
        assay.train("ppo", "assay/TwoStep-v0", env_steps=100, root=tmp_path)
    assert "ippo" in str(caught.value.fix) and "qmix" in str(caught.value.fix)
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    with pytest.raises(
        SpaceError, match=r"qmix handles Discrete actions; agent .* has Box"
    ) as caught:
        assay.train("qmix", lambda: Signals([box] * 2), env_steps=100, root=tmp_path)
    assert caught.value.fix == "Choose another algorithm for several agents: ippo, maddpg, mappo."
    with pytest.raises(SpaceError, match="ippo trains several agents"):
        assay.train("ippo", "CartPole-v1", env_steps=100, root=tmp_path, horizon=4, num_envs=1,
                    minibatch_size=4)  # fmt: skip
