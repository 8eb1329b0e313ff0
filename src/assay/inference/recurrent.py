"""One step of recurrent layers on NumPy arrays, without torch.

As in `assay.inference.layers`, weights are never copied. Unlike there, what a call returns is the
caller's: a carry outlives the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from assay.inference.layers import Dense

Array = np.ndarray[Any, Any]
Carry = dict[str, Array]
Cell = Callable[[Array, Carry], tuple[Array, Carry]]
Weights = tuple[Array, Array, Array]  # input weight [G, in], bias [G], recurrent weight [G, H]

_HALF = np.float32(0.5)


class LSTM:
    """Layers of long short-term memory: (x [B, in], carry) -> (h [B, H], carry)."""

    def __init__(self, layers: Sequence[Weights]) -> None:
        self.size = layers[0][2].shape[1]
        self.layers = [(Dense(weight, bias), hidden.T) for weight, bias, hidden in layers]

    def __call__(self, x: Array, carry: Carry) -> tuple[Array, Carry]:
        """Return the last layer's output and the carry after the step."""
        size = self.size
        cells, states = np.empty_like(carry["c"]), np.empty_like(carry["h"])
        for i, (project, hidden) in enumerate(self.layers):
            gates = project(x)  # input, forget, output, new
            gates += carry["h"][:, i].dot(hidden)
            _sigmoid(gates[:, : 3 * size])
            new = gates[:, 3 * size :]
            np.tanh(new, new)
            # c' = f c + i g,  h' = o tanh(c')
            c = np.multiply(gates[:, size : 2 * size], carry["c"][:, i], out=cells[:, i])
            new *= gates[:, :size]
            c += new
            x = np.tanh(c, out=states[:, i])
            x *= gates[:, 2 * size : 3 * size]
        return x, {"c": cells, "h": states}


class GRU:
    """Gated recurrent layers: (x [B, in], carry) -> (h [B, H], carry)."""

    def __init__(self, layers: Sequence[Weights]) -> None:
        self.size = layers[0][2].shape[1]
        self.layers = [(Dense(weight, bias), hidden.T) for weight, bias, hidden in layers]

    def __call__(self, x: Array, carry: Carry) -> tuple[Array, Carry]:
        """Return the last layer's output and the carry after the step."""
        size = self.size
        states = np.empty_like(carry["h"])
        for i, (project, hidden) in enumerate(self.layers):
            h, from_x = carry["h"][:, i], project(x)
            from_h = h.dot(hidden)  # reset, keep, new
            gates = from_x[:, : 2 * size]
            gates += from_h[:, : 2 * size]
            _sigmoid(gates)
            # n = tanh(x' + r h''),  h' = (1 - z) n + z h
            new = from_h[:, 2 * size :]
            new *= gates[:, :size]
            new += from_x[:, 2 * size :]
            np.tanh(new, new)
            x = np.subtract(h, new, out=states[:, i])
            x *= gates[:, size:]
            x += new
        return x, {"h": states}


def _sigmoid(x: Array) -> None:
    # (1 + tanh(x / 2)) / 2, which cannot overflow
    x *= _HALF
    np.tanh(x, x)
    x += np.float32(1.0)
    x *= _HALF
