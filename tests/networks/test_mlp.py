import math

import pytest
import torch
from torch import nn

from assay.core.errors import ConfigError
from assay.networks.mlp import ACTIVATIONS, Tanh, mlp
from assay.networks.noisy import NoisyLinear


def test_layers_and_orthogonal_gains():
    torch.manual_seed(0)
    net = mlp((4, 16, 8, 2), "tanh", output_gain=0.01)
    assert [type(m) for m in net] == [nn.Linear, Tanh, nn.Linear, Tanh, nn.Linear]
    for layer, gain in ((net[0], math.sqrt(2)), (net[2], math.sqrt(2)), (net[4], 0.01)):
        # All singular values of an orthogonal matrix times the gain are the gain.
        values = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(values, torch.full_like(values, gain))
        assert (layer.bias == 0).all()


def test_options():
    trunk = mlp((4, 8, 6), "relu", activate_output=True)
    assert [type(m) for m in trunk] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert len(mlp((4,))) == 0
    assert isinstance(mlp((4, 2), noisy=True)[0], NoisyLinear)
    assert (mlp((4, 2), init="torch")[0].bias != 0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp_traces(activation, assert_traces):
    net = mlp((3, 8, 2), activation)
    assert_traces(net, (torch.randn(5, 3),), (torch.randn(5, 3),))


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="Did you mean 'relu'"):
        mlp((4, 8, 2), "rellu")
    with pytest.raises(ConfigError, match=r"\[4, 0, 2\]"):
        mlp((4, 0, 2))
    with pytest.raises(ConfigError, match="Did you mean 'orthogonal'"):
        mlp((4, 2), init="ortogonal")
