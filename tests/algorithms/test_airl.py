"""AIRL: the contract, its numbers by hand, and that it finds a reward and a policy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.algorithms.shared.adversarial import true_successors
from assay.buffers.rollout import Rollout
from assay.core.types import Spaces
from assay.networks.discriminator import ShapedReward
from assay.testing.algorithms import Case, make_algorithm, make_batch
from assay.testing.envs import Identity
from assay.testing.imitation import ImitationContract, ImitationRig
from assay.testing.offline import record

STATES, ACTIONS = spaces.Discrete(2), spaces.Discrete(2)
SMALL = {
    "horizon": 8, "minibatch_size": 8, "epochs": 2, "hidden": (16,), "disc_hidden": (8,),
    "disc_updates": 2, "disc_batch_size": 8,
}  # fmt: skip
LOG_3 = math.log(3)


class TestContract(ImitationContract):
    algorithm = "airl"
    settings = SMALL
    updates = 8


class TestContractWithAHistory(TestContract):
    settings: ClassVar = {**SMALL, "disc_history": 20}

    def cases(self) -> Iterator[Case]:
        chosen = ("discrete", "multi_binary", "box", "sees_dict_masked")
        yield from (case for case in super().cases() if case.name in chosen)


def fill(net: ShapedReward) -> None:
    """Let g be 1 and 2 in the states 0 and 1 (3 more for action 1), and h be 10 and 20."""
    with torch.no_grad():
        actions = [] if net.g.actions is None else [0.0, 3.0]
        net.g.trunk[0].weight.copy_(torch.tensor([[1.0, 2.0, *actions]]))
        net.h.trunk[0].weight.copy_(torch.tensor([[10.0, 20.0]]))


class TestShapedReward:
    def test_by_hand(self) -> None:
        net = ShapedReward(Spaces(STATES, ACTIONS), gamma=0.5, state_only=False, hidden=())
        fill(net)
        f = net(
            torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0]),
            torch.tensor([0.0, 1.0, 0.0]),
        )  # fmt: skip
        # 1 + 20/2 - 10, then 1 + 3 - 10 with nothing ahead, then 2 + 3 + 10/2 - 20
        assert f.tolist() == [1.0, -6.0, -10.0]

    def test_a_reward_of_the_state_alone_does_not_see_the_action(self) -> None:
        net = ShapedReward(Spaces(STATES, ACTIONS), gamma=0.5, state_only=True, hidden=())
        fill(net)
        assert net.g(torch.tensor([0, 0]), torch.tensor([0, 1])).tolist() == [1.0, 1.0]


def table(**settings: Any) -> Any:
    """Return AIRL with known numbers; the policy takes action 0 in state 1 with 3/4."""
    options = {
        "hidden": (), "disc_hidden": (), "horizon": 2, "minibatch_size": 2, "gamma": 0.5,
        "state_only": False, "gradient_penalty": 0.0,
    }  # fmt: skip
    algorithm = make_algorithm("airl", STATES, ACTIONS, **(options | settings))
    fill(algorithm.reward)
    with torch.no_grad():
        algorithm.net.head.weight.copy_(torch.tensor([[0.0, LOG_3], [0.0, 0.0]]))
        algorithm.net.head.bias.zero_()
        algorithm.net.value_head[0].weight.zero_()
    return algorithm


class Canned:
    """An expert that always does the same: action 0 in state 1, which leads to state 0."""

    def sample(self, batch_size: int) -> Any:
        rows = batch_size
        return make_batch(
            obs=[1] * rows, action=[0] * rows, reward=[0.0] * rows, next_obs=[0] * rows
        )


def rollout() -> Rollout:
    """Return state 1 with action 1, which ends the episode, then state 0 with action 0, cut."""
    data = Rollout(Spaces(STATES, ACTIONS), 2, 1)
    extras = {"log_prob": np.array([7.0], np.float32)}  # of another policy: it must not matter
    off, on = np.zeros(1, bool), np.ones(1, bool)
    garbage = np.array([1000.0])
    data.write(0, np.array([1]), np.array([1]), garbage, on, off, True, extras)
    data.write(1, np.array([0]), np.array([0]), garbage, off, on, True, extras)
    data.add_final(1, 0, np.int64(1))
    data.last_obs = np.array([0])
    data.expert = Canned()  # type: ignore[assignment]
    return data


class TestUpdate:
    def test_what_followed_a_truncation_is_its_final_observation(self) -> None:
        assert true_successors(rollout()).tolist() == [0, 1]

    def test_rewards_and_logits_by_hand(self, monkeypatch: pytest.MonkeyPatch) -> None:
        algorithm = table(disc_updates=1, disc_batch_size=2, disc_lr=0.0, epochs=1)
        seen: dict[str, Any] = {}
        disc, step = algorithm.disc_step, algorithm.step

        def watch_disc(batch: Any, lr: float) -> Any:
            seen["expert"] = algorithm._logit(batch, "expert_")[0].tolist()
            return disc(batch, lr)

        def watch(batch: Any, lr: float, index: Any) -> Any:
            seen["target"] = batch["target"].clone()
            return step(batch, lr, index)

        monkeypatch.setattr(algorithm, "disc_step", watch_disc)
        monkeypatch.setattr(algorithm, "step", watch)
        algorithm.update(rollout())
        # The expert: f = 2 + 10/2 - 20 = -13, log pi = log 3/4
        assert seen["expert"] == pytest.approx([-13 - math.log(0.75)] * 2, abs=1e-5)
        # The policy: f = 2 + 3 - 20 = -15 at the end, log pi = log 1/4; then 1 + 20/2 - 10 = 1 with
        # the final observation, log pi = log 1/2. V = 0, and the episodes do not touch.
        right = [-15 - math.log(0.25), 1 - math.log(0.5)]
        assert seen["target"].tolist() == pytest.approx(right, abs=1e-5)

    def test_half_of_the_policys_steps_are_former_ones(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        algorithm = table(disc_history=10, disc_updates=1, disc_batch_size=4, lr=0.0)
        batches: list[dict[str, Any]] = []
        monkeypatch.setattr(algorithm, "disc_step", lambda batch, lr: batches.append(batch))
        former, now = rollout(), rollout()
        former.valid[1] = now.valid[0] = False  # state 1 with its end, then state 0 alone
        algorithm.update(former)
        with torch.no_grad():  # the policy of now: log 1/5 of action 1 in state 1
            algorithm.net.head.weight.copy_(torch.tensor([[0.0, math.log(4)], [0.0, 0.0]]))
        algorithm.update(now)
        first, second = batches
        assert first["obs"].tolist() == [1] * 4
        assert second["obs"].tolist() == [1, 1, 0, 0] and second["next_obs"].tolist() == [
            0,
            0,
            1,
            1,
        ]
        assert second["terminated"].tolist() == [1, 1, 0, 0]
        assert second["log_prob"].tolist() == pytest.approx(
            [math.log(0.2)] * 2 + [math.log(0.5)] * 2
        )

    @pytest.mark.parametrize(("ends", "ahead"), [(0.0, 0.5**2 * (10**2 + 20**2)), (1.0, 0.0)])
    def test_the_penalty_is_of_the_slope_of_f(self, ends: float, ahead: float) -> None:
        pair = torch.zeros(2, dtype=torch.int64), torch.full((2,), ends), torch.zeros(2)
        names = ("action", "terminated", "log_prob")
        own = {"obs": pair[0], "next_obs": pair[0], **dict(zip(names, pair, strict=True))}
        batch = own | {f"expert_{name}": part for name, part in own.items()}
        batch["mix"] = torch.tensor([0.2, 0.7])
        losses = [
            table(gradient_penalty=weight)._disc_loss(batch)[0].item() for weight in (0.0, 0.01)
        ]
        # f is linear: slopes 1, 2, 0, 3 of g, -10 and -20 of h(s), half of 10 and 20 of h(s')
        norm = math.sqrt(1 + 4 + 9 + 10**2 + 20**2 + ahead)
        assert losses[1] - losses[0] == pytest.approx(0.01 * (norm - 1) ** 2, rel=1e-4)

    def test_states_are_seen_by_the_discriminators_statistics(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        line = spaces.Box(-100.0, 100.0, (1,), np.float32)
        algorithm: Any = make_algorithm("airl", line, ACTIONS, **SMALL, normalize_obs=True)
        batches: list[dict[str, Any]] = []
        monkeypatch.setattr(algorithm, "disc_step", lambda batch, lr: batches.append(batch))
        data, off = Rollout(Spaces(line, ACTIONS), 8, 1), np.zeros(1, bool)
        extras = {"log_prob": np.zeros(1, np.float32)}
        for t in range(8):
            obs = np.full((1, 1), 2.0 * (t % 2), np.float32)
            data.write(t, obs, np.zeros(1, np.int64), np.zeros(1), off, off, True, extras)
        data.last_obs = np.zeros((1, 1), np.float32)

        class Fives:
            def sample(self, rows: int) -> Any:
                return make_batch(
                    obs=[[5.0]] * rows, action=[0] * rows, reward=[0.0] * rows,
                    next_obs=[[7.0]] * rows,
                )  # fmt: skip

        data.expert = Fives()  # type: ignore[assignment]
        algorithm.update(data)
        # 0 and 2 four times each, and eight fives: mean 3, variance (9 + 1) / 4 + 4 / 2
        scale = math.sqrt(4.5)
        found = {name: batches[0][name].flatten().tolist() for name in ("obs", "next_obs")}
        for now, after in zip(found["obs"], found["next_obs"], strict=True):
            assert sorted([now * scale + 3, after * scale + 3]) == pytest.approx([0, 2], abs=1e-5)
        expert = [batches[0][f"expert_{name}"][0].item() for name in ("obs", "next_obs")]
        assert expert == pytest.approx([2 / scale, 4 / scale], abs=1e-5)

    def test_the_reward_that_is_handed_out_has_no_potential(self) -> None:
        found = table().learned_reward(torch.tensor([0, 1]), torch.tensor([0, 1]))
        assert found.tolist() == [1.0, 5.0]

    def test_the_environments_reward_reaches_nobody(self) -> None:
        ends = []
        for factor in (1.0, 0.0):
            algorithm = table(normalize_reward=True, disc_batch_size=2)
            data = rollout()
            data.reward *= factor
            algorithm.update_reward_stats(data.reward, data.terminated, data.valid)
            algorithm.update(data)
            ends.append(algorithm.net.head.weight.tolist())
        assert ends[0] == ends[1]


def imitated(env: Any, behaviour: Any) -> ImitationRig:
    """Imitate ten episodes of a behaviour."""
    rig = ImitationRig(
        "airl", env, data=record(env, episodes=10, behaviour=behaviour), num_envs=8,
        env_steps=4_000, horizon=16, minibatch_size=32, epochs=4, lr=5e-3, hidden=(16,),
        disc_hidden=(16,), disc_updates=16, disc_lr=5e-3, disc_batch_size=32, gamma=0.5,
        state_only=False,
    )  # fmt: skip
    rig.train()
    return rig


class TestLearns:
    def test_what_the_expert_did_and_what_it_is_worth(self) -> None:
        env = partial(Identity)
        answers = np.array(env().answers)
        rig = imitated(env, lambda obs, rng: answers[obs.argmax(1)])
        # Eight steps, each worth 1 at best; always the same action gives 2.
        assert rig.score() > 7
        pairs = [(s, a) for s in range(4) for a in range(4)]
        obs = torch.eye(4)[[s for s, _ in pairs]]
        worth = rig.algorithm.learned_reward(obs, torch.tensor([a for _, a in pairs]))  # type: ignore[attr-defined]
        best = worth.reshape(4, 4).argmax(1)
        assert best.tolist() == answers.tolist()

    def test_not_from_a_random_expert(self) -> None:
        assert imitated(Identity, None).score() < 4.5
