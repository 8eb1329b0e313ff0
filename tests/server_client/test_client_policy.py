"""Acting on one row: choices, their probabilities, masks, memory and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.policies import description as arch
from assay.policies import layers, value_layers
from assay.policies.distributions import policy_distribution
from assay.policies.model_file import make_snapshot, read_snapshot
from assay.server.client import policy as module
from assay.server.client.policy import Policy, PolicyError, choose

GOLDEN = Path(__file__).resolve().parents[2] / "clients" / "golden"


def identity(head: arch.Head, n: int, **tensors: np.ndarray) -> Policy:
    """Return a policy whose head reads the observation itself."""
    architecture = arch.Architecture(
        version=1,
        epoch=0,
        algorithm="test",
        observation={},
        action={},
        inputs=(arch.Entry(key=None, width=n),),
        layers=(layers.Dense(weight="w", bias="b"),),
        head=head,
    )
    arrays = {"w": np.eye(n, dtype=np.float32), "b": np.zeros(n, np.float32)}
    return Policy(make_snapshot(architecture, arrays | tensors))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60),
    st.floats(0, 1, exclude_max=True),
    st.randoms(),
)
def test_lists_and_arrays_choose_alike_and_as_the_distribution_says(values, u, random):
    logits = np.array(values, np.float32)
    allowed = [random.random() < 0.6 for _ in values]
    index, log_prob = choose(logits, allowed, u)
    assert allowed[index] or not any(allowed)
    mask = np.array([allowed])
    expected = policy_distribution(spaces.Discrete(len(values))).log_prob(
        logits[None].astype(np.float64), np.array([index]), mask
    )[0]
    assert log_prob == pytest.approx(expected, abs=1e-6)
    flags = allowed if any(allowed) else None
    other, other_log_prob = module._choose_array(logits, flags, u)
    p = np.exp(np.where(mask[0] if any(allowed) else True, logits, -np.inf).astype(np.float64))
    ends = np.cumsum(p / p.sum())
    if np.abs(ends - u).min() > 1e-9:  # a draw on the border may fall to either side
        assert index == other
        assert log_prob == pytest.approx(other_log_prob, abs=1e-9)


def test_a_draw_at_the_very_end_takes_the_last_possible_choice():
    logits, allowed = np.zeros(3, np.float32), [True, True, False]
    for choice in (choose(logits, allowed, 1.0 - 2**-53), choose(logits, allowed, 1.0)):
        assert choice == (1, pytest.approx(math.log(0.5)))
    many = np.zeros(40, np.float32)
    assert choose(many, [True] * 39 + [False], 1.0)[0] == 38


def test_sampled_choices_have_their_probabilities():
    policy, rng = identity(arch.Categorical(n=3, start=5), 3), np.random.default_rng(0)
    obs = np.log(np.array([0.1, 0.3, 0.6], np.float32))
    draws = [policy.act(obs, None, rng) for _ in range(6000)]
    share = np.bincount([action - 5 for action, _ in draws], minlength=3) / 6000
    np.testing.assert_allclose(share, [0.1, 0.3, 0.6], atol=0.03)
    for action, log_prob in draws[:20]:
        assert log_prob == pytest.approx(math.log([0.1, 0.3, 0.6][action - 5]), abs=1e-6)
    masked = {policy.act(obs, [1, 1, 0], rng)[0] for _ in range(200)}
    assert masked == {5, 6}


def test_epsilon_greedy_by_hand():
    policy, rng = (
        identity(arch.ActionValues(n=4, start=1, epsilon=0.2), 4),
        np.random.default_rng(0),
    )
    obs = np.array([0.0, 3.0, 2.0, 1.0], np.float32)
    assert policy.act(obs) == (2, 0.0)
    assert policy.act(obs, [1, 0, 1, 1]) == (3, 0.0)
    assert policy.decide(obs, None, [0.5, 0.9]) == (2, pytest.approx(math.log(0.85)))
    assert policy.decide(obs, None, [0.1, 0.99]) == (4, pytest.approx(math.log(0.05)))
    # Exploring may hit the best one as well.
    assert policy.decide(obs, None, [0.1, 0.3]) == (2, pytest.approx(math.log(0.85)))
    assert policy.decide(obs, [1, 0, 0, 1], [0.1, 0.6]) == (4, pytest.approx(math.log(0.9)))
    draws = [policy.act(obs, None, rng)[0] for _ in range(6000)]
    np.testing.assert_allclose(
        np.bincount(draws, minlength=5)[1:] / 6000, [0.05, 0.85, 0.05, 0.05], atol=0.02
    )


def test_a_gaussian_is_clipped_and_its_log_probability_is_of_the_raw_action():
    head = arch.Gaussian(log_std="log_std", low=(-1.0, None), high=(1.0, None))
    policy = identity(head, 2, log_std=np.log(np.array([2.0, 0.5], np.float32)))
    action, log_prob = policy.decide([0.5, 3.0], None, [1.0, -2.0])
    np.testing.assert_allclose(action, [1.0, 2.0])
    np.testing.assert_allclose(policy.raw, [2.5, 2.0], rtol=1e-6)
    # -(1 + 4) / 2 - log(2 * 0.5) - log(2 pi)
    assert log_prob == pytest.approx(-2.5 - math.log(2 * math.pi), abs=1e-6)


@pytest.mark.parametrize("kind", ["squashed_gaussian", "deterministic"])
def test_edges_of_a_box_are_in_it(kind):
    missed = 0
    for tenths in range(-20, 20):
        box = spaces.Box(tenths / 10, tenths / 10 + 0.8, (1,), np.float32)
        bounds = {"low": tuple(box.low.tolist()), "high": tuple(box.high.tolist())}
        if kind == "deterministic":
            policy, far = identity(arch.Deterministic(**bounds, noise=0.0), 1), 1.0
        else:
            head = arch.SquashedGaussian(**bounds, log_std_low=-5.0, log_std_high=2.0)
            policy, far = identity(head, 2), 30.0
        for sign in (-1.0, 1.0):
            obs = np.array([sign * far, 0.0][: 1 if kind == "deterministic" else 2], np.float32)
            action, _ = policy.decide(obs)
            assert box.contains(action), (box, action)
            center, half = policy._head.scales[0]
            missed += not box.contains(np.array([sign * half + center], np.float32))
    assert missed  # or these boxes do not show it


def test_a_deterministic_policy_explores_in_the_unit_box():
    policy = identity(arch.Deterministic(noise=0.5, low=(0.0,), high=(10.0,)), 1)
    assert policy.act([0.2])[0] == pytest.approx(6.0)
    action, log_prob = policy.decide([0.2], None, [1.0])
    assert action == pytest.approx(8.5)
    assert log_prob == pytest.approx(-0.5 - math.log(0.5) - 0.5 * math.log(2 * math.pi))
    assert policy.decide([0.2], None, [9.0])[0] == pytest.approx(10.0)


@pytest.mark.parametrize("proposed", [False, True])
@pytest.mark.parametrize("kind", ["affine", "deep", "dueling"])
def test_expectations_over_levels_by_hand(proposed, kind):
    """Two numbers, two levels, two cosines: phi(tau) = relu((1, cos(pi tau)) + (0, b))."""
    arrays = {
        "phi": np.eye(2), "shift": np.array([0.0, 0.25]),
        "w": np.array([[1.0, 0.0], [0.0, 2.0], [1.0, -1.0]]), "b": np.array([0.0, 0.5, 0.0]),
    }  # fmt: skip
    if proposed:  # masses 3/4 and 1/4 of any observation
        arrays |= {"p": np.zeros((2, 2)), "q": np.log([3.0, 1.0])}
        source = {"proposal": value_layers.Proposal(weight="p", bias="q")}
        tau, mass = [0.375, 0.875], [0.75, 0.25]
    else:
        arrays |= {"tau": np.array([0.25, 1.0])}
        source = {"levels": "tau"}
        tau, mass = [0.25, 1.0], [0.5, 0.5]
    relu = "relu" if kind == "deep" else None
    streams = {"advantage": (layers.Dense(weight="w", bias="b", activation=relu),)}
    if kind == "dueling":
        streams["value"] = (layers.Dense(weight="v", bias="c"),)
        arrays |= {"v": np.array([[3.0, 1.0]]), "c": np.array([1.0])}
    layer = value_layers.Levels(weight="phi", bias="shift", **streams, **source)
    assert layer.affine == (kind != "deep")
    architecture = arch.Architecture(
        version=1,
        epoch=0,
        algorithm="test",
        observation={},
        action={},
        inputs=(arch.Entry(key=None, width=2),),
        layers=(layer,),
        head=arch.ActionValues(n=3, epsilon=0.0),
    )
    policy = Policy(make_snapshot(architecture, arrays))
    for x, y in ((2.0, 3.0), (-1.0, 0.5)):
        expected = np.zeros(3)
        for level, share in zip(tau, mass, strict=True):
            u, v = x, y * max(math.cos(math.pi * level) + 0.25, 0.0)
            q = np.array([u, 2 * v + 0.5, u - v])
            if kind == "deep":
                q = np.maximum(q, 0)
            if kind == "dueling":
                q += 3 * u + v + 1 - q.mean()
            expected += share * q
        np.testing.assert_allclose(policy.params([x, y]), expected, rtol=1e-6, atol=1e-6)
        assert policy.act([x, y])[0] == expected.argmax()


def test_embeddings_that_overflow_are_noticed():
    snapshot = read_snapshot(GOLDEN / "q_levels_deep.safetensors")
    layer = snapshot.architecture.layers[-1]
    assert isinstance(layer, value_layers.Levels)
    huge = np.full_like(snapshot.arrays[layer.weight], 3e38)
    arrays = {**snapshot.arrays, layer.weight: huge}
    broken = Policy(make_snapshot(snapshot.architecture, arrays))
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(PolicyError, match="output is not finite"),
    ):
        broken.act(np.ones(5, np.float32))


def test_a_memory_is_kept_until_reset():
    policy = Policy(read_snapshot(GOLDEN / "categorical_gru.safetensors"))
    obs = np.ones(5, np.float32)
    first, second = policy.params(obs), policy.params(obs)
    assert np.abs(first - second).max() > 1e-3
    policy.reset()
    np.testing.assert_array_equal(policy.params(obs), first)


@pytest.mark.parametrize("name", ["categorical_gru", "gaussian_lstm"])
def test_a_memory_can_be_taken_along(name):
    snapshot = read_snapshot(GOLDEN / f"{name}.safetensors")
    policy, other = Policy(snapshot), Policy(snapshot)
    obs = np.ones(5, np.float32)
    policy.params(obs)
    memory = policy.memory()
    kept = {key: array.copy() for key, array in memory.items()}
    second = policy.params(obs)
    other.remember(memory)
    np.testing.assert_array_equal(other.params(obs), second)
    for key, array in kept.items():  # what was given away does not change under its owner
        np.testing.assert_array_equal(memory[key], array)
    other.remember({})
    assert np.abs(other.params(obs) - second).max() > 1e-4


def test_a_memory_that_does_not_fit_is_refused():
    policy = Policy(read_snapshot(GOLDEN / "categorical_gru.safetensors"))
    policy.params(np.ones(5, np.float32))
    good = policy.memory()
    (key,) = good
    for bad, words in (
        ({"9/h": good[key]}, "has the parts 9/h"),
        ({key: good[key][:, :, :-1]}, "expected float32"),
        ({key: good[key].astype(np.float64)}, "float64"),
        ({key: np.full_like(good[key], np.nan)}, "not finite"),
    ):
        with pytest.raises(PolicyError, match=words):
            policy.remember(bad)
    with pytest.raises(PolicyError, match="expected none"):
        Policy(read_snapshot(GOLDEN / "categorical.safetensors")).remember(good)


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        ([1.0], "has 1 number; expected 3"),
        ([1.0, math.nan, 0.0], "not finite"),
        ([1.0, math.inf, 0.0], "not finite"),
        (["a", "b", "c"], "does not fit"),
        ({"a": 1}, "does not fit"),
        (None, "expected 3"),
    ],
)
def test_observations_that_do_not_fit_are_refused(obs, words):
    with pytest.raises(PolicyError, match=words):
        identity(arch.Categorical(n=3), 3).act(obs)


def test_masks_and_mixed_observations_that_do_not_fit_are_refused():
    with pytest.raises(PolicyError, match="2 flags; expected 3"):
        identity(arch.Categorical(n=3), 3).act([0.0] * 3, [1, 0])
    mixed = Policy(read_snapshot(GOLDEN / "categorical_mixed.safetensors"))
    good = {
        "choice": 1, "choices": [1, 3], "flags": [0, 1], "level": [0, 255], "numbers": [0.0] * 4
    }  # fmt: skip
    mixed.act(good)
    with pytest.raises(PolicyError, match="'choices'"):
        mixed.act({k: v for k, v in good.items() if k != "choices"})
    with pytest.raises(PolicyError, match="out of range"):
        mixed.act(good | {"choice": 3})
    with pytest.raises(PolicyError, match="2 numbers; expected 4"):
        mixed.act(good | {"numbers": [0.0, 0.0]})


def test_a_network_that_overflows_is_noticed():
    policy = identity(arch.Categorical(n=3), 3, b=np.full(3, 3e38, np.float32))
    with np.errstate(over="ignore"), pytest.raises(PolicyError, match="output is not finite"):
        policy.act([3e38, 0.0, 0.0])
