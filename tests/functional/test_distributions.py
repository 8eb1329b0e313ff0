import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core.errors import AssayError, SpaceError
from assay.functional.distributions import DiagGaussian, Distribution, policy_distribution
from assay.policies import distributions as numpy_distributions

LOG = math.log
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)

SPACES = {
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([2, 4, 3]),
    "multi_discrete_equal": spaces.MultiDiscrete([3, 3]),
    "multi_discrete_table": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multi_binary": spaces.MultiBinary(3),
    "multi_binary_table": spaces.MultiBinary([2, 2]),
    "box": BOX,
    "box_table": spaces.Box(-1.0, 1.0, (2, 3), np.float32),
}


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def draw_noise(dist: Distribution, count: int, seed: int = 0) -> torch.Tensor:
    """Return noise [count, ...] as acting draws it."""
    twin = getattr(numpy_distributions, type(dist).__name__)(**vars(dist))
    return torch.from_numpy(twin.draw_noise(np.random.default_rng(seed), (count,)))


def logs(*probs: float) -> torch.Tensor:
    return t(*probs).log()[None]


def test_categorical_by_hand():
    dist = policy_distribution(spaces.Discrete(3))
    params = logs(0.5, 0.25, 0.25) + 7.0  # a constant changes nothing
    torch.testing.assert_close(dist.log_prob(params, torch.tensor([1])), t(LOG(0.25)))
    torch.testing.assert_close(dist.entropy(params), t(1.5 * LOG(2)))
    assert dist.mode(params).tolist() == [0]
    # Gumbel noise that lifts the last action above the others
    assert dist.sample(params, t(0, 0, 1)[None]).tolist() == [2]


def test_categorical_masks_by_hand():
    dist = policy_distribution(spaces.Discrete(3))
    params = logs(0.5, 0.25, 0.25).repeat(2, 1).requires_grad_()
    mask = torch.tensor([[0, 1, 1], [0, 0, 0]], dtype=torch.int8)
    # Two equal valid actions; the all-masked row counts as unmasked.
    torch.testing.assert_close(dist.entropy(params, mask), t(LOG(2), 1.5 * LOG(2)))
    log_prob = dist.log_prob(params, torch.tensor([1, 0]), mask)
    torch.testing.assert_close(log_prob, t(LOG(0.5), LOG(0.5)))
    assert dist.mode(params, mask).tolist() == [1, 0]
    masked = dist.log_prob(params, torch.tensor([0, 0]), mask)[0]
    assert math.isfinite(masked.item())
    assert masked.item() < -1e7
    grad = torch.autograd.grad(dist.entropy(params, mask)[0] + log_prob[0], params)[0]
    assert torch.isfinite(grad).all()
    assert grad[0, 0] == 0


def test_log_prob_and_entropy_of_one_softmax_keep_to_the_mask():
    dist = policy_distribution(spaces.Discrete(3))
    params, mask = logs(0.5, 0.25, 0.25), torch.tensor([[True, True, False]])
    log_prob, entropy = dist.log_prob_entropy(params, torch.tensor([1]), mask)
    assert log_prob.item() == pytest.approx(math.log(1 / 3))
    # -(2/3 log 2/3 + 1/3 log 1/3)
    assert entropy.item() == pytest.approx(math.log(3) - 2 / 3 * math.log(2))


def test_masked_actions_are_never_sampled():
    torch.manual_seed(0)
    for name in ("discrete", "multi_discrete", "multi_discrete_equal", "multi_binary"):
        dist = policy_distribution(SPACES[name])
        mask = torch.rand(dist.param_size) < 0.5
        params = torch.randn(5000, dist.param_size) * 3
        masks = mask.expand(5000, -1)
        actions = dist.sample(params, draw_noise(dist, 5000), masks)
        log_prob = dist.log_prob(params, actions, masks)
        assert (log_prob > -1e6).all(), name


def test_multi_categorical_by_hand():
    dist = policy_distribution(spaces.MultiDiscrete([2, 3]))
    params = torch.cat([logs(0.25, 0.75), logs(0.5, 0.25, 0.25)], dim=1)
    action = torch.tensor([[1, 2]])
    torch.testing.assert_close(dist.log_prob(params, action), t(LOG(0.75) + LOG(0.25)))
    entropy = -(0.25 * LOG(0.25) + 0.75 * LOG(0.75)) + 1.5 * LOG(2)
    torch.testing.assert_close(dist.entropy(params), t(entropy))
    assert dist.mode(params).tolist() == [[1, 0]]
    # Mask: the second sub-action may only take 1 or 2; the first is all masked, hence free.
    mask = torch.tensor([[False, False, False, True, True]])
    torch.testing.assert_close(dist.log_prob(params, action, mask), t(LOG(0.75) + LOG(0.5)))
    assert dist.mode(params, mask).tolist() == [[1, 1]]


def test_bernoulli_by_hand():
    dist = policy_distribution(spaces.MultiBinary(2))
    params = t(LOG(3), 0)[None]  # p = 0.75, 0.5
    torch.testing.assert_close(
        dist.log_prob(params, torch.tensor([[1, 0]], dtype=torch.int8)), t(LOG(0.75) + LOG(0.5))
    )
    entropy = -(0.25 * LOG(0.25) + 0.75 * LOG(0.75)) + LOG(2)
    torch.testing.assert_close(dist.entropy(params), t(entropy))
    action = dist.sample(params, t(0.74, 0.51)[None])
    assert action.tolist() == [[1, 0]]
    assert action.dtype == torch.int8
    assert dist.mode(params).tolist() == [[1, 0]]
    mask = torch.tensor([[False, True]])
    assert dist.sample(params, t(0.0, 0.0)[None], mask).tolist() == [[0, 1]]
    torch.testing.assert_close(dist.entropy(params, mask), t(LOG(2)))


def test_diag_gaussian_by_hand():
    dist = policy_distribution(BOX)
    params = t(1, -1, LOG(2), 0)[None]  # means 1, -1; stds 2, 1
    # z = (1, 2): log p = -(1 + 4)/2 - log 2 - log(2 pi)
    action = t(3, 1)[None]
    expected = -2.5 - LOG(2) - LOG(2 * math.pi)
    torch.testing.assert_close(dist.log_prob(params, action), t(expected))
    torch.testing.assert_close(dist.sample(params, t(1, 2)[None]), action)
    torch.testing.assert_close(dist.entropy(params), t(1 + LOG(2 * math.pi) + LOG(2)))
    torch.testing.assert_close(dist.mode(params), t(1, -1)[None])


def test_tanh_gaussian_by_hand():
    dist = policy_distribution(BOX, squash=True)
    params = t(0.5, -0.5, 0, 0)[None]
    noise = t(0.5, -0.5)[None]  # u = (1, -1)
    action, log_prob = dist.sample_log_prob(params, noise)
    torch.testing.assert_close(action, t(1, -1).tanh()[None])
    slope = 1 - math.tanh(1) ** 2
    expected = 2 * (-0.125 - 0.5 * LOG(2 * math.pi) - LOG(slope))
    torch.testing.assert_close(log_prob, t(expected))
    torch.testing.assert_close(dist.log_prob(params, action), log_prob)
    torch.testing.assert_close(dist.sample(params, noise), action)
    torch.testing.assert_close(dist.mode(params), t(0.5, -0.5).tanh()[None])
    with pytest.raises(AssayError, match="no closed form"):
        dist.entropy(params)


def test_tanh_gaussian_stays_finite_far_out():
    dist = policy_distribution(BOX, squash=True)
    params = t(50, -50, 0, 0)[None].requires_grad_()
    action, log_prob = dist.sample_log_prob(params, torch.zeros(1, 2))
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(dist.log_prob(params, action)).all()
    assert torch.isfinite(torch.autograd.grad(log_prob.sum(), params)[0]).all()


def test_tanh_gaussian_density_integrates_to_one():
    dist = policy_distribution(spaces.Box(-1.0, 1.0, (1,), np.float32), squash=True)
    actions = torch.linspace(-0.9999, 0.9999, 20001)[:, None]
    density = dist.log_prob(t(0.3, -0.5).expand(20001, 2), actions).exp()
    assert torch.trapezoid(density, actions[:, 0]).item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("leading", [(4,), (2, 3)])
def test_all_spaces_have_one_interface(name, leading):
    space = SPACES[name]
    dist = policy_distribution(space)
    torch.manual_seed(0)
    params = torch.randn(*leading, dist.param_size)
    noise = draw_noise(dist, math.prod(leading)).view(*leading, *dist.noise_shape)
    action = dist.sample(params, noise)
    assert action.shape == (*leading, *dist.action_shape)
    assert action.numpy().dtype == (np.int64 if dist.sizes else space.dtype)
    if not isinstance(space, spaces.Box):
        for one in action.reshape(-1, *dist.action_shape).numpy():
            assert space.contains(one.astype(space.dtype)), one
    again, log_prob = dist.sample_log_prob(params, noise)
    torch.testing.assert_close(again, action)
    torch.testing.assert_close(log_prob, dist.log_prob(params, action))
    both = dist.log_prob_entropy(params, action)
    torch.testing.assert_close(both, (dist.log_prob(params, action), dist.entropy(params)))
    assert log_prob.shape == dist.entropy(params).shape == leading
    assert dist.mode(params).shape == action.shape
    # No action is more likely than the mode.
    assert (dist.log_prob(params, dist.mode(params)) >= log_prob - 1e-6).all()


@pytest.mark.parametrize("name", ["discrete", "multi_discrete", "multi_binary"])
def test_samples_follow_the_probabilities(name):
    dist = policy_distribution(SPACES[name])
    generator = torch.Generator().manual_seed(1)
    params = torch.randn(dist.param_size, generator=generator).expand(40_000, -1)
    actions = dist.sample(params, draw_noise(dist, 40_000))
    kinds, counts = torch.unique(actions, dim=0, return_counts=True)
    probs = dist.log_prob(params[: len(kinds)], kinds).exp()
    torch.testing.assert_close(counts / 40_000, probs, atol=0.012, rtol=0)
    assert probs.sum().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", SPACES)
def test_mean_log_prob_of_samples_is_minus_the_entropy(name):
    dist = policy_distribution(SPACES[name])
    generator = torch.Generator().manual_seed(0)
    params = 0.5 * torch.randn(dist.param_size, generator=generator).expand(40_000, -1)
    _, log_prob = dist.sample_log_prob(params, draw_noise(dist, 40_000))
    assert -log_prob.mean().item() == pytest.approx(dist.entropy(params)[0].item(), abs=0.03)


def test_mistakes_are_named():
    with pytest.raises(SpaceError, match="No policy distribution for the action space"):
        policy_distribution(spaces.Text(3))
    with pytest.raises(SpaceError):
        policy_distribution(spaces.Box(0, 255, (2,), np.uint8))
    dist = policy_distribution(spaces.Discrete(3))
    with pytest.raises(ValueError, match=r"params have shape \(2, 4\); expected \[..., 3\]"):
        dist.entropy(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"action has shape \(2, 1\)"):
        dist.log_prob(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="mask has shape"):
        dist.entropy(torch.zeros(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match="no action mask"):
        policy_distribution(BOX).mode(torch.zeros(1, 4), torch.ones(1, 2))


@pytest.mark.parametrize(
    ("name", "squash"),
    [
        ("discrete", False),
        ("multi_discrete", False),
        ("multi_discrete_equal", False),
        ("multi_binary", False),
        ("box", False),
        ("box", True),
    ],
)
def test_distributions_trace_with_their_gradients(name, squash, assert_traces):
    dist = policy_distribution(SPACES[name], squash=squash)
    torch.manual_seed(0)

    def inputs(seed):
        mask = torch.rand(5, dist.param_size) < 0.6
        return torch.randn(5, dist.param_size), draw_noise(dist, 5, seed), mask

    def fn(params, noise, mask):
        masks = None if isinstance(dist, DiagGaussian) else mask
        params = params.detach().requires_grad_()
        action, log_prob = dist.sample_log_prob(params, noise, masks)
        loss = log_prob.sum() + dist.log_prob(params, action.detach(), masks).sum()
        if not squash:
            loss = loss + dist.entropy(params, masks).sum()
        return action, dist.mode(params, masks), loss, *torch.autograd.grad(loss, params)

    assert_traces(fn, inputs(0), inputs(1))
