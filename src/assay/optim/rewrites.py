"""What is changed in the graph of a step before it is compiled for a processor.

The results are the same to rounding, or exactly. Inductor hands products of matrices to a library,
whose kernels take sixteen columns at a time: a narrow result is computed as its transpose, if that
is wide. And it reads and writes single elements at places that an index names, one by one; where a
row is short, comparing the whole row with the index is faster, since that is done for many rows at
once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_COLUMNS = 16  # numbers in a register
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
    if not _narrow(*_example(node).shape):
        return None
    return _turned_product(graph, node, left, right)


def _product_and_sum(graph: Any, node: Any) -> Any:
    added, left, right = node.args
    if node.kwargs or not _narrow(*_example(node).shape):
        return None
    with graph.inserting_before(node):
        return graph.call_function(
            aten.add.Tensor, (_turned_product(graph, node, left, right), added)
        )


def _turned_product(graph: Any, node: Any, left: Any, right: Any) -> Any:
    """Return A B as (B^T A^T)^T."""
    with graph.inserting_before(node):
        turned = [graph.call_function(aten.permute.default, (x, [1, 0])) for x in (right, left)]
        product = graph.call_function(aten.mm.default, tuple(turned))
        return graph.call_function(aten.permute.default, (product, [1, 0]))


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
    aten.gather.default: _read_place,
    aten.scatter_add.default: _write_place,
}
