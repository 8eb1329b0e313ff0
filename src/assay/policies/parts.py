"""What every part of a model's description has in common, and how its tensors are checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from assay.core.errors import AssayError

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Forward = Callable[[Any], Array]  # a layer over a batch [B, ...]

MAX_WIDTH = 65_536
MAX_PARTS = 64

ONE_INPUT = "observation"  # of an exported file: its input, where the observation is one array
CARRY = "carry"  # and what the names of inputs begin with that hold a memory

Width = Annotated[int, Field(gt=0, le=MAX_WIDTH)]
Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
ActivationName = Literal["tanh", "relu", "elu", "silu", "gelu"]
# What float32 can hold.
Number = Annotated[float, Field(ge=-3.4028234663852886e38, le=3.4028234663852886e38)]


class ModelError(AssayError):
    """A model file is torn, altered, foreign, or asks for what is not supported."""


class Part(BaseModel):
    """Base of the description: frozen, without unknown keys, and no text where a number belongs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Layer(Part):
    """One kind of layer: what the file says about it, its checks, and how NumPy runs it."""

    def check(self, shapes: Shapes, width: int) -> int:
        """Check the tensors of this layer behind `width` numbers; return how many it gives.

        Raises:
            ModelError: Names the tensor, its shape and what was expected.
        """
        raise NotImplementedError

    def check_values(self, arrays: Arrays) -> None:
        """Check the numbers in the tensors, where finite ones are not enough.

        Raises:
            ModelError: Names the tensor.
        """

    def build(self, arrays: Arrays) -> Forward:
        """Return the layer over these arrays, which it shares."""
        raise NotImplementedError


class Shapes:
    """The shapes of a model's tensors, and which of them have been used by a layer.

    Attributes:
        widest: The largest width that a stream of a head has given.
        numbers: How many numbers the tensors hold that were used so far.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self.widest = 0
        self.numbers = 0
        self._used: set[str] = set()

    @property
    def unused(self) -> list[str]:
        """Return the tensors that no layer has used."""
        return sorted(set(self.shapes) - self._used)

    def expect(self, name: str, *shape: int) -> None:
        """Use a tensor, which must have this shape and must not have been used before.

        Raises:
            ModelError: It is missing, used twice, or of another shape.
        """
        found = self.shapes.get(name)
        if found is None:
            raise ModelError(f"The model file lacks the tensor '{name}'.")
        if name in self._used:
            raise ModelError(f"Two layers use the tensor '{name}'.")
        self._used.add(name)
        self.numbers += math.prod(found)
        if found != shape:
            raise ModelError(
                f"Tensor '{name}' has the shape {list(found)}; expected {list(shape)}."
            )

    def dense(self, weight: str, bias: str, width: int) -> int:
        """Use W [out, width] and b [out]; return out."""
        rows = self.matrix(weight, width)[0]
        self.expect(weight, rows, width)
        self.expect(bias, rows)
        return rows

    def matrix(self, name: str, width: int) -> tuple[int, int]:
        """Return the shape of a matrix; one that is missing is named when it is expected."""
        shape = self.shapes.get(name, (1, width))
        if len(shape) != 2:
            raise ModelError(f"Tensor '{name}' has the shape {list(shape)}; expected a matrix.")
        return shape[0], shape[1]
