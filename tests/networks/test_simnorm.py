import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from assay.core.errors import ConfigError
from assay.networks.simnorm import NormedEnsemble, SimNorm, normed_mlp


def test_simnorm_by_hand():
    # Two groups of two: a softmax of (0, log 3) is (1/4, 3/4), one of equal numbers (1/2, 1/2).
    x = torch.tensor([[0.0, 7.0, math.log(3.0), 7.0]])
    assert SimNorm(4, 2)(x).tolist() == [pytest.approx([0.25, 0.5, 0.75, 0.5])]
    # One group of four, of which 1, 1, 1 and 3 are the weights
    y = torch.tensor([[0.0, 0.0, 0.0, math.log(3.0)]])
    assert SimNorm(4, 4)(y).tolist() == [pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])]
    assert SimNorm(4, 2)(x.expand(3, 5, 4)).shape == (3, 5, 4)


def test_groups_must_divide_the_width():
    with pytest.raises(ConfigError, match="simplex=8 does not divide latent=12"):
        SimNorm(12, 8)


def test_hidden_layers_are_normalised_before_mish():
    net = normed_mlp((2, 3, 1))
    kinds = [type(layer) for layer in net]
    assert kinds == [nn.Linear, nn.LayerNorm, nn.Mish, nn.Linear]
    assert [type(layer) for layer in normed_mlp((2, 4), SimNorm(4, 2))] == [
        nn.Linear, nn.LayerNorm, SimNorm,
    ]  # fmt: skip
    wide = normed_mlp((400, 400))[0]
    assert wide.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not wide.bias.any()


@pytest.fixture
def ensemble():
    torch.manual_seed(0)
    made = NormedEnsemble(3, (2, 4, 5, 6), dropout=0.25)
    assert not made.weights[-1].any()  # values begin at 0
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return made


def single(ensemble, member, x, keep=None):
    """Return the output of one member, layer by layer."""
    for i in range(3):
        x = x @ ensemble.weights[i][member] + ensemble.biases[i][member, 0]
        if i == 0 and keep is not None:
            x = x * keep
        if i < 2:
            gain, shift = ensemble.gains[i][member, 0], ensemble.shifts[i][member, 0]
            x = F.mish(F.layer_norm(x, x.shape[-1:], gain, shift))
    return x


def test_members_are_networks_of_their_own(ensemble):
    x = torch.randn(7, 2)
    expected = torch.stack([single(ensemble, m, x) for m in range(3)])
    torch.testing.assert_close(ensemble(x), expected)
    torch.testing.assert_close(ensemble(x, torch.tensor([2, 0])), expected[[2, 0]])
    # Any leading axes
    torch.testing.assert_close(ensemble(x.expand(4, 7, 2))[:, 3], expected)


def test_dropout_is_given_and_keeps_the_mean(ensemble):
    x, noise = torch.randn(5, 2), torch.rand(3, 5, 4)
    keep = (noise >= 0.25).float() / 0.75
    expected = torch.stack([single(ensemble, m, x, keep[m]) for m in range(3)])
    torch.testing.assert_close(ensemble(x, noise=noise), expected)
    assert not torch.allclose(ensemble(x), expected)
