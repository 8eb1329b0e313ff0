"""Recurrent PPO: the contract, its numbers by hand at episode boundaries, and that it learns."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.algorithms.recurrent_ppo import RecurrentPPO
from assay.api import Agent
from assay.buffers.rollout import Rollout, Runs
from assay.core.errors import AssayError, ConfigError
from assay.core.types import Spaces
from assay.envs.spaces import ActionMap, ObservationMap
from assay.optim.rules import Adam
from assay.optim.update import Step
from assay.testing.algorithms import AlgorithmContract, Rig, make_algorithm
from assay.testing.envs import Identity

STATES, ACTIONS = spaces.Discrete(2), spaces.Discrete(2)
SMALL = {
    "horizon": 8, "chunk": 4, "minibatch_size": 8, "epochs": 2, "hidden": (8,), "head_hidden": (8,),
    "memory_size": 8,
}  # fmt: skip


class TestContract(AlgorithmContract):
    algorithm = "recurrent_ppo"
    lowered = True
    settings = SMALL


class TestTransformerContract(AlgorithmContract):
    algorithm = "recurrent_ppo"
    settings = SMALL | {"memory": "transformer", "heads": 2, "context": 5}

    def cases(self) -> Any:
        return [next(iter(super().cases()))]


H = [0.0, *(math.tanh(k) for k in range(1, 9))]  # what the memory says after k steps


def counter(**settings: Any) -> RecurrentPPO:
    """Return the algorithm with a memory that counts the steps of its episode, k = 1, 2, ...

    Saturated gates make c' = c + 1 and h = tanh(c'). V = 10 h; the logits are (h, 0).
    """
    options = {
        "hidden": (), "head_hidden": (), "memory_size": 1, "horizon": 4, "chunk": 2,
        "minibatch_size": 4, "gamma": 0.5, "gae_lambda": 0.0, "normalize_advantage": False,
        "num_envs": 1,
    }  # fmt: skip
    algorithm = make_algorithm("recurrent_ppo", STATES, ACTIONS, **(options | settings))
    net = algorithm.net
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.memory.inputs[0].bias.fill_(30.0)
        net.head[1].weight.copy_(torch.tensor([[1.0], [0.0]]))
        net.value_head[1][0].weight.fill_(10.0)
    return algorithm


def rollout(length: int, envs: int, steps_before: list[int], reward: float = 1.0) -> Rollout:
    """Return a rollout of action 0 in episodes that are `steps_before` steps old."""
    data = Rollout(Spaces(STATES, ACTIONS), length, envs)
    off = np.zeros(envs, bool)
    for t in range(length):
        extras = {"log_prob": np.full(envs, math.log(0.5), np.float32)}
        data.write(
            t, np.zeros(envs, int), np.zeros(envs, int), np.full(envs, reward), off, off, True,
            extras,
        )  # fmt: skip
    data.runs.carry = count(*steps_before)
    data.last_obs = np.zeros(envs, np.int64)
    data.last_carry = count(*(n + length for n in steps_before))
    return data


def count(*steps: int) -> dict[str, np.ndarray]:
    c = np.array(steps, np.float32).reshape(-1, 1, 1)
    return {"c": c, "h": np.tanh(c)}


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


class TestBoundaries:
    def test_chunks_start_where_acting_was(self) -> None:
        data = rollout(4, 2, [0, 3])
        prepared = counter(num_envs=2)._prepare(data)
        # Chunks by time, then by environment: steps 1-2 and 4-5, then 3-4 and 6-7.
        close(prepared["carry/c"].flatten(), [0, 3, 2, 5])
        ages = np.array([[1, 2], [4, 5], [3, 4], [6, 7]])
        close(prepared["value"], 10 * np.tanh(ages))
        # lambda = 0: A = 1 + V' / 2 - V
        close(prepared["advantage"], 1 + 5 * np.tanh(ages + 1) - 10 * np.tanh(ages))
        close(prepared["target"], 1 + 5 * np.tanh(ages + 1))

    def test_an_end_restarts_the_memory(self) -> None:
        data = rollout(4, 2, [0, 0])
        data.terminated[0, 0] = True  # inside the first chunk
        data.terminated[1, 1] = True  # between the chunks
        data.last_carry = count(3, 2)
        prepared = counter(num_envs=2)._prepare(data)
        close(prepared["is_first"], [[0, 1], [0, 0], [0, 0], [1, 0]])
        ages = np.array([[1, 1], [1, 2], [2, 3], [1, 2]])
        close(prepared["value"], 10 * np.tanh(ages))
        following = np.tanh(ages + 1) * [[0, 1], [1, 0], [1, 1], [1, 1]]  # none after an end
        close(prepared["target"], 1 + 5 * following)

    def test_truncation_bootstraps_with_the_memory_from_before_the_reset(self) -> None:
        data = rollout(4, 1, [0])
        data.truncated[2, 0] = True
        data.add_final(2, np.array([0]), np.zeros(1, np.int64), count(3))
        data.last_carry = count(1)
        prepared = counter()._prepare(data)
        close(prepared["value"].flatten(), [10 * H[k] for k in (1, 2, 3, 1)])
        # What followed step 3 was the fourth of its episode, not the first of the next.
        close(prepared["target"].flatten(), [1 + 5 * H[k] for k in (2, 3, 4, 2)])

    def test_rows_that_are_no_transition(self) -> None:
        data = rollout(4, 1, [2])
        data.terminated[0, 0], data.valid[1, 0] = True, False  # the row after the end only resets
        data.last_carry = count(2)
        prepared = counter()._prepare(data)
        close(prepared["is_first"], [[0, 1], [1, 0]])
        close(prepared["weight"], [[1, 0], [1, 1]])
        close(prepared["value"].flatten()[[0, 2, 3]], [10 * H[3], 10 * H[1], 10 * H[2]])
        close(prepared["target"].flatten()[[0, 2, 3]], [1, 1 + 5 * H[2], 1 + 5 * H[3]])

    def test_runs_below_one_another(self) -> None:
        """Each begins with a carry of its own; a chunk of padding is never learned from."""
        data = rollout(8, 1, [0])
        data.valid[[3, 6, 7]] = False
        data.runs = Runs(np.array([0, 4]), np.zeros(2, int), np.array([3, 2]), count(1, 4))
        data.truncated[[2, 5]] = True
        for last, age in ((2, 4), (5, 6)):
            data.add_final(last, np.array([0]), np.zeros(1, np.int64), count(age))
        algorithm = counter(horizon=8, minibatch_size=8, epochs=1)
        prepared = algorithm._prepare(data)
        close(prepared["weight"], [[1, 1], [1, 0], [1, 1], [0, 0]])
        close(prepared["is_first"][:3], [[0, 0], [0, 1], [0, 0]])
        close(prepared["carry/c"].flatten()[:3], [1, 3, 4])
        target = np.asarray(prepared["target"]).flatten()
        close(target[[0, 1, 2, 4, 5]], [1 + 5 * H[k] for k in (3, 4, 5, 6, 7)])
        seen: list[Any] = []
        algorithm.step = lambda batch, lr, index: seen.append(index.tolist())
        algorithm.record = lambda step, metrics: None
        algorithm.update(data)
        assert [sorted(chunks) for chunks in seen] == [[0, 1, 2]]

    @pytest.mark.parametrize("memory", ["lstm", "gru", "transformer"])
    @pytest.mark.parametrize("next_step", [False, True], ids=["same_step", "next_step"])
    def test_learning_begins_where_acting_was(self, memory: str, next_step: bool) -> None:
        """Acting steps in NumPy, learning unrolls in torch; to the first step, the ratio is 1."""
        factory = partial(Identity, length=5, truncates=True)
        # Gymnasium's own vector resets in the next step, which makes rows that are not transitions.
        env: Any = gym.vector.SyncVectorEnv([factory] * 3) if next_step else factory
        rig = Rig(
            "recurrent_ppo", env, num_envs=3, horizon=16, chunk=4, minibatch_size=48, epochs=1,
            hidden=(16,), memory=memory, memory_size=16, normalize_obs=True, lr=0.01,
        )  # fmt: skip
        for _ in range(3):
            metrics = rig.learn(1)
            assert metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)
            assert metrics["train/clip_fraction"] == 0.0


class TestLoss:
    # Two chunks of two steps. In the second an episode begins, and its first row is none.
    # So k = 3, 4 and 1; policies pi(0) = s(tanh k).
    NAN = math.nan
    BATCH: dict[str, Any] = {  # noqa: RUF012
        "obs": [[0, 0], [0, 0]],
        "is_first": [[0.0, 0.0], [0.0, 1.0]],
        "carry/c": [[[2.0]], [[6.0]]],
        "carry/h": [[[math.tanh(2)]], [[math.tanh(6)]]],
        "action": [[0, 1], [0, 0]],
        "log_prob": [[math.log(0.5), math.log(0.5)], [NAN, math.log(0.9)]],
        "value": [[9.0, 9.0], [NAN, 9.0]],
        "advantage": [[2.0, -1.0], [NAN, 3.0]],
        "target": [[9.0, 10.0], [NAN, 7.0]],
        "weight": [[1.0, 1.0], [0.0, 1.0]],
        "policy_weight": [[1.0, 1.0], [1.0, 1.0]],
        "clip": 0.2,
        "entropy_coef": 0.1,
    }

    def test_by_hand(self) -> None:
        batch = {k: torch.tensor(v) for k, v in self.BATCH.items()}
        loss, metrics = counter()._loss(batch)
        p = {k: 1 / (1 + math.exp(-H[k])) for k in (1, 3, 4)}
        ratios = [p[3] / 0.5, (1 - p[4]) / 0.5, p[1] / 0.9]  # 1.46, 0.54, 0.76
        assert ratios[0] > 1.2 and ratios[1] < 0.8 and ratios[2] < 0.8
        policy = -(1.2 * 2 + 0.8 * -1 + ratios[2] * 3) / 3  # the first two are clipped
        assert metrics["policy_loss"].item() == pytest.approx(policy, abs=1e-5)
        errors = [10 * H[3] - 9, 10 * H[4] - 10, 10 * H[1] - 7]
        value = 0.5 * sum(e**2 for e in errors) / 3
        assert metrics["value_loss"].item() == pytest.approx(value, abs=1e-5)
        entropy = -sum(q * math.log(q) for k in p for q in (p[k], 1 - p[k])) / 3
        assert metrics["entropy"].item() == pytest.approx(entropy, abs=1e-5)
        assert metrics["clip_fraction"].item() == pytest.approx(1.0)
        assert loss.item() == pytest.approx(policy + value - 0.1 * entropy, abs=1e-4)

    def test_an_invalid_row_moves_nothing(self) -> None:
        algorithm, gradients = counter(normalize_advantage=True), []
        columns = ("log_prob", "value", "advantage", "target")
        for wild in (1.0, -50.0):
            batch = {k: torch.tensor(v) for k, v in self.BATCH.items()}
            for name in columns:
                batch[name][1, 0] = wild
            loss, _ = algorithm._loss(batch)
            gradients.append(torch.autograd.grad(loss, list(algorithm.net.head.parameters())))
        assert any(g.any() for g in gradients[0])
        for one, two in zip(*gradients, strict=True):
            assert torch.equal(one, two)


class TestUpdate:
    def test_minibatches_are_whole_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Any] = []
        call = Step.__call__

        def spy(self: Step, data: Any, lr: float, index: Any = None) -> Any:
            seen.append((index.tolist(), {k: v.shape for k, v in data.items()}, lr))
            return call(self, data, lr, index)

        monkeypatch.setattr(Step, "__call__", spy)
        algorithm = counter(num_envs=3, horizon=4, minibatch_size=4, epochs=2, lr="linear:1:0")
        algorithm.clock.env_steps = 250  # of 1000
        algorithm.update(rollout(4, 3, [0, 1, 2]))
        assert [len(index) for index, _, _ in seen] == [2, 2, 2] * 2  # of 2 x 3 chunks
        rows = [row for index, _, _ in seen for row in index]
        assert sorted(rows[:6]) == sorted(rows[6:]) == list(range(6))
        shapes = seen[0][1]
        assert shapes["obs"] == shapes["is_first"] == (6, 2) and shapes["carry/c"] == (6, 1, 1)
        assert {lr for *_, lr in seen} == {0.75}

    def test_a_large_step_ends_the_epochs(self) -> None:
        for target_kl, updates in ((None, 20), (1e-4, 2)):
            algorithm = counter(epochs=10, minibatch_size=2, target_kl=target_kl, lr=0.1)
            data = rollout(4, 1, [0])
            algorithm.update(data)
            assert algorithm.updates == updates

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"horizon": 8, "chunk": 3}, "chunk=3 does not divide horizon=8"),
            ({"horizon": 8, "minibatch_size": 6}, "minibatch_size=6 .* 8 = horizon 8"),
            ({"horizon": 6, "minibatch_size": 3}, "whole chunks of 2"),
            ({"context": 8}, "context=8 has no effect with memory=lstm"),
            ({"heads": 2, "memory": "gru"}, "heads=2 has no effect with memory=gru"),
            ({"log_std_init": 1.0}, "log_std_init"),
            ({"cnn": "impala"}, "cnn=impala"),
        ],
    )
    def test_refuses(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            counter(**settings)


class TestNetwork:
    def test_optimizer_and_initialisation(self) -> None:
        algorithm = make_algorithm("recurrent_ppo", STATES, ACTIONS)
        [objective] = algorithm.step.objectives
        assert objective.rule == Adam(eps=1e-5, max_grad_norm=0.5)
        net = algorithm.net
        layers = [(net.encoder.trunk[0], math.sqrt(2)), (net.head[0][0], math.sqrt(2)),
                  (net.head[1], 0.01), (net.value_head[1][0], 1.0)]  # fmt: skip
        for layer, gain in layers:
            scales = torch.linalg.svdvals(layer.weight)
            torch.testing.assert_close(scales, torch.full_like(scales, gain))

    def test_acting_remembers(self) -> None:
        algorithm = counter()
        carry = algorithm.initial_carry(2)
        for k in (1, 2, 3):
            choice = algorithm.act(np.zeros(2, np.int64), carry, True)
            carry = choice.carry
            p = 1 / (1 + math.exp(-H[k]))
            expected = np.log(np.where(choice.action == 0, p, 1 - p))
            np.testing.assert_allclose(choice.extras["log_prob"], expected, rtol=1e-5)
            close(carry["c"].flatten(), [k, k])


QUICK = {
    "num_envs": 16, "horizon": 24, "chunk": 24, "minibatch_size": 96, "epochs": 4, "gamma": 0.9,
    "lr": 0.003, "entropy_coef": 0.01, "memory_size": 32, "hidden": (32,), "head_hidden": (),
}  # fmt: skip


class TestLearns:
    @pytest.mark.parametrize("memory", ["lstm", "gru", "transformer"])
    def test_to_remember(self, memory: str) -> None:
        from assay.envs.make import make_env

        task = partial(make_env, "assay/Recall-v0", env_kwargs={"delay": 3, "cues": 2})
        rig = Rig("recurrent_ppo", task, env_steps=7_000, memory=memory, **QUICK)
        assert rig.train().score(40) > 0.9  # without memory: 0.5

    @pytest.mark.parametrize(
        "space",
        [spaces.MultiDiscrete([3, 2]), spaces.Box(-1.0, 1.0, (2,), np.float32)],
        ids=["discrete", "box"],
    )
    def test_the_right_answer(self, space: Any) -> None:
        settings = QUICK | {"gamma": 0.0, "entropy_coef": 0.0}
        if isinstance(space, spaces.Box):
            settings["log_std_init"] = -1.0
        rig = Rig("recurrent_ppo", partial(Identity, space), env_steps=4000, **settings)
        assert rig.train().score() > 8 * 0.85


def test_an_agent_that_remembers_says_when_reset_is_missing() -> None:
    observation = spaces.Box(-1.0, 1.0, (3,), np.float32)
    algorithm = make_algorithm("recurrent_ppo", observation, spaces.Discrete(2), memory_size=4)
    agent = Agent(algorithm, ObservationMap(observation), ActionMap(spaces.Discrete(2)))
    agent.act(np.zeros(3, np.float32))
    with pytest.raises(AssayError, match="remembers 1 episode, and was given 3 observations"):
        agent.act(np.zeros((3, 3), np.float32))
    agent.reset()
    assert agent.act(np.zeros((3, 3), np.float32)).shape == (3,)
