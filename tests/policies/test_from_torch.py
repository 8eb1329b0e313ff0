import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from assay.functional.distributions import policy_distribution
from assay.networks.encoders import make_encoder
from assay.networks.heads import AtomHead, DuelingHead, SquashedGaussianHead, policy_head
from assay.networks.mlp import ACTIVATIONS, mlp
from assay.networks.noisy import resample_noise
from assay.policies.from_torch import UnsupportedError, describe
from assay.policies.numpy_network import NumpyNetwork

BOX = spaces.Box(-1.0, 1.0, (4,), np.float32)
DICT = spaces.Dict(
    {
        "speed": BOX,
        "grid": spaces.Box(-1.0, 1.0, (2, 3), np.float32),
        "kind": spaces.Discrete(3),
        "flags": spaces.MultiBinary(2),
        "counts": spaces.MultiDiscrete([2, 3]),
        "ram": spaces.Box(0, 255, (5,), np.uint8),
        "action_mask": spaces.MultiBinary(2),
    }
)


def numpy_forward(module, noisy=True):
    """Return the NumPy forward pass over the module's own memory, or None where there is none."""
    try:
        return NumpyNetwork(describe(module, noisy=noisy)).call
    except UnsupportedError:
        return None


def observe(space, n, seed=0):
    space.seed(seed)
    samples = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {k: np.stack([s[k] for s in samples]) for k in space.spaces}
    return np.stack(samples)


def tensors(obs):
    if isinstance(obs, dict):
        return {k: torch.from_numpy(v) for k, v in obs.items()}
    return torch.from_numpy(obs)


def perturb(module):
    """Give every parameter a value of its own (fresh biases and norms are all alike)."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return module


def assert_same(module, *inputs):
    forward = numpy_forward(module)
    assert forward is not None
    kept = [x.copy() if isinstance(x, np.ndarray) else dict(x) for x in inputs]
    with torch.no_grad():
        expected = module(*(tensors(x) for x in inputs)).numpy()
    np.testing.assert_allclose(forward(*inputs), expected, rtol=1e-5, atol=1e-5)
    for x, before in zip(inputs, kept, strict=True):
        np.testing.assert_equal(x, before)
    return forward


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("n", [1, 8, 200])
def test_mlp(activation, layer_norm, n):
    torch.manual_seed(0)
    net = mlp((4, 16, 16, 3), activation)
    if layer_norm:  # before each activation
        norms = [nn.LayerNorm(16), nn.LayerNorm(16)]
        net = nn.Sequential(net[0], norms[0], *net[1:3], norms[1], *net[3:])
    net = perturb(net)
    assert_same(net, 3 * np.random.default_rng(0).standard_normal((n, 4), dtype=np.float32))


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(-1.0, 1.0, (2, 2), np.float32),
        spaces.Box(-1.0, 1.0, (3,), np.float64),
        spaces.Box(0, 255, (5,), np.uint8),
        spaces.Discrete(5),
        spaces.MultiBinary([2, 2]),
        spaces.MultiDiscrete([2, 3]),
        DICT,
    ],
    ids=str,
)
@pytest.mark.parametrize("hidden", [(8, 8), ()])
def test_encoders(space, hidden):
    torch.manual_seed(0)
    encoder = perturb(make_encoder(space, hidden=hidden))
    assert_same(encoder, observe(space, 5))


@pytest.mark.parametrize(
    ("space", "squash"),
    [(spaces.Discrete(3), False), (BOX, False), (BOX, True), (spaces.MultiBinary(3), False)],
)
def test_policies(space, squash):
    torch.manual_seed(0)
    dist = policy_distribution(space, squash=squash)
    encoder = make_encoder(BOX)
    if squash:
        head = SquashedGaussianHead(encoder.out_features, 4)
        nn.init.orthogonal_(head.linear.weight, 30.0)  # large: log-stds reach their bounds
    else:
        head = policy_head(dist, encoder.out_features)
    assert_same(perturb(nn.Sequential(encoder, head)), observe(BOX, 6))


@pytest.mark.parametrize("hidden", [(), (8,)])
def test_dueling(hidden):
    torch.manual_seed(0)
    head = perturb(DuelingHead(4, 3, hidden=hidden))
    assert_same(head, observe(BOX, 6))
    assert_same(nn.Sequential(mlp((4, 4), activate_output=True), head), observe(BOX, 6))


def test_noisy_layers_follow_their_noise_and_mode():
    torch.manual_seed(0)
    net = nn.Sequential(make_encoder(BOX, hidden=(8,), noisy=True), DuelingHead(8, 3, noisy=True))
    obs = observe(BOX, 6)
    forward = assert_same(net, obs)
    silent = forward(obs).copy()
    resample_noise(net, np.random.default_rng(0))
    assert not np.allclose(forward(obs), silent)
    with torch.no_grad():
        np.testing.assert_allclose(forward(obs), net(tensors(obs)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(numpy_forward(net, noisy=False)(obs), silent)


@pytest.mark.parametrize("batch", [1, 8, 200])
def test_in_place_steps_of_an_optimizer_are_seen(batch):
    torch.manual_seed(0)
    dist = policy_distribution(BOX)
    net = nn.Sequential(
        mlp((4, 64, 64), activate_output=True), nn.LayerNorm(64), policy_head(dist, 64)
    )
    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    offset = 0
    for p in net.parameters():  # as a learner does that keeps all parameters in one buffer
        p.data = flat[offset : offset + p.numel()].view(p.shape)
        offset += p.numel()
    obs = observe(BOX, batch)
    forward = numpy_forward(net)
    before = forward(obs).copy()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    net(tensors(obs)).square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        expected = net(tensors(obs)).numpy()
    assert not np.allclose(before, expected, atol=1e-3)
    np.testing.assert_allclose(forward(obs), expected, rtol=1e-5, atol=1e-6)
    flat.mul_(0.5)
    with torch.no_grad():
        np.testing.assert_allclose(forward(obs), net(tensors(obs)), rtol=1e-5, atol=1e-6)


def test_outputs_are_reused_per_batch_size():
    forward = numpy_forward(mlp((4, 8, 2)))
    first = forward(observe(BOX, 3))
    other = forward(observe(BOX, 5))
    assert first.shape == (3, 2)
    assert other.shape == (5, 2)
    assert forward(observe(BOX, 3, seed=1)) is first


def test_a_first_layer_does_not_write_into_its_input():
    for net in (nn.Tanh(), nn.ReLU(), nn.LayerNorm(4), nn.Sequential(nn.SiLU(), nn.Linear(4, 2))):
        assert_same(net, observe(BOX, 3))


def test_what_has_no_counterpart_falls_back():
    image = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    assert numpy_forward(make_encoder(image, cnn="impala")) is None
    assert numpy_forward(nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1))) is None
    assert numpy_forward(AtomHead(4, 2, 3)) is None  # without the mean of its atoms
    assert numpy_forward(nn.GELU()) is None  # the exact form
    assert numpy_forward(nn.Linear(2, 2).double()) is None
    assert numpy_forward(nn.Linear(2, 2, device="meta")) is None
    assert_same(nn.Sequential(nn.Identity(), nn.Linear(4, 2, bias=False)), observe(BOX, 3))
