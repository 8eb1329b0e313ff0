"""The NumPy distributions give the numbers of the torch ones, which are tested by hand."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core.errors import SpaceError
from assay.functional import distributions as torch_distributions
from assay.policies.distributions import ActionScale, policy_distribution
from assay.policies.heads import DeterministicHead

SPACES = {
    "discrete": (spaces.Discrete(3), False),
    "multi_discrete": (spaces.MultiDiscrete([2, 4, 3]), False),
    "multi_discrete_table": (spaces.MultiDiscrete([[3, 3], [3, 3]]), False),
    "multi_binary": (spaces.MultiBinary([2, 2]), False),
    "box": (spaces.Box(-1.0, 1.0, (2, 3), np.float32), False),
    "box_squashed": (spaces.Box(-1.0, 1.0, (3,), np.float32), True),
}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("leading", [(16,), (2, 5)])
@pytest.mark.parametrize("masked", [False, True])
def test_equal_to_torch(name, leading, masked):
    space, squash = SPACES[name]
    ours = policy_distribution(space, squash=squash)
    theirs = torch_distributions.policy_distribution(space, squash=squash)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    rng = np.random.default_rng(0)
    params = rng.standard_normal((*leading, ours.param_size), dtype=np.float32) * 2
    noise = ours.draw_noise(rng, leading)
    assert noise.shape == (*leading, *ours.noise_shape)
    assert noise.dtype == np.float32
    mask = None
    if masked and not name.startswith("box"):
        mask = (rng.random((*leading, ours.param_size)) < 0.5).astype(np.int8)
        mask[0] = 0
    before = params.copy()
    tensors = [torch.from_numpy(params), torch.from_numpy(noise)]
    masks = None if mask is None else torch.from_numpy(mask)

    def same(actual, expected):
        expected = expected.numpy()
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=2e-6)

    action, log_prob = ours.sample_log_prob(params, noise, mask)
    expected_action, expected_log_prob = theirs.sample_log_prob(*tensors, masks)
    same(action, expected_action)
    same(log_prob, expected_log_prob)
    same(ours.sample(params, noise, mask), expected_action)
    same(ours.mode(params, mask), theirs.mode(tensors[0], masks))
    np.testing.assert_array_equal(params, before)


@pytest.mark.parametrize(("kind", "space"), [(k, s) for k, (s, _) in SPACES.items()])
def test_noise_is_of_the_kind_that_sampling_needs(kind, space):
    dist = policy_distribution(space)
    noise = dist.draw_noise(np.random.default_rng(0), (50_000,))
    mean, std = np.euler_gamma, np.pi / np.sqrt(6)  # Gumbel, for choices
    if isinstance(space, spaces.Box):
        mean, std = 0.0, 1.0
    elif isinstance(space, spaces.MultiBinary):
        mean, std = 0.5, np.sqrt(1 / 12)
    assert noise.mean() == pytest.approx(mean, abs=0.02), kind
    assert noise.std() == pytest.approx(std, abs=0.02), kind


def test_log_prob_does_not_overflow():
    dist = policy_distribution(spaces.Discrete(2))
    params = np.array([[1000.0, -1000.0]], np.float32)
    _, log_prob = dist.sample_log_prob(params, np.zeros((1, 2), np.float32))
    assert log_prob[0] == 0
    bits = policy_distribution(spaces.MultiBinary(1))
    one = np.ones((1, 1), np.int8)
    with np.errstate(over="raise"):
        assert bits.log_prob(np.array([[-500.0]], np.float32), one)[0] == -500


def test_a_smaller_batch_after_a_larger_one():
    dist = policy_distribution(spaces.Discrete(3))
    rng = np.random.default_rng(0)
    for n in (8, 2, 8):
        params = rng.standard_normal((n, 3), dtype=np.float32)
        action, log_prob = dist.sample_log_prob(params, dist.draw_noise(rng, (n,)))
        np.testing.assert_allclose(log_prob, dist.log_prob(params, action), rtol=1e-5)


def test_action_scale():
    scale = ActionScale(spaces.Box(np.array([-2, 0]), np.array([2, 10]), dtype=np.float32))
    unit = np.array([[-1.0, -1.0], [0.5, 0.0]], np.float32)
    np.testing.assert_allclose(scale.to_env(unit), [[-2, 0], [1, 5]])
    assert scale.to_env(unit).dtype == np.float32
    with pytest.raises(SpaceError, match="infinite or empty range"):
        ActionScale(spaces.Box(-np.inf, np.inf, (2,), np.float32))


def random_boxes() -> Iterator[spaces.Box]:
    """Yield boxes of all sizes and places, and some with bounds as people write them."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        low = rng.normal(size=3) * 10.0 ** rng.integers(-4, 5, size=3)
        high = low + rng.exponential(size=3) * 10.0 ** rng.integers(-4, 5, size=3)
        low, high = low.astype(np.float32), high.astype(np.float32)
        if (low < high).all():
            yield spaces.Box(low, high)
    for low in range(-10, 10):
        yield spaces.Box(low / 10, low / 10 + 0.8, (3,), np.float32)


def test_edges_of_a_box_are_in_it():
    units = np.array([[-1.0] * 3, [1.0] * 3, np.tanh([-20.0, 9.0, 20.0])], np.float32)
    for box in random_boxes():
        head = DeterministicHead(box, noise=lambda: 0.0)
        in_torch = head.best(torch.from_numpy(units), None).numpy()
        # The edges themselves are reached, up to what float32 resolves at the larger bound.
        slack = np.maximum(np.abs(box.low), np.abs(box.high)) * 2e-7
        for actions in (ActionScale(box).to_env(units), in_torch):
            assert all(box.contains(action) for action in actions), (box.low, box.high, actions)
            assert (np.abs(actions[:2] - [box.low, box.high]) <= slack).all()


def test_mistakes_are_named():
    gaussian = policy_distribution(SPACES["box_squashed"][0], squash=True)
    with pytest.raises(ValueError, match="no action mask"):
        gaussian.mode(np.zeros((1, 6), np.float32), np.ones((1, 3)))


def test_the_package_needs_neither_torch_nor_gymnasium():
    code = (
        "import sys, assay.policies.layers, assay.policies.distributions;"
        "assert not {'torch', 'gymnasium'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
