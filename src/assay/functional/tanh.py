"""tanh in torch by NumPy's function, which takes a tenth of the time of torch's on a processor.

For few numbers torch's own is called, since a call of NumPy takes longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_LEAST = 4_096  # numbers

_library = torch.library.Library("assay", "FRAGMENT")
_library.define("tanh(Tensor x) -> Tensor")
TANH: Any = torch.ops.assay.tanh.default


def _by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().numpy()))


_library.impl("tanh", _by_numpy, "CPU")
_library.impl("tanh", torch.empty_like, "Meta")


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return TANH(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        [y] = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradient, y)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
        return _Tanh.apply(x), in_dims[0]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        [y] = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(tangent, y)


def tanh(x: Tensor) -> Tensor:
    """Return tanh x, with its gradient.

    Example:
        >>> tanh(torch.zeros(2)).tolist()
        [0.0, 0.0]
    """
    if torch.jit.is_tracing() or torch.compiler.is_compiling():  # type: ignore[attr-defined]
        return x.tanh()  # whoever runs an exported file does not know ours
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.numel() < _LEAST:
        return x.tanh()
    if x.layout != torch.strided or x.is_nested or not x.is_contiguous():
        return x.tanh()
    return _Tanh.apply(x)
