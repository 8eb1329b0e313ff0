import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from assay.core.errors import SpaceError
from assay.networks.encoders import make_encoder
from assay.networks.noisy import NoisyLinear, resample_noise

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (12, 12, 3), np.uint8)
SPACES = {
    "vector": VECTOR,
    "matrix": spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "discrete": spaces.Discrete(4),
    "multi_binary": spaces.MultiBinary([2, 2]),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "image": IMAGE,
    "dict": spaces.Dict(
        {
            "camera": IMAGE,
            "joints": VECTOR,
            "a/b": spaces.Discrete(3),
            "action_mask": spaces.MultiBinary(5),
        }
    ),
}


def observe(space, n, seed=0):
    """Return n observations as the collector would give them, as tensors."""
    space.seed(seed)
    samples = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {k: torch.from_numpy(np.stack([s[k] for s in samples])) for k in space.spaces}
    return torch.from_numpy(np.stack(samples))


@pytest.mark.parametrize("name", SPACES)
def test_every_space_encodes_and_traces(name, assert_traces):
    torch.manual_seed(0)
    encoder = make_encoder(SPACES[name], hidden=(8, 7), cnn="impala")
    obs = observe(SPACES[name], 6)
    features = encoder(obs)
    expected = {"image": 256, "dict": 263}.get(name, 7)
    assert encoder.out_features == expected
    assert features.shape == (6, expected)
    assert features.dtype == torch.float32

    def fn(obs):
        out = encoder(obs)
        return out, *torch.autograd.grad(out.square().sum(), list(encoder.parameters()))

    assert_traces(fn, (obs,), (observe(SPACES[name], 6, seed=1),))


def flat(name, obs):
    return make_encoder(SPACES[name], hidden=())(obs).tolist()


def test_flat_features_by_hand():
    assert flat("discrete", torch.tensor([0, 3])) == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert flat("multi_discrete", torch.tensor([[1, 2]])) == [[0, 1, 0, 0, 1]]
    bits = torch.tensor([[[1, 0], [0, 1]]], dtype=torch.int8)
    assert flat("multi_binary", bits) == [[1, 0, 0, 1]]
    assert flat("bytes", torch.tensor([[0, 51, 102, 255]], dtype=torch.uint8))[0] == pytest.approx(
        [0, 0.2, 0.4, 1]
    )
    assert flat("vector", torch.tensor([[0.5, -0.5, 1.0]], dtype=torch.float64)) == [[0.5, -0.5, 1]]


def test_dict_joins_the_rest_in_the_order_of_keys_and_ignores_masks():
    space = spaces.Dict(
        {"b": VECTOR, "a": spaces.Discrete(2), "action_mask": spaces.MultiBinary(2)}
    )
    obs = {
        "b": torch.tensor([[7.0, 8.0, 9.0]]),
        "action_mask": torch.tensor([[1, 0]]),
        "a": torch.tensor([1]),
    }
    assert make_encoder(space, hidden=())(obs).tolist() == [[0, 1, 7, 8, 9]]


def test_images_of_a_dict_reach_the_features():
    encoder = make_encoder(SPACES["dict"], hidden=(4,), cnn="impala")
    obs = observe(SPACES["dict"], 3)
    changed = dict(obs, camera=255 - obs["camera"])
    assert not torch.equal(encoder(obs), encoder(changed))
    masked = dict(obs, action_mask=1 - obs["action_mask"])
    torch.testing.assert_close(encoder(obs), encoder(masked))


def test_mistakes_are_named():
    nested = spaces.Dict({"a": spaces.Dict({"b": VECTOR})})
    with pytest.raises(SpaceError, match="under key 'a'"):
        make_encoder(nested)
    with pytest.raises(SpaceError, match="Text"):
        make_encoder(spaces.Text(4))
    with pytest.raises(SpaceError, match="has no entries"):
        make_encoder(spaces.Dict({"action_mask": spaces.MultiBinary(2)}))
    encoder = make_encoder(spaces.Dict({"a": VECTOR}))
    with pytest.raises(ValueError, match="no entry 'a'"):
        encoder({"b": torch.zeros(1, 3)})
    with pytest.raises(ValueError, match=r"'a' has 4 numbers per item; expected 3"):
        encoder({"a": torch.zeros(1, 4)})


PICTURE = spaces.Box(0, 255, (1, 36, 36), np.uint8)  # large enough for every CNN


@pytest.mark.parametrize("cnn", ["nature", "impala"])
def test_noise_is_in_every_dense_layer(cnn: str) -> None:
    for space in (PICTURE, VECTOR):
        encoder = make_encoder(space, cnn=cnn, noisy=True)
        dense = [m for m in encoder.modules() if isinstance(m, nn.Linear | NoisyLinear)]
        assert dense and all(isinstance(layer, NoisyLinear) for layer in dense)
        quiet = make_encoder(space, cnn=cnn)
        assert not any(isinstance(m, NoisyLinear) for m in quiet.modules())
    encoder = make_encoder(PICTURE, cnn=cnn, noisy=True, init="torch")
    image = torch.randint(0, 256, (1, 1, 36, 36), dtype=torch.uint8)
    before = encoder(image)
    resample_noise(encoder, np.random.default_rng(0))
    assert not torch.equal(encoder(image), before)
