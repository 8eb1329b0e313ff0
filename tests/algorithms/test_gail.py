"""GAIL: the contract, its numbers by hand, and that it imitates without any reward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.buffers.rollout import Rollout
from assay.core.config import UnusedSettingError
from assay.core.types import Spaces
from assay.functional.imitation import discriminator_loss, imitation_reward
from assay.networks.discriminator import ActionFeatures, Discriminator, gradient_penalty
from assay.testing.algorithms import Case, make_algorithm, make_batch
from assay.testing.envs import Identity
from assay.testing.imitation import ImitationContract, ImitationRig
from assay.testing.offline import record

STATES, ACTIONS = spaces.Discrete(2), spaces.Discrete(2)
SMALL = {
    "horizon": 8, "minibatch_size": 8, "epochs": 2, "hidden": (16,), "disc_hidden": (8,),
    "disc_updates": 2, "disc_batch_size": 8,
}  # fmt: skip


class TestContract(ImitationContract):
    algorithm = "gail"
    settings = SMALL
    updates = 8


class TestContractWithoutPenalty(ImitationContract):
    algorithm = "gail"
    settings = SMALL | {"gradient_penalty": 0.0, "reward": "logit"}
    updates = 8

    def cases(self) -> Iterator[Case]:
        yield from (case for case in super().cases() if case.name in ("box", "sees_image"))


class TestDiscriminatorLoss:
    def test_by_hand(self) -> None:
        # D = 3/4 and 1/2 of the expert's, 1/4 of the policy's (twice)
        expert = torch.tensor([math.log(3), 0.0])
        policy = torch.tensor([-math.log(3), -math.log(3)])
        loss, metrics = discriminator_loss(expert, policy)
        right = -(math.log(0.75) + math.log(0.5)) / 2 - math.log(0.75)
        assert loss.item() == pytest.approx(right)
        assert metrics["expert_accuracy"].item() == 0.5
        assert metrics["policy_accuracy"].item() == 1.0

    def test_the_bonus_is_the_entropy_of_d(self) -> None:
        expert, policy = torch.tensor([math.log(3)]), torch.tensor([0.0])
        plain, _ = discriminator_loss(expert, policy)
        loss, _ = discriminator_loss(expert, policy, 0.1)
        # H(3/4) = -(3/4 log 3/4 + 1/4 log 1/4), H(1/2) = log 2
        entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / 2 + math.log(2) / 2
        assert loss.item() == pytest.approx(plain.item() - 0.1 * entropy)

    @pytest.mark.parametrize(
        ("form", "right"),
        [("softplus", math.log(4)), ("log_d", math.log(0.75)), ("logit", math.log(3))],
    )
    def test_rewards_by_hand(self, form: Any, right: float) -> None:
        # D = 3/4: -log(1 - D) = log 4, log D, and log D - log(1 - D) = log 3
        reward = imitation_reward(torch.tensor([math.log(3)]), form)
        assert reward.item() == pytest.approx(right)

    def test_learning_raises_the_logit_of_the_expert(self) -> None:
        logits = torch.zeros(2, requires_grad=True)
        loss, _ = discriminator_loss(logits[:1], logits[1:])
        [slope] = torch.autograd.grad(loss, [logits])
        assert slope.tolist() == [-0.5, 0.5]


class TestDiscriminator:
    def test_a_box_is_scaled_to_its_bounds_and_choices_are_one_hot(self) -> None:
        box = ActionFeatures(spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0])))
        assert box(torch.tensor([[1.0, 10.0]])).tolist() == [[0.5, 1.0]]
        free = ActionFeatures(spaces.Box(-np.inf, np.inf, (1,)))
        assert free(torch.tensor([[7.0]])).tolist() == [[7.0]]
        choice = ActionFeatures(spaces.Discrete(3))
        assert choice(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]

    def test_the_penalty_is_of_the_slope_between_the_two(self) -> None:
        net = Discriminator(Spaces(spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,))), hidden=())
        with torch.no_grad():
            net.trunk[0].weight.copy_(torch.tensor([[3.0, 4.0]]))
        features = torch.zeros(2, 2), torch.ones(2, 2)
        # The slope of a linear logit is its weights, of norm 5: (5 - 1)^2
        assert gradient_penalty(net.score, *features, torch.rand(2)).item() == pytest.approx(16.0)


def table(**settings: Any) -> Any:
    """Return GAIL on two states, with the logit of a pair equal to log 3 where they are equal."""
    options: dict[str, Any] = {
        "hidden": (), "disc_hidden": (), "horizon": 2, "minibatch_size": 2, "gradient_penalty": 0.0,
    }  # fmt: skip
    algorithm = make_algorithm("gail", STATES, ACTIONS, **(options | settings))
    with torch.no_grad():
        algorithm.net.value_head[0].weight.zero_()
        algorithm.disc.trunk[0].weight.copy_(torch.tensor([[0.0, math.log(3), 0.0, math.log(3)]]))
        algorithm.disc.trunk[0].bias.fill_(-math.log(3))
    return algorithm


class Canned:
    """An expert that always does the same."""

    def sample(self, batch_size: int) -> Any:
        return make_batch(obs=[1, 1], action=[1, 1], reward=[0.0, 0.0], next_obs=[0, 0])


def rollout() -> Rollout:
    """Return two steps of one environment: state 1 with action 1, then with action 0."""
    data = Rollout(Spaces(STATES, ACTIONS), 2, 1)
    extras = {"log_prob": np.array([math.log(0.5)], np.float32)}
    off = np.zeros(1, bool)
    for t, action in enumerate((1, 0)):
        reward = np.array([1000.0])
        data.write(t, np.array([1]), np.array([action]), reward, off, off, True, extras)
    data.last_obs = np.array([0])
    data.expert = Canned()  # type: ignore[assignment]
    return data


class TestRewards:
    def test_they_come_from_the_discriminator_as_it_is_after_its_updates(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        algorithm = table(disc_updates=3, disc_batch_size=2, disc_lr=0.5)
        order: list[str] = []
        rewards = algorithm.learned_reward

        def spy(*args: Any) -> Any:
            order.append(f"rewards after {algorithm.disc_step.updates}")
            return rewards(*args)

        monkeypatch.setattr(algorithm, "learned_reward", spy)
        algorithm.update(rollout())
        assert order == ["rewards after 3"]

    def test_by_hand(self) -> None:
        algorithm = table()
        obs, action = torch.tensor([1, 1, 0]), torch.tensor([1, 0, 0])
        # Logits log 3, 0, -log 3: softplus is log 4, log 2, log 4/3
        right = [math.log(4), math.log(2), math.log(4 / 3)]
        assert algorithm.learned_reward(obs, action).tolist() == pytest.approx(right, abs=1e-6)

    def test_advantages_are_of_the_learned_reward(self, monkeypatch: pytest.MonkeyPatch) -> None:
        algorithm = table(gamma=0.5, gae_lambda=1.0, disc_lr=0.0, epochs=1)
        seen: list[dict[str, torch.Tensor]] = []
        step = algorithm.step

        def spy(batch: Any, lr: float, index: Any) -> Any:
            seen.append({k: v.clone() for k, v in batch.items()})
            return step(batch, lr, index)

        monkeypatch.setattr(algorithm, "step", spy)
        algorithm.update(rollout())
        # V = 0 everywhere: log 4 + log 2 / 2, and log 2
        right = [math.log(4) + math.log(2) / 2, math.log(2)]
        found = sorted(seen[0]["advantage"].tolist(), reverse=True)  # rows are shuffled
        assert found == pytest.approx(right, abs=1e-5)


class Fives:
    """An expert that always sees 5."""

    def sample(self, batch_size: int) -> Any:
        rows = batch_size
        return make_batch(
            obs=[[5.0]] * rows, action=[0] * rows, reward=[0.0] * rows, next_obs=[[5.0]] * rows
        )


def seen(valid: Sequence[bool], **settings: Any) -> Any:
    """Return GAIL after it was shown a rollout with the observations 0, 2 and 9."""
    line = spaces.Box(-100.0, 100.0, (1,), np.float32)
    algorithm: Any = make_algorithm("gail", line, ACTIONS, **(SMALL | settings))
    data, off = Rollout(Spaces(line, ACTIONS), 3, 1), np.zeros(1, bool)
    extras = {"log_prob": np.zeros(1, np.float32)}
    for t, (number, real) in enumerate(zip((0.0, 2.0, 9.0), valid, strict=True)):
        obs = np.full((1, 1), number, np.float32)
        data.write(t, obs, np.zeros(1, np.int64), np.zeros(1), off, off, real, extras)
    data.expert = Fives()  # type: ignore[assignment]
    algorithm.disc_inputs.see(data)
    return algorithm


class TestInputs:
    def test_half_of_the_statistics_are_the_experts(self) -> None:
        inputs = seen([True, True, False]).disc_inputs
        # 0, 2 and two fives: mean 3, variance (9 + 1 + 4 + 4) / 4; the reset row does not count
        rows = np.array([[3.0], [3.0 + math.sqrt(4.5)]], np.float32)
        for found in (inputs.arrays(rows), inputs.tensors(torch.from_numpy(rows))):
            assert found.flatten().tolist() == pytest.approx([0.0, 1.0], abs=1e-6)

    def test_both_sides_of_a_batch_are_normalised_by_them(self) -> None:
        algorithm = seen([True, True, False])
        batch = algorithm._pairs(
            algorithm.disc_inputs.arrays(np.array([[0.0], [2.0]], np.float32)),
            torch.zeros(2, dtype=torch.int64), torch.tensor([1, 0]), Fives().sample(2),
        )  # fmt: skip
        scale = math.sqrt(4.5)
        own, other = ([(x - 3) / scale for x in rows] for rows in ((2, 0), (5, 5)))
        assert batch["obs"].flatten().tolist() == pytest.approx(own, abs=1e-6)
        assert batch["expert_obs"].flatten().tolist() == pytest.approx(other, abs=1e-6)

    def test_the_policy_has_its_own(self) -> None:
        algorithm = seen([True, True, False], normalize_obs=True)
        assert algorithm.inputs(np.full((1, 1), 7.0, np.float32)).tolist() == [[7.0]]

    def test_without_them_it_sees_what_the_policy_sees(self) -> None:
        algorithm = seen([True, True, True], normalize_obs=True, disc_normalize=False)
        algorithm.obs_norm.update(np.array([[0.0], [4.0]], np.float32))
        rows = np.array([[4.0]], np.float32)
        for found in (
            algorithm.disc_inputs.arrays(rows),
            algorithm.disc_inputs.tensors(torch.from_numpy(rows)),
        ):
            assert found.tolist() == [[1.0]]

    def test_a_rollout_of_resets_alone_is_not_seen(self) -> None:
        inputs = seen([False] * 3).disc_inputs
        assert inputs.arrays(np.full((1, 1), 7.0, np.float32)).tolist() == [[7.0]]

    def test_where_there_is_nothing_to_normalise_the_setting_is_refused(self) -> None:
        with pytest.raises(UnusedSettingError, match="disc_normalize"):
            make_algorithm("gail", STATES, ACTIONS, **SMALL, disc_normalize=False)


def test_a_rollout_of_resets_alone_teaches_nothing() -> None:
    algorithm = table()
    before = algorithm.disc.trunk[0].weight.tolist()
    data = rollout()
    data.valid[:] = False
    algorithm.update(data)
    assert algorithm.disc.trunk[0].weight.tolist() == before
    assert all(math.isfinite(value) for value in algorithm.drain_metrics().values())


class Paid(gym.RewardWrapper[Any, Any]):
    """Replace the reward by garbage."""

    def reward(self, reward: Any) -> float:
        return -1e6 * float(self.unwrapped.t)  # type: ignore[attr-defined]


@pytest.mark.parametrize("normalize", [False, True])
def test_the_environments_reward_reaches_nobody(normalize: bool) -> None:
    data = record(Identity)
    settings = SMALL | {"normalize_reward": normalize}
    weights = []
    for env in (Identity, lambda: Paid(Identity())):
        rig = ImitationRig("gail", env, data=data, **settings)
        rig.learn(30)
        weights.append(rig.algorithm.state())
    for section in ("weights", "normalisers"):
        np.testing.assert_equal(weights[0][section], weights[1][section])


def test_the_learned_reward_is_what_is_scaled() -> None:
    rig = ImitationRig("gail", Identity, normalize_reward=True, **SMALL)
    rig.learn(30)
    moments = rig.algorithm.reward_scale.moments  # type: ignore[union-attr]
    assert moments.count == rig.clock.env_steps and 0 < float(moments.mean) < 10


def imitated(env: Any, behaviour: Any, **settings: Any) -> float:
    """Return the score after imitating ten episodes of a behaviour."""
    data = record(env, episodes=10, behaviour=behaviour)
    options = {
        "num_envs": 8, "env_steps": 4_000, "horizon": 16, "minibatch_size": 32, "epochs": 4,
        "lr": 5e-3, "hidden": (16,), "disc_hidden": (16,), "disc_updates": 16, "disc_lr": 5e-3,
        "disc_batch_size": 32, "gamma": 0.5,
    }  # fmt: skip
    return ImitationRig("gail", env, data=data, **(options | settings)).train().score()


class TestLearns:
    """Eight steps of one length, each worth 1 at best; no reward is read."""

    @pytest.mark.parametrize(
        "space", [spaces.Discrete(4), spaces.Box(-3.0, 1.0, (1,), np.float32)], ids=str
    )
    def test_what_the_expert_did(self, space: Any) -> None:
        env = partial(Identity, space)
        answers = np.array(env().answers)
        score = imitated(env, lambda obs, rng: answers[obs.argmax(1)])
        # Always the same action gives 2 (Box: 5.3).
        assert score > 7

    def test_not_from_a_random_expert(self) -> None:
        assert imitated(Identity, None) < 4.5
