import numpy as np
import torch

from assay.networks.mlp import mlp
from assay.networks.noisy import NoisyLinear, resample_noise, set_noise


def test_output_by_hand():
    layer = NoisyLinear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(3.0)
        layer.weight_sigma.copy_(torch.tensor([[0.5, 0.25]]))
        layer.bias_sigma.fill_(10.0)
        layer.eps_in.copy_(torch.tensor([2.0, 4.0]))
        layer.eps_out.fill_(-1.0)
    # w = (1 - 0.5*2, 2 - 0.25*4) = (0, 1), b = 3 - 10; y = 0*5 + 1*7 - 7
    assert layer(torch.tensor([[5.0, 7.0]])).item() == 0
    layer.eval()
    assert layer(torch.tensor([[5.0, 7.0]])).item() == 22


def test_initial_sigma_follows_the_paper():
    layer = NoisyLinear(16, 8)
    torch.testing.assert_close(layer.weight_sigma, torch.full((8, 16), 0.125))
    assert layer.weight.abs().max() <= 0.25


def test_resampling_is_seeded_and_squashes_normal_noise():
    layers = [NoisyLinear(4000, 4000) for _ in range(2)]
    for layer in layers:
        resample_noise(layer, np.random.default_rng(0))
    torch.testing.assert_close(layers[0].eps_in, layers[1].eps_in)
    # f(x)^2 = |x|, whose mean is sqrt(2 / pi) for a standard normal x; f is odd.
    assert abs(layers[0].eps_in.square().mean().item() - np.sqrt(2 / np.pi)) < 0.04
    assert abs(layers[0].eps_in.mean().item()) < 0.05
    assert not torch.equal(layers[0].eps_in, layers[0].eps_out)


def test_noise_of_a_whole_module_can_be_silenced():
    net = mlp((3, 8, 2), noisy=True)
    x = torch.randn(4, 3)
    silent = net(x)  # no noise has been drawn yet
    resample_noise(net, np.random.default_rng(0))
    assert not torch.equal(net(x), silent)
    set_noise(net, False)
    torch.testing.assert_close(net(x), silent)
    set_noise(net, True)
    assert not torch.equal(net(x), silent)
    net.eval()
    torch.testing.assert_close(net(x), silent)


def test_noise_is_an_input_of_the_trace(assert_traces):
    net = mlp((3, 8, 2), noisy=True)
    buffers = dict(net.named_buffers())

    def fn(x, noise):
        return torch.func.functional_call(net, dict(zip(buffers, noise, strict=True)), (x,))

    def inputs():
        return torch.randn(4, 3), [torch.randn_like(b) for b in buffers.values()]

    assert_traces(fn, inputs(), inputs())
