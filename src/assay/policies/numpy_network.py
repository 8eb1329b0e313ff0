"""Run a described network on NumPy arrays: in the collector on batches, in a client on one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.policies.description import AnyLayer, Entry
from assay.policies.layers import AsFloat, Chain, Flatten
from assay.policies.parts import Array, Arrays, Forward
from assay.policies.recurrent import Carry, Cell, Recurrent
from assay.policies.value_layers import LevelsForward


@dataclass(frozen=True, slots=True)
class GaussianParams:
    """Completes means to (mean, log_std) [B, 2n]: the log-std is a tensor of its own.

    Attributes:
        log_std: Name of the tensor [n].
        scale: Names of centre and half-width [n] of the action's range, or None where means are in
            the action's units already.
    """

    log_std: str
    scale: tuple[str, str] | None = None

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer."""
        if self.scale is None:
            return GaussianForward(arrays[self.log_std])
        return GaussianForward(arrays[self.log_std], *(arrays[name] for name in self.scale))


@dataclass(frozen=True, slots=True)
class SquashedParams:
    """Clamps the log-std of (mean, log_std) [B, 2n] to these bounds."""

    bounds: tuple[float, float]

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer."""
        return SquashedForward(*self.bounds)


@dataclass(slots=True)
class Described:
    """A network as data.

    Attributes:
        inputs: How an observation is flattened; empty where the network takes plain vectors.
        layers: In their order.
        arrays: The tensors that the layers name.
        params: What completes the last layer's output to the parameters of a policy, if anything.
    """

    inputs: tuple[Entry, ...] = ()
    layers: list[AnyLayer] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    params: GaussianParams | SquashedParams | None = None


class GaussianForward:
    """(mean, log_std) [B, 2n] from means [B, n] and a free log-std [n]."""

    def __init__(
        self, log_std: Array, center: Array | None = None, half_width: Array | None = None
    ) -> None:
        self.log_std = log_std
        self.scale = None
        if center is not None and half_width is not None:
            self.scale = center, half_width, np.log(half_width)
        self._buffers: dict[int, Array] = {}

    def __call__(self, mean: Array) -> Array:
        """Return mean and log-std side by side."""
        size = len(self.log_std)
        out = self._buffers.get(len(mean))
        if out is None:
            out = self._buffers[len(mean)] = np.empty((len(mean), 2 * size), np.float32)
        if self.scale is None:
            out[:, :size] = mean
            out[:, size:] = self.log_std
        else:
            center, half_width, log_half_width = self.scale
            np.multiply(mean, half_width, out=out[:, :size])
            out[:, :size] += center
            out[:, size:] = self.log_std + log_half_width
        return out


class SquashedForward:
    """(mean, clamped log_std) [B, 2n] from (mean, log_std)."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = np.float32(low), np.float32(high)

    def __call__(self, out: Array) -> Array:
        """Clamp the second half in place: it is the buffer of the layer before."""
        log_std = out[:, out.shape[1] // 2 :]
        np.maximum(log_std, self.low, out=log_std)
        np.minimum(log_std, self.high, out=log_std)
        return out


def build_stages(
    layers: Sequence[AnyLayer], arrays: Arrays
) -> list[tuple[list[Forward], Cell | None]]:
    """Return the layers, cut behind each memory: [layers] memory [layers] memory [layers]."""
    stages: list[tuple[list[Forward], Cell | None]] = []
    parts: list[Forward] = []
    for layer in layers:
        if isinstance(layer, Recurrent):
            stages.append((parts, layer.build(arrays)))
            parts = []
        else:
            parts.append(layer.build(arrays))
    return [*stages, (parts, None)]


class NumpyNetwork:
    """From observations [N, ...] to the parameters [N, P] that a policy decides by.

    The result may be overwritten by the next call.

    Args:
        described: The network, with at most one memory.
    """

    def __init__(self, described: Described) -> None:
        (first, cell), *rest = build_stages(described.layers, described.arrays)
        first.insert(0, Flatten(described.inputs) if described.inputs else AsFloat())
        last = rest[-1][0] if rest else first
        if described.params is not None:
            last.append(described.params.build(described.arrays))
        self._cell, self._after = cell, Chain(last)
        self._levels = first.pop() if isinstance(first[-1], LevelsForward) else None
        self._first = Chain(first)
        if cell is None and self._levels is None:
            self.__dict__["call"] = self._first  # one call less in every step of a collector

    def call(self, obs: Any, levels: Array | None = None) -> Array:
        """Return the parameters, of a network without a memory.

        Args:
            obs: One array, or a dict of arrays.
            levels: Quantile levels [K], for a network that is given them with each call.
        """
        assert isinstance(self._levels, LevelsForward)
        return self._levels(self._first(obs), levels)

    def step(self, obs: Any, carry: Carry) -> tuple[Array, Carry]:
        """Return the parameters of one step, and the carry after it, of one with a memory."""
        assert self._cell is not None
        y, after = self._cell(self._first(obs), carry)
        return self._after(y), after
