import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core.errors import ConfigError, SpaceError
from assay.networks.conv import ImpalaCNN, NatureCNN, ToChannels, make_cnn


def image(*shape: int, dtype=np.uint8, high=255) -> spaces.Box:
    return spaces.Box(0, high, shape, dtype)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 84, 84), (4, 84, 84)),
        ((84, 84, 4), (4, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 210, 160), (3, 210, 160)),
        ((8, 8, 119), (119, 8, 8)),
        ((40, 40), (1, 40, 40)),
        ((4, 64, 64, 3), (12, 64, 64)),
        ((4, 3, 64, 64), (12, 64, 64)),
    ],
)
def test_channel_axis_is_found(shape, expected):
    assert ToChannels(image(*shape)).shape == expected


def test_pixels_land_where_they_belong_and_bytes_are_scaled():
    rng = np.random.default_rng(0)
    last = rng.integers(0, 256, (2, 6, 5, 3), dtype=np.uint8)
    expected = last.transpose(0, 3, 1, 2).astype(np.float32) / 255
    out = ToChannels(image(6, 5, 3))(torch.from_numpy(last))
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
    first = ToChannels(image(3, 6, 5))(torch.from_numpy(last.transpose(0, 3, 1, 2).copy()))
    np.testing.assert_allclose(first.numpy(), expected, rtol=1e-6)
    stack = rng.integers(0, 256, (2, 4, 6, 5, 3), dtype=np.uint8)
    out = ToChannels(image(4, 6, 5, 3))(torch.from_numpy(stack))
    np.testing.assert_allclose(out[1, 2 * 3 + 1].numpy(), stack[1, 2, :, :, 1] / 255.0, rtol=1e-6)


def test_floats_are_left_alone_and_bytes_are_scaled_by_their_bound():
    x = torch.full((1, 3, 6, 5), 7.0)
    assert ToChannels(image(3, 6, 5, dtype=np.float32))(x).max() == 7
    # Objects are numbered up to a bound of their own; flags are 0 and 1 already.
    assert ToChannels(image(3, 6, 5, high=8))(x.to(torch.uint8)).max() == pytest.approx(7 / 8)
    assert ToChannels(image(3, 6, 5, high=1))(torch.ones(2, 3, 6, 5)).max() == 1


def test_nature_by_its_published_sizes():
    net = NatureCNN(image(4, 84, 84))
    assert net.linear.in_features == 3136
    assert net.out_features == 512
    # (4*64+1)*32 ... : the parameters of the published architecture
    assert sum(p.numel() for p in net.parameters()) == 8224 + 32832 + 36928 + 3137 * 512


def test_impala_by_its_published_sizes():
    net = ImpalaCNN(image(72, 96, 3))
    assert net.linear.in_features == 32 * 9 * 12
    assert net.out_features == 256
    assert (net(torch.randint(0, 256, (2, 72, 96, 3), dtype=torch.uint8)) >= 0).all()


@pytest.mark.parametrize("name", ["nature", "impala"])
def test_cnn_traces_with_gradients(name, assert_traces):
    torch.manual_seed(0)
    net = make_cnn(name, image(36, 40, 3))

    def fn(x):
        out = net(x)
        return out, *torch.autograd.grad(out.sum(), list(net.parameters()))

    seen, unseen = ((torch.randint(0, 256, (2, 36, 40, 3), dtype=torch.uint8),) for _ in range(2))
    assert_traces(fn, seen, unseen)
    assert fn(*seen)[0].shape == (2, net.out_features)


@pytest.mark.parametrize(
    ("shape", "flat"),
    [
        ((10, 10, 4), 16 * 8 * 8),  # MinAtar
        ((7, 7, 3), 16 * 5 * 5),  # MiniGrid
        ((3, 32, 35), 16 * 15 * 17),
        ((2, 5, 1), 16 * 1 * 4),
    ],
)
def test_small_images_get_one_small_convolution(shape, flat):
    net = make_cnn("nature", image(*shape))
    assert (net.linear.in_features, net.out_features) == (flat, 128)
    assert net(torch.randint(0, 256, (2, *shape), dtype=torch.uint8)).shape == (2, 128)
    assert make_cnn("impala", image(*shape)).out_features == 256


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="Did you mean 'impala'"):
        make_cnn("impalla", image(10, 10, 4))
    with pytest.raises(SpaceError, match="is not an image"):
        NatureCNN(spaces.Discrete(3))
    with pytest.raises(ValueError, match="expected 4 axes with batch"):
        ToChannels(image(6, 5, 3))(torch.zeros(6, 5, 3))
