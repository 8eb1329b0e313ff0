"""Recurrent layers: how a file describes them, and one step of them on NumPy arrays.

As in `assay.policies.layers`, arrays are never copied. Unlike there, what a call returns is the
caller's: a carry outlives the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from assay.policies.layers import DenseForward
from assay.policies.parts import (
    MAX_PARTS,
    MAX_WIDTH,
    Array,
    Arrays,
    ModelError,
    Name,
    Part,
    Shapes,
    Width,
)

Carry = dict[str, Array]
Cell = Callable[[Array, Carry], tuple[Array, Carry]]
Weights = tuple[Array, Array, Array]  # input weight [G, in], bias [G], recurrent weight [G, H]

_HALF = np.float32(0.5)


class LSTM:
    """Layers of long short-term memory: (x [B, in], carry) -> (h [B, H], carry)."""

    def __init__(self, layers: Sequence[Weights]) -> None:
        self.size = layers[0][2].shape[1]
        self.layers = [(DenseForward(weight, bias), hidden.T) for weight, bias, hidden in layers]

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
        self.layers = [(DenseForward(weight, bias), hidden.T) for weight, bias, hidden in layers]

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


class Gates(Part):
    """One recurrent layer: gates [G, in] x + b [G] and [G, H] h."""

    input: Name
    bias: Name
    hidden: Name


class Recurrent(Part):
    """Layers of GRU (gates reset, keep, new) or LSTM (gates input, forget, output, new)."""

    kind: Literal["gru", "lstm"]
    size: Width
    layers: Annotated[tuple[Gates, ...], Field(min_length=1, max_length=MAX_PARTS)]

    def check(self, shapes: Shapes, width: int) -> int:
        """Check the gates of every layer."""
        gates = (3 if self.kind == "gru" else 4) * self.size
        if gates > MAX_WIDTH:
            raise ModelError(f"A memory of size {self.size} is too wide.")
        for layer in self.layers:
            shapes.expect(layer.input, gates, width)
            shapes.expect(layer.bias, gates)
            shapes.expect(layer.hidden, gates, self.size)
            width = self.size
        return width

    def check_values(self, arrays: Arrays) -> None:
        """Any finite number will do."""

    def build(self, arrays: Arrays) -> Cell:
        """Return one step of all layers."""
        weights = [(arrays[g.input], arrays[g.bias], arrays[g.hidden]) for g in self.layers]
        return GRU(weights) if self.kind == "gru" else LSTM(weights)

    def initial(self, n: int) -> Carry:
        """Return the carry [n, layers, size] with which an episode begins."""
        names = ("h",) if self.kind == "gru" else ("h", "c")
        return {name: np.zeros((n, len(self.layers), self.size), np.float32) for name in names}
