"""HDF5: the fields as contiguous datasets of one file, with `lengths` and `header`.

Contiguous rows are mapped, and read when they are used. Links and storage outside of the file are
refused: a file of data must not name other files to read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from assay.buffers.allocation import require_memory
from assay.core.errors import DataError, MissingExtraError
from assay.data.collect import from_columns, map_rows
from assay.data.dataset import Dataset
from assay.data.schema import MAX_HEADER, NOT_OURS, Array, Columns, header_json, read_header


def require() -> Any:
    """Return the package h5py.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("h5py", "data", "Reading or writing HDF5") from None
    return h5py


def read(path: Path) -> Dataset:
    """Open a file.

    Raises:
        DataError: It lacks a field, or holds one that is not plain.
    """
    name, held = f"'{path}'", arrays(path)
    if "header" not in held or "lengths" not in held:
        raise DataError(
            f"{name} lacks header and lengths; it holds {', '.join(held) or 'nothing'}.", NOT_OURS
        )
    header, lengths = held.pop("header"), held.pop("lengths")
    if header.nbytes > MAX_HEADER:
        raise DataError(f"The header of {name} has {header.nbytes:,} bytes.")
    observation, action, metadata = read_header(header.tobytes(), name)
    return from_columns(held, lengths, observation, action, metadata=metadata, name=name)


def arrays(path: Path) -> Columns:
    """Return the arrays of a file by their paths in it.

    Raises:
        DataError: It holds something else than plain arrays.
    """
    with require().File(path, "r") as file:
        found = plain_arrays(file, f"'{path}'")
        needed = sum(one.nbytes for one in found.values() if not _is_mapped(one))
        require_memory(needed, f"The data in '{path}'")
        return {key: _array(one, path) for key, one in found.items()}


def write(dataset: Dataset, path: Path) -> None:
    """Write a file whose arrays can be mapped."""
    fields = dataset.schema.fields
    shapes = dataset.schema.shapes(len(dataset), dataset.num_episodes)
    with new_file(path) as file:
        file["header"] = np.frombuffer(header_json(dataset.schema, dataset.metadata), np.uint8)
        file["lengths"] = dataset.lengths
        made = {
            name: file.create_dataset(name, shape, fields[name].dtype)
            for name, shape in shapes.items()
        }
        dataset.copy_into(made)


@contextmanager
def new_file(path: Path, **options: Any) -> Iterator[Any]:
    """Yield an HDF5 file to write into.

    Raises:
        OSError: The disk is full, say.
    """
    with _Disk(path, "w+") as disk:
        try:
            with require().File(disk, "w", **options) as file:
                yield file
        finally:
            if disk.error is not None:
                raise disk.error


class _Disk(io.FileIO):
    """A file whose failure HDF5 does not see: it would end the process, and leave half a file."""

    error: OSError | None = None  # the first one; nothing is written after it

    def write(self, content: Any, /) -> int:
        left = memoryview(content)
        try:
            while left and self.error is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.error = error
        return memoryview(content).nbytes

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = error
            return size or 0


def plain_arrays(group: Any, name: str, prefix: str = "") -> dict[str, Any]:
    """Return all datasets of a group by their paths.

    Raises:
        DataError: There is a link, or rows that are kept outside of the file, or no numbers.
    """
    h5py = require()
    found: dict[str, Any] = {}
    for key in group:
        path, link = f"{prefix}{key}", group.get(key, getlink=True)
        if not isinstance(link, h5py.HardLink):
            kind = "external" if isinstance(link, h5py.ExternalLink) else "soft"
            raise DataError(
                f"'{path}' of {name} is an {kind} link; expected data in the file itself."
                if kind == "external"
                else f"'{path}' of {name} is a soft link; expected data.",
                "Copy what it links to into the file; links are not followed.",
            )
        item = group[key]
        if isinstance(item, h5py.Group):
            found |= plain_arrays(item, name, f"{path}/")
            continue
        if getattr(item, "external", None) or getattr(item, "is_virtual", False):
            raise DataError(
                f"The rows of '{path}' of {name} are in another file.",
                "Copy them into the file; others are not read.",
            )
        found[path] = item
    return found


def _is_mapped(dataset: Any) -> bool:
    return dataset.chunks is None and dataset.id.get_offset() is not None


def _array(dataset: Any, path: Path) -> Array:
    if dataset.dtype.hasobject:
        return np.empty(dataset.shape, object)  # refused by name where the fields are checked
    if dataset.nbytes < (1 << 20) or not _is_mapped(dataset):
        return np.asarray(dataset[()])
    return map_rows(path, dataset.dtype, dataset.shape, dataset.id.get_offset())
