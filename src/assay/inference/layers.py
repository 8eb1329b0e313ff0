"""Forward passes of small networks on NumPy arrays, without torch.

A layer is a callable over a batch [B, ...]. Weights are given as arrays and never copied: when they
are views of a learner's parameters, every in-place update of these is seen by the next call.

Outputs live in buffers that are kept per batch size and **reused by the next call**: copy what you
keep. A layer object is therefore not for use by several threads at once. No layer changes its
input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Layer = Callable[[Any], Array]

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


class Dense:
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


class NoisyDense:
    """A noisy linear layer; `noisy()` says at each call whether the noise is heard."""

    def __init__(
        self,
        mean: Dense,
        spread: Dense,
        eps_in: Array,
        eps_out: Array,
        noisy: Callable[[], bool],
    ) -> None:
        self.mean = mean
        self.spread = spread
        self.eps_in = eps_in
        self.eps_out = eps_out
        self.noisy = noisy

    def __call__(self, x: Array) -> Array:
        """Return [B, out]."""
        out = self.mean(x)
        if self.noisy():
            noise = self.spread(x * self.eps_in)
            noise *= self.eps_out
            out += noise
        return out


class LayerNorm:
    """Normalise the last axis, then scale and shift."""

    def __init__(self, weight: Array, bias: Array, eps: float = 1e-5) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = np.float32(eps)

    def __call__(self, x: Array) -> Array:
        """Return an array of the same shape."""
        share = np.float32(1.0 / x.shape[-1])
        out = x - np.add.reduce(x, -1, keepdims=True) * share
        variance = np.add.reduce(out * out, -1, keepdims=True) * share
        variance += self.eps
        out /= np.sqrt(variance, variance)
        out *= self.weight
        out += self.bias
        return out


class BatchNorm:
    """Normalise features by running statistics, then scale and shift."""

    def __init__(
        self, weight: Array, bias: Array, mean: Array, variance: Array, eps: float = 1e-3
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.mean = mean
        self.variance = variance
        self.eps = np.float32(eps)

    def __call__(self, x: Array) -> Array:
        """Return an array of the same shape."""
        # One factor per feature; not kept, because statistics and weights may be a learner's.
        factor = np.sqrt(self.variance + self.eps)
        np.divide(self.weight, factor, factor)
        out = x - self.mean
        out *= factor
        out += self.bias
        return out


class Activation:
    """An activation that stands alone, without a dense layer before it."""

    def __init__(self, function: Callable[[Array], None]) -> None:
        self.function = function

    def __call__(self, x: Array) -> Array:
        """Return an array of the same shape."""
        out = np.array(x, np.float32)
        self.function(out)
        return out


class Chain:
    """Layers one after another."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)

    def __call__(self, x: Any) -> Array:
        """Return the output of the last layer."""
        for layer in self.layers:
            x = layer(x)
        return x


class AsFloat:
    """Cast a batch to float32 where it is not."""

    def __call__(self, x: Array) -> Array:
        """Return `x` as float32."""
        return x if x.dtype == np.float32 else x.astype(np.float32)


class Flatten:
    """Concatenate the entries of an observation into float32 [B, width].

    Args:
        entries: (key or None, width, scale, sizes, starts) of each entry: plain numbers times
            scale, or, where sizes are given, integers to be one-hot coded.
    """

    def __init__(
        self,
        entries: Sequence[tuple[str | None, int, float, tuple[int, ...], tuple[int, ...]]],
    ) -> None:
        self.width = sum(width for _, width, *_ in entries)
        self._plain = len(entries) == 1 and entries[0][0] is None and not entries[0][3]
        self._scale = np.float32(entries[0][2])
        self._entries = []
        end = 0
        for key, width, scale, sizes, starts in entries:
            begin, end = end, end + width
            columns = np.repeat(np.arange(len(sizes)), sizes)
            values = [np.arange(a, a + n) for n, a in zip(sizes, starts, strict=True)]
            choices = np.concatenate(values) if sizes else np.arange(0)
            self._entries.append((key, slice(begin, end), np.float32(scale), columns, choices))
        self._buffers: dict[int, Array] = {}

    def __call__(self, obs: Array | Mapping[str, Array]) -> Array:
        """Return the flat observation."""
        if self._plain and isinstance(obs, np.ndarray):
            x = obs if obs.ndim == 2 else obs.reshape(len(obs), self.width)
            if x.dtype != np.float32:
                x = x.astype(np.float32)
            return x if self._scale == 1.0 else x * self._scale
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


class Dueling:
    """Q = V + A - mean(A)."""

    def __init__(self, value: Layer, advantage: Layer) -> None:
        self.value = value
        self.advantage = advantage

    def __call__(self, x: Array) -> Array:
        """Return action values [B, actions]."""
        q = self.advantage(x)
        baseline = np.add.reduce(q, 1, keepdims=True)
        baseline *= np.float32(-1.0 / q.shape[1])
        baseline += self.value(x)
        q += baseline
        return q


class Atoms:
    """Numbers of each action's atoms [B, A, K], with or without a value stream [B, K]."""

    def __init__(self, advantage: Layer, value: Layer | None, actions: int, atoms: int) -> None:
        self.advantage = advantage
        self.value = value
        self.shape = (actions, atoms)

    def __call__(self, x: Array) -> Array:
        """Return V + A - mean over actions of A, or A alone."""
        out = self.advantage(x).reshape(len(x), *self.shape)
        if self.value is not None:
            baseline = np.add.reduce(out, 1)
            baseline *= np.float32(-1.0 / self.shape[0])
            baseline += self.value(x)
            out += baseline[:, None]
        return out


class SupportMean:
    """Expected values of softmax distributions: logits [B, A, K] -> [B, A]."""

    def __init__(self, support: Array) -> None:
        self.support = support

    def __call__(self, logits: Array) -> Array:
        """Return sum z p of each action."""
        mass = logits - np.maximum.reduce(logits, -1, keepdims=True)
        np.exp(mass, mass)
        out = mass.dot(self.support)
        out /= np.add.reduce(mass, -1)
        return out


class AtomMean:
    """Means of atoms that weigh the same: [B, A, K] -> [B, A]."""

    def __call__(self, atoms: Array) -> Array:
        """Return the mean of each action."""
        out = np.add.reduce(atoms, -1)
        out *= np.float32(1.0 / atoms.shape[-1])
        return out


class Levels:
    """Expectations over quantile levels: sum_k mass_k head(f * phi(tau_k)), [B, D] -> [B, A].

    phi(tau) = relu(W cos(pi i tau) + b), i = 0 .. C - 1.

    Args:
        embed: relu(W x + b): cosines [n, C] -> [n, D].
        cosines: Their number C.
        head: [n, D] -> [n, A].
        affine: Whether the head is. It then commutes with a mean over levels, which costs one
            pass, not K.
        propose: Logits [B, K] of the masses between proposed levels; None where levels are given
            with each call.
    """

    def __init__(
        self, embed: Layer, cosines: int, head: Layer, affine: bool, propose: Layer | None = None
    ) -> None:
        self.embed = embed
        self.frequency = np.float32(np.pi) * np.arange(cosines, dtype=np.float32)
        self.head = head
        self.affine = affine
        self.propose = propose

    def __call__(self, features: Array, levels: Array | None = None) -> Array:
        """Return the expectations; `levels` [K] are shared by all rows and weigh the same."""
        if self.propose is not None:
            logits = self.propose(features)
            mass = np.exp(logits - logits.max(1, keepdims=True))
            mass /= mass.sum(1, keepdims=True)
            tau = mass.cumsum(1) - mass / 2
        else:
            assert levels is not None
            tau = levels[None]
            mass = np.full_like(tau, 1 / len(levels))
        return self.expectation(features, mass, self.phi(tau))

    def phi(self, tau: Array) -> Array:
        """Return the embedding [B, K, D] of levels [B, K]."""
        embedded = self.embed(np.cos(tau.reshape(-1, 1) * self.frequency))
        return embedded.reshape(*tau.shape, -1)

    def expectation(self, features: Array, mass: Array, phi: Array) -> Array:
        """Return [B, A] for mass [B, K] and phi [B, K, D], or [1, ...] where rows share them."""
        if self.affine:
            return self.head(features * (mass[:, None] @ phi)[:, 0])
        product = features[:, None] * phi
        values = self.head(product.reshape(-1, features.shape[1]))
        out: Array = (mass[:, None] @ values.reshape(len(features), phi.shape[1], -1))[:, 0]
        return out


class FixedLevels:
    """`Levels` at the same levels [K] in every call, for weights that stay: embedded once."""

    def __init__(self, network: Levels, levels: Array) -> None:
        self.network = network
        self._mass = np.full_like(levels[None], 1 / len(levels))
        # Weights may be so large that this overflows; whoever calls notices it in the output.
        with np.errstate(over="ignore", invalid="ignore"):
            self._phi = network.phi(levels[None]).copy()
            self._mean = (self._mass[:, None] @ self._phi)[:, 0]

    def __call__(self, features: Array) -> Array:
        """Return the expectations."""
        if self.network.affine:
            return self.network.head(features * self._mean)
        return self.network.expectation(features, self._mass, self._phi)


class Gaussian:
    """(mean, log_std) [B, 2n] from a mean layer and a free log-std [n]."""

    def __init__(self, mean: Layer, log_std: Array) -> None:
        self.mean = mean
        self.log_std = log_std
        self._buffers: dict[int, Array] = {}

    def __call__(self, x: Array) -> Array:
        """Return mean and log-std side by side."""
        mean = self.mean(x)
        size = len(self.log_std)
        out = self._buffers.get(len(x))
        if out is None:
            out = self._buffers[len(x)] = np.empty((len(x), 2 * size), np.float32)
        out[:, :size] = mean
        out[:, size:] = self.log_std
        return out


class SquashedGaussian:
    """(mean, clamped log_std) [B, 2n] from one linear layer."""

    def __init__(self, linear: Layer, size: int, bounds: tuple[float, float]) -> None:
        self.linear = linear
        self.size = size
        self.low, self.high = np.float32(bounds[0]), np.float32(bounds[1])

    def __call__(self, x: Array) -> Array:
        """Return mean and log-std side by side."""
        out = self.linear(x)
        log_std = out[:, self.size :]
        np.maximum(log_std, self.low, out=log_std)
        np.minimum(log_std, self.high, out=log_std)
        return out


class Ensemble:
    """Several MLPs of one shape: [B, in] or [members, B, in] -> [members, B, out].

    Args:
        weights: [members, in, out] of each layer.
        biases: [members, 1, out] of each layer.
        activation: Applied after every layer but the last.
        norms: (weight, bias) [members, 1, out] of each hidden layer's normalisation, or None.
    """

    def __init__(
        self,
        weights: Sequence[Array],
        biases: Sequence[Array],
        activation: Callable[[Array], None],
        norms: Sequence[tuple[Array, Array]] | None = None,
    ) -> None:
        self.weights = tuple(weights)
        self.biases = tuple(biases)
        self.activation = activation
        self.norms = None if norms is None else tuple(LayerNorm(w, b) for w, b in norms)
        self._buffers: dict[int, list[Array]] = {}

    def __call__(self, x: Array) -> Array:
        """Return the output of every member."""
        n = x.shape[-2]
        outs = self._buffers.get(n)
        if outs is None:
            shapes = [(w.shape[0], n, w.shape[2]) for w in self.weights]
            outs = self._buffers[n] = [np.empty(shape, np.float32) for shape in shapes]
        last = len(outs) - 1
        for i, out in enumerate(outs):
            np.matmul(x, self.weights[i], out=out)
            out += self.biases[i]
            x = out
            if i < last:
                if self.norms is not None:
                    x = self.norms[i](out)
                self.activation(x)
        return x


class Critics:
    """Q_i(s, a) of an ensemble: (obs, action [B, n]) -> [members, B]."""

    def __init__(self, flatten: Layer, ensemble: Ensemble) -> None:
        self.flatten = flatten
        self.ensemble = ensemble

    def __call__(self, obs: Any, action: Array) -> Array:
        """Return the value of each critic."""
        flat = action.reshape(len(action), -1).astype(np.float32, copy=False)
        return self.ensemble(np.concatenate([self.flatten(obs), flat], axis=1))[..., 0]
