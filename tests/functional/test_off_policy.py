"""Importance-weighted and doubly robust estimates, by hand and on a process with known values."""

from __future__ import annotations

import numpy as np
import pytest

from assay.functional import off_policy

# Two episodes: ratios (2, 1/2) and (3), rewards (1, 4) and (6), gamma 1/2.
LENGTHS = np.array([2, 1])
LOG_RATIO = np.log([2.0, 0.5, 3.0])
REWARD = np.array([1.0, 4.0, 6.0])
WEIGHTS = off_policy.cumulative_weights(LOG_RATIO, LENGTHS)
ONCE = np.ones((1, 2))


def test_weights_multiply_within_an_episode_only():
    np.testing.assert_allclose(WEIGHTS, [2.0, 1.0, 3.0])
    # w_{-1} = 1, then the weight of the step before.
    before = off_policy.weights_before(WEIGHTS, LENGTHS)
    np.testing.assert_allclose(before, [1.0, 2.0, 1.0, 1.0, 3.0])


def test_an_action_that_the_policy_never_takes_ends_its_episode_alone():
    logs = np.array([0.0, -np.inf, 0.0, 0.0])
    found = off_policy.cumulative_weights(logs, np.array([3, 1]))
    np.testing.assert_array_equal(found, [1.0, 0.0, 0.0, 1.0])


def test_a_weight_stays_finite():
    found = off_policy.cumulative_weights(np.full(50, 100.0), np.array([50]))
    assert np.isfinite(np.square(found)).all()


def test_returns_to_go_by_hand():
    # 1 + 4 / 2, 4; 6
    np.testing.assert_allclose(off_policy.returns_to_go(REWARD, LENGTHS, 0.5), [3.0, 4.0, 6.0])


def test_per_decision_by_hand():
    # 2 * 1 + 1/2 * 1 * 4 = 4; 3 * 6 = 18
    found = off_policy.per_decision(REWARD, WEIGHTS, LENGTHS, 0.5)
    np.testing.assert_allclose(found, [4.0, 18.0])


def test_self_normalised_by_hand():
    # t = 0: (2 * 1 + 3 * 6) / 5 = 4; t = 1: the second episode keeps its weight 3 and gets 0:
    # (1 * 4 + 3 * 0) / 4 = 1; 4 + 1/2 * 1
    found = off_policy.normalised_sums(REWARD, WEIGHTS, LENGTHS, 0.5, ONCE)
    np.testing.assert_allclose(found, [4.5])
    # A replicate that holds the first episode twice: (1) + 1/2 * (4).
    twice = off_policy.normalised_sums(REWARD, WEIGHTS, LENGTHS, 0.5, np.array([[2.0, 0.0]]))
    np.testing.assert_allclose(twice, [3.0])


def test_self_normalised_is_the_same_in_narrow_tables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(off_policy, "_AT_ONCE", 1)
    found = off_policy.normalised_sums(REWARD, WEIGHTS, LENGTHS, 0.5, ONCE)
    np.testing.assert_allclose(found, [4.5])


def test_doubly_robust_by_hand():
    q = np.array([2.0, 3.0, 5.0])
    v = np.array([2.0, 4.0, 7.0, 5.0, 0.0])  # the first episode was truncated at a value of 7
    # First: 1 * 2 + 2 (1 - 2) + 1/2 (2 * 4 + 1 (4 - 3)) + 1/4 * 1 * 7 = 6.25
    # Second: 1 * 5 + 3 (6 - 5) = 8
    found = off_policy.doubly_robust(REWARD, WEIGHTS, q, v, LENGTHS, 0.5)
    np.testing.assert_allclose(found, [6.25, 8.0])


def test_without_values_doubly_robust_is_per_decision():
    found = off_policy.doubly_robust(REWARD, WEIGHTS, np.zeros(3), np.zeros(5), LENGTHS, 0.5)
    np.testing.assert_allclose(found, off_policy.per_decision(REWARD, WEIGHTS, LENGTHS, 0.5))


def test_effective_sample_size_by_hand():
    assert off_policy.effective_sample_size(np.array([1.0, 3.0])) == pytest.approx(16 / 10)
    assert off_policy.effective_sample_size(np.zeros(3)) == 0.0


# A process of three states (the third is the end) whose values are solved for.

GAMMA = 0.9
MOVES = np.array(  # P(s'|s, a)
    [
        [[0.1, 0.6, 0.3], [0.5, 0.1, 0.4]],
        [[0.3, 0.2, 0.5], [0.1, 0.4, 0.5]],
        [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]],
    ]
)
GAINS = np.array([[1.0, -2.0], [3.0, 0.5], [0.0, 0.0]])
PI = np.array([[0.8, 0.2], [0.7, 0.3], [0.5, 0.5]])
MU = np.array([[0.4, 0.6], [0.5, 0.5], [0.5, 0.5]])


def solved(policy: np.ndarray) -> np.ndarray:
    """Return V = (I - gamma P_pi)^-1 r_pi."""
    moves = np.einsum("sa,sat->st", policy, MOVES)
    moves[2] = 0.0
    return np.linalg.solve(np.eye(3) - GAMMA * moves, (policy * GAINS).sum(1))


def played(episodes: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return states [N + E], actions, rewards [N] and lengths of episodes of MU from state 0."""
    states, actions, rewards, lengths = [], [], [], []
    for _ in range(episodes):
        state, count = 0, 0
        while state != 2:
            action = int(rng.random() < MU[state, 1])
            states.append(state)
            actions.append(action)
            rewards.append(GAINS[state, action])
            state = int(np.searchsorted(np.cumsum(MOVES[state, action]), rng.random()))
            count += 1
        states.append(state)
        lengths.append(count)
    return tuple(np.array(column) for column in (states, actions, rewards, lengths))


def test_estimates_are_unbiased_over_many_resamples():
    rng = np.random.default_rng(0)
    truth = solved(PI)[0]
    wrong_q = np.array([[4.0, 1.0], [-1.0, 2.0], [0.0, 0.0]])  # far from the truth
    wrong_v = (PI * wrong_q).sum(1)
    found: dict[str, list[float]] = {
        "plain": [],
        "per_decision": [],
        "doubly_robust": [],
        "self": [],
    }
    for _ in range(200):
        states, actions, reward, lengths = played(60, rng)
        acted = np.delete(states, np.cumsum(lengths + 1) - 1)
        logs = np.log(PI[acted, actions] / MU[acted, actions])
        weights = off_policy.cumulative_weights(logs, lengths)
        estimates = {
            "plain": off_policy.discounted_sums(reward, lengths, GAMMA),
            "per_decision": off_policy.per_decision(reward, weights, lengths, GAMMA),
            "doubly_robust": off_policy.doubly_robust(
                reward, weights, wrong_q[acted, actions], wrong_v[states], lengths, GAMMA
            ),
            "self": off_policy.normalised_sums(reward, weights, lengths, GAMMA, np.ones((1, 60))),
        }
        for name, values in estimates.items():
            found[name].append(float(values.mean()))
    error = {n: np.std(v, ddof=1) / np.sqrt(len(v)) for n, v in found.items()}
    assert abs(np.mean(found["per_decision"]) - truth) < 4 * error["per_decision"]
    assert abs(np.mean(found["doubly_robust"]) - truth) < 4 * error["doubly_robust"]
    assert error["per_decision"] < 0.1  # so that the checks above can fail
    # What was played is worth something else, and the bias of self-normalising is small.
    assert abs(np.mean(found["plain"]) - truth) > 10 * error["plain"]
    assert abs(np.mean(found["self"]) - truth) < 0.25
    assert np.std(found["self"]) < np.std(found["per_decision"])


def test_right_values_take_off_the_variance():
    states, actions, reward, lengths = played(500, np.random.default_rng(1))
    acted = np.delete(states, np.cumsum(lengths + 1) - 1)
    v = solved(PI)
    q = GAINS + GAMMA * MOVES @ v
    logs = np.log(PI[acted, actions] / MU[acted, actions])
    weights = off_policy.cumulative_weights(logs, lengths)
    robust = off_policy.doubly_robust(reward, weights, q[acted, actions], v[states], lengths, GAMMA)
    plain = off_policy.per_decision(reward, weights, lengths, GAMMA)
    assert np.std(robust) < 0.7 * np.std(plain)
    assert robust.mean() == pytest.approx(v[0], abs=4 * np.std(robust) / np.sqrt(500))
