"""What policies are worth from recorded data, against values that are solved for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import tabular
import torch
from scipy.stats import spearmanr

import assay
from assay.core.errors import AssayError, ConfigError, DataError
from assay.core.types import Spaces
from assay.data.collect import from_episodes
from assay.data.dataset import Dataset, Episode
from assay.data.files import save
from assay.envs.spaces import ActionMap, ObservationMap
from assay.evaluation.fitted_q import FitSettings
from assay.evaluation.offline import FQE, OfflineEvaluator, PolicyValue
from assay.evaluation.on_data import ClonedBehaviour, OnData, Recorded
from assay.networks.encoders import make_encoder
from assay.policies.heads import DeterministicHead, SquashedHead, StochasticHead
from assay.policies.policy import Policy
from assay.testing.envs import Reach
from assay.testing.offline import record

UNIFORM = np.full((tabular.STATES, tabular.ACTIONS), 0.5)
SMALL = FitSettings(updates=800, members=2, hidden=(32,), tau=0.05)


def recorded(dataset: Dataset, spaces: Spaces = tabular.SPACES) -> Recorded:
    return Recorded(dataset, ObservationMap(spaces.observation), ActionMap(spaces.action))


def evaluator(dataset: Dataset, **options: Any) -> OfflineEvaluator:
    fast = {"settings": SMALL, "cloning_updates": 200}
    options = {"gamma": tabular.GAMMA, "sampled": True, **fast} | options
    return OfflineEvaluator(recorded(dataset), **options)


# ---------------------------------------------------------------------- known values


@pytest.fixture(scope="module")
def estimates() -> list[tuple[float, PolicyValue]]:
    """Return true values and estimates of three policies, from episodes of a uniform one."""
    judge = evaluator(tabular.played(UNIFORM, 1_000, seed=1, log_prob=True))
    rng = np.random.default_rng(0)
    found = []
    for _ in range(3):
        logits = rng.normal(0, 1.5, (tabular.STATES, tabular.ACTIONS))
        truth = tabular.solved(tabular.softmax(logits))[0]
        found.append((truth, judge.evaluate(tabular.policy_of(logits), "one")))
    assert judge.behaviour == "recorded"
    return found


def test_all_estimates_find_the_solved_values(estimates: list[tuple[float, PolicyValue]]) -> None:
    truths = [truth for truth, _ in estimates]
    assert np.ptp(truths) > 0.5  # one answer for all would not do
    for truth, found in estimates:
        assert found.value == pytest.approx(truth, abs=0.15)
        for name in ("doubly_robust", "weighted_doubly_robust"):
            assert found.estimates[name].point == pytest.approx(truth, abs=0.2)
        for name in ("per_decision", "self_normalised", "clipped"):
            assert found.estimates[name].point == pytest.approx(truth, abs=0.5)
        assert not found.notes


def test_intervals_hold_the_solved_values(estimates: list[tuple[float, PolicyValue]]) -> None:
    for truth, found in estimates:
        for name, one in found.estimates.items():
            width = one.high - one.low
            assert 0 < width < 2.0, name
            # Intervals of 95 % miss now and then: by no more than half of their width here.
            assert one.low - width / 2 < truth < one.high + width / 2, name


def test_a_truncated_episode_goes_on_where_it_was_cut() -> None:
    logits = np.array([[1.0, -1.0], [-1.0, 1.0], [0.5, 0.0], [0.0, 0.0]])
    truth = tabular.solved(tabular.softmax(logits))[0]
    found = evaluator(tabular.played(UNIFORM, 1_500, seed=2, limit=3, log_prob=True)).evaluate(
        tabular.policy_of(logits), "cut"
    )
    assert found.value == pytest.approx(truth, abs=0.25)
    assert found.estimates["doubly_robust"].point == pytest.approx(truth, abs=0.3)
    # Importance sampling knows only the three steps that were recorded.
    assert abs(found.estimates["per_decision"].point - truth) > 0.3


def test_by_default_the_deterministic_policy_is_evaluated() -> None:
    logits = np.array([[0.2, 0.0], [0.0, 0.2], [0.2, 0.0], [0.0, 0.0]])  # samples almost uniformly
    best = np.eye(2)[logits.argmax(1)]
    truth = tabular.solved(best)[0]
    assert abs(truth - tabular.solved(tabular.softmax(logits))[0]) > 0.3
    judge = evaluator(tabular.played(UNIFORM, 1_000, seed=3, log_prob=True), sampled=False)
    found = judge.evaluate(tabular.policy_of(logits), "best")
    assert found.value == pytest.approx(truth, abs=0.2)
    robust = found.estimates["doubly_robust"]
    assert robust.low < truth < robust.high and robust.high - robust.low < 3.0


def test_estimated_probabilities_are_near_the_true_ones() -> None:
    behaviour = tabular.softmax(np.array([[1.0, 0.0], [-1.0, 0.5], [0.0, 0.0], [0.0, 0.0]]))
    data = recorded(tabular.played(behaviour, 1_000, seed=4, log_prob=True))
    assert data.log_prob is not None
    cloned = ClonedBehaviour(data, updates=800, seed=0).log_prob()
    np.testing.assert_allclose(np.exp(cloned), np.exp(data.log_prob), atol=0.06)


def test_collapsed_weights_are_said() -> None:
    # Episodes of 50 steps, of which a policy that always takes action 0 agrees with half.
    space = gym.spaces.Discrete(tabular.STATES)
    rng = np.random.default_rng(0)
    flags = np.zeros(50, bool)
    cut = flags.copy()
    cut[-1] = True
    episodes = [
        Episode(rng.integers(4, size=51), rng.integers(2, size=50), np.ones(50), flags, cut)
        for _ in range(40)
    ]
    data = from_episodes(episodes, space, tabular.SPACES.action)
    judge = evaluator(data, sampled=False, settings=FitSettings(updates=5, members=1))
    found = judge.evaluate(tabular.policy_of(np.tile([1.0, 0.0], (4, 1))), "far")
    assert found.effective_episodes == 0.0
    [note] = found.notes
    assert "collapsed" in note and "40 episodes are worth 0.0" in note
    assert judge.behaviour == "estimated"
    # Who acts as the data did has all of its episodes.
    near = evaluator(data, sampled=True, settings=FitSettings(updates=5, members=1))
    same = near.evaluate(tabular.policy_of(np.zeros((4, 2))), "near")
    assert same.effective_episodes is not None and same.effective_episodes > 10
    assert not same.notes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (np.exp, r"Step 0 of episode 0 of .* has the value 0.5 in 'extra/log_prob'; expected at m"),
        (lambda known: np.stack([known, known], 1), r"has 2 numbers for each step; expected one"),
    ],
)
def test_recorded_numbers_that_are_no_log_probabilities(change: Any, message: str) -> None:
    played = tabular.played(UNIFORM, 5, seed=6, log_prob=True)
    episodes = [
        replace(one, extras={"log_prob": change(one.extras["log_prob"])})
        for one in played.episodes()
    ]
    with pytest.raises(DataError, match=message):
        recorded(from_episodes(episodes, played.schema.observation, played.schema.action))


# ---------------------------------------------------------------------- Box actions

BOX = Spaces(
    gym.spaces.Box(-1.0, 1.0, (1,), np.float32), gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
)


def bandit(episodes: int) -> Dataset:
    """Return episodes of one step with the reward -(a - s)^2, a uniform."""
    rng = np.random.default_rng(0)

    def one() -> Episode:
        obs = rng.uniform(-1, 1, (2, 1)).astype(np.float32)
        action = rng.uniform(-2, 2, (1, 1)).astype(np.float32)
        yes, no = np.ones(1, bool), np.zeros(1, bool)
        reward = -((action[0] - obs[0]) ** 2).astype(np.float64)
        uniform = {"log_prob": np.full(1, -np.log(4.0))}
        return Episode(obs, action, reward, yes, no, uniform)

    return from_episodes((one() for _ in range(episodes)), BOX.observation, BOX.action)


def box_policy(head: Any, weights: list[list[float]], biases: list[float]) -> Policy:
    encoder = make_encoder(BOX.observation, hidden=(), init="torch")
    layer = torch.nn.Linear(1, len(biases))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weights))
        layer.bias.copy_(torch.tensor(biases))
    network = torch.nn.Sequential(encoder, layer)
    return Policy(BOX, network, head, device=torch.device("cpu"), rng=np.random.default_rng(0))


def test_a_deterministic_box_policy_has_fitted_q_alone_and_says_why() -> None:
    judge = OfflineEvaluator(recorded(bandit(1_500), BOX), gamma=0.9, settings=SMALL)
    head = DeterministicHead(BOX.action, lambda: 0.0)
    found = judge.evaluate(box_policy(head, [[0.5]], [0.25]), "shift")  # a = s + 0.5
    assert set(found.estimates) == {FQE}
    assert found.value == pytest.approx(-0.25, abs=0.1)
    [note] = found.notes
    assert "no density" in note and "--sampled" in note
    assert judge.behaviour == "not needed" and found.effective_episodes is None


def test_a_gaussian_box_policy_that_samples_has_all_estimates() -> None:
    judge = OfflineEvaluator(recorded(bandit(1_500), BOX), gamma=0.9, settings=SMALL, sampled=True)
    # mean s, std 0.5: V = -0.25
    policy = box_policy(StochasticHead(BOX.action), [[1.0], [0.0]], [0.0, np.log(0.5)])
    found = judge.evaluate(policy, "gaussian")
    for name, one in found.estimates.items():
        assert one.point == pytest.approx(-0.25, abs=0.1), name


def test_the_density_of_a_squashed_policy_is_in_the_units_of_the_environment() -> None:
    policy = box_policy(SquashedHead(BOX.action), [[0.0], [0.0]], [0.3, -0.5])
    data = recorded(bandit(200), BOX)
    acts = OnData(policy, data, sampled=True)
    grid = np.linspace(-1.9999, 1.9999, 8_001, dtype=np.float32)[:, None]
    density = np.exp(acts.log_prob(np.zeros(len(grid), np.int64), grid))
    assert np.trapezoid(density, grid[:, 0]) == pytest.approx(1.0, abs=0.01)


def test_a_cloned_density_is_in_the_units_of_the_environment() -> None:
    rng = np.random.default_rng(1)
    yes, no = np.ones(1, bool), np.zeros(1, bool)
    episodes = [
        Episode(
            np.zeros((2, 1), np.float32),
            rng.normal(0.5, 0.2, (1, 1)).astype(np.float32),
            np.zeros(1),
            yes,
            no,
        )
        for _ in range(1_000)
    ]
    data = recorded(from_episodes(episodes, BOX.observation, BOX.action), BOX)
    logs = ClonedBehaviour(data, updates=400, seed=0).log_prob()
    z = (data.action[:, 0] - 0.5) / 0.2
    expected = -0.5 * z**2 - np.log(0.2) - 0.5 * np.log(2 * np.pi)
    assert np.abs(logs - expected).mean() < 0.15


# ---------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with data of `Reach` and runs of two algorithms that learned from it."""
    place = tmp_path_factory.mktemp("offline")
    gym.register("offline-evaluation/Reach-v0", entry_point=Reach)
    try:
        save(record(Reach, episodes=20), place / "reach.npz")
        for name in ("bc", "td3_bc", "iql"):
            assay.train(
                name, "offline-evaluation/Reach-v0", root=place, name=name, updates=20,
                data=str(place / "reach.npz"), hidden=(8,), batch_size=16, eval_every=0,
            )  # fmt: skip
    finally:
        del gym.registry["offline-evaluation/Reach-v0"]
    return place


def test_runs_are_ranked_without_their_environment(trained: Path) -> None:
    assert "offline-evaluation/Reach-v0" not in gym.registry
    runs = [trained / name for name in ("bc", "td3_bc", "iql")]
    found = assay.evaluate_offline(runs, trained / "reach.npz", updates=30)
    assert [one.rank for one in found.policies] == [1, 2, 3]
    values = [one.value for one in found.policies]
    assert values == sorted(values, reverse=True)
    assert {one.name for one in found.policies} == {str(run) for run in runs}
    assert found.behaviour == "not needed" and found.episodes == 20
    again = assay.evaluate_offline(runs, trained / "reach.npz", updates=30)
    assert again.to_json() == found.to_json()


@pytest.mark.usefixtures("quick_cloning")
def test_only_who_samples_has_importance_weights(trained: Path) -> None:
    runs = [trained / "td3_bc", trained / "iql"]
    found = assay.evaluate_offline(runs, trained / "reach.npz", updates=30, sampled=True)
    by_name = {Path(one.name).name: one for one in found.policies}
    assert set(by_name["td3_bc"].estimates) == {FQE}
    assert "no density" in by_name["td3_bc"].notes[0]
    assert "sampled" not in by_name["td3_bc"].notes[0]  # it was asked for
    assert len(by_name["iql"].estimates) == 6
    assert found.behaviour == "estimated"


def test_mistakes_are_named(trained: Path) -> None:
    one, data = trained / "bc", trained / "reach.npz"
    with pytest.raises(ConfigError, match=r"gamma=1: expected at least 0 and below 1"):
        assay.evaluate_offline(one, data, gamma=1.0)
    with pytest.raises(ConfigError, match="updates=0"):
        assay.evaluate_offline(one, data, updates=0)
    with pytest.raises(ConfigError, match="No runs"):
        assay.evaluate_offline([], data)
    foreign = save(tabular.played(UNIFORM, 3, seed=0), trained / "foreign.npz")
    with pytest.raises(DataError, match=r"foreign\.npz"):
        assay.evaluate_offline(one, foreign)


def test_a_policy_with_a_memory_is_refused(tmp_path: Path) -> None:
    data = save(record("CartPole-v1", episodes=3), tmp_path / "cart.npz")
    run = assay.train(
        "recurrent_ppo", "CartPole-v1", root=tmp_path, env_steps=64, num_envs=2, horizon=32,
        eval_every=0, preset=False,
    )  # fmt: skip
    with pytest.raises(AssayError, match="has a memory"):
        assay.evaluate_offline(run, data, updates=5)


# ---------------------------------------------------------------------- a real task


def leaning(gain: np.ndarray) -> Policy:
    """Return a policy for CartPole that pushes by the sign of gain * observation."""
    spaces = Spaces(gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2))
    encoder = make_encoder(spaces.observation, hidden=(), init="torch")
    layer = torch.nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.stack([-gain, gain])))
    network = torch.nn.Sequential(encoder, layer)
    head = StochasticHead(spaces.action)
    return Policy(spaces, network, head, device=torch.device("cpu"), rng=np.random.default_rng(0))


@pytest.mark.slow
def test_fitted_q_ranks_policies_of_cartpole() -> None:
    # From one that falls as fast as it can, over a uniform one, to one that balances.
    policies = [leaning(np.array([0, 0, k, k / 2], np.float32)) for k in (-3, -1, 0, 1, 2, 8)]

    def behave(obs: Any, rng: np.random.Generator) -> Any:
        # All of them, each for an observation at random.
        chosen = np.stack([policy.act(obs, explore=True).action for policy in policies])
        return chosen[rng.integers(len(chosen), size=len(obs)), np.arange(len(obs))]

    data = record("CartPole-v1", episodes=200, seed=1, behaviour=behave)
    judge = OfflineEvaluator(
        recorded(data, Spaces(data.schema.observation, data.schema.action)),
        gamma=0.97,
        sampled=True,
        settings=FitSettings(updates=400, members=1, hidden=(64, 64), tau=0.1),
    )
    truth, estimate = [], []
    for policy in policies:
        played = assay.evaluate(policy, "CartPole-v1", episodes=30, seed=3, explore=True)
        truth.append(float(np.mean((1 - 0.97**played.lengths) / 0.03)))
        estimate.append(judge.fitted_q(policy).point)
    assert spearmanr(truth, estimate).statistic >= 0.8, (truth, estimate)
    assert np.abs(np.subtract(truth, estimate)).mean() < 4.0, (truth, estimate)
