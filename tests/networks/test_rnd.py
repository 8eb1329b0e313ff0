"""Random network distillation: novelty by hand, what it forgets, and that it fades."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from assay.algorithms.shared import novelty
from assay.algorithms.shared.novelty import Curiosity, non_episodic_gae, successors
from assay.core.errors import ConfigError
from assay.networks.rnd import Distillation
from assay.optim.update import Objective, Step
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Case,
    Rig,
    make_algorithm,
    make_batch,
)
from assay.testing.envs import Corridor

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
CPU = torch.device("cpu")


class Fixed(nn.Module):
    """Stand for `Distillation` with networks whose error is (x_0)^2, (x_1)^2 on average."""

    def __init__(self) -> None:
        super().__init__()
        self.target, self.predictor = nn.Linear(2, 2), nn.Linear(2, 2)
        with torch.no_grad():
            for part, scale in ((self.target, 1.0), (self.predictor, 2.0)):
                part.weight.copy_(scale * torch.eye(2))
                part.bias.zero_()


def test_rewards_by_hand(monkeypatch):
    monkeypatch.setattr(novelty, "FEW", 2)
    curiosity = Curiosity(Fixed(), BOX, 1, 0.5, CPU)
    novel, reward = curiosity.observe(np.array([[[0.0, 1.0]], [[4.0, 1.0]]], np.float32))
    # mean (2, 1), variance (4, 0): the rows become (-1, 0) and (1, 0), each of error 1/2
    np.testing.assert_allclose(novel, [[-1, 0], [1, 0]], atol=1e-6)
    # Returns 1/2 and 1/2 + 1/4: their standard deviation is 1/8
    np.testing.assert_allclose(reward, [[4.0], [4.0]], rtol=1e-5)
    assert curiosity.scale == pytest.approx(8.0, rel=1e-5)
    assert reward.dtype == np.float32


def test_observations_are_clipped_at_five():
    curiosity = Curiosity(Fixed(), BOX, 1, 0.5, CPU)
    curiosity.observe(np.array([[[0.0, 0.0]], [[2.0, 2.0]]], np.float32))
    seen = curiosity.tensors(torch.tensor([[100.0, -100.0]]))
    assert seen.tolist() == [[5.0, -5.0]]


def test_rows_that_are_no_transition_count_for_nothing():
    one, two = (Curiosity(Fixed(), BOX, 1, 0.5, CPU) for _ in range(2))
    obs = np.random.default_rng(0).standard_normal((6, 1, 2)).astype(np.float32)
    valid = np.array([1, 1, 0, 1, 0, 1], bool)[:, None]
    one.observe(obs, valid)
    two.observe(obs[valid[:, 0]])
    assert one.scale == two.scale


def test_state_goes_round():
    one, two = (Curiosity(Fixed(), BOX, 2, 0.9, CPU) for _ in range(2))
    rng = np.random.default_rng(0)
    one.observe(rng.standard_normal((5, 2, 2)).astype(np.float32))
    two.load_state(one.state())
    obs = rng.standard_normal((3, 2, 2)).astype(np.float32)
    for a, b in zip(one.observe(obs), two.observe(obs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_novelty_fades_where_one_has_been_and_the_target_stays():
    torch.manual_seed(0)
    space = spaces.Discrete(4)
    net = Distillation(space, hidden=(32,), cnn="nature")
    step = Step([Objective("rnd", net.predictor, net.loss)], reads=[net.target])
    fixed = [p.clone() for p in net.target.parameters()]
    every = torch.arange(4)
    before = net.error(every)
    for _ in range(300):  # states 0 and 1 are seen; 2 is in the batch, but left out
        weight = torch.tensor([1.0, 1.0, 0.0])
        step({"novel": torch.tensor([0, 1, 2]), "novel_weight": weight}, 1e-3)
    after = net.error(every)
    assert (after[:2] < 0.01 * before[:2]).all()
    assert (after[2:] > 0.2 * before[2:]).all()
    assert all(torch.equal(a, b) for a, b in zip(fixed, net.target.parameters(), strict=True))


def test_images_are_whitened():
    space = spaces.Dict(
        {"image": spaces.Box(0, 255, (1, 36, 36), np.uint8), "speed": spaces.Box(-1, 1, (1,))}
    )
    net = Distillation(space, hidden=(8,), cnn="nature")
    curiosity = Curiosity(net, space, 2, 0.9, CPU)
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (3, 2, 1, 36, 36)).astype(np.uint8)
    novel, reward = curiosity.observe({"image": image, "speed": np.zeros((3, 2, 1), np.float32)})
    assert novel["image"].dtype == np.float32
    np.testing.assert_allclose(novel["image"].mean(0), 0.0, atol=1e-5)
    assert reward.shape == (3, 2) and np.isfinite(reward).all()


def test_non_episodic_advantages_by_hand():
    reward = np.array([[1.0], [9.0], [2.0]], np.float32)
    value = np.array([[1.0], [7.0], [2.0]], np.float32)
    last, every = np.array([4.0], np.float32), np.ones((3, 1), bool)
    # d = 1 + 7/2 - 1, 9 + 2/2 - 7, 2 + 4/2 - 2 = 3.5, 3, 2; A = 2, 3 + 2/4, 3.5 + 3.5/4
    advantage, target = non_episodic_gae(reward, value, last, 0.5, 0.5, every)
    np.testing.assert_allclose(advantage[:, 0], [4.375, 3.5, 2.0])
    np.testing.assert_allclose(target, advantage + value)
    # Without the middle row, the last one follows the first: d0 = 1 + 2/2 - 1 = 1, A0 = 1 + 2/4
    gap = np.array([[True], [False], [True]])
    advantage, target = non_episodic_gae(reward, value, last, 0.5, 0.5, gap)
    np.testing.assert_allclose(advantage[:, 0], [1.5, 0.0, 2.0])
    np.testing.assert_allclose(target[:, 0], [2.5, 0.0, 4.0])
    # Nothing is real after the first row: what followed the rollout follows it.
    gap[2] = False
    advantage, _ = non_episodic_gae(reward, value, last, 0.5, 0.5, gap)
    np.testing.assert_allclose(advantage[:, 0], [1.0 + 4 / 2 - 1.0, 0.0, 0.0])


def test_successors():
    obs = {"a": np.arange(6).reshape(3, 2)}
    assert successors(obs, {"a": np.array([6, 7])})["a"].tolist() == [[2, 3], [4, 5], [6, 7]]


class TestContractOfDQN(AlgorithmContract):
    """The contract again, for DQN with novelty in its reward (PPO's is with PPO's tests)."""

    algorithm = "dqn"
    settings = {  # noqa: RUF012 (typed so by the contract)
        "rnd": 0.5, "batch_size": 8, "learning_starts": 8, "train_every": 2, "target_every": 2,
        "buffer_size": 1000, "hidden": (16,),
    }  # fmt: skip

    def cases(self) -> Iterator[Case]:
        chosen = ("discrete", "sees_image", "sees_dict_masked")
        yield from (case for case in super().cases() if case.name in chosen)


class TestDQN:
    def test_novelty_of_the_next_state_is_added_to_the_sampled_reward(self) -> None:
        """With enough errors seen; before that it is worth nothing."""
        two = spaces.Discrete(2)
        algorithm = make_algorithm("dqn", two, two, hidden=(), rnd=0.5, gamma=0.9, target_every=1)
        with torch.no_grad():
            for network in (algorithm.q, algorithm.target):  # Q = 0 everywhere
                for p in network.parameters():
                    p.zero_()
        error = algorithm.distillation.error(torch.tensor([1, 0])).detach()
        assert algorithm.curiosity.scale == 0.0
        algorithm.curiosity.scaler.moments.count = 100
        algorithm.curiosity.scaler.moments.var = np.array(0.25)  # a reward is twice the error
        batch = make_batch(
            obs=[0, 1], action=[0, 1], reward=[1.0, 0.0], next_obs=[1, 0], discount=[0.9, 0.9]
        )
        losses: list[float] = []
        plain = algorithm._loss

        def spy(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            loss, metrics = plain(tensors)
            losses.append(loss.item())
            return loss, metrics

        objective = algorithm.step.objectives[0]
        object.__setattr__(objective, "loss", spy)
        before = [p.clone() for p in algorithm.distillation.predictor.parameters()]
        algorithm.update(CannedReplay(batch))
        # y = r + 0.5 * 2 * error; Huber: x - 1/2 beyond 1, x^2 / 2 within
        y = torch.tensor([1.0, 0.0]) + error
        huber = torch.where(y > 1, y - 0.5, y.square() / 2).mean()
        assert losses == [pytest.approx(huber.item(), rel=1e-5)]
        after = algorithm.distillation.predictor.parameters()
        assert any((a != b).any() for a, b in zip(before, after, strict=True))

    def test_statistics_come_from_what_is_collected(self) -> None:
        rig = Rig("dqn", Corridor, num_envs=2, rnd=1.0, learning_starts=20, hidden=(8,))
        assert rig.algorithm.has_running_stats
        rig.train(20)
        assert rig.algorithm.curiosity.scaler.moments.count == 20

    def test_refuses_returns_of_several_steps(self) -> None:
        with pytest.raises(ConfigError, match="rnd=1 with n_step=3"):
            make_algorithm("dqn", BOX, spaces.Discrete(2), rnd=1.0, n_step=3)
