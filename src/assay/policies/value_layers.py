"""Layers that value actions: dueling streams, atoms of a distribution, quantile levels.

As in `assay.policies.layers`, each kind is a description that builds what runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from assay.policies.layers import Chain, Dense, DenseForward, NoisyDense, Plain, relu
from assay.policies.parts import (
    MAX_PARTS,
    MAX_WIDTH,
    Array,
    Arrays,
    Forward,
    Layer,
    ModelError,
    Name,
    Part,
    Shapes,
    Width,
)

MAX_CELLS = 1 << 22  # numbers that quantile levels may make of one observation
MAX_WORK = 1 << 28  # products that they may cost

Stream = Annotated[
    tuple[Annotated[Plain, Field(discriminator="kind")], ...],
    Field(min_length=1, max_length=MAX_PARTS),
]


def _check_stream(stream: Sequence[Layer], shapes: Shapes, width: int, expected: int | None) -> int:
    """Check the layers of a stream behind `width` numbers; return how many it gives."""
    for layer in stream:
        width = layer.check(shapes, width)
        shapes.widest = max(shapes.widest, width)
    if expected is not None and width != expected:
        raise ModelError(f"A stream of the head gives {width} numbers; expected {expected}.")
    return width


def _build_stream(stream: Sequence[Layer], arrays: Arrays) -> Forward:
    built = [layer.build(arrays) for layer in stream]
    return built[0] if len(built) == 1 else Chain(built)


class _Streams(Layer):
    """A layer with a stream of advantages and, maybe, one of the state's value."""

    advantage: Stream
    value: Stream | None = None

    def check_values(self, arrays: Arrays) -> None:
        """Check the layers of the streams."""
        for layer in (*self.advantage, *(self.value or ())):
            layer.check_values(arrays)


def dueling(value: Forward, advantage: Forward) -> Forward:
    """Return Q = V + A - mean(A) as a layer."""

    def forward(x: Array) -> Array:
        q = advantage(x)
        baseline = np.add.reduce(q, 1, keepdims=True)
        baseline *= np.float32(-1.0 / q.shape[1])
        baseline += value(x)
        q += baseline
        return q

    return forward


class Dueling(_Streams):
    """Q = V + A - mean(A)."""

    kind: Literal["dueling"] = "dueling"
    value: Stream

    def check(self, shapes: Shapes, width: int) -> int:
        """Check both streams."""
        _check_stream(self.value, shapes, width, 1)
        return _check_stream(self.advantage, shapes, width, None)

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer."""
        return dueling(_build_stream(self.value, arrays), _build_stream(self.advantage, arrays))


class Atoms(_Streams):
    """Expected returns of distributions with K atoms per action: [in] -> [A].

    With a `support` [K] the atoms are logits of these returns; without, they are returns that
    weigh the same. With a `value` stream, V_k + A_ak - mean_a A_ak.
    """

    kind: Literal["atoms"] = "atoms"
    actions: Width
    atoms: Width
    support: Name | None = None

    def check(self, shapes: Shapes, width: int) -> int:
        """Check the streams and the support."""
        if self.actions * self.atoms > MAX_WIDTH:
            raise ModelError(f"{self.actions} actions of {self.atoms} atoms are too many.")
        _check_stream(self.advantage, shapes, width, self.actions * self.atoms)
        if self.value is not None:
            _check_stream(self.value, shapes, width, self.atoms)
        if self.support is not None:
            shapes.expect(self.support, self.atoms)
        return self.actions

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer."""
        value = None if self.value is None else _build_stream(self.value, arrays)
        advantage = _build_stream(self.advantage, arrays)
        support = None if self.support is None else arrays[self.support]

        def forward(x: Array) -> Array:
            atoms = advantage(x).reshape(len(x), self.actions, self.atoms)
            if value is not None:
                baseline = np.add.reduce(atoms, 1)
                baseline *= np.float32(-1.0 / self.actions)
                baseline += value(x)
                atoms += baseline[:, None]
            if support is None:
                out = np.add.reduce(atoms, -1)
                out *= np.float32(1.0 / self.atoms)
                return out
            # sum z softmax(atoms)
            mass = atoms - np.maximum.reduce(atoms, -1, keepdims=True)
            np.exp(mass, mass)
            out = mass.dot(support)
            out /= np.add.reduce(mass, -1)
            return out

        return forward


class Proposal(Part):
    """softmax(W x + b): the masses between proposed levels, W [K, in]."""

    weight: Name
    bias: Name


class LevelsForward:
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
        self,
        embed: Forward,
        cosines: int,
        head: Forward,
        affine: bool,
        propose: Forward | None = None,
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


class FixedLevelsForward:
    """Expectations at the same levels [K] in every call, embedded once: for weights that stay."""

    def __init__(self, network: LevelsForward, levels: Array) -> None:
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


class Levels(_Streams):
    """Expected returns over quantile levels: sum_k mass_k head(x * phi(tau_k)), [in] -> [A].

    phi(tau) = relu(W cos(pi i tau) + b), i = 0 .. C - 1, W [in, C]. With `levels` [K] these are
    tau, and weigh the same. With a `proposal` its masses cut [0, 1] into K parts, and tau are their
    middles. With neither, levels are given at each call, which a file does not allow. The head is
    the `advantage` stream; with a `value` stream, V + A - mean(A).
    """

    kind: Literal["levels"] = "levels"
    weight: Name
    bias: Name
    levels: Name | None = None
    proposal: Proposal | None = None

    @property
    def affine(self) -> bool:
        """Return whether the head is affine, and so commutes with a mean over levels."""
        return all(
            len(stream) == 1
            and isinstance(stream[0], Dense | NoisyDense)
            and getattr(stream[0], "activation", None) is None
            for stream in (self.advantage, self.value or self.advantage)
        )

    def check(self, shapes: Shapes, width: int) -> int:
        """Check the embedding, the levels or their proposal, and the streams."""
        if (self.levels is None) == (self.proposal is None):
            raise ModelError("A layer of kind 'levels' needs either levels or a proposal.")
        cosines = shapes.matrix(self.weight, width)[1]
        shapes.expect(self.weight, width, cosines)
        shapes.expect(self.bias, width)
        if self.proposal is not None:
            count = shapes.dense(self.proposal.weight, self.proposal.bias, width)
        else:
            assert self.levels is not None
            count = math.prod(shapes.shapes.get(self.levels, (1,)))
            shapes.expect(self.levels, count)
        shapes.widest, before = max(width, cosines), shapes.numbers
        actions = _check_stream(self.advantage, shapes, width, None)
        if self.value is not None:
            _check_stream(self.value, shapes, width, 1)
        self._check_cost(count, shapes.widest, width * cosines + shapes.numbers - before)
        return actions

    @staticmethod
    def _check_cost(count: int, widest: int, each: int) -> None:
        if count * widest > MAX_CELLS:
            raise ModelError(
                f"{count} levels make {widest} numbers each of one observation; at most "
                f"{MAX_CELLS} in all fit."
            )
        if count * each > MAX_WORK:
            raise ModelError(
                f"{count} levels cost {count * each} products for one observation; expected "
                f"{MAX_WORK} or fewer."
            )

    def check_values(self, arrays: Arrays) -> None:
        """Check the streams, and that levels lie in [0, 1]."""
        super().check_values(arrays)
        if self.levels is not None:
            levels = arrays[self.levels]
            if (levels < 0).any() or (levels > 1).any():
                raise ModelError(
                    f"Tensor '{self.levels}' holds a level that is not between 0 and 1."
                )

    def build(self, arrays: Arrays) -> LevelsForward | FixedLevelsForward:
        """Return the layer; given levels are embedded once, for weights that stay."""
        weight = arrays[self.weight]
        embed = DenseForward(weight, arrays[self.bias], relu)
        head = _build_stream(self.advantage, arrays)
        if self.value is not None:
            head = dueling(_build_stream(self.value, arrays), head)
        propose: Forward | None = None
        if self.proposal is not None:
            propose = DenseForward(arrays[self.proposal.weight], arrays[self.proposal.bias])
        network = LevelsForward(embed, weight.shape[1], head, self.affine, propose)
        if self.levels is None:
            return network
        return FixedLevelsForward(network, arrays[self.levels])


Valuing = Dueling | Atoms | Levels
