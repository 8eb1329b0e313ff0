"""tanh in torch by NumPy's function, which takes a tenth of the time of torch's on a processor.

It is also what acting on the host computes, so that both give the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_LEAST = 4_096  # numbers; with fewer, calling NumPy costs what it gains

_library = torch.library.Library("assay", "FRAGMENT")
_library.define("tanh(Tensor x) -> Tensor")
TANH: Any = torch.ops.assay.tanh.default


def _by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().contiguous().numpy()))


def _shape_alone(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_library.impl("tanh", _by_numpy, "CPU")
_library.impl("tanh", _shape_alone, "Meta")


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = TANH(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        [y] = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradient, y)


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
    return _Tanh.apply(x) if torch.is_grad_enabled() and x.requires_grad else TANH(x)
