from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from gymnasium import spaces

from assay.testing.algorithms import Rig
from assay.testing.teams import Signals, TeamContract

SMALL = {"horizon": 8, "minibatch_size": 32, "hidden": (32,), "lr": 3e-3, "gamma": 0.5}


class TestContract(TeamContract):
    algorithm = "mappo"
    settings: ClassVar = {"hidden": (16,), "horizon": 4, "minibatch_size": 4, "epochs": 2}


def central(alive: list[int], **settings: object) -> torch.Tensor:
    """Return what the critic sees of two agents that see (1, 0) and (0, 1); the state is (5, 6)."""
    env = lambda: Signals([spaces.Discrete(2)] * 2, state=True)  # noqa: E731
    rig = Rig("mappo", env, num_envs=4, **{**SMALL, "hidden": (), **settings})
    seen: list[torch.Tensor] = []
    net = rig.algorithm.nets[0]
    net.critic.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    obs = {
        "obs": torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), "alive": torch.tensor([alive]),
        "state": torch.tensor([[5.0, 6.0]]),
    }  # fmt: skip
    assert net.value(obs).shape == (2,)
    return seen[0]


def test_the_critic_sees_the_whole_the_agents_own_view_and_who_it_is() -> None:
    assert central([1, 1]).tolist() == [[5, 6, 1, 0, 1, 0], [5, 6, 0, 1, 0, 1]]


def test_a_dead_agents_critic_sees_zeros_and_who_it_is() -> None:
    assert central([1, 0]).tolist() == [[5, 6, 1, 0, 1, 0], [0, 0, 0, 0, 0, 1]]
    # With its own reward, nothing is learned from its rows, and nothing is hidden.
    assert central([1, 0], reward="own").tolist()[1] == [5, 6, 0, 1, 0, 1]


def test_the_policy_does_not_see_the_state() -> None:
    env = lambda: Signals([spaces.Discrete(2)] * 2, state=True)  # noqa: E731
    rig = Rig("mappo", env, num_envs=4, **SMALL)
    before = rig.algorithm.act(rig.obs, None, False).action
    changed = rig.obs | {"state": rig.obs["state"] + 100.0}
    assert (rig.algorithm.act(changed, None, False).action == before).all()


def test_the_value_loss_is_the_one_computed_by_hand() -> None:
    rig = Rig("mappo", lambda: Signals([spaces.Discrete(2)] * 2), num_envs=4, **{
        **SMALL, "hidden": (), "agent_id": False, "normalize_advantage": False,
    })  # fmt: skip
    net = rig.algorithm.nets[0]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.critic[0].weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 10.0, 20.0]]))
    batch = {
        "obs/obs": torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), "obs/alive": torch.tensor([[1, 0]]),
        "action": torch.tensor([[0, 1]]), "log_prob": torch.log(torch.tensor([[0.5, 0.5]])),
        "advantage": torch.tensor([[2.0, 3.0]]), "value": torch.zeros(1, 2),
        "target": torch.tensor([[14.0, 17.0]]), "weight": torch.tensor([[1.0, 0.0]]),
        "value_weight": torch.ones(1, 2), "clip": torch.tensor(0.2),
        "entropy_coef": torch.tensor(0.0),
    }  # fmt: skip
    loss, metrics = rig.algorithm._loss(rig.algorithm.crews[0], net, batch)
    # V_0 = 1 + 4 + 10 = 15 (all see (1, 0, 0, 1)), V_1 = 20, as the dead one sees zeros:
    # (1 + 9) / 2 * 0.5. The policy learns from agent 0 alone: -2.
    assert metrics["value_loss"].item() == pytest.approx(2.5)
    assert metrics["policy_loss"].item() == pytest.approx(-2.0)
    assert loss.item() == pytest.approx(0.5)


def test_a_team_learns_the_two_step_game() -> None:
    settings: ClassVar = {"horizon": 16, "minibatch_size": 32, "lr": 1e-3, "entropy_coef": 0.01}
    rig = Rig("mappo", "assay/TwoStep-v0", num_envs=8, env_steps=2048, **settings)
    assert rig.train().score(4) == 8.0
