"""Graphs before and after they are rewritten: the same results, by other operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from assay.functional.tanh import TANH, tanh
from assay.optim.rewrites import rewrite

aten = torch.ops.aten


def rewritten(function: Callable[..., Tensor], *example: Tensor) -> tuple[Any, Tensor]:
    """Return the rewritten graph of a function and what it gives for the example."""
    graph = make_fx(function)(*example)
    rewrite(graph)
    return graph, graph(*example)


def shapes(graph: Any, target: Any, *inputs: Tensor) -> list[tuple[int, ...]]:
    """Return the shapes of the results of all calls of `target`."""
    found: list[tuple[int, ...]] = []

    class Watch(torch.fx.Interpreter):
        def call_function(self, function: Any, args: Any, kwargs: Any) -> Any:
            result = super().call_function(function, args, kwargs)
            if function is target:
                found.append(tuple(result.shape))
            return result

    Watch(graph).run(*inputs)
    return found


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# [rows, inner] @ [inner, columns], and whether that is narrow
PRODUCTS = [
    (48, 7, 5, True),  # the logits of a policy
    (64, 100, 21, True),  # the gradient of a first layer
    (48, 7, 1, False),  # a vector
    (48, 7, 16, False),  # whole registers
    (5, 48, 21, False),  # as narrow the other way round
    (20, 7, 5, False),
]


@pytest.mark.parametrize(("rows", "inner", "columns", "narrow"), PRODUCTS)
@pytest.mark.parametrize("bias", [False, True])
def test_narrow_products_are_turned(
    rows: int, inner: int, columns: int, narrow: bool, bias: bool
) -> None:
    a, b, c = random(rows, inner), random(inner, columns), random(columns)
    if bias:
        function, given = (lambda c, a, b: torch.addmm(c, a, b)), (c, a, b)
    else:
        function, given = torch.mm, (a, b)  # type: ignore[assignment]
    graph, result = rewritten(function, *given)
    torch.testing.assert_close(result, function(*given))
    expected = (columns, rows) if narrow else (rows, columns)
    # A bias is added by what follows: the library would write it out first.
    assert shapes(graph, aten.mm.default, *given) == [expected]
    assert shapes(graph, aten.addmm.default, *given) == []


def test_scaled_sums_are_left_alone() -> None:
    """`beta` and `alpha` would be lost."""
    given = random(5), random(48, 7), random(7, 5)
    graph, result = rewritten(lambda c, a, b: torch.addmm(c, a, b, beta=2.0, alpha=3.0), *given)
    torch.testing.assert_close(result, 2.0 * given[0] + 3.0 * given[1] @ given[2])
    assert shapes(graph, aten.addmm.default, *given) == [(48, 5)]


def test_a_product_of_a_column_and_a_row_is_no_product_of_matrices() -> None:
    given = random(48, 1), random(1, 20)
    graph, result = rewritten(torch.mm, *given)
    assert torch.equal(result, given[0] @ given[1])
    assert shapes(graph, aten.mm.default, *given) == []


@pytest.mark.parametrize("function", [torch.tanh, tanh])
def test_tanh_is_a_fraction_of_polynomials(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.cat([torch.linspace(-12, 12, 9001), torch.linspace(-1e-3, 1e-3, 9001)])
    graph, result = rewritten(function, x)
    assert not {aten.tanh.default, TANH} & {node.target for node in graph.graph.nodes}
    torch.testing.assert_close(result.double(), x.double().tanh(), rtol=4e-7, atol=0)
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    torch.testing.assert_close(graph(ends), ends.tanh(), equal_nan=True, rtol=1e-6, atol=0)
    graph, result = rewritten(function, x.double())  # that has more digits
    assert torch.equal(result, x.double().tanh())


@pytest.mark.parametrize("lead", [(6,), (6, 3)])
def test_single_elements_of_short_rows_are_found_by_comparing(lead: tuple[int, ...]) -> None:
    """A value and its gradient are exactly those of gather, also beside a masked -1e9."""
    table = random(*lead, 4)
    table[0, ..., 1] = -1e9
    index = torch.arange(table[..., 0].numel()).reshape(lead) % 4

    def function(table: Tensor, index: Tensor) -> Tensor:
        leaf = table.detach().requires_grad_()
        picked = leaf.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        [grad] = torch.autograd.grad(picked.square().sum(), leaf)
        return torch.cat([picked.unsqueeze(-1), grad], -1)

    graph, result = rewritten(function, table, index)
    assert torch.equal(result, function(table, index))
    targets = {node.target for node in graph.graph.nodes}
    assert not targets & {aten.gather.default, aten.scatter_add.default}


@pytest.mark.parametrize(
    ("table", "dim", "index"),
    [
        (random(6, 33), -1, torch.zeros(6, 1, dtype=torch.long)),  # a long row
        (random(6, 4), -1, torch.tensor([[0, 3]] * 6)),  # two of each
        (random(4, 6), 0, torch.zeros(1, 6, dtype=torch.long)),  # columns
        (torch.arange(24).reshape(6, 4), -1, torch.ones(6, 1, dtype=torch.long)),  # whole numbers
        (random(6, 4), -1, torch.ones(3, 1, dtype=torch.long)),  # some rows
    ],
)
def test_other_elements_are_gathered(table: Tensor, dim: int, index: Tensor) -> None:
    graph, result = rewritten(lambda t, i: t.gather(dim, i), table, index)
    assert torch.equal(result, table.gather(dim, index))
    assert aten.gather.default in {node.target for node in graph.graph.nodes}


def test_what_is_rewritten_may_feed_what_is_rewritten() -> None:
    """A narrow product whose rows are picked from: both are changed."""
    given = random(48, 7), random(7, 5), torch.arange(48) % 5

    def function(a: Tensor, b: Tensor, index: Tensor) -> Tensor:
        return (a @ b).gather(-1, index.unsqueeze(-1))

    graph, result = rewritten(function, *given)
    torch.testing.assert_close(result, function(*given))
    assert aten.gather.default not in {node.target for node in graph.graph.nodes}
    assert shapes(graph, aten.mm.default, *given) == [(5, 48)]
