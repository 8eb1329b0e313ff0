from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core.errors import SpaceError
from assay.testing.algorithms import Rig
from assay.testing.teams import Signals, TeamContract

SMALL = {"batch_size": 8, "learning_starts": 8, "train_every": 2}


class TestContract(TeamContract):
    algorithm = "maddpg"
    settings: ClassVar = {"hidden": (16,), **SMALL}


def two(kind: Any, **settings: Any) -> Any:
    """Return MADDPG on two agents without hidden layers, all parameters 0."""
    rig = Rig("maddpg", lambda: Signals([kind] * 2), hidden=(), **SMALL, **settings)
    algorithm: Any = rig.algorithm
    with torch.no_grad():
        for module in algorithm.modules.values():
            for parameter in module.parameters():
                parameter.zero_()
    return algorithm


DONE = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # agent 0 did 0, agent 1 did 1


def batch(**columns: Any) -> dict[str, torch.Tensor]:
    seen = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    plain = {
        "obs/obs": seen, "obs/alive": torch.ones(1, 2, dtype=torch.int8), "next_obs/obs": seen,
        "next_obs/alive": torch.ones(1, 2, dtype=torch.int8), "taken": DONE,
        "reward": torch.tensor([9.0]), "terminated": torch.zeros(1),
        "discount": torch.tensor([0.5]), "agent_reward": torch.tensor([[1.0, 2.0]]),
        "agent_terminated": torch.tensor([[0.0, 1.0]]), "gumbel": torch.zeros(1, 2, 2),
    }  # fmt: skip
    return plain | columns


def test_the_critics_loss_is_the_one_computed_by_hand() -> None:
    maddpg = two(spaces.Discrete(2))
    with torch.no_grad():
        # Q_0 = 1 a_00 + 2 a_01 + 3 a_10 + 4 a_11, of the actions alone: the state has 4 numbers.
        for net in (maddpg.critics[0], maddpg.target_critics[0]):
            net[0].weight.copy_(torch.tensor([[0, 0, 0, 0, 1.0, 2.0, 3.0, 4.0, 0]]))
        # The target actors take action 1 and action 0.
        maddpg.target_actors[0][1][0].bias.copy_(torch.tensor([0.0, 1.0]))
        maddpg.target_actors[1][1][0].bias.copy_(torch.tensor([1.0, 0.0]))
    # Q of what was done, (0, 1): 1 + 4 = 5. Target: 1 + 0.5 * (2 + 3) = 3.5.
    assert maddpg._critic_loss(0, batch())[0].item() == pytest.approx(1.5**2)
    # Agent 1 is out: its target is its own reward, 2; its critic says 0.
    assert maddpg._critic_loss(1, batch())[0].item() == pytest.approx(4.0)
    # An agent that is not alive does nothing: Q = 1, and the target actor of agent 1 counts not.
    dead = torch.tensor([[1, 0]], dtype=torch.int8)
    taken = maddpg._taken({"alive": dead}, torch.tensor([[0, 1]]))
    assert taken.tolist() == [[[1, 0], [0, 0]]]
    changed = {"obs/alive": dead, "next_obs/alive": dead, "taken": taken}
    found = maddpg._critic_loss(0, batch(**changed))[0]
    assert found.item() == pytest.approx((1 - (1 + 0.5 * 2)) ** 2)


def test_an_actor_follows_its_own_action_alone() -> None:
    maddpg = two(spaces.Discrete(2), logit_penalty=0.0)
    with torch.no_grad():
        maddpg.critics[0][0].weight.copy_(torch.tensor([[0, 0, 0, 0, 1.0, 2.0, 3.0, 4.0, 0]]))
    loss, _ = maddpg._actor_loss(0, batch())
    # Its own action is 0 by its equal logits (argmax), the other's is what was done: 1 + 4.
    assert loss.item() == pytest.approx(-5.0)
    loss.backward()
    # d/dlogit of the soft action (1/2, 1/2): p_0 p_1 (q_0 - q_1) = 1/4 * (1 - 2), with the sign.
    assert maddpg.actors[0][1][0].bias.grad.tolist() == pytest.approx([0.25, -0.25])
    assert maddpg.actors[1][1][0].bias.grad is None


def test_a_shared_actor_is_moved_by_each_agent_through_its_own_action() -> None:
    maddpg = two(spaces.Discrete(2), sharing="type", logit_penalty=0.0, agent_id=False)
    with torch.no_grad():
        weight = torch.tensor([[0, 0, 0, 0, 1.0, 2.0, 3.0, 4.0, 0, 0]])
        maddpg.critics[0][0].weight.copy_(weight)
    loss, _ = maddpg._actor_loss(0, batch(taken=torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])))
    # Agent 0 does 0, the other 1: 1 + 4. Agent 1 does 0, the other 1: 2 + 3.
    assert loss.item() == pytest.approx(-5.0)


def test_box_actions_are_scaled_to_the_unit_box() -> None:
    box = spaces.Box(np.array([0.0, -4.0], np.float32), np.array([2.0, 4.0], np.float32))
    maddpg = two(box, logit_penalty=0.0)
    alive = {"alive": torch.ones(1, 2)}
    taken = maddpg._taken(alive, torch.tensor([[2.0, 2.0, 1.0, -4.0]]))
    assert taken.tolist() == [[[1.0, 0.5], [0.0, -1.0]]]
    with torch.no_grad():
        maddpg.critics[1][0].weight.copy_(torch.tensor([[0, 0, 0, 0, 1.0, 2.0, 3.0, 4.0, 0]]))
        maddpg.actors[1][1][0].bias.copy_(torch.tensor([100.0, -100.0]))
    loss, _ = maddpg._actor_loss(1, batch(taken=taken))
    assert loss.item() == pytest.approx(-(1 * 1 + 2 * 0.5 + 3 * 1 + 4 * -1))


def test_unbounded_actions_are_refused() -> None:
    free = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with pytest.raises(SpaceError, match="maddpg scales actions to their bounds"):
        Rig("maddpg", lambda: Signals([free] * 2), **SMALL)


@pytest.mark.slow
def test_agents_learn_to_reach_points() -> None:
    def points() -> Signals:
        return Signals([spaces.Box(-1.0, 1.0, (2,), np.float32)] * 2)

    rig = Rig(
        "maddpg", points, num_envs=8, env_steps=2000, batch_size=64, lr=3e-3, learning_starts=64,
        train_every=4, tau=0.05, hidden=(32,), gamma=0.1,
    )  # fmt: skip
    # 4 steps paid at most 1; standing still is paid 0.5.
    assert rig.train().score(20) > 3.5
