"""PPO: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.algorithms.ppo import PPO
from assay.buffers.rollout import Rollout
from assay.core.errors import ConfigError
from assay.core.types import Spaces
from assay.optim.rules import Adam
from assay.optim.update import Step
from assay.testing.algorithms import ACTION_SPACES, AlgorithmContract, Case, Rig, make_algorithm
from assay.testing.envs import Corridor, Identity

STATES, ACTIONS = spaces.Discrete(2), spaces.Discrete(2)
LOG_3 = math.log(3)


SMALL = {"horizon": 8, "minibatch_size": 8, "epochs": 2, "hidden": (16,)}


class TestContract(AlgorithmContract):
    algorithm = "ppo"
    settings = SMALL


class TestContractWithNovelty(AlgorithmContract):
    algorithm = "ppo"
    settings = SMALL | {"rnd": 0.5, "rnd_share": 0.5}

    def cases(self) -> Iterator[Case]:
        chosen = ("discrete", "sees_image", "sees_dict_masked")
        yield from (case for case in super().cases() if case.name in chosen)


def table(**settings: Any) -> PPO:
    """Return PPO on two states with known numbers.

    State 0: both actions 1/2, V = 1. State 1: actions 3/4 and 1/4 (logits log 3 and 0), V = 2.
    """
    options = {"hidden": (), "horizon": 3, "minibatch_size": 3} | settings
    algorithm = make_algorithm("ppo", STATES, ACTIONS, **options)
    net = algorithm.net
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[0.0, LOG_3], [0.0, 0.0]]))  # [action, state]
        net.head.bias.zero_()
        net.value_head[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        net.value_head[0].bias.zero_()
    return algorithm


COEFFICIENTS = {"clip": torch.tensor(0.2), "entropy_coef": torch.tensor(0.0)}


def batch(**columns: list[float]) -> dict[str, torch.Tensor]:
    """Return columns as tensors, integers where they are."""
    return {k: torch.tensor(v) for k, v in columns.items()} | COEFFICIENTS


NAN = math.nan
# Ratios 1, 3/4 : 1/2 = 1.5 and 1/4 : 1/2 = 0.5. The fourth is not a transition and does not count.
ITEMS = {
    "obs": [0, 1, 1, 0],
    "action": [0, 0, 1, 1],
    "log_prob": [math.log(0.5)] * 3 + [NAN],
    "value": [1.0, 2.0, 2.0, NAN],
    "advantage": [2.0, 1.0, -1.0, NAN],
    "target": [0.0, 4.0, 2.0, NAN],
    "weight": [1.0, 1.0, 1.0, 0.0],
    "policy_weight": [1.0, 1.0, 1.0, 1.0],
}


class TestLoss:
    def test_by_hand(self) -> None:
        bonus = {"entropy_coef": torch.tensor(0.1)}
        loss, metrics = table(normalize_advantage=False)._loss(batch(**ITEMS) | bonus)
        # min(r A, clip(r) A) = 2, min(1.5, 1.2) = 1.2, min(-0.5, -0.8) = -0.8; their mean is 0.8
        assert metrics["policy_loss"].item() == pytest.approx(-0.8, abs=1e-6)
        # Errors 1, 2, 0: half the mean square is 5/6
        assert metrics["value_loss"].item() == pytest.approx(5 / 6, abs=1e-6)
        # log 2 once, and twice -(3/4 log 3/4 + 1/4 log 1/4) = log 4 - 3/4 log 3
        entropy = (math.log(2) + 2 * (math.log(4) - 0.75 * LOG_3)) / 3
        assert metrics["entropy"].item() == pytest.approx(entropy, abs=1e-6)
        # (r - 1) - log r = 0, 0.5 - log 1.5, -0.5 + log 2
        assert metrics["approx_kl"].item() == pytest.approx(
            (math.log(2) - math.log(1.5)) / 3, abs=1e-6
        )
        assert metrics["clip_fraction"].item() == pytest.approx(2 / 3)
        # value_coef 0.5 is of the plain mean square, 5/3
        assert loss.item() == pytest.approx(-0.8 + 0.5 * 5 / 3 - 0.1 * entropy, abs=1e-6)

    @pytest.mark.parametrize("normalize", [False, True])
    def test_weights_that_are_all_1_can_be_left_out(self, normalize: bool) -> None:
        algorithm = table(normalize_advantage=normalize)
        rows = batch(**{k: v[:3] for k, v in ITEMS.items()})
        weighted = algorithm._loss(rows)
        plain = algorithm._loss({k: v for k, v in rows.items() if "weight" not in k})
        torch.testing.assert_close(plain, weighted)

    def test_normalises_over_valid_items(self) -> None:
        # Advantages 2, 1, -1: mean 2/3, squares 16/9, 1/9, 25/9, so std = sqrt(42/9 / 2) = 1.5275
        std = math.sqrt(42 / 18)
        a, b, c = (4 / 3 / std, 1 / 3 / std, -5 / 3 / std)
        _, metrics = table()._loss(batch(**ITEMS))
        assert metrics["policy_loss"].item() == pytest.approx(
            -(a + 1.2 * b + 0.8 * c) / 3, abs=1e-6
        )

    def test_a_single_item_is_left_as_it_is(self) -> None:
        # Its spread is 0: dividing by it would give NaN.
        _, metrics = table()._loss(batch(**{k: v[1:2] for k, v in ITEMS.items()}))
        assert metrics["policy_loss"].item() == pytest.approx(-1.2)

    @pytest.mark.parametrize(
        ("item", "moves"),
        [
            ({"action": [0], "advantage": [1.0]}, False),  # r = 1.5 is far enough up
            ({"action": [0], "advantage": [-1.0]}, True),  # r = 1.5 must come down
            ({"action": [1], "advantage": [1.0]}, True),  # r = 0.5 must come up
            ({"action": [1], "advantage": [-1.0]}, False),  # r = 0.5 is far enough down
        ],
    )
    def test_clipping_stops_the_gradient(self, item: dict[str, Any], moves: bool) -> None:
        algorithm = table(normalize_advantage=False, value_coef=0.0)
        rest = {k: v[1:2] for k, v in ITEMS.items()}
        loss, _ = algorithm._loss(batch(**(rest | item)))
        [gradient] = torch.autograd.grad(loss, [algorithm.net.head.weight])
        assert bool(gradient.abs().sum() > 0) == moves

    def test_clips_the_value(self) -> None:
        items = {k: v[:2] for k, v in ITEMS.items()} | {"value": [1.5, 2.0]}
        _, metrics = table(value_clip=0.1)._loss(batch(**items))
        # V = 1 is kept at 1.4 (error 1.4 to target 0); V = 2 stays 2 (error 2 to target 4)
        assert metrics["value_loss"].item() == pytest.approx(0.5 * (1.96 + 4) / 2, abs=1e-6)

    def test_masked_actions_have_no_part(self) -> None:
        algorithm = make_algorithm(
            "ppo", spaces.Dict({"obs": STATES, "action_mask": spaces.MultiBinary(2)}), ACTIONS,
            hidden=(), horizon=2, minibatch_size=2, normalize_advantage=False,
        )  # fmt: skip
        items = batch(
            action=[0, 0], log_prob=[0.0, math.log(0.5)], value=[0.0, 0.0], weight=[1.0, 1.0],
            advantage=[1.0, 1.0], target=[0.0, 0.0], policy_weight=[1.0, 1.0],
        )  # fmt: skip
        with torch.no_grad():
            algorithm.net.head.weight.zero_()
        items["obs/obs"] = torch.tensor([0, 1])
        items["obs/action_mask"] = torch.tensor([[1, 0], [1, 1]], dtype=torch.int8)
        _, metrics = algorithm._loss(items)
        # With one action allowed, p = 1 and H = 0; with two, p = 1/2 and H = log 2. Ratios are 1.
        assert metrics["policy_loss"].item() == pytest.approx(-1.0)
        assert metrics["approx_kl"].item() == pytest.approx(0.0, abs=1e-6)
        assert metrics["entropy"].item() == pytest.approx(math.log(2) / 2, abs=1e-6)


def rollout(algorithm: PPO, obs: list[list[int]], reward: Any, last: list[int]) -> Rollout:
    """Return a rollout [T, N] of action 0, with log-probabilities 0."""
    length, envs = np.shape(obs)
    data = Rollout(Spaces(STATES, ACTIONS), length, envs)
    off = np.zeros(envs, bool)
    for t in range(length):
        extras = {"log_prob": np.zeros(envs, np.float32)}
        data.write(t, np.array(obs[t]), np.zeros(envs, np.int64), reward[t], off, off, True, extras)
    data.last_obs = np.array(last)
    return data


class TestUpdate:
    def test_advantages_by_hand(self) -> None:
        algorithm = table(gamma=0.5, gae_lambda=0.5)
        data = rollout(algorithm, [[0, 1], [1, 1], [0, 0]], [[1, 1], [2, 1], [3, 1]], [1, 0])
        data.truncated[1, 0] = True
        data.add_final(1, 0, np.int64(1))  # what followed was state 1; row 2 is of the new episode
        data.terminated[1, 1] = True
        prepared = algorithm._prepare(data)
        # Environment 0: d2 = 3 + 2/2 - 1 = 3; d1 = 2 + 2/2 - 2 = 1 with V(final) = 2, cut there;
        #                d0 = 1 + 2/2 - 1 = 1, A0 = 1 + 1/4.
        # Environment 1: d2 = 1 + 1/2 - 1 = 1/2; d1 = 1 - 2 = -1, no bootstrap;
        #                d0 = 1 + 2/2 - 2 = 0, A0 = -1/4.
        assert prepared["advantage"].tolist() == [1.25, -0.25, 1.0, -1.0, 3.0, 0.5]
        assert prepared["target"].tolist() == [2.25, 1.75, 3.0, 1.0, 4.0, 1.5]  # A + V
        assert prepared["value"].tolist() == [1.0, 2.0, 2.0, 2.0, 1.0, 1.0]

    def test_rows_that_are_no_transition(self) -> None:
        algorithm = table(gamma=0.5, gae_lambda=0.5)
        data = rollout(algorithm, [[0], [1], [1]], [[1], [0], [2]], [0])
        data.terminated[0], data.valid[1] = True, False  # the row after the end only resets
        prepared = algorithm._prepare(data)
        # d0 = 1 - 1 = 0; d2 = 2 + 1/2 - 2 = 1/2
        assert prepared["advantage"].tolist() == [0.0, 0.0, 0.5]
        assert prepared["weight"].tolist() == [1.0, 0.0, 1.0]
        assert prepared["policy_weight"].tolist() == [1.0, 1.0, 1.0]
        data.whole, data.valid[:] = True, True
        assert not {"weight", "policy_weight"} & algorithm._prepare(data).keys()

    def test_every_epoch_sees_every_row_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Any] = []
        call = Step.__call__

        def spy(self: Step, data: Any, lr: float, index: Any = None) -> Any:
            rows = (-data["log_prob"]).int().tolist()
            seen.append((rows, lr, data["clip"].item(), data["entropy_coef"].item()))
            return call(self, data, lr, index)

        monkeypatch.setattr(Step, "__call__", spy)
        algorithm = table(
            horizon=6, minibatch_size=2, epochs=2, lr="linear:1:0", clip="linear:0.2:0.1",
            entropy_coef="linear:0.04:0:0.5",
        )  # fmt: skip
        algorithm.clock.env_steps = 250  # of 1000
        data = rollout(algorithm, [[0]] * 6, [[1]] * 6, [0])
        data.extras["log_prob"][:, 0] = -np.arange(6)  # tells which row it is
        algorithm.update(data)
        assert [len(part) for part, *_ in seen] == [2] * 6
        rows = [row for part, *_ in seen for row in part]
        epochs = [rows[:6], rows[6:]]
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(6))
        assert epochs[0] != epochs[1]
        assert {lr for _, lr, *_ in seen} == {0.75}
        assert [clip for _, _, clip, _ in seen] == pytest.approx([0.175] * 6)
        assert [coefficient for *_, coefficient in seen] == pytest.approx([0.02] * 6)
        assert algorithm.updates == 6

    def test_a_large_step_ends_the_epochs(self) -> None:
        for target_kl, updates in ((None, 30), (1e-4, 3)):
            algorithm = table(
                horizon=6, minibatch_size=2, epochs=10, target_kl=target_kl, lr=0.1, clip=10.0
            )
            data = rollout(algorithm, [[0]] * 6, [[n] for n in range(6)], [0])
            data.action[::2] = 1
            data.extras["log_prob"][:] = math.log(0.5)
            algorithm.update(data)
            assert algorithm.updates == updates

    @pytest.mark.parametrize("kind", ["discrete", "box", "multi_binary"])
    def test_learning_begins_where_acting_was(self, kind: str) -> None:
        """Acting is NumPy and learning is torch; to the first step, their ratio must be 1."""
        space = next(s for group in ACTION_SPACES.values() for k, s in group.items() if k == kind)
        rig = Rig(
            "ppo", partial(Identity, space), horizon=16, minibatch_size=32, epochs=1, hidden=(16,),
            normalize_obs=True, lr=0.01,
        )  # fmt: skip
        for _ in range(3):
            metrics = rig.learn(1)
            assert metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)
            assert metrics["train/clip_fraction"] == 0.0


class TestNetwork:
    def test_initialisation(self) -> None:
        net = make_algorithm("ppo", spaces.Box(-1, 1, (6,)), ACTIONS).net
        for encoder in (net.encoder, net.value_encoder):
            for layer in (encoder.trunk[0], encoder.trunk[2]):
                scales = torch.linalg.svdvals(layer.weight)
                torch.testing.assert_close(scales, torch.full_like(scales, math.sqrt(2)))
                assert not layer.bias.any()
        for layer, gain in ((net.head, 0.01), (net.value_head[0], 1.0)):
            scales = torch.linalg.svdvals(layer.weight)
            torch.testing.assert_close(scales, torch.full_like(scales, gain))

    def test_optimizer(self) -> None:
        [objective] = make_algorithm("ppo", STATES, ACTIONS).step.objectives
        assert objective.rule == Adam(eps=1e-5, max_grad_norm=0.5)

    def test_log_prob_is_that_of_the_unclipped_action(self) -> None:
        algorithm = make_algorithm(
            "ppo", STATES, spaces.Box(-0.1, 0.1, (2,)), hidden=(), log_std_init=0.5,
            scale_actions=False,
        )  # fmt: skip
        with torch.no_grad():
            algorithm.net.head.mean.weight.copy_(torch.tensor([[0.0, 1.0], [0.0, -2.0]]))
        choice = algorithm.act(np.array([0, 1, 1]), None, True)
        raw = choice.extras["raw_action"]
        assert (np.abs(raw) > 0.1).any()
        np.testing.assert_array_equal(choice.action, np.clip(raw, -0.1, 0.1))
        # log N(x; m, s) = -((x - m) / s)^2 / 2 - log s - log(2 pi) / 2, summed; s = exp(0.5)
        mean = np.array([[0, 0], [1, -2], [1, -2]])
        z = (raw - mean) / math.exp(0.5)
        expected = (-0.5 * z**2 - 0.5 - 0.5 * math.log(2 * math.pi)).sum(1)
        np.testing.assert_allclose(choice.extras["log_prob"], expected, rtol=1e-5)

    def test_refuses_a_minibatch_that_does_not_divide_the_rollout(self) -> None:
        with pytest.raises(ConfigError, match=r"minibatch_size=7 .* 16 = horizon 8 x num_envs 2"):
            make_algorithm("ppo", STATES, ACTIONS, horizon=8, minibatch_size=7, num_envs=2)


class TestNovelty:
    def test_advantages_are_added_and_returns_have_heads_of_their_own(self) -> None:
        settings = {"rnd": 0.5, "rnd_gamma": 0.5, "gamma": 0.5, "gae_lambda": 0.5, "hidden": ()}
        algorithm = make_algorithm("ppo", STATES, ACTIONS, horizon=2, minibatch_size=2, **settings)
        with torch.no_grad():  # V = 1, 2 of rewards and 4, 8 of novelty in states 0, 1
            algorithm.net.value_head[0].weight.copy_(torch.tensor([[1.0, 2.0], [4.0, 8.0]]))
        data = rollout(algorithm, [[0], [1]], [[1], [2]], [0])
        data.terminated[0] = True
        seen: list[Any] = []

        def observe(obs: Any, valid: Any) -> Any:
            seen.append(obs.tolist())
            return obs.reshape(-1), np.array([[6.0], [2.0]], np.float32)

        algorithm.curiosity.observe = observe
        batch = algorithm._prepare(data)
        assert seen == [[[1], [0]]]  # novelty is that of what follows
        # Rewards: d1 = 2 + 1/2 - 2 = 1/2; d0 = 1 - 1 = 0, and nothing follows the end.
        # Novelty: d1 = 2 + 4/2 - 8 = -4; d0 = 6 + 8/2 - 4 = 6, and A0 = 6 - 4/4 goes on over it.
        assert batch["advantage"].tolist() == [0.0 + 0.5 * 5.0, 0.5 - 0.5 * 4.0]
        assert batch["target"].tolist() == [[1.0, 9.0], [2.5, 4.0]]
        assert batch["value"].tolist() == [[1.0, 4.0], [2.0, 8.0]]
        _, metrics = algorithm._loss(batch | COEFFICIENTS)
        # Errors 0, 5, 1/2, 4: half their mean square
        squares = 25 + 0.25 + 16
        assert metrics["value_loss"].item() == pytest.approx(squares / 8)

    def test_share_of_the_rollout_trains_the_predictor(self) -> None:
        settings = {"horizon": 64, "minibatch_size": 64, "rnd": 1.0, "rnd_share": 0.25}
        algorithm = make_algorithm("ppo", STATES, ACTIONS, **settings)
        data = rollout(algorithm, [[0]] * 64, [[1]] * 64, [0])
        data.valid[::2] = False  # these train nothing
        weight = algorithm._prepare(data)["novel_weight"]
        assert not weight[::2].any()
        weight = weight[1::2]
        assert 0 < weight.mean() < 0.5 and set(weight.tolist()) == {0.0, 1.0}

    @pytest.mark.parametrize("name", ["rnd_gamma", "rnd_share"])
    def test_refuses_settings_without_novelty(self, name: str) -> None:
        with pytest.raises(ConfigError, match=rf"{name}=0.5 has no effect with rnd=0"):
            make_algorithm("ppo", STATES, ACTIONS, **{name: 0.5})

    def test_refuses_what_the_spaces_have_no_use_for(self) -> None:
        with pytest.raises(ConfigError, match=r"log_std_init=-1.0 has no effect"):
            make_algorithm("ppo", STATES, ACTIONS, log_std_init=-1.0)
        with pytest.raises(ConfigError, match=r"cnn=impala has no effect"):
            make_algorithm("ppo", STATES, ACTIONS, cnn="impala")


QUICK = {"horizon": 32, "minibatch_size": 64, "epochs": 8, "lr": 0.005, "num_envs": 4}


class TestLearns:
    @pytest.mark.parametrize(
        ("space", "more"),
        [
            (spaces.Discrete(4), {}),
            (spaces.MultiDiscrete([3, 2]), {}),
            (spaces.MultiBinary(3), {}),
            (spaces.Box(-1.0, 1.0, (2,), np.float32), {"log_std_init": -1.0}),
        ],
        ids=lambda part: type(part).__name__ if isinstance(part, spaces.Space) else "",
    )
    def test_the_right_answer(self, space: Any, more: dict[str, Any]) -> None:
        rig = Rig(
            "ppo", partial(Identity, space), env_steps=2500, gamma=0.0, hidden=(16,), **QUICK,
            **more,
        )  # fmt: skip
        assert rig.train().score() > 8 * 0.9

    def test_with_masks(self) -> None:
        space = spaces.Discrete(4)
        rig = Rig("ppo", partial(Identity, space, masked=True), env_steps=2000, gamma=0.0, **QUICK)
        assert rig.train().score() > 8 * 0.9

    def test_to_look_ahead(self) -> None:
        rig = Rig("ppo", Corridor, env_steps=4000, gamma=0.95, entropy_coef=0.01, **QUICK)
        assert rig.train().score() == 1.0

    @pytest.mark.parametrize("rnd", [0.0, 1.0])
    def test_novelty_finds_what_chance_does_not(self, rnd: float) -> None:
        """At the end of a chain waits 1; a bait at its beginning pays 0.001 a step."""
        settings = {"num_envs": 16, "horizon": 64, "minibatch_size": 256, "lr": "linear:2e-3:0"}
        chain = partial(gym.make, "assay/Chain-v0", length=24)
        rig = Rig("ppo", chain, env_steps=18_000, rnd=rnd, entropy_coef=0.01, **settings)
        assert (rig.train().score() == 1.0) == (rnd > 0)

    def test_cartpole(self) -> None:
        settings = {
            "num_envs": 32, "horizon": 32, "minibatch_size": 256, "epochs": 10, "gamma": 0.98,
            "gae_lambda": 0.9, "lr": "linear:2.5e-3:2.5e-4", "clip": 0.2,
        }  # fmt: skip
        passed: list[bool] = []
        # The rounding of a processor decides which seed is unlucky: one of them scored 262 or 500.
        # Two of three have to be above 400, so that the third counts only where the others differ.
        for seed in (2, 3, 1):
            rig = Rig("ppo", "CartPole-v1", env_steps=30_000, seed=seed, **settings)
            passed.append(rig.train().score() > 400)
            if passed.count(passed[-1]) == 2:
                break
        assert passed[-1], passed
