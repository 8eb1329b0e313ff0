"""Layers of small networks: how a file describes them, and how NumPy runs them, without torch.

Each kind of layer is a frozen description (`Dense`), which names its tensors, checks their shapes
and builds a callable over a batch [B, ...]. Arrays are never copied: when they are views of a
learner's parameters, every in-place update of these is seen by the next call.

Outputs live in buffers that are kept per batch size and **reused by the next call**: copy what you
keep. A built layer is therefore not for use by several threads at once. No layer changes its input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from assay.policies.parts import (
    ActivationName,
    Array,
    Arrays,
    Forward,
    Layer,
    ModelError,
    Name,
    Shapes,
)

if TYPE_CHECKING:
    from assay.policies.description import Entry

_ZERO = np.zeros((), np.float32)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_GELU_SCALE = np.float32(np.sqrt(2.0 / np.pi))
_GELU_CUBIC = np.float32(0.044715)

_SPREAD_ROWS = 128  # the largest batch for which a bias is spread over its rows
_ZEROS_SIZE = 65_536  # the largest array of zeros that is kept
_zeros_by_shape: dict[tuple[int, ...], Array] = {}


def _zeros(x: Array) -> Array:
    """Return zeros to compare with: of the shape of `x`, which is far faster than a scalar."""
    zeros = _zeros_by_shape.get(x.shape)
    if zeros is None:
        if x.size > _ZEROS_SIZE:
            return _ZERO
        zeros = _zeros_by_shape[x.shape] = np.zeros(x.shape, np.float32)
        zeros.flags.writeable = False
    return zeros


def tanh(x: Array) -> None:
    """Apply tanh in place."""
    np.tanh(x, x)


def relu(x: Array) -> None:
    """Apply max(x, 0) in place."""
    np.maximum(x, _zeros(x), out=x)


def elu(x: Array) -> None:
    """Apply x for x > 0, exp(x) - 1 otherwise, in place."""
    below = np.minimum(x, _zeros(x))
    np.expm1(below, below)
    np.maximum(x, _zeros(x), out=x)
    x += below


def silu(x: Array) -> None:
    """Apply x sigmoid(x) in place."""
    # sigmoid(x) = (1 + tanh(x / 2)) / 2, which cannot overflow
    gate = x * _HALF
    np.tanh(gate, gate)
    gate += _ONE
    gate *= _HALF
    x *= gate


def gelu(x: Array) -> None:
    """Apply the tanh form of GELU in place."""
    # x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
    gate = x * x
    gate *= _GELU_CUBIC
    gate += _ONE
    gate *= x
    gate *= _GELU_SCALE
    np.tanh(gate, gate)
    gate += _ONE
    gate *= _HALF
    x *= gate


ACTIVATIONS: dict[str, Callable[[Array], None]] = {
    "tanh": tanh,
    "relu": relu,
    "elu": elu,
    "silu": silu,
    "gelu": gelu,
}


class DenseForward:
    """activation(x W^T + b) with a weight [out, in], as torch stores it."""

    def __init__(
        self, weight: Array, bias: Array, activation: Callable[[Array], None] | None = None
    ) -> None:
        self.weight_t = weight.T
        self.bias = bias
        self.activation = activation
        self._buffers: dict[int, tuple[Array, Array, bool]] = {}

    def __call__(self, x: Array) -> Array:
        """Return [B, out]."""
        buffers = self._buffers.get(len(x))
        if buffers is None:
            buffers = self._buffers[len(x)] = self._allocate(len(x))
        out, bias, spread = buffers
        x.dot(self.weight_t, out)
        if spread:
            bias[...] = self.bias
        np.add(out, bias, out)
        if self.activation is not None:
            self.activation(out)
        return out

    def _allocate(self, n: int) -> tuple[Array, Array, bool]:
        # Adding arrays of one shape is so much faster than broadcasting that, for small batches,
        # it pays to spread the bias over the rows first. It is done at every call, because the
        # bias may be a learner's.
        out = np.empty((n, len(self.bias)), np.float32)
        if n == 1:
            return out, self.bias[None], False
        if n <= _SPREAD_ROWS:
            return out, np.empty_like(out), True
        return out, self.bias, False


class Dense(Layer):
    """activation(W x + b), W [out, in]."""

    kind: Literal["dense"] = "dense"
    weight: Name
    bias: Name
    activation: ActivationName | None = None

    def check(self, shapes: Shapes, width: int) -> int:
        """Check W and b."""
        return shapes.dense(self.weight, self.bias, width)

    def build(self, arrays: Arrays) -> DenseForward:
        """Return the layer."""
        activation = None if self.activation is None else ACTIVATIONS[self.activation]
        return DenseForward(arrays[self.weight], arrays[self.bias], activation)


class NoisyDense(Layer):
    """W x + b + eps_out * (W_sigma (eps_in * x) + b_sigma).

    For acting beside the learner only: a file holds one draw of the noise, in a `Dense` layer.
    """

    kind: Literal["noisy_dense"] = "noisy_dense"
    weight: Name
    bias: Name
    weight_sigma: Name
    bias_sigma: Name
    eps_in: Name
    eps_out: Name

    def check(self, shapes: Shapes, width: int) -> int:
        """Refuse: a file has no noise to draw."""
        raise ModelError("A layer of kind 'noisy_dense' belongs to a learner, not into a file.")

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer."""
        mean = DenseForward(arrays[self.weight], arrays[self.bias])
        spread = DenseForward(arrays[self.weight_sigma], arrays[self.bias_sigma])
        eps_in, eps_out = arrays[self.eps_in], arrays[self.eps_out]

        def forward(x: Array) -> Array:
            out = mean(x)
            noise = spread(x * eps_in)
            noise *= eps_out
            out += noise
            return out

        return forward


class LayerNorm(Layer):
    """Mean 0 and variance 1 over the features, then scale and shift."""

    kind: Literal["layer_norm"] = "layer_norm"
    weight: Name
    bias: Name
    eps: float = Field(gt=0, le=1)

    def check(self, shapes: Shapes, width: int) -> int:
        """Check scale and shift."""
        for name in (self.weight, self.bias):
            shapes.expect(name, width)
        return width

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer."""
        weight, bias, eps = arrays[self.weight], arrays[self.bias], np.float32(self.eps)

        def forward(x: Array) -> Array:
            share = np.float32(1.0 / x.shape[-1])
            out = x - np.add.reduce(x, -1, keepdims=True) * share
            variance = np.add.reduce(out * out, -1, keepdims=True) * share
            variance += eps
            out /= np.sqrt(variance, variance)
            out *= weight
            out += bias
            return out

        return forward


class BatchNorm(Layer):
    """Features by their running statistics, then scale and shift."""

    kind: Literal["batch_norm"] = "batch_norm"
    weight: Name
    bias: Name
    mean: Name
    variance: Name
    eps: float = Field(gt=0, le=1)

    def check(self, shapes: Shapes, width: int) -> int:
        """Check statistics, scale and shift."""
        for name in (self.weight, self.bias, self.mean, self.variance):
            shapes.expect(name, width)
        return width

    def check_values(self, arrays: Arrays) -> None:
        """Refuse negative variances."""
        if (arrays[self.variance] < 0).any():
            raise ModelError(f"Tensor '{self.variance}' holds a negative variance.")

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer."""
        weight, bias, eps = arrays[self.weight], arrays[self.bias], np.float32(self.eps)
        mean, variance = arrays[self.mean], arrays[self.variance]

        def forward(x: Array) -> Array:
            # One factor per feature; not kept, because statistics and weights may be a learner's.
            factor = np.sqrt(variance + eps)
            np.divide(weight, factor, factor)
            out = x - mean
            out *= factor
            out += bias
            return out

        return forward


class Activation(Layer):
    """A nonlinearity that follows no dense layer."""

    kind: Literal["activation"] = "activation"
    activation: ActivationName

    def check(self, shapes: Shapes, width: int) -> int:
        """There are no tensors to check."""
        return width

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer."""
        activate = ACTIVATIONS[self.activation]

        def forward(x: Array) -> Array:
            out = np.array(x, np.float32)
            activate(out)
            return out

        return forward


class Residual(Layer):
    """x + W2 relu(W1 norm(x) + b1) + b2, W1 [inside, n], W2 [n, inside]."""

    kind: Literal["residual"] = "residual"
    norm: LayerNorm
    up: Dense
    down: Dense

    def check(self, shapes: Shapes, width: int) -> int:
        """Check the three layers."""
        self.norm.check(shapes, width)
        out = self.down.check(shapes, self.up.check(shapes, width))
        if out != width:
            raise ModelError(f"A residual block gives {out} numbers of {width}; expected as many.")
        return width

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer."""
        norm, up, down = (part.build(arrays) for part in (self.norm, self.up, self.down))

        def forward(x: Array) -> Array:
            out = down(up(norm(x)))
            out += x
            return out

        return forward


Plain = Dense | NoisyDense | LayerNorm | BatchNorm | Activation | Residual


class Chain:
    """Layers one after another."""

    def __init__(self, layers: Sequence[Forward]) -> None:
        self.layers = tuple(layers)

    def __call__(self, x: Any) -> Array:
        """Return the output of the last layer."""
        for layer in self.layers:
            x = layer(x)
        return x


def make_input(entries: Sequence[Entry]) -> Forward:
    """Return what makes float32 [B, width] of an observation; without entries, of plain vectors."""
    if not entries:
        return AsFloat()
    first, *more = entries
    if more or first.key is not None or first.sizes:
        return Flatten(entries)
    return AsFloat(first.scale)


class AsFloat:
    """Flatten one array of plain numbers, times a scale, into float32 [B, width]."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = np.float32(scale)

    def __call__(self, x: Array) -> Array:
        """Return the flat observation."""
        if x.ndim != 2:
            x = x.reshape(len(x), -1)
        if x.dtype != np.float32:
            x = x.astype(np.float32)
        return x if self._scale == 1.0 else x * self._scale


class Flatten:
    """Concatenate the entries of an observation into float32 [B, width].

    Args:
        entries: Plain numbers times a scale, or integers to be one-hot coded.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.width = sum(entry.width for entry in entries)
        self._entries = []
        end = 0
        for entry in entries:
            begin, end = end, end + entry.width
            columns = np.repeat(np.arange(len(entry.sizes)), entry.sizes)
            pairs = zip(entry.sizes, entry.starts, strict=True)
            values = [np.arange(start, start + n) for n, start in pairs]
            choices = np.concatenate(values) if entry.sizes else np.arange(0)
            where, scale = slice(begin, end), np.float32(entry.scale)
            self._entries.append((entry.key, where, scale, columns, choices))
        self._buffers: dict[int, Array] = {}

    def __call__(self, obs: Array | Mapping[str, Array]) -> Array:
        """Return the flat observation."""
        first = obs if isinstance(obs, np.ndarray) else obs[self._entries[0][0] or ""]
        out = self._buffers.get(len(first))
        if out is None:
            out = self._buffers[len(first)] = np.empty((len(first), self.width), np.float32)
        for key, where, scale, columns, choices in self._entries:
            x = obs if isinstance(obs, np.ndarray) else obs[key or ""]
            x = x.reshape(len(out), -1)
            if len(columns):
                np.equal(x[:, columns], choices, out=out[:, where])
            else:
                np.multiply(x, scale, out=out[:, where])
        return out
