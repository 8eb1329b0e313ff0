"""IQN: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

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
    mask_next,
    two_steps,
)
from gymnasium import spaces
from torch import Tensor

from assay.algorithms.iqn import IQN
from assay.core.errors import ConfigError
from assay.core.types import Batch
from assay.policies.value_layers import LevelsForward
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Rig,
    make_algorithm,
)

SETTINGS = SMALL | {
    "quantiles": 4, "target_quantiles": 3, "acting_quantiles": 5, "cosines": 8, "lr": 1e-3,
}  # fmt: skip
EVERY_OPTION = OPTIONS | {"head_hidden": (8,)}
QUICKLY = QUICK | {"quantiles": 8, "target_quantiles": 8, "acting_quantiles": 8}


class TestContract(AlgorithmContract):
    algorithm = "iqn"
    settings = SETTINGS
    compiled_settings = EVERY_OPTION


class TestContractWithEveryOption(ContractOfEveryOption):
    algorithm = "iqn"
    settings = SETTINGS | EVERY_OPTION


TINY = {
    "hidden": (), "cosines": 2, "batch_size": 2, "quantiles": 2, "target_quantiles": 2,
    "acting_quantiles": 1,
}  # fmt: skip


def table(**settings: Any) -> IQN:
    """Return IQN whose values are known: Z = base[action, state] * phi, phi = 1 + cos(pi tau)."""
    algorithm = make_algorithm("iqn", STATES, ACTIONS, **(TINY | settings))
    fill(algorithm.q, [[1.0, 3.0], [2.0, 0.0]])
    fill(algorithm.target, [[4.0, 2.0], [1.0, 6.0]])
    return algorithm


def fill(network: Any, values: list[list[float]]) -> None:
    with torch.no_grad():
        network.embedding.net[0].weight.copy_(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
        network.embedding.net[0].bias.fill_(1.0)
        network.head[0].weight.copy_(torch.tensor(values))
        network.head[0].bias.zero_()


# phi is 2 at tau = 0, 1.5 at 1/3, 1 at 1/2, 0.5 at 2/3.
def inputs(algorithm: IQN, batch: Batch | None = None) -> dict[str, Tensor]:
    """Return the batch of a loss with known levels."""
    levels = {
        "tau": torch.tensor([[1 / 3, 1 / 2]] * 2),
        "next_tau": torch.tensor([[0.0, 1 / 2]] * 2),
        "choice_tau": torch.tensor([[2 / 3]] * 2),
    }
    return algorithm.replay_tensors(two_steps() if batch is None else batch) | levels


class TestLoss:
    def test_by_hand(self) -> None:
        algorithm = table()
        loss, metrics = algorithm._loss(inputs(algorithm))
        # The target prefers action 1 (6 to 2): Z' = 12 at tau' = 0 and 6 at 1/2.
        # Item 1: y = 1 + 12/2 = 7, 1 + 6/2 = 4; Z = 1.5 at tau = 1/3, 1 at 1/2
        #   u = 5.5, 2.5 and 6, 3, all positive: tau (|u| - 1/2)
        #   1/3 (5 + 2)/2 + 1/2 (5.5 + 2.5)/2 = 7/6 + 2
        # Item 2: y = 1.5 (terminated); Z = 3, 2, so u = -1.5, -0.5: (1 - tau) huber
        #   2/3 * 1 + 1/2 * 1/8
        assert loss.item() == pytest.approx((7 / 6 + 2 + 2 / 3 + 1 / 16) / 2)
        assert metrics["q_mean"].item() == pytest.approx((1.5 + 1 + 3 + 2) / 4)
        assert metrics["q_std"].item() == pytest.approx((0.25 + 0.5) / 2)

    def test_double_by_hand(self) -> None:
        algorithm = table(double=True)
        loss, _ = algorithm._loss(inputs(algorithm))
        # The online network prefers action 0 (3 to 0), of which the target thinks 2:
        # y = 1 + 4/2 = 3, 1 + 2/2 = 2; u = 1.5, 0.5 and 2, 1
        # 1/3 (1 + 1/8)/2 + 1/2 (1.5 + 0.5)/2
        assert loss.item() == pytest.approx((3 / 16 + 1 / 2 + 2 / 3 + 1 / 16) / 2)

    def test_the_choice_is_made_at_its_own_levels(self) -> None:
        algorithm = table()
        with torch.no_grad():  # action 0 of state 1 is worth 7 phi - 4, action 1 is worth 2 phi
            algorithm.target.head[0].weight.copy_(torch.tensor([[0.0, 7.0], [0.0, 2.0]]))
            algorithm.target.head[0].bias.copy_(torch.tensor([-4.0, 0.0]))
        # By the worst outcomes (phi = 0.5) action 1 is better, by the mean of a whole (phi = 1)
        # action 0. Item 2 has terminated and does not change.
        rest = 2 / 3 + 1 / 16
        for level, z in ((2 / 3, (4.0, 2.0)), (1 / 2, (10.0, 3.0))):
            batch = inputs(algorithm)
            batch["choice_tau"] = torch.full((2, 1), level)
            y = [1 + value / 2 for value in z]
            u = [[goal - value for goal in y] for value in (1.5, 1.0)]
            huber = [[min(abs(e), 1.0) * (abs(e) - min(abs(e), 1.0) / 2) for e in row] for row in u]
            expected = sum(huber[0]) / 2 / 3 + sum(huber[1]) / 2 / 2
            loss, _ = algorithm._loss(batch)
            assert loss.item() == pytest.approx((expected + rest) / 2)

    def test_importance_weights_and_priorities(self) -> None:
        algorithm = table(prioritized=True)
        batch = inputs(algorithm) | {"weight": torch.tensor([0.5, 1.0])}
        loss, metrics = algorithm._loss(batch)
        first, second = 7 / 6 + 2, 2 / 3 + 1 / 16
        assert loss.item() == pytest.approx((first / 2 + second) / 2)
        assert metrics["priority"].tolist() == pytest.approx([first, second])

    def test_masked_actions_are_not_bootstrapped_from(self) -> None:
        algorithm = make_algorithm("iqn", MASKED_STATES, ACTIONS, **TINY)
        fill(algorithm.q, [[1.0, 3.0], [2.0, 0.0]])
        fill(algorithm.target, [[4.0, 2.0], [1.0, 6.0]])
        batch = mask_next(two_steps(), [[1, 0], [1, 1]])
        loss, _ = algorithm._loss(inputs(algorithm, batch))
        # Action 0 is left, as in the test of double
        assert loss.item() == pytest.approx((3 / 16 + 1 / 2 + 2 / 3 + 1 / 16) / 2)

    def test_kappa_is_the_width_of_the_quadratic_zone(self) -> None:
        algorithm = table(kappa=2.0)
        loss, _ = algorithm._loss(inputs(algorithm))
        # huber_2(u) / 2 = |u| - 1 beyond 2, u^2 / 4 within
        first = (4.5 + 1.5) / 2 / 3 + (5 + 2) / 2 / 2
        second = 2 / 3 * 1.5**2 / 4 + 1 / 2 * 0.5**2 / 4
        assert loss.item() == pytest.approx((first + second) / 2)


class TestUpdate:
    def test_every_level_is_fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        algorithm = table(quantiles=3, target_quantiles=4, acting_quantiles=5, cvar=0.25)
        seen: list[dict[str, Tensor]] = []
        original = algorithm.step._eager

        def spy(batch: dict[str, Tensor], rates: Any) -> Any:
            seen.append({k: v for k, v in batch.items() if k.endswith("tau")})
            return original(batch, rates)

        monkeypatch.setattr(algorithm.step, "_eager", spy)
        for _ in range(200):
            algorithm.update(CannedReplay(two_steps()))
        for name, width, high in (("tau", 3, 1.0), ("next_tau", 4, 1.0), ("choice_tau", 5, 0.25)):
            levels = torch.stack([batch[name] for batch in seen])
            assert levels.shape == (200, 2, width)
            assert len(levels.unique()) > 0.99 * levels.numel()  # rows, columns and updates differ
            assert levels.min() >= 0 and 0.95 * high < levels.max() <= high
            assert levels.mean().item() == pytest.approx(high / 2, abs=0.05 * high)
        together = torch.cat([torch.cat([v.flatten() for v in b.values()]) for b in seen])
        assert len(together.unique()) > 0.99 * together.numel()

    def test_priorities_are_written_after_the_loss(self, monkeypatch: pytest.MonkeyPatch) -> None:
        algorithm = table(prioritized=True, priority_beta="linear:0.4:1", lr=0.1)
        levels = iter([v for k, v in inputs(algorithm).items() if k.endswith("tau")])
        monkeypatch.setattr(algorithm, "_levels", lambda count: next(levels))
        algorithm.clock.env_steps = 500  # of 1000
        replay = CannedReplay(two_steps(weight=[1.0, 1.0], index=[7, 3]))
        algorithm.update(replay)
        assert replay.calls == [(2, pytest.approx(0.7))]
        [(index, priority)] = replay.priorities
        assert index == [7, 3]
        assert priority == pytest.approx([7 / 6 + 2, 2 / 3 + 1 / 16])

    def test_target_is_copied_when_due(self) -> None:
        algorithm = table(target_every=3, lr=0.1)
        check_target_is_copied(algorithm, two_steps, every=3)

    def test_target_follows_slowly(self) -> None:
        algorithm = table(tau=0.25, lr=0.1)
        check_target_follows(algorithm, two_steps())

    @pytest.mark.parametrize(("settings", "message"), WITHOUT_EFFECT)
    def test_settings_without_effect_are_refused(
        self, settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            table(**settings)


class TestAct:
    def test_levels_are_fresh_while_exploring_and_even_otherwise(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        algorithm = table(acting_quantiles=4, epsilon=0.0)
        seen: list[np.ndarray] = []
        original = LevelsForward.__call__

        def listen(layer: LevelsForward, features: np.ndarray, levels: np.ndarray) -> np.ndarray:
            seen.append(np.copy(levels))
            return original(layer, features, levels)

        monkeypatch.setattr(LevelsForward, "__call__", listen)
        for explore in (True, True, False, False):
            algorithm.act(np.array([0, 1]), None, explore)
        assert not (seen[0] == seen[1]).any()
        for levels in seen[2:]:
            assert levels.tolist() == [0.125, 0.375, 0.625, 0.875]

    def test_cvar_avoids_the_gamble(self) -> None:
        # With phi = 1 - cos(pi tau), which grows with tau, action 0 is worth 7 phi - 4 and action 1
        # is worth 2 phi. On average phi is 1 and action 0 is better; phi is below 0.3 in the worst
        # quarter, where it is a loss.
        for cvar, best in ((1.0, 0), (0.25, 1)):
            algorithm = table(cvar=cvar, acting_quantiles=8, epsilon=0.0)
            with torch.no_grad():
                algorithm.q.embedding.net[0].weight.copy_(torch.tensor([[0.0, -1.0]] * 2))
                algorithm.q.head[0].weight.copy_(torch.tensor([[7.0, 7.0], [2.0, 2.0]]))
                algorithm.q.head[0].bias.copy_(torch.tensor([-4.0, 0.0]))
            obs = np.zeros(4, np.int64)
            assert algorithm.act(obs, None, False).action.tolist() == [best] * 4
            chosen = [algorithm.act(obs, None, True).action[0] for _ in range(200)]
            assert np.mean(np.array(chosen) == best) > 0.7  # the levels are drawn by chance

    def test_share_of_random_actions(self) -> None:
        algorithm = make_algorithm(
            "iqn", STATES, spaces.Discrete(4), hidden=(), cosines=2, epsilon="linear:1:0.2:0.5"
        )
        fill(algorithm.q, [[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 0.0]])
        obs, greedy = np.array([0, 1] * 4000), np.array([1, 2] * 4000)
        for env_steps, epsilon in ((0, 1.0), (250, 0.6), (1000, 0.2)):
            algorithm.clock.env_steps = env_steps
            share = (algorithm.act(obs, None, True).action == greedy).mean()
            # Chance hits the best of four actions too. Five standard errors are 0.03.
            assert share == pytest.approx(1 - epsilon * 3 / 4, abs=0.03)
            assert (algorithm.act(obs, None, False).action == greedy).all()


class Lottery(gym.Env[Any, Any]):
    """One step: action 0 pays 1; action 1 pays 4 or -1, each as often as the other."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin again."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pay out."""
        reward = (4.0 if self.np_random.random() < 0.5 else -1.0) if action else 1.0
        return np.ones(1, np.float32), reward, True, False, {}


class TestLearns(Learning):
    algorithm = "iqn"
    quick = QUICKLY
    options = EVERY_OPTION

    def test_the_distribution_of_a_lottery(self) -> None:
        settings = QUICKLY | {"lr": "linear:0.005:0.0005", "epsilon": 1.0, "quantiles": 16}
        algorithm = Rig("iqn", Lottery, env_steps=3000, **settings).train().algorithm
        assert isinstance(algorithm, IQN)
        tau = torch.tensor([[0.1, 0.25, 0.4, 0.6, 0.75, 0.9]])
        with torch.no_grad():
            values = algorithm.q(torch.ones(1, 1), tau)[0].T
        assert values[:, 0].tolist() == pytest.approx([1.0] * 6, abs=0.25)
        # Huber's zone of 1 draws the quantiles a little towards each other.
        assert values[:3, 1].tolist() == pytest.approx([-1.0] * 3, abs=0.9)
        assert values[3:, 1].tolist() == pytest.approx([4.0] * 3, abs=0.9)
        mean = algorithm.act(np.ones((1, 1), np.float32), None, False).action
        assert mean.tolist() == [1]  # 1.5 on average, against 1
        algorithm.policy.network.levels.mul_(0.25)
        careful = algorithm.act(np.ones((1, 1), np.float32), None, False).action
        assert careful.tolist() == [0]  # -1 in the worst quarter
