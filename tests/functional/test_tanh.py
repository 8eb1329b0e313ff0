"""tanh by NumPy: its numbers, its gradients, and who does not get to see it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from assay.functional.tanh import TANH, tanh
from assay.networks.mlp import Tanh

LARGE = (128, 64)


def numbers(*shape: int) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def derived_by(x: Tensor) -> str:
    return type(tanh(x.requires_grad_()).grad_fn).__name__


class TestNumbers:
    @pytest.mark.parametrize("shape", [LARGE, (5, 64, 33), (3,), (0, 64)])
    def test_equal_to_numpy_or_torch(self, shape: tuple[int, ...]) -> None:
        x = numbers(*shape)
        assert torch.allclose(tanh(x), torch.tanh(x.double()).float(), rtol=3e-7, atol=1e-8)
        if x.numel() >= 4096:
            assert np.array_equal(tanh(x).numpy(), np.tanh(x.numpy()))

    def test_extremes(self) -> None:
        x = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, 1e-30]).repeat(1000)
        found = tanh(x)[:5]
        assert found[:2].tolist() == [1.0, -1.0]
        assert found[2].isnan()
        assert torch.equal(found[3:], x[3:5])

    def test_where_numbers_do_not_lie_side_by_side(self) -> None:
        x = numbers(64, 200)
        for part in (x.t(), x[:, :100], x[::2]):
            found = tanh(part)
            assert found.shape == part.shape
            assert torch.allclose(found, tanh(part.contiguous()), rtol=3e-7)

    def test_the_input_stays_as_it_was(self) -> None:
        x = numbers(*LARGE)
        before = x.clone()
        tanh(x).zero_()
        assert torch.equal(x, before)

    def test_what_numpy_is_not_asked(self) -> None:
        """Few numbers, other types and other devices."""
        for x in (numbers(2, 3), numbers(*LARGE).double(), numbers(*LARGE).bfloat16()):
            assert derived_by(x) == "TanhBackward0"
        assert derived_by(numbers(*LARGE)) == "_TanhBackward"
        assert tanh(torch.empty(LARGE, device="meta")).shape == LARGE


class TestGradient:
    def test_first(self) -> None:
        x, weight = numbers(*LARGE).requires_grad_(), numbers(*LARGE)
        [ours] = torch.autograd.grad((tanh(x) * weight).sum(), x)
        [theirs] = torch.autograd.grad((torch.tanh(x) * weight).sum(), x)
        assert torch.allclose(ours, theirs, atol=1e-5)

    def test_second(self) -> None:
        """A discriminator's gradient penalty needs it."""
        x = numbers(*LARGE).requires_grad_()
        found = []
        for function in (tanh, torch.tanh):
            [slope] = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            found += torch.autograd.grad(slope.square().sum(), x)
        assert torch.allclose(*found, atol=1e-5)

    def test_forward(self) -> None:
        x = numbers(*LARGE)
        y, tangent = torch.func.jvp(tanh, (x,), (torch.ones_like(x),))
        assert torch.allclose(tangent, 1 - y.square(), atol=1e-6)
        with torch.no_grad(), forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            found = forward_ad.unpack_dual(tanh(dual)).tangent
        assert torch.equal(found, tangent)

    def test_of_each_row(self) -> None:
        x = numbers(3, *LARGE)
        found = torch.func.vmap(torch.func.grad(lambda row: tanh(row).sum()))(x)
        assert torch.allclose(found, 1 - torch.tanh(x).square(), atol=1e-6)


class TestExport:
    def test_exported_files_hold_operations_that_others_know(self) -> None:
        x = numbers(*LARGE)
        traced = torch.jit.trace(Tanh(), x)
        assert "aten::tanh" in str(traced.graph) and "assay::" not in str(traced.graph)
        batch = torch.export.Dim("batch", min=1)
        exported = torch.export.export(Tanh(), (x,), dynamic_shapes={"input": {0: batch}})
        assert "aten.tanh" in str(exported.graph)

    def test_a_trace_of_torch_holds_the_operation_and_not_its_numbers(self) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        traced = make_fx(lambda x: tanh(x))(numbers(*LARGE))
        assert [node.target for node in traced.graph.nodes][1] is TANH
        other = numbers(*LARGE) + 1
        assert torch.equal(traced(other), tanh(other))
