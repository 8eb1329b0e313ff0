"""DQN: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from families import (
    ACTIONS,
    MASKED_STATES,
    OPTIONS,
    QUICK,
    SMALL,
    STATES,
    WITHOUT_EFFECT,
    ContractOfEveryOption,
    Learning,
    check_target_follows,
    check_target_is_copied,
    four_steps,
    mask_next,
)
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from assay.algorithms.dqn import DQN
from assay.core.errors import ConfigError
from assay.core.types import Batch
from assay.envs.make import make_vector
from assay.envs.vector import Vector
from assay.networks.noisy import NoisyLinear
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Rig,
    make_algorithm,
)
from assay.testing.envs import Corridor


class TestContract(AlgorithmContract):
    algorithm = "dqn"
    settings = SMALL
    compiled_settings = OPTIONS


class TestContractWithEveryOption(ContractOfEveryOption):
    algorithm = "dqn"
    settings = SMALL | OPTIONS


def table(**settings: Any) -> DQN:
    """Return DQN on two states with known values [action, state], online and target."""
    algorithm = make_algorithm("dqn", STATES, ACTIONS, **({"hidden": ()} | settings))
    fill(algorithm.q, [[1.0, 3.0], [2.0, 0.0]])
    fill(algorithm.target, [[4.0, 2.0], [1.0, 6.0]])
    return algorithm


def fill(network: Any, values: list[list[float]]) -> None:
    layer = network[1][0]
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(values))
        layer.bias.zero_()


# Online Q: 1, 2 in state 0 and 3, 0 in state 1. Target Q: 4, 1 in state 0 and 2, 6 in state 1.
def items(**more: Any) -> Batch:
    return four_steps(**({"reward": [1.0, 1.5, 0.0, -1.0]} | more))


class TestLoss:
    def test_by_hand(self) -> None:
        algorithm = table()
        loss, metrics = algorithm._loss(algorithm.replay_tensors(items()))
        # y = 1 + 6/2 = 4, 1.5 (terminated), 0 + 4/2 = 2 (truncated: bootstraps), -1 + 4/4 = 0
        # Q - y = 1 - 4 = -3, 2 - 1.5 = 0.5, 3 - 2 = 1, 0; Huber: 2.5, 0.125, 0.5, 0
        assert loss.item() == pytest.approx(3.125 / 4)
        assert metrics["q_mean"].item() == pytest.approx(6 / 4)

    def test_double_by_hand(self) -> None:
        algorithm = table(double=True)
        loss, _ = algorithm._loss(algorithm.replay_tensors(items()))
        # The online network prefers action 1 in state 0 and action 0 in state 1, worth 1 and 2:
        # y = 1 + 2/2 = 2, 1.5, 0 + 1/2 = 0.5, -1 + 1/4 = -0.75
        # Q - y = -1, 0.5, 2.5, 0.75; Huber: 0.5, 0.125, 2, 0.28125
        assert loss.item() == pytest.approx(2.90625 / 4)

    def test_of_squares_by_hand(self) -> None:
        algorithm = table(loss="mse")
        loss, _ = algorithm._loss(algorithm.replay_tensors(items()))
        # Q - y = -3, 0.5, 1, 0; half the squares: 4.5, 0.125, 0.5, 0
        assert loss.item() == pytest.approx(5.125 / 4)

    def test_of_a_wider_huber_by_hand(self) -> None:
        algorithm = table(huber_delta=2.0)
        loss, _ = algorithm._loss(algorithm.replay_tensors(items()))
        # 2 (3 - 1) beyond 2, half the squares within: 4, 0.125, 0.5, 0
        assert loss.item() == pytest.approx(4.625 / 4)

    def test_importance_weights(self) -> None:
        algorithm = table(prioritized=True)
        batch = algorithm.replay_tensors(items()) | {"weight": torch.tensor([1.0, 0.5, 0.25, 0.0])}
        loss, metrics = algorithm._loss(batch)
        # 2.5 + 0.125/2 + 0.5/4
        assert loss.item() == pytest.approx(2.6875 / 4)
        assert metrics["priority"].tolist() == pytest.approx([-3.0, 0.5, 1.0, 0.0])

    def test_masked_actions_are_not_bootstrapped_from(self) -> None:
        masks = [[1, 0], [1, 1], [0, 1], [1, 1]]
        # Target values 2 and 1 of the actions that are left: y = 1 + 2/2 = 2, 1.5, 1/2, 0
        expected = {False: (0.5 + 0.125 + 2.0 + 0.0) / 4}
        # The online network's choice is the same where one action is left; last, y = -1 + 1/4
        expected[True] = (0.5 + 0.125 + 2.0 + 0.28125) / 4
        for double, loss in expected.items():
            algorithm = make_algorithm("dqn", MASKED_STATES, ACTIONS, hidden=(), double=double)
            fill(algorithm.q, [[1.0, 3.0], [2.0, 0.0]])
            fill(algorithm.target, [[4.0, 2.0], [1.0, 6.0]])
            batch = algorithm.replay_tensors(mask_next(items(), masks))
            found, _ = algorithm._loss(batch)
            assert found.item() == pytest.approx(loss)

    def test_dueling_by_hand(self) -> None:
        algorithm = make_algorithm("dqn", STATES, ACTIONS, hidden=(), dueling=True)
        head = algorithm.q[1]
        with torch.no_grad():
            head.value[0].weight.copy_(torch.tensor([[1.0, 5.0]]))
            head.value[0].bias.zero_()
            head.advantage[0].weight.copy_(torch.tensor([[2.0, 0.0], [4.0, 1.0]]))
            head.advantage[0].bias.zero_()
        # V + A - mean A: 1 + 2 - 3, 1 + 4 - 3; 5 + 0 - 0.5, 5 + 1 - 0.5
        assert algorithm.q(torch.tensor([0, 1])).tolist() == [[0.0, 2.0], [4.5, 5.5]]


class TestUpdate:
    def test_priorities_are_written_after_the_loss(self) -> None:
        algorithm = table(prioritized=True, priority_beta="linear:0.4:1", batch_size=4, lr=0.1)
        algorithm.clock.env_steps = 500  # of 1000
        replay = CannedReplay(items(weight=[1.0, 1.0, 1.0, 1.0], index=[7, 8, 9, 3]))
        algorithm.update(replay)
        assert replay.calls == [(4, pytest.approx(0.7))]
        [(index, errors)] = replay.priorities
        assert index == [7, 8, 9, 3]
        assert errors == pytest.approx([-3.0, 0.5, 1.0, 0.0])  # of the weights before the step
        algorithm.clock.env_steps = 1000
        algorithm.update(replay)
        assert replay.calls[1] == (4, 1.0)

    def test_target_is_copied_when_due(self) -> None:
        algorithm = table(target_every=3, batch_size=4, lr=0.1)
        check_target_is_copied(algorithm, items, every=3)

    def test_target_follows_slowly(self) -> None:
        algorithm = table(tau=0.25, batch_size=4, lr=0.1)
        check_target_follows(algorithm, items())

    def test_asks_for_what_it_was_told(self) -> None:
        needs = table(n_step=3, prioritized=True, priority_alpha=0.7, gamma=0.9, updates=5).needs
        assert (needs.n_step, needs.prioritized, needs.gamma, needs.updates) == (3, 0.7, 0.9, 5)
        assert table().needs.prioritized is None


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [*WITHOUT_EFFECT, ({"loss": "mse", "huber_delta": 2.0}, "huber_delta=.* has no effect")],
    )
    def test_what_has_no_effect_is_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            table(**settings)

    @pytest.mark.parametrize("name", ["epsilon", "priority_beta"])
    def test_shares_stay_between_0_and_1(self, name: str) -> None:
        with pytest.raises(ConfigError, match=f"{name}=.*reaches 1.5"):
            table(prioritized=True, **{name: "linear:0.5:1.5"})


class TestAct:
    def test_share_of_random_actions(self) -> None:
        algorithm = make_algorithm(
            "dqn", STATES, spaces.Discrete(4), hidden=(), epsilon="linear:1:0.2:0.5"
        )
        fill(algorithm.q, [[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 0.0]])
        obs = np.array([0, 1] * 4000)
        greedy = np.array([1, 2] * 4000)
        for env_steps, epsilon in ((0, 1.0), (250, 0.6), (1000, 0.2)):
            algorithm.clock.env_steps = env_steps
            share = (algorithm.act(obs, None, True).action == greedy).mean()
            # Chance hits the best of four actions too. Five standard errors are 0.03.
            assert share == pytest.approx(1 - epsilon * 3 / 4, abs=0.03)
            assert (algorithm.act(obs, None, False).action == greedy).all()

    def test_random_actions_are_allowed_ones(self) -> None:
        space = spaces.Dict({"obs": STATES, "action_mask": spaces.MultiBinary(4)})
        algorithm = make_algorithm("dqn", space, spaces.Discrete(4), hidden=(), epsilon=1.0)
        obs = {"obs": np.zeros(2000, np.int64), "action_mask": np.tile([0, 1, 1, 0], (2000, 1))}
        actions = algorithm.act(obs, None, True).action
        assert np.bincount(actions, minlength=4)[[0, 3]].tolist() == [0, 0]
        assert (actions == 1).mean() == pytest.approx(0.5, abs=0.06)

    def test_noise_is_new_in_every_update_and_silent_in_evaluation(self) -> None:
        algorithm = make_algorithm(
            "dqn", STATES, ACTIONS, hidden=(), noisy=True, batch_size=4, lr=0.0
        )
        layers = [m for net in (algorithm.q, algorithm.target) for m in net.modules()]
        layers = [layer for layer in layers if isinstance(layer, NoisyLinear)]
        assert len(layers) == 2  # one in each network
        obs = np.array([0, 1])
        # With sigma far above mu, the best action of the mean is not that of the noise.
        layer = layers[0]
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
            layer.bias.zero_()
            layer.weight_sigma.fill_(100.0)
        explored = {tuple(algorithm.act(obs, None, True).action) for _ in range(50)}
        assert len(explored) > 1
        assert {tuple(algorithm.act(obs, None, False).action) for _ in range(50)} == {(0, 1)}
        for _ in range(3):
            before = [layer.eps_out.clone() for layer in layers]
            algorithm.update(CannedReplay(items()))
            assert not any(torch.equal(a, b.eps_out) for a, b in zip(before, layers, strict=True))


class TestLearns(Learning):
    algorithm = "dqn"

    @pytest.mark.parametrize(
        "options", [{}, *({k: v} for k, v in OPTIONS.items()), OPTIONS], ids=lambda o: "+".join(o)
    )
    def test_to_look_ahead(self, options: dict[str, Any]) -> None:
        assert self.learns(Corridor, self.steps[1], 1.0, None, QUICK | options)


class Lottery(gym.Env):
    """One step; the prize is 10 in one case of ten, else nothing."""

    observation_space, action_space = spaces.Discrete(1), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict]:
        return 0, 10.0 * float(self.np_random.random() < 0.1), True, False, {}


@pytest.mark.parametrize(
    ("loss", "value"),
    # The mean is 1. The slope of Huber's loss is 0 where 0.9 q = 0.1 min(10 - q, 1): at 1/9.
    [({"loss": "mse"}, 1.0), ({"huber_delta": 20.0}, 1.0), ({}, 1 / 9)],
)
def test_what_a_random_return_is_worth(loss: dict[str, Any], value: float) -> None:
    settings = {
        "hidden": (), "lr": "linear:0.05:0", "epsilon": 1.0, "batch_size": 256,
        "learning_starts": 2000, "buffer_size": 4000, "train_every": 4, "max_grad_norm": None,
    }  # fmt: skip
    rig = Rig("dqn", Lottery, env_steps=4000, **(settings | loss)).train()
    q = rig.algorithm.q(torch.tensor([0])).detach()
    assert q.mean().item() == pytest.approx(value, rel=0.15)


class Toll(gym.Env):
    """Costs 1 a step, for ever: with gamma 0.9 every action that is legal is worth -10.

    Episodes are cut off after five steps. In each of the two states one of the three actions is
    illegal and raises, so nothing is ever learned of its value.
    """

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(3)

    def __init__(self, masks: str) -> None:
        self.state = self.t = 0
        self.masks = masks
        if masks == "method":
            self.action_masks = self.legal

    def legal(self) -> np.ndarray:
        return np.array([1, 1, 0] if self.state == 0 else [0, 1, 1], np.int8)

    def info(self) -> dict[str, Any]:
        return {"action_mask": self.legal()} if self.masks == "info" else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.state, self.t = int(self.np_random.integers(2)), 0
        return self.state, self.info()

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict]:
        assert self.legal()[action], f"action {action} is illegal in state {self.state}"
        self.state, self.t = 1 - self.state, self.t + 1
        return self.state, -1.0, False, self.t == 5, self.info()


def tolls(backend: str, masks: str) -> Vector:
    if backend == "same_step":
        return make_vector(SyncVectorEnv([partial(Toll, masks)] * 2, autoreset_mode="SameStep"))
    return make_vector(partial(Toll, masks), 2, backend=backend)


@pytest.mark.parametrize(
    ("backend", "masks"),
    [
        ("sync", "info"),
        ("sync", "method"),
        ("processes", "info"),
        ("processes", "method"),
        ("same_step", "info"),
    ],
)
def test_a_time_limit_does_not_make_illegal_actions_legal(backend: str, masks: str) -> None:
    settings = {
        "hidden": (), "gamma": 0.5, "lr": "linear:0.1:0.001", "epsilon": 1.0, "target_every": 20,
        "train_every": 2, "learning_starts": 100, "buffer_size": 2000,
    }  # fmt: skip
    with tolls(backend, masks) as env:
        rig = Rig("dqn", env, env_steps=700, **settings).train()
    obs = {"obs": torch.tensor([0, 1]), "action_mask": torch.ones(2, 3)}
    q = rig.algorithm.q(obs).detach().numpy()
    legal = [q[0, 0], q[0, 1], q[1, 1], q[1, 2]]
    # An illegal action is worth nothing yet: with those, one of five steps would lead to more.
    assert legal == pytest.approx([-2.0] * 4, abs=0.05)
