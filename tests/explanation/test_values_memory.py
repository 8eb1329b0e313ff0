"""Values against returns, and memories that are used or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from assay.envs.make import make_vector
from assay.explanation.functions import policy_function
from assay.explanation.memory import MemoryReport, judge_memory
from assay.explanation.states import Episode, States, Visited, visit
from assay.explanation.telling import choose, decisions
from assay.explanation.values import judge_values, value_function, values_of
from assay.functional.rescaling import unrescale
from assay.testing.algorithms import make_algorithm

SEEN = Box(-np.inf, np.inf, (3,))
CHOICE, NUMBERS = Discrete(3), Box(-2, 2, (2,))


def some(algorithm: Any, count: int = 5) -> States:
    obs = np.random.default_rng(0).standard_normal((count, 3)).astype(np.float32)
    carry = algorithm.initial_carry(count)
    return States(obs, carry, algorithm.act(obs, carry, False).action)


def values(algorithm: Any, states: States) -> np.ndarray:
    function = value_function(algorithm)
    assert not isinstance(function, str)
    return values_of(function, states, 1.0)


@torch.no_grad()
def test_values_are_those_that_the_algorithm_learns() -> None:
    dqn = make_algorithm("dqn", SEEN, CHOICE)
    states = some(dqn)
    obs = torch.from_numpy(states.obs)
    np.testing.assert_allclose(values(dqn, states), dqn.q(obs).amax(1), rtol=1e-5)
    ppo = make_algorithm("ppo", SEEN, NUMBERS)
    np.testing.assert_allclose(values(ppo, states), ppo.net.value(obs), rtol=1e-5)
    sac = make_algorithm("sac", SEEN, NUMBERS)
    states = some(sac)
    unit = torch.from_numpy(states.action / 2)  # of actions between -2 and 2
    np.testing.assert_allclose(values(sac, states), sac.critic(obs, unit).mean(0), rtol=1e-5)
    tqc = make_algorithm("tqc", SEEN, NUMBERS)
    np.testing.assert_allclose(values(tqc, states), tqc.critic(obs, unit).mean((0, 2)), rtol=1e-5)
    soft = make_algorithm("sac", SEEN, CHOICE)
    states = some(soft)
    chosen = soft.critic(obs).mean(0)[np.arange(5), states.action]
    np.testing.assert_allclose(values(soft, states), chosen, rtol=1e-5)
    r2d2 = make_algorithm("r2d2", SEEN, CHOICE, memory_size=8)
    states = some(r2d2)
    states.carry["h"] += 0.3  # what it remembers counts
    found, _ = r2d2.q.step(obs, {k: torch.from_numpy(x) for k, x in states.carry.items()})
    expected = unrescale(found.amax(1), r2d2.hp.rescale_eps)
    np.testing.assert_allclose(values(r2d2, states), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "action", "reason"),
    [
        ("bc", CHOICE, "no values"),
        ("dt", CHOICE, "no values"),
        ("gail", CHOICE, "expert"),
        ("dagger", NUMBERS, "expert"),
    ],
)
def test_who_has_no_values_is_said(name: str, action: Any, reason: str) -> None:
    found = value_function(make_algorithm(name, SEEN, action))
    assert isinstance(found, str) and reason in found


def test_values_against_returns_by_hand() -> None:
    def episode(obs: list[float], reward: list[float], terminated: bool, last: float) -> Episode:
        rows = np.array(obs, np.float32)[:, None]
        end = States(np.array([[last]], np.float32), None, np.zeros(1, np.int64))
        states = States(rows, None, np.zeros(len(obs), np.int64))
        return Episode(states, np.array(reward), terminated, end)

    class Same(nn.Module):
        def value(self, obs: torch.Tensor) -> torch.Tensor:
            return obs[:, 0]

    algorithm = make_algorithm("ppo", Box(-9, 9, (1,)), CHOICE, gamma=0.5)
    found = value_function(algorithm)
    assert not isinstance(found, str)
    visited = Visited([episode([3, 2], [1, 4], True, 99), episode([7], [2], False, 6)])
    # 1 + 0.5 * 4 and 4, which ended; 2 + 0.5 * 6, which was cut where 6 is expected.
    report = judge_values(algorithm, found.with_network(Same()), visited)
    assert report.realised.tolist() == [3.0, 4.0, 5.0]
    assert report.error.tolist() == [0.0, -2.0, 2.0]
    assert report.bias == 0.0 and report.bootstrapped == pytest.approx(0.5 / 3)
    assert report.explained == pytest.approx(1 - (8 / 3) / (2 / 3))
    # Rewards that were divided by 10 to learn: values are a tenth of returns.
    algorithm.reward_scale = SimpleNamespace(moments=SimpleNamespace(scale=10.0))
    assert judge_values(algorithm, found.with_network(Same()), visited).value[0] == 30.0


def test_telling_states_are_apart() -> None:
    algorithm = make_algorithm("dqn", SEEN, CHOICE)
    states = some(algorithm, 12)
    end = states.take(slice(0, 1))
    visited = Visited([Episode(states, np.zeros(12), True, end)])
    reasons = decisions(algorithm.policy, policy_function(algorithm.policy), states)
    with torch.no_grad():
        q = algorithm.q(torch.from_numpy(states.obs)).sort(1).values.numpy()
    np.testing.assert_allclose(reasons["most at stake"], q[:, 2] - q[:, 0], rtol=1e-4)
    np.testing.assert_allclose(reasons["closest call"], q[:, 1] - q[:, 2], rtol=1e-4)
    chosen = choose({"first": np.arange(12.0), "second": np.arange(12.0)}, visited, 2)
    assert chosen == [(11, "first"), (1, "first"), (6, "second")]


# Memories


def recall(kind: str, keeps: bool) -> tuple[Any, Visited, MemoryReport]:
    """Return the report of a policy that answers `assay/Recall-v0` by its memory, or does not."""
    algorithm = make_algorithm(
        "recurrent_ppo", Box(0, 1, (3,)), Discrete(2), num_envs=8, memory=kind, memory_size=8,
        hidden=(), head_hidden=(), seed=3, **({"context": 4} if kind == "transformer" else {}),
    )  # fmt: skip
    with torch.no_grad():
        if kind == "lstm" and keeps:
            _remember_the_cue(algorithm.net)
        elif kind == "lstm":
            algorithm.net.memory.weights[0].zero_()
            algorithm.net.memory.inputs[0].weight.zero_()  # deaf: nothing is written
            algorithm.net.memory.inputs[0].bias.zero_()
    with make_vector("assay/Recall-v0", 8, env_kwargs={"delay": 3, "cues": 2}) as vector:
        play: dict[str, Any] = {"episodes": 16, "seed": 0, "max_steps": 50}
        visited = visit(algorithm, vector, **play)
        without = visit(algorithm, vector, **play, forget=True).returns
    function = policy_function(algorithm.policy)
    return algorithm, visited, judge_memory(algorithm.policy, function, visited, without, 0)


def _remember_the_cue(net: Any) -> None:
    """Set weights by hand: cell 0 holds which cue was shown, and the head reads it."""
    size = net.memory.out_features
    weight, bias = net.memory.inputs[0].weight, net.memory.inputs[0].bias
    for tensor in (weight, bias, net.memory.weights[0], *net.head.parameters()):
        tensor.zero_()
    # Gates: input, forget, output, new. The input gate opens for a cue, the others stay open.
    bias[:size], weight[0, :2] = -20.0, 40.0
    bias[size : 3 * size] = 20.0
    weight[3 * size, 0], weight[3 * size, 1] = 3.0, -3.0
    head = net.head[-1]
    head.weight[0, 0], head.weight[1, 0] = 5.0, -5.0


def test_a_memory_that_counts_earns_its_cost() -> None:
    _, visited, report = recall("lstm", keeps=True)
    assert report.with_memory.tolist() == [1.0] * 16  # five steps: cue, three blanks, question
    assert len(visited.episodes[0].states) == 5
    assert 0 < report.without.mean() < 1
    assert report.verdict == "earns its cost" and report.lost[1] > 0
    # With the last four steps the question comes without its cue; with five nothing is missing.
    assert report.agreement[5] == 1.0 and report.agreement[4] < 1.0 and report.window == 5
    assert report.reach is not None and report.reach >= 3
    assert sum(report.influence) == pytest.approx(1.0)
    early, late = report.norms["c"]
    assert 0 < early < late  # the first carry is empty, and the cue stays


def test_a_memory_that_does_not_count_does_not() -> None:
    _, _, report = recall("lstm", keeps=False)
    assert report.verdict == "does not earn its cost" and report.lost == (0.0, 0.0, 0.0)
    assert report.agreement[1] == 1.0 and report.window == 1
    assert "train without" in " ".join(report.describe())


def test_attention_of_a_transformer() -> None:
    algorithm, visited, report = recall("transformer", keeps=False)
    assert len(report.attention) == 5 and sum(report.attention) == pytest.approx(1.0, abs=1e-5)
    # Scores by position alone: all on the step before.
    block = algorithm.net.memory.blocks[0]
    with torch.no_grad():
        block.query.weight.zero_()
        block.query.bias.zero_()
        block.position_bias.fill_(10.0)
        block.position.zero_()
        block.position[:, algorithm.net.memory.context - 1] = 10.0
    function = policy_function(algorithm.policy)
    again = judge_memory(algorithm.policy, function, visited, report.without, 0)
    share_of_first = (visited.time == 0).mean()  # there is no step before
    assert again.attention[1] == pytest.approx(1 - share_of_first, abs=0.01)


def test_a_decision_transformer_has_attention_and_no_windows() -> None:
    algorithm = make_algorithm("dt", Box(0, 1, (3,)), Discrete(2), width=8, heads=2, context=4)
    with make_vector("assay/Recall-v0", 4, env_kwargs={"delay": 3, "cues": 2}) as vector:
        visited = visit(algorithm, vector, episodes=4, seed=0, max_steps=50)
    function = policy_function(algorithm.policy)
    report = judge_memory(algorithm.policy, function, visited, visited.returns, 0)
    assert len(report.attention) == 4 and sum(report.attention) == pytest.approx(1.0, abs=1e-5)
    assert report.agreement == {} and report.reach is None


@pytest.mark.parametrize(
    ("without", "verdict"),
    [
        ([10.0, 10.0, 10.0, 10.0], "does not earn its cost"),
        ([0.0, 1.0, 0.0, 2.0], "earns its cost"),
        ([10.0, 2.0, 14.0, 5.0], "not shown"),
    ],
)
def test_verdicts(without: list[float], verdict: str) -> None:
    returns = np.full(4, 10.0)
    report = MemoryReport("LSTM", 0.5, {}, {}, (), (), returns, np.array(without))
    assert report.verdict == verdict and verdict.split()[0] in report.describe()[0]
