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

from assay.core.types import State
from assay.policies.description import SCHEMA, Architecture
from assay.policies.parts import Array, ModelError, Shapes
from assay.runs.files import run_error, write_atomic

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


def to_state(snapshot: Snapshot) -> State:
    """Return a model as a section of a checkpoint."""
    described = snapshot.architecture.model_dump(mode="json")
    return {"architecture": described, "arrays": dict(snapshot.arrays)}


def from_state(state: State) -> Snapshot:
    """Read and check what `to_state` returned.

    Raises:
        ModelError: It is not a model of this schema.
    """
    architecture = _architecture({_METADATA_KEY: json.dumps(state["architecture"])})
    return make_snapshot(architecture, state["arrays"])


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
    """Check the bytes of a model file, and their digest if one was promised; return the model.

    Raises:
        ModelError: The digest differs, the file is not a model of this schema, a size or shape does
            not fit, or a number is not finite.
    """
    if len(data) > MAX_FILE:
        raise ModelError(f"The model file is larger than the limit of {MAX_FILE} bytes.")
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256.lower():
        raise ModelError(f"The model file has the SHA-256 {digest}; expected {sha256.lower()}.")
    metadata, arrays = read_tensors(data)
    architecture = _architecture(metadata)
    architecture.check(Shapes({name: array.shape for name, array in arrays.items()}))
    for layer in architecture.layers:
        layer.check_values(arrays)
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
