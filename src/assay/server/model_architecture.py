"""What a model file says about its network, apart from the weights.

The description is JSON in the metadata of a safetensors file. Layers name their tensors. Every
number is bounded here, so that a reader knows how much a network can ask for before it builds it.
Version 1 of the schema is read by `assay.server.client.policy` and by `clients/cpp/core`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from assay.core.errors import AssayError, SpaceError

if TYPE_CHECKING:
    import gymnasium as gym

SCHEMA = 1
MAX_WIDTH = 65_536
MAX_PARTS = 64
MAX_CELLS = 1 << 22  # numbers that quantile levels may make of one observation
MAX_WORK = 1 << 28  # products that they may cost

Width = Annotated[int, Field(gt=0, le=MAX_WIDTH)]
Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
ActivationName = Literal["tanh", "relu", "elu", "silu", "gelu"]
# What float32 can hold.
Number = Annotated[float, Field(ge=-3.4028234663852886e38, le=3.4028234663852886e38)]
# A bound of an action; None where there is none, because JSON has no infinity.
Bounds = Annotated[tuple[Number | None, ...], Field(min_length=1, max_length=MAX_WIDTH)]


class ModelError(AssayError):
    """A model file is torn, altered, foreign, or asks for what is not supported."""


class Part(BaseModel):
    """Base of the description: frozen, without unknown keys, and no text where a number belongs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Dense(Part):
    """activation(W x + b), W [out, in]."""

    kind: Literal["dense"] = "dense"
    weight: Name
    bias: Name
    activation: ActivationName | None = None


class LayerNorm(Part):
    """Mean 0 and variance 1 over the features, then scale and shift."""

    kind: Literal["layer_norm"] = "layer_norm"
    weight: Name
    bias: Name
    eps: float = Field(gt=0, le=1)


class BatchNorm(Part):
    """Features by their running statistics, then scale and shift."""

    kind: Literal["batch_norm"] = "batch_norm"
    weight: Name
    bias: Name
    mean: Name
    variance: Name
    eps: float = Field(gt=0, le=1)


class Activation(Part):
    """A nonlinearity that follows no dense layer."""

    kind: Literal["activation"] = "activation"
    activation: ActivationName


Plain = Annotated[Dense | LayerNorm | BatchNorm | Activation, Field(discriminator="kind")]
Stream = Annotated[tuple[Plain, ...], Field(min_length=1, max_length=MAX_PARTS)]


class Dueling(Part):
    """Q = V + A - mean(A)."""

    kind: Literal["dueling"] = "dueling"
    value: Stream
    advantage: Stream


class Atoms(Part):
    """Expected returns of distributions with K atoms per action: [in] -> [A].

    With a `support` [K] the atoms are logits of these returns; without, they are returns that
    weigh the same. With a `value` stream, V_k + A_ak - mean_a A_ak.
    """

    kind: Literal["atoms"] = "atoms"
    advantage: Stream
    value: Stream | None = None
    actions: Width
    atoms: Width
    support: Name | None = None


class Proposal(Part):
    """softmax(W x + b): the masses between proposed levels, W [K, in]."""

    weight: Name
    bias: Name


class Levels(Part):
    """Expected returns over quantile levels: sum_k mass_k head(x * phi(tau_k)), [in] -> [A].

    phi(tau) = relu(W cos(pi i tau) + b), i = 0 .. C - 1, W [in, C]. With `levels` [K] these are
    tau, and weigh the same. With a `proposal` its masses cut [0, 1] into K parts, and tau are their
    middles. The head is the `advantage` stream; with a `value` stream, V + A - mean(A).
    """

    kind: Literal["levels"] = "levels"
    weight: Name
    bias: Name
    levels: Name | None = None
    proposal: Proposal | None = None
    advantage: Stream
    value: Stream | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Levels:
        if (self.levels is None) == (self.proposal is None):
            raise ValueError("expected either levels or a proposal")
        return self

    @property
    def affine(self) -> bool:
        """Return whether the head is affine, and so commutes with a mean over levels."""
        for stream in (self.advantage, self.value or self.advantage):
            [first, *rest] = stream
            if rest or not isinstance(first, Dense) or first.activation is not None:
                return False
        return True


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


Layer = Annotated[
    Dense | LayerNorm | BatchNorm | Activation | Dueling | Atoms | Levels | Recurrent,
    Field(discriminator="kind"),
]


class Entry(Part):
    """One entry of an observation: plain numbers times `scale`, or integers to one-hot code.

    Attributes:
        key: Its key, or None where the observation is one array.
        width: How many numbers it becomes.
        scale: Factor of plain numbers.
        sizes: Number of values of each integer; empty for plain numbers.
        starts: The smallest value of each integer.
    """

    key: Name | None
    width: Width
    scale: Number = 1.0
    sizes: tuple[Width, ...] = ()
    starts: tuple[Whole, ...] = ()

    @property
    def raw_width(self) -> int:
        """Return how many numbers the observation brings."""
        return len(self.sizes) or self.width


class Normalization(Part):
    """clip((x - mean) * inverse_std, -limit, limit), each [width of all entries]."""

    mean: Name
    inverse_std: Name
    limit: Name


class Categorical(Part):
    """Logits of one choice."""

    kind: Literal["categorical"] = "categorical"
    n: Width
    start: Whole = 0


class MultiCategorical(Part):
    """Logits of independent choices, side by side."""

    kind: Literal["multi_categorical"] = "multi_categorical"
    sizes: Annotated[tuple[Width, ...], Field(min_length=1, max_length=MAX_WIDTH)]
    starts: tuple[Whole, ...]


class Bernoulli(Part):
    """Logits of independent bits."""

    kind: Literal["bernoulli"] = "bernoulli"
    n: Width


class Gaussian(Part):
    """Means; the log-std is a tensor [n]. Actions are clipped to the bounds."""

    kind: Literal["gaussian"] = "gaussian"
    log_std: Name
    low: Bounds
    high: Bounds


class SquashedGaussian(Part):
    """Means and log-stds [2n]; tanh(sample) is scaled to the bounds."""

    kind: Literal["squashed_gaussian"] = "squashed_gaussian"
    log_std_low: Number
    log_std_high: Number
    low: Bounds
    high: Bounds


class Deterministic(Part):
    """An action in the unit box, scaled to the bounds; exploring adds Gaussian noise to it."""

    kind: Literal["deterministic"] = "deterministic"
    noise: float = Field(ge=0, le=1e6)
    low: Bounds
    high: Bounds


class ActionValues(Part):
    """Q of each action: the best, or with probability epsilon any valid one."""

    kind: Literal["q"] = "q"
    n: Width
    start: Whole = 0
    epsilon: float = Field(ge=0, le=1)


Head = Annotated[
    Categorical
    | MultiCategorical
    | Bernoulli
    | Gaussian
    | SquashedGaussian
    | Deterministic
    | ActionValues,
    Field(discriminator="kind"),
]


class Architecture(Part):
    """The description of a model: identity, inputs, layers and head.

    Attributes:
        version: Monotonic per policy.
        epoch: Of the learner that published it.
        algorithm: Registry name of the algorithm that learned it.
        observation: The canonical observation space, as `describe_space` has it.
        action: The canonical action space, likewise.
    """

    format: Literal["assay-model"] = "assay-model"
    schema_version: Literal[1] = 1
    version: int = Field(ge=0, le=2**53)
    epoch: int = Field(ge=0, le=2**53)
    algorithm: Name
    observation: dict[str, Any]
    action: dict[str, Any]
    inputs: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=MAX_PARTS)]
    normalization: Normalization | None = None
    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=MAX_PARTS)]
    head: Head

    @property
    def width(self) -> int:
        """Return how many numbers the first layer sees."""
        return sum(entry.width for entry in self.inputs)

    @property
    def recurrent(self) -> bool:
        """Return whether the policy remembers from step to step."""
        return any(isinstance(layer, Recurrent) for layer in self.layers)

    def plain_layers(self) -> Iterator[Plain]:
        """Yield the layers without memory, those inside the streams of a head included."""
        for layer in self.layers:
            if isinstance(layer, Dueling | Atoms | Levels):
                yield from layer.value or ()
                yield from layer.advantage
            elif not isinstance(layer, Recurrent):
                yield layer


def head_params(head: Head) -> int:
    """Return how many numbers a head reads from the last layer."""
    if isinstance(head, MultiCategorical):
        return sum(head.sizes)
    if isinstance(head, Categorical | Bernoulli | ActionValues):
        return head.n
    return len(head.low) * (2 if isinstance(head, SquashedGaussian) else 1)


def mask_size(head: Head) -> int:
    """Return the length of an action mask; 0 where actions are not masked."""
    if isinstance(head, Gaussian | SquashedGaussian | Deterministic):
        return 0
    return head_params(head)


def describe_space(space: gym.Space[Any]) -> dict[str, Any]:
    """Return a space as plain JSON, the same for equal spaces.

    Raises:
        SpaceError: It is no Box, Discrete, MultiDiscrete, MultiBinary or Dict of these.

    Example:
        >>> from gymnasium import spaces
        >>> describe_space(spaces.Discrete(3))
        {'kind': 'Discrete', 'n': 3, 'start': 0}
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = {key: describe_space(space.spaces[key]) for key in sorted(space.spaces)}
        return {"kind": "Dict", "spaces": parts}
    if isinstance(space, spaces.Box):
        return {
            "kind": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bounds_json(space.low),
            "high": _bounds_json(space.high),
        }
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    raise SpaceError(
        f"A model file cannot describe the space {space}; expected Box, Discrete, MultiDiscrete, "
        "MultiBinary or a flat Dict of these.",
        "Flatten nested spaces first.",
    )


def finite_or_none(values: np.ndarray[Any, Any]) -> tuple[float | None, ...]:
    """Return numbers as plain floats, None where they are infinite."""
    flat = values.reshape(-1).tolist()
    return tuple(float(v) if np.isfinite(v) else None for v in flat)


def _bounds_json(values: np.ndarray[Any, Any]) -> Any:
    plain = finite_or_none(values)
    # One number stands for all where they are alike, as those of wide observations mostly are.
    return plain[0] if plain and len(set(plain)) == 1 else list(plain)
