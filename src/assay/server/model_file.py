"""One model version as one safetensors file, read without torch and without trust.

The file holds float32 tensors and, in the metadata under `assay`, the `Architecture` as JSON. A
reader believes nothing: sizes are checked before anything is allocated, every tensor must be
finite, named by a layer, and of the shape that the layer before it asks for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from safetensors.numpy import save

from assay.runs.files import run_error, write_atomic
from assay.server.model_architecture import (
    MAX_CELLS,
    MAX_WIDTH,
    MAX_WORK,
    SCHEMA,
    Activation,
    Architecture,
    Atoms,
    BatchNorm,
    Dense,
    Deterministic,
    Dueling,
    Gaussian,
    Layer,
    LayerNorm,
    Levels,
    ModelError,
    MultiCategorical,
    Recurrent,
    SquashedGaussian,
    head_params,
)

Array = np.ndarray[Any, Any]

MAX_HEADER = 1 << 20
MAX_FILE = 256 << 20
_METADATA_KEY = "assay"
_MAX_TENSORS = 4096
_FLOAT = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checked model: its description and its weights.

    Attributes:
        architecture: What it is.
        arrays: The tensors by name, float32.
        sha256: Of the file's bytes, in hexadecimal.
        data: The file's bytes.
    """

    architecture: Architecture
    arrays: Mapping[str, Array] = field(repr=False)
    sha256: str
    data: bytes = field(repr=False)

    def write(self, path: Path) -> None:
        """Put the file at `path`, whole or not at all.

        Raises:
            RunError: The disk is full or cannot be written.
        """
        try:
            write_atomic(path, self.data)
        except OSError as error:
            raise run_error(error, f"write the model '{path}'") from None


def make_snapshot(architecture: Architecture, arrays: Mapping[str, Array]) -> Snapshot:
    """Serialise a model and check it as a reader would.

    Raises:
        ModelError: A tensor is missing, left over, not finite, or of a wrong shape.
    """
    plain = {name: np.ascontiguousarray(arrays[name], _FLOAT) for name in sorted(arrays)}
    text = architecture.model_dump_json()
    return parse_snapshot(save(plain, metadata={_METADATA_KEY: text}))


def read_snapshot(path: Path, sha256: str | None = None) -> Snapshot:
    """Read and check a model file.

    Raises:
        ModelError: As for `parse_snapshot`; the file is named.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ModelError(run_error(error, f"read the model '{path}'").message) from None
    try:
        return parse_snapshot(data, sha256)
    except ModelError as error:
        raise ModelError(f"'{path}': {error.message}", error.fix) from None


def parse_snapshot(data: bytes, sha256: str | None = None) -> Snapshot:
    """Check the bytes of a model file and return what they hold.

    Args:
        data: The whole file.
        sha256: The digest that was promised, in hexadecimal; None if none was.

    Raises:
        ModelError: The digest differs, the file is no model of this schema, a size or a shape does
            not fit, or a number is not finite.
    """
    if len(data) > MAX_FILE:
        raise ModelError(f"The model file is larger than the limit of {MAX_FILE} bytes.")
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256.lower():
        raise ModelError(f"The model file has the SHA-256 {digest}; expected {sha256.lower()}.")
    metadata, arrays = read_tensors(data)
    architecture = _architecture(metadata)
    check_shapes(architecture, {name: array.shape for name, array in arrays.items()})
    for layer in architecture.plain_layers():
        if isinstance(layer, BatchNorm) and (arrays[layer.variance] < 0).any():
            raise ModelError(f"Tensor '{layer.variance}' holds a negative variance.")
    last = architecture.layers[-1]
    if isinstance(last, Levels) and last.levels is not None:
        levels = arrays[last.levels]
        if (levels < 0).any() or (levels > 1).any():
            raise ModelError(f"Tensor '{last.levels}' holds a level that is not between 0 and 1.")
    return Snapshot(architecture, arrays, digest, data)


def read_tensors(data: bytes) -> tuple[dict[str, str], dict[str, Array]]:
    """Return the metadata and the float32 tensors of a safetensors file.

    Raises:
        ModelError: The layout is wrong in any way, or a number is not finite.
    """
    if len(data) < 8:
        raise ModelError(f"The model file is torn: it has {len(data)} bytes.")
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER:
        raise ModelError(f"The model file's header claims {size} bytes; at most {MAX_HEADER} fit.")
    if size > len(data) - 8:
        raise ModelError(f"The model file is torn: its header of {size} bytes is not all there.")
    header = _header(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ModelError("The model file's metadata is not a table of texts.")
    if len(header) > _MAX_TENSORS:
        raise ModelError(f"The model file holds {len(header)} tensors; at most {_MAX_TENSORS} fit.")
    body = memoryview(data)[8 + size :]
    places = sorted((_place(name, entry, len(body)) for name, entry in header.items()))
    arrays: dict[str, Array] = {}
    end = 0
    for begin, stop, name, shape in places:
        if begin != end:
            raise ModelError(f"Tensor '{name}' begins at byte {begin}; expected {end}.")
        end = stop
        array = np.frombuffer(body[begin:stop], _FLOAT).reshape(shape).astype(np.float32)
        if not np.isfinite(array).all():
            raise ModelError(f"Tensor '{name}' holds a number that is not finite.")
        arrays[name] = array
    if end != len(body):
        raise ModelError(
            f"The model file has {len(body)} bytes of tensors; {end} are accounted for."
        )
    return metadata, arrays


def check_shapes(architecture: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the layers fit each other and the head, and that no tensor is left over.

    Raises:
        ModelError: Names the tensor, its shape and what was expected.
    """
    _Checker(architecture, shapes).check()


class _Checker:
    """Walks the layers with the width that flows through them."""

    def __init__(self, architecture: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.architecture = architecture
        self.shapes = shapes
        self.used: set[str] = set()
        self.widest = 0  # of what the streams of a head give
        self.numbers = 0  # in the tensors so far

    def check(self) -> None:
        architecture = self.architecture
        self._check_inputs()
        width = architecture.width
        if architecture.normalization is not None:
            for name in architecture.normalization.model_dump().values():
                self._expect(name, width)
        for i, layer in enumerate(architecture.layers):
            if isinstance(layer, Dueling | Atoms | Levels) and i < len(architecture.layers) - 1:
                raise ModelError(f"A layer of kind '{layer.kind}' is not the last one.")
            width = self._layer(layer, width)
        self._check_head(width)
        left = sorted(set(self.shapes) - self.used)
        if left:
            raise ModelError(f"No layer uses the tensor '{left[0]}'.")

    def _check_inputs(self) -> None:
        inputs = self.architecture.inputs
        keys = [entry.key for entry in inputs]
        if len(set(keys)) != len(keys) or (None in keys and len(keys) > 1):
            raise ModelError(f"The inputs have the keys {keys}; expected different ones.")
        for entry in inputs:
            if len(entry.starts) != len(entry.sizes) or (
                entry.sizes and sum(entry.sizes) != entry.width
            ):
                raise ModelError(f"Input {entry.key!r}: its sizes and starts do not fit its width.")
        if self.architecture.width > MAX_WIDTH:
            raise ModelError(f"The inputs are {self.architecture.width} wide; {MAX_WIDTH} fit.")

    def _check_head(self, width: int) -> None:
        head = self.architecture.head
        if isinstance(head, MultiCategorical) and len(head.starts) != len(head.sizes):
            raise ModelError(f"The head has {len(head.sizes)} sizes and {len(head.starts)} starts.")
        if width != head_params(head):
            raise ModelError(
                f"The last layer gives {width} numbers; the head '{head.kind}' reads "
                f"{head_params(head)}."
            )
        if isinstance(head, Gaussian | SquashedGaussian | Deterministic):
            self._check_bounds(head)
        if isinstance(head, Gaussian):
            self._expect(head.log_std, len(head.low))
        if isinstance(head, SquashedGaussian) and head.log_std_low > head.log_std_high:
            raise ModelError("The head's log_std_low lies above its log_std_high.")

    @staticmethod
    def _check_bounds(head: Gaussian | SquashedGaussian | Deterministic) -> None:
        if len(head.low) != len(head.high):
            raise ModelError(
                f"The head has {len(head.low)} lower and {len(head.high)} upper bounds."
            )
        scaled = not isinstance(head, Gaussian)
        for low, high in zip(head.low, head.high, strict=True):
            if scaled and (low is None or high is None):
                raise ModelError(f"The head '{head.kind}' has an infinite bound.")
            if low is not None and high is not None and low > high:
                raise ModelError(f"The head's bounds [{low}, {high}] are the wrong way round.")

    def _layer(self, layer: Layer, width: int) -> int:
        """Check one layer behind `width` numbers and return how many it gives."""
        if isinstance(layer, Dense):
            return self._dense(layer.weight, layer.bias, width)
        if isinstance(layer, LayerNorm | BatchNorm):
            names = [layer.weight, layer.bias]
            if isinstance(layer, BatchNorm):
                names += [layer.mean, layer.variance]
            for name in names:
                self._expect(name, width)
            return width
        if isinstance(layer, Activation):
            return width
        if isinstance(layer, Dueling):
            self._stream(layer.value, width, 1)
            return self._stream(layer.advantage, width, None)
        if isinstance(layer, Atoms):
            if layer.actions * layer.atoms > MAX_WIDTH:
                raise ModelError(f"{layer.actions} actions of {layer.atoms} atoms are too many.")
            self._stream(layer.advantage, width, layer.actions * layer.atoms)
            if layer.value is not None:
                self._stream(layer.value, width, layer.atoms)
            if layer.support is not None:
                self._expect(layer.support, layer.atoms)
            return layer.actions
        if isinstance(layer, Levels):
            return self._levels(layer, width)
        return self._recurrent(layer, width)

    def _levels(self, layer: Levels, width: int) -> int:
        cosines = self._matrix(layer.weight, width)[1]
        self._expect(layer.weight, width, cosines)
        self._expect(layer.bias, width)
        if layer.proposal is not None:
            count = self._dense(layer.proposal.weight, layer.proposal.bias, width)
        else:
            assert layer.levels is not None
            count = math.prod(self.shapes.get(layer.levels, (1,)))
            self._expect(layer.levels, count)
        self.widest, before = max(width, cosines), self.numbers
        actions = self._stream(layer.advantage, width, None)
        if layer.value is not None:
            self._stream(layer.value, width, 1)
        products = count * (width * cosines + self.numbers - before)
        if count * self.widest > MAX_CELLS:
            raise ModelError(
                f"{count} levels make {self.widest} numbers each of one observation; at most "
                f"{MAX_CELLS} in all fit."
            )
        if products > MAX_WORK:
            raise ModelError(
                f"{count} levels cost {products} products for one observation; expected {MAX_WORK} "
                "or fewer."
            )
        return actions

    def _recurrent(self, layer: Recurrent, width: int) -> int:
        gates = (3 if layer.kind == "gru" else 4) * layer.size
        if gates > MAX_WIDTH:
            raise ModelError(f"A memory of size {layer.size} is too wide.")
        for part in layer.layers:
            self._expect(part.input, gates, width)
            self._expect(part.bias, gates)
            self._expect(part.hidden, gates, layer.size)
            width = layer.size
        return width

    def _stream(self, parts: tuple[Layer, ...], width: int, expected: int | None) -> int:
        for part in parts:
            width = self._layer(part, width)
            self.widest = max(self.widest, width)
        if expected is not None and width != expected:
            raise ModelError(f"A stream of the head gives {width} numbers; expected {expected}.")
        return width

    def _dense(self, weight: str, bias: str, width: int) -> int:
        rows = self._matrix(weight, width)[0]
        self._expect(weight, rows, width)
        self._expect(bias, rows)
        return rows

    def _matrix(self, name: str, width: int) -> tuple[int, int]:
        """Return the shape of a matrix; one that is missing is named when it is expected."""
        shape = self.shapes.get(name, (1, width))
        if len(shape) != 2:
            raise ModelError(f"Tensor '{name}' has the shape {list(shape)}; expected a matrix.")
        return shape[0], shape[1]

    def _expect(self, name: str, *shape: int) -> None:
        found = self.shapes.get(name)
        if found is None:
            raise ModelError(f"The model file lacks the tensor '{name}'.")
        if name in self.used:
            raise ModelError(f"Two layers use the tensor '{name}'.")
        self.used.add(name)
        self.numbers += math.prod(found)
        if found != shape:
            raise ModelError(
                f"Tensor '{name}' has the shape {list(found)}; expected {list(shape)}."
            )


def _header(raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw.decode(), object_pairs_hook=_unique)
    except ModelError:
        raise
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise ModelError(f"The model file's header is not JSON: {reason}.") from None
    if not isinstance(header, dict):
        raise ModelError("The model file's header is not a JSON object.")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ModelError("The model file's header names something twice.")
    return table


def _place(name: str, entry: Any, available: int) -> tuple[int, int, str, tuple[int, ...]]:
    """Return (begin, end, name, shape) of a tensor, after checking that they fit each other."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModelError(f"Tensor '{name}' is not described by dtype, shape and data_offsets.")
    if entry["dtype"] != "F32":
        raise ModelError(f"Tensor '{name}' is of dtype {entry['dtype']!r}; expected 'F32'.")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _whole_numbers(shape) or not 1 <= len(shape) <= 2 or not all(shape):
        raise ModelError(f"Tensor '{name}' has the shape {shape}; expected one or two widths.")
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise ModelError(f"Tensor '{name}' has the data_offsets {offsets}; expected two numbers.")
    begin, end = offsets
    if not begin <= end <= available or end - begin != math.prod(shape) * _FLOAT.itemsize:
        raise ModelError(
            f"Tensor '{name}' of shape {shape} claims the bytes {begin} to {end} of {available}."
        )
    return begin, end, name, tuple(shape)


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= 2**53 for v in values)


def _architecture(metadata: Mapping[str, str]) -> Architecture:
    text = metadata.get(_METADATA_KEY)
    if text is None:
        raise ModelError("The file is not an Assay model: its metadata has no entry 'assay'.")
    _refuse_newer(text)
    try:
        return Architecture.model_validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ModelError(
            f"The model's description is not of schema {SCHEMA}: {where}: {first['msg']}."
        ) from None


def _refuse_newer(text: str) -> None:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelError("The model's description is not JSON.") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA:
        raise ModelError(
            f"The model was written by a newer Assay (model schema {version}; this one reads up to "
            f"{SCHEMA}).",
            "Upgrade Assay to load it.",
        )
