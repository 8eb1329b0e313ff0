"""Batch renormalisation: the numbers of the papers, and the same ones in every mode."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.networks.batchnorm import BatchRenorm, batch_statistics, batchnorm_mlp
from assay.optim import compile_cache
from assay.optim.compiled_step import CompiledStep
from assay.optim.update import Objective
from assay.policies.from_torch import describe
from assay.policies.numpy_network import NumpyNetwork


def rows(seed: int = 0, n: int = 16, width: int = 3) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 2 + 1


def learn(layer: nn.Module, x: Tensor) -> Tensor:
    with batch_statistics(layer):
        return layer(x)


class TestBatchRenorm:
    def test_uses_running_statistics_unless_told(self) -> None:
        layer = BatchRenorm(1, eps=0.0)
        layer.mean.fill_(2.0)
        layer.variance.fill_(9.0)
        assert layer(torch.tensor([[5.0], [2.0]])).ravel().tolist() == pytest.approx([1.0, 0.0])
        assert layer.mean.item() == 2.0 and layer.count.item() == 0

    def test_is_batch_normalisation_at_first(self) -> None:
        """Outputs and gradients are torch's, through the statistics as well."""
        layer, x = BatchRenorm(3), rows()
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([1.0, 2.0, -1.0]))
            layer.bias.copy_(torch.tensor([0.5, 0.0, 1.0]))
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        found = learn(layer, ours)
        expected = F.batch_norm(
            theirs, None, None, layer.weight, layer.bias, training=True, eps=1e-3
        )
        torch.testing.assert_close(found, expected)
        slopes = [
            torch.autograd.grad(y.pow(3).sum(), [z])[0]
            for y, z in ((found, ours), (expected, theirs))
        ]
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-4, atol=1e-4)

    def test_running_statistics_by_hand(self) -> None:
        layer = BatchRenorm(1, momentum=0.9)
        learn(layer, torch.tensor([[1.0], [3.0]]))  # mean 2, variance 1 (of the batch, not n - 1)
        assert layer.mean.item() == pytest.approx(0.2)
        assert layer.variance.item() == pytest.approx(1.0)
        learn(layer, torch.tensor([[0.0], [6.0]]))  # mean 3, variance 9
        assert layer.mean.item() == pytest.approx(0.9 * 0.2 + 0.1 * 3)
        assert layer.variance.item() == pytest.approx(0.9 + 0.1 * 9)
        assert layer.count.item() == 2

    def test_warm_it_is_the_running_normalisation(self) -> None:
        """Within the bounds of r and d, a batch is normalised as it will be when acting."""
        layer, x = BatchRenorm(3, warmup=0), rows()
        with torch.no_grad():
            layer.mean.copy_(torch.tensor([0.5, 1.5, 1.0]))
            layer.variance.copy_(torch.tensor([3.0, 5.0, 4.0]))
        expected = layer(x)
        torch.testing.assert_close(learn(layer, x), expected)

    def test_bounds_by_hand(self) -> None:
        layer = BatchRenorm(2, warmup=0, eps=0.0)
        with torch.no_grad():
            layer.mean.copy_(torch.tensor([0.0, 0.0]))
            layer.variance.copy_(torch.tensor([1.0, 100.0]))
        # Both columns: mean 20, standard deviation 10 and 1.
        x = torch.tensor([[10.0, 19.0], [30.0, 21.0]])
        # r = 10 -> 3 and 1/10 -> 1/3; d = 20 -> 5 and 2. y = r (x - 20) / std + d
        assert learn(layer, x).T.tolist() == [
            pytest.approx([5 - 3.0, 5 + 3.0]),
            pytest.approx([2 - 1 / 3, 2 + 1 / 3], rel=1e-5),
        ]

    def test_warms_up_after_so_many_batches(self) -> None:
        layer, x = BatchRenorm(1, warmup=2, eps=0.0), torch.tensor([[3.0], [5.0]])
        for _ in range(2):
            assert learn(layer, x).ravel().tolist() == pytest.approx([-1.0, 1.0])
        mean, std = layer.mean.item(), math.sqrt(layer.variance.item())
        expected = [(3 - mean) / std, (5 - mean) / std]
        assert learn(layer, x).ravel().tolist() == pytest.approx(expected, rel=1e-4)

    def test_an_error_does_not_leave_it_learning(self) -> None:
        layer = nn.Sequential(BatchRenorm(1))
        with pytest.raises(KeyError), batch_statistics(layer):
            raise KeyError("loss")
        layer(torch.ones(2, 1))
        assert layer[0].count.item() == 0


def test_acts_the_same_in_numpy() -> None:
    net = batchnorm_mlp(3, (8, 5), 2, "tanh")
    forward = NumpyNetwork(describe(net)).call
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for seed in range(3):  # views: statistics and weights that move are seen
        learn(net, rows(seed)).square().mean().backward()
        optimizer.step()
        x = rows(9, n=4)
        with torch.no_grad():
            np.testing.assert_allclose(forward(x.numpy()), net(x).numpy(), rtol=1e-5, atol=1e-6)


def test_a_traced_step_learns_the_statistics() -> None:
    """The graph that is compiled moves the buffers it is given, and later losses see them."""

    def make() -> tuple[nn.Sequential, CompiledStep]:
        torch.manual_seed(0)
        net, other = batchnorm_mlp(3, (4,), 1, warmup=1), nn.Linear(1, 1)

        def fit(batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            return learn(net, batch["x"]).square().mean(), {}

        def follow(batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            return other(net(batch["x"]).detach()).square().mean(), {"mean": net[0].mean.sum()}

        return net, CompiledStep([Objective("fit", net, fit), Objective("follow", other, follow)])

    (one, eager), (two, traced) = make(), make()
    traced._lr.fill_(0.01)
    program = traced._program(["x"], False)
    graph = compile_cache._trace(program, [*traced._state_tensors(), rows()])
    assert two[0].count.item() == 0  # tracing is not an update
    for seed in range(4):
        metrics = eager(({"x": rows(seed)}), 0.01)
        found = graph(*traced._state_tensors(), rows(seed))[0]
        torch.testing.assert_close(found, metrics, rtol=1e-4, atol=1e-5)
    assert two[0].count.item() == 4
    for key, value in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[key], value, rtol=1e-4, atol=1e-5)
