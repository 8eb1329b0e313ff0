"""What a model file says about its policy, apart from the weights.

The description is JSON in the metadata of a safetensors file. Layers name their tensors. Every
number is bounded here, so that a reader knows how much a network can ask for before it builds it.
Version 1 of the schema is read by `assay.server.client.policy` and by `clients/cpp/core`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from assay.core.errors import SpaceError
from assay.policies.layers import Plain
from assay.policies.parts import (
    MAX_PARTS,
    MAX_WIDTH,
    Array,
    ModelError,
    Name,
    Number,
    Part,
    Shapes,
    Whole,
    Width,
)
from assay.policies.recurrent import Recurrent
from assay.policies.value_layers import Valuing

if TYPE_CHECKING:
    import gymnasium as gym

SCHEMA = 1

# A bound of an action; None where there is none, because JSON has no infinity.
Bounds = Annotated[tuple[Number | None, ...], Field(min_length=1, max_length=MAX_WIDTH)]
AnyLayer = Plain | Valuing | Recurrent


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


class _Choices(Part):
    """A head that chooses: it reads one number per choice, and choices may be masked."""

    @property
    def params(self) -> int:
        """Return how many numbers the head reads from the last layer."""
        raise NotImplementedError

    @property
    def mask_size(self) -> int:
        """Return the length of an action mask."""
        return self.params

    def check(self, shapes: Shapes) -> None:
        """There are no tensors to check."""


class Categorical(_Choices):
    """Logits of one choice."""

    kind: Literal["categorical"] = "categorical"
    n: Width
    start: Whole = 0

    @property
    def params(self) -> int:
        """Return how many numbers the head reads from the last layer."""
        return self.n


class MultiCategorical(_Choices):
    """Logits of independent choices, side by side."""

    kind: Literal["multi_categorical"] = "multi_categorical"
    sizes: Annotated[tuple[Width, ...], Field(min_length=1, max_length=MAX_WIDTH)]
    starts: tuple[Whole, ...]

    @property
    def params(self) -> int:
        """Return how many numbers the head reads from the last layer."""
        return sum(self.sizes)

    def check(self, shapes: Shapes) -> None:
        """Check that there is a start for every size."""
        if len(self.starts) != len(self.sizes):
            raise ModelError(f"The head has {len(self.sizes)} sizes and {len(self.starts)} starts.")


class Bernoulli(_Choices):
    """Logits of independent bits."""

    kind: Literal["bernoulli"] = "bernoulli"
    n: Width

    @property
    def params(self) -> int:
        """Return how many numbers the head reads from the last layer."""
        return self.n


class ActionValues(_Choices):
    """Q of each action: the best, or with probability epsilon any valid one."""

    kind: Literal["q"] = "q"
    n: Width
    start: Whole = 0
    epsilon: float = Field(ge=0, le=1)

    @property
    def params(self) -> int:
        """Return how many numbers the head reads from the last layer."""
        return self.n


class _Bounded(Part):
    """A head for Box actions, with their bounds."""

    kind: str
    low: Bounds
    high: Bounds

    @property
    def params(self) -> int:
        """Return how many numbers the head reads from the last layer."""
        return len(self.low)

    @property
    def mask_size(self) -> int:
        """Return 0: Box actions are not masked."""
        return 0

    def check(self, shapes: Shapes) -> None:
        """Check that the bounds fit each other, and are finite where actions are scaled to them."""
        if len(self.low) != len(self.high):
            raise ModelError(
                f"The head has {len(self.low)} lower and {len(self.high)} upper bounds."
            )
        for low, high in zip(self.low, self.high, strict=True):
            if self.kind != "gaussian" and (low is None or high is None):
                raise ModelError(f"The head '{self.kind}' has an infinite bound.")
            if low is not None and high is not None and low > high:
                raise ModelError(f"The head's bounds [{low}, {high}] are the wrong way round.")


class Gaussian(_Bounded):
    """Means; the log-std is a tensor [n]. Actions are clipped to the bounds."""

    kind: Literal["gaussian"] = "gaussian"
    log_std: Name

    def check(self, shapes: Shapes) -> None:
        """Check the bounds and the log-std."""
        super().check(shapes)
        shapes.expect(self.log_std, len(self.low))


class SquashedGaussian(_Bounded):
    """Means and log-stds [2n]; tanh(sample) is scaled to the bounds."""

    kind: Literal["squashed_gaussian"] = "squashed_gaussian"
    log_std_low: Number
    log_std_high: Number

    @property
    def params(self) -> int:
        """Return how many numbers the head reads from the last layer."""
        return 2 * len(self.low)

    def check(self, shapes: Shapes) -> None:
        """Check the bounds of actions and of the log-std."""
        super().check(shapes)
        if self.log_std_low > self.log_std_high:
            raise ModelError("The head's log_std_low lies above its log_std_high.")


class Deterministic(_Bounded):
    """An action in the unit box, scaled to the bounds; exploring adds Gaussian noise to it."""

    kind: Literal["deterministic"] = "deterministic"
    noise: float = Field(ge=0, le=1e6)


Head = (
    Categorical
    | MultiCategorical
    | Bernoulli
    | ActionValues
    | Gaussian
    | SquashedGaussian
    | Deterministic
)


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
    layers: Annotated[
        tuple[Annotated[AnyLayer, Field(discriminator="kind")], ...],
        Field(min_length=1, max_length=MAX_PARTS),
    ]
    head: Annotated[Head, Field(discriminator="kind")]

    @property
    def width(self) -> int:
        """Return how many numbers the first layer sees."""
        return sum(entry.width for entry in self.inputs)

    @property
    def recurrent(self) -> bool:
        """Return whether the policy remembers from step to step."""
        return any(isinstance(layer, Recurrent) for layer in self.layers)

    def check(self, shapes: Shapes) -> None:
        """Check that the layers fit each other and the head, and that no tensor is left over.

        Raises:
            ModelError: Names the tensor, its shape and what was expected.
        """
        self._check_inputs()
        width = self.width
        if self.normalization is not None:
            for name in self.normalization.model_dump().values():
                shapes.expect(name, width)
        for i, layer in enumerate(self.layers):
            if isinstance(layer, Valuing) and i < len(self.layers) - 1:
                raise ModelError(f"A layer of kind '{layer.kind}' is not the last one.")
            width = layer.check(shapes, width)
        if width != self.head.params:
            raise ModelError(
                f"The last layer gives {width} numbers; the head '{self.head.kind}' reads "
                f"{self.head.params}."
            )
        self.head.check(shapes)
        if shapes.unused:
            raise ModelError(f"No layer uses the tensor '{shapes.unused[0]}'.")

    def _check_inputs(self) -> None:
        keys = [entry.key for entry in self.inputs]
        if len(set(keys)) != len(keys) or (None in keys and len(keys) > 1):
            raise ModelError(f"The inputs have the keys {keys}; expected different ones.")
        for entry in self.inputs:
            if len(entry.starts) != len(entry.sizes) or (
                entry.sizes and sum(entry.sizes) != entry.width
            ):
                raise ModelError(f"Input {entry.key!r}: its sizes and starts do not fit its width.")
        if self.width > MAX_WIDTH:
            raise ModelError(f"The inputs are {self.width} wide; {MAX_WIDTH} fit.")


def describe_space(space: gym.Space[Any]) -> dict[str, Any]:
    """Return a space as plain JSON, the same for equal spaces.

    Raises:
        SpaceError: It is not a Box, Discrete, MultiDiscrete, MultiBinary or Dict of these.

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


def finite_or_none(values: Array) -> tuple[float | None, ...]:
    """Return numbers as plain floats, None where they are infinite."""
    flat = values.reshape(-1).tolist()
    return tuple(float(v) if np.isfinite(v) else None for v in flat)


def _bounds_json(values: Array) -> Any:
    plain = finite_or_none(values)
    # One number stands for all where they are alike, as those of wide observations mostly are.
    return plain[0] if plain and len(set(plain)) == 1 else list(plain)
