"""Run a described network on NumPy arrays: in the collector on batches, in a client on one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.policies.description import AnyLayer, Entry
from assay.policies.layers import Chain, make_input
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
        """Return the layer: (mean, log_std) [B, 2n] from means [B, n]."""
        log_std, scale = arrays[self.log_std], None
        if self.scale is not None:
            center, half_width = (arrays[name] for name in self.scale)
            scale = center, half_width, np.log(half_width)
        size = len(log_std)
        buffers: dict[int, Array] = {}

        def forward(mean: Array) -> Array:
            out = buffers.get(len(mean))
            if out is None:
                out = buffers[len(mean)] = np.empty((len(mean), 2 * size), np.float32)
            if scale is None:
                out[:, :size] = mean
                out[:, size:] = log_std
            else:
                center, half_width, log_half_width = scale
                np.multiply(mean, half_width, out=out[:, :size])
                out[:, :size] += center
                out[:, size:] = log_std + log_half_width
            return out

        return forward


@dataclass(frozen=True, slots=True)
class SquashedParams:
    """Clamps the log-std of (mean, log_std) [B, 2n] to these bounds."""

    bounds: tuple[float, float]

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer; it clamps in place, in the buffer of the layer before."""
        low, high = (np.float32(bound) for bound in self.bounds)

        def forward(out: Array) -> Array:
            log_std = out[:, out.shape[1] // 2 :]
            np.maximum(log_std, low, out=log_std)
            np.minimum(log_std, high, out=log_std)
            return out

        return forward


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
        first.insert(0, make_input(described.inputs))
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
