"""NPZ: the fields as arrays of a NumPy archive, with `lengths` and `header`.

Arrays that are not compressed are mapped, and a row is read when it is used. Nothing is ever
unpickled, and what compressed arrays unpack to is bounded.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from assay.buffers.allocation import human_bytes, require_memory
from assay.core.errors import DataError
from assay.data.collect import from_columns, map_rows
from assay.data.dataset import Dataset, bytes_of
from assay.data.schema import MAX_HEADER, NOT_OURS, Array, Columns, header_json, read_header

MAX_UNPACKED = 4 << 30  # bytes that compressed arrays of a file may take in memory


def require() -> None:
    """Need nothing but NumPy."""


def read(path: Path) -> Dataset:
    """Open a file.

    Raises:
        DataError: It is not a whole NPZ file of plain arrays with the fields of a dataset.
    """
    name, held = f"'{path}'", arrays(path)
    for needed in ("header", "lengths"):
        if needed not in held:
            raise _foreign(name, needed, list(held))
    header, lengths = held.pop("header"), held.pop("lengths")
    observation, action, metadata = read_header(header.tobytes()[:MAX_HEADER], name)
    return from_columns(held, lengths, observation, action, metadata=metadata, name=name)


def arrays(path: Path) -> Columns:
    """Return the arrays of a file by their names.

    Raises:
        DataError: It holds something else than plain arrays.
    """
    with zipfile.ZipFile(path) as archive:
        members = {one.filename: one for one in archive.infolist()}
        _refuse_bomb(members.values(), f"'{path}'")
        return {
            file.removesuffix(".npy"): _array(archive, one, path) for file, one in members.items()
        }


def write(dataset: Dataset, path: Path) -> None:
    """Write a file whose arrays can be mapped."""
    header = np.frombuffer(header_json(dataset.schema, dataset.metadata), np.uint8)
    shapes = dataset.schema.shapes(len(dataset), dataset.num_episodes)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in (("header", header), ("lengths", dataset.lengths)):
            with _member(archive, name) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
        for name, one in dataset.schema.fields.items():
            little = one.dtype.newbyteorder("<").str
            layout = {"descr": little, "fortran_order": False, "shape": shapes[name]}
            with _member(archive, name) as file:
                np.lib.format.write_array_header_2_0(file, layout)
                for block in dataset.blocks([name]):
                    file.write(bytes_of(block.columns[name]))


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    # A date of its own would make two files of the same content differ.
    info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
    return archive.open(info, "w", force_zip64=True)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Array:
    with archive.open(member) as file:
        shape, dtype = _layout(file, member, f"'{member.filename}' of '{path}'")
        if member.compress_type != zipfile.ZIP_STORED:
            content = file.read()
            return np.frombuffer(content, dtype).reshape(shape)
        inside = file.tell()
    if member.file_size < (1 << 20):  # read, which also checks the CRC
        content = archive.read(member)[inside:]
        return np.frombuffer(content, dtype).reshape(shape)
    return map_rows(path, dtype, shape, _start(archive, member) + inside)


def _layout(
    file: IO[bytes], member: zipfile.ZipInfo, where: str
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the header of an array, and compare it with the bytes that follow."""
    version = np.lib.format.read_magic(file)
    read_layout = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_layout is None:
        raise DataError(f"{where} is an array of version {version}.", "Write it with numpy.savez.")
    shape, fortran, dtype = read_layout(file)
    if dtype.hasobject:
        raise DataError(
            f"{where} holds Python objects; expected plain numbers.",
            "Write arrays of numbers: objects are never unpickled.",
        )
    if fortran and len(shape) > 1:
        raise DataError(f"{where} is in Fortran order.", "Write numpy.ascontiguousarray of it.")
    if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
        raise DataError(
            f"{where} says that it has the shape {shape} of {dtype}, and has "
            f"{member.file_size - file.tell()} bytes.",
            "It is damaged or forged; write it again.",
        )
    return shape, dtype


def _start(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Return where the bytes of a member begin in the file."""
    file = archive.fp
    assert file is not None
    file.seek(member.header_offset + 26)  # the lengths of name and extra field
    lengths = file.read(4)
    name, extra = (int.from_bytes(lengths[at : at + 2], "little") for at in (0, 2))
    return member.header_offset + 30 + name + extra


def _refuse_bomb(members: Iterator[zipfile.ZipInfo] | Any, name: str) -> None:
    unpacked = sum(one.file_size for one in members if one.compress_type != zipfile.ZIP_STORED)
    if unpacked > MAX_UNPACKED:
        raise DataError(
            f"The compressed arrays of {name} unpack to {human_bytes(unpacked)}; at most "
            f"{human_bytes(MAX_UNPACKED)} are unpacked.",
            "Write it with numpy.savez, whose arrays are mapped, or as HDF5.",
        )
    require_memory(unpacked, f"The data in {name}")


def _foreign(name: str, missing: str, held: list[str]) -> DataError:
    if "next_obs" in held or any(one.startswith("next_obs/") for one in held):
        return DataError(
            f"{name} is a table of transitions (it has next_obs and no '{missing}'); expected the "
            "fields of a dataset.",
            "Make a dataset of it: assay.data.from_transitions, then assay.data.save.",
        )
    return DataError(f"{name} lacks {missing}; it holds {', '.join(held) or 'nothing'}.", NOT_OURS)
