"""What is changed in the graph of a step before it is compiled for a processor.

The results are the same to rounding, or exactly. Products of matrices go to functions that take
sixteen columns at a time or more: a narrow result is computed as its transpose, if that is wide. A
library would write a bias out before it adds a product; added after, it costs nothing. tanh is a
fraction of polynomials, which takes less time than an exponential. And Inductor reads and writes
single elements at places that an index names, one by one; where a row is short, comparing the whole
row with the index is faster, since that is done for many rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from assay.functional.tanh import TANH
from assay.optim import products

_COLUMNS = 16  # numbers in a register
# tanh x = x P(x^2) / Q(x^2), from the highest power on; beyond the limit it is 1 in float32.
_TANH_LIMIT = 7.90531110763549805
_TANH_P = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_SHORT = 32  # longest row that is compared with its index

aten: Any = torch.ops.aten


def rewrite(graph: Any) -> None:
    """Rewrite a traced graph (`torch.fx.GraphModule`) in place, whose nodes have example values."""
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        made = _RULES.get(node.target, lambda *_: None)(graph.graph, node)
        if made is not None:
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            graph.graph.erase_node(node)
    graph.graph.lint()
    graph.recompile()


def _example(node: Any) -> Tensor:
    return node.meta["val"]


def _narrow(rows: int, columns: int) -> bool:
    """Return whether the transpose of a result [rows, columns] is computed faster.

    One column is a product with a vector, which libraries treat by itself.
    """
    return 1 < columns < rows and columns % _COLUMNS != 0 and rows % _COLUMNS == 0


def _product(graph: Any, node: Any) -> Any:
    left, right = node.args
    turn = _turned_product if _narrow(*_example(node).shape) else _plain_product
    with graph.inserting_before(node):
        return turn(graph, left, right)


def _product_and_sum(graph: Any, node: Any) -> Any:
    """Return c + A B in two operations: the sum is a part of what follows then."""
    added, left, right = node.args
    if node.kwargs:
        return None
    turn = _turned_product if _narrow(*_example(node).shape) else _plain_product
    with graph.inserting_before(node):
        product = turn(graph, left, right)
        return graph.call_function(aten.add.Tensor, (product, added))


def _plain_product(graph: Any, left: Any, right: Any) -> Any:
    """Return A B by the function that is fastest."""
    (rows, inner), columns = _example(left).shape, _example(right).shape[1]
    if inner == 1:  # a part of what follows
        return graph.call_function(aten.mul.Tensor, (left, right))
    own = products.fits(rows, inner, columns, _example(left).dtype)
    target = torch.ops.assay.product.default if own else aten.mm.default
    return graph.call_function(target, (left, right))


def _turned_product(graph: Any, left: Any, right: Any) -> Any:
    """Return A B as (B^T A^T)^T."""
    turned = [_turned(graph, x) for x in (right, left)]
    product = _plain_product(graph, *turned)
    return graph.call_function(aten.permute.default, (product, [1, 0]))


def _turned(graph: Any, matrix: Any) -> Any:
    made = graph.call_function(aten.permute.default, (matrix, [1, 0]))
    made.meta["val"] = _example(matrix).detach().t()
    return made


def _tanh(graph: Any, node: Any) -> Any:
    [source] = node.args
    if _example(source).dtype != torch.float32:
        return None
    with graph.inserting_before(node):
        x = graph.call_function(aten.clamp.default, (source, -_TANH_LIMIT, _TANH_LIMIT))
        square = graph.call_function(aten.mul.Tensor, (x, x))
        p, q = (_polynomial(graph, square, powers) for powers in (_TANH_P, _TANH_Q))
        above = graph.call_function(aten.mul.Tensor, (p, x))
        return graph.call_function(aten.div.Tensor, (above, q))


def _polynomial(graph: Any, x: Any, factors: Sequence[float]) -> Any:
    """Return a polynomial of x by Horner's rule, of factors from the highest power on."""
    total, *rest = factors
    for factor in rest:
        total = graph.call_function(aten.mul.Tensor, (x, total))
        total = graph.call_function(aten.add.Tensor, (total, factor))
    return total


def _read_place(graph: Any, node: Any) -> Any:
    """Return x[..., index] as a sum over the row, of which all but one element are 0."""
    source, dim, index = node.args[:3]
    if not _one_per_row(_example(source), dim, _example(index)):
        return None
    with graph.inserting_before(node):
        chosen = _compared(graph, source, index)
        kept = graph.call_function(aten.where.ScalarOther, (chosen, source, 0.0))
        return graph.call_function(aten.sum.dim_IntList, (kept, [-1], True))


def _write_place(graph: Any, node: Any) -> Any:
    """Return x with values added at x[..., index], as a sum of two rows."""
    into, dim, index, values = node.args
    if not _one_per_row(_example(into), dim, _example(index)):
        return None
    with graph.inserting_before(node):
        chosen = _compared(graph, into, index)
        added = graph.call_function(aten.where.ScalarOther, (chosen, values, 0.0))
        return graph.call_function(aten.add.Tensor, (into, added))


def _one_per_row(rows: Tensor, dim: int, index: Tensor) -> bool:
    return (
        rows.is_floating_point()
        and dim in (-1, rows.ndim - 1)
        and rows.shape[-1] <= _SHORT
        and tuple(index.shape) == (*rows.shape[:-1], 1)
    )


def _compared(graph: Any, rows: Any, index: Any) -> Any:
    example = _example(rows)
    options = {"device": example.device, "pin_memory": False}
    places = graph.call_function(aten.arange.default, (example.shape[-1],), options)
    return graph.call_function(aten.eq.Tensor, (index, places))


_RULES = {
    aten.mm.default: _product,
    aten.addmm.default: _product_and_sum,
    aten.tanh.default: _tanh,
    TANH: _tanh,
    aten.gather.default: _read_place,
    aten.scatter_add.default: _write_place,
}
