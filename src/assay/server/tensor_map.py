"""The message `TensorMap`, written and read byte by byte.

The general parser would build objects for whatever a message claims to hold, and copy every array.
This reader allocates nothing but a few small objects, and stops at the first thing that has no
business in a tensor map.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from assay.server.errors import Reason, RejectionError

# Field numbers and wire types of TensorMap, NamedTensor and Tensor, as their tags appear.
_MAP_TENSOR = 0x0A
_NAMED_NAME, _NAMED_TENSOR = 0x0A, 0x12
_TENSOR_DTYPE, _TENSOR_SHAPE, _TENSOR_DATA = 0x08, 0x12, 0x1A
_MAX_RANK = 9
_MAX_NAME = 1024


class Packed(NamedTuple):
    """Where a tensor lies in a serialised map."""

    name: str  # its name; "" where there is none
    dtype: int  # a number of the enum `DType`, or any other
    shape: tuple[int, ...]  # as stated
    start: int  # of its data, in bytes
    stop: int  # of its data, in bytes


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# A client's batches are alike, so that the same few heads come again and again.
@lru_cache(maxsize=4096)
def tensor_head(name: str, dtype: int, shape: tuple[int, ...], size: int) -> bytes:
    """Return what a map holds of a tensor before the `size` bytes of its data."""
    sizes = b"".join(map(_varint, shape))
    tensor = b"\x08" + _varint(dtype) + b"\x12" + _varint(len(sizes)) + sizes
    if size:  # what is empty is left out, as the standard serialiser does
        tensor += b"\x1a" + _varint(size)
    key = name.encode()
    named = b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(tensor) + size) + tensor
    return b"\x0a" + _varint(len(named) + size) + named


def _read_varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    if at < end and raw[at] < 0x80:
        return raw[at], at + 1
    value = shift = 0
    while at < end and shift < 35:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise malformed("a number in the tensor map has no end")


def _read_block(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the length-delimited value behind a tag starts and stops."""
    size, start = _read_varint(raw, at, end)
    if size > end - start:
        raise malformed("the tensor map is cut off")
    return start, start + size


def read_map(raw: bytes, at: int, most: int) -> list[Packed]:
    """Find the tensors of a serialised `TensorMap` without copying them.

    Raises:
        RejectionError: It is no such message, or holds more than that.
    """
    found: list[Packed] = []
    end = len(raw)
    while at < end:
        if raw[at] != _MAP_TENSOR:
            raise malformed("the tensor map holds something that is not a tensor")
        if len(found) == most:
            raise malformed(f"there are more than {most} tensors")
        start, at = _read_block(raw, at + 1, end)
        found.append(_read_named(raw, start, at))
    return found


def _read_named(raw: bytes, at: int, end: int) -> Packed:
    name, tensor = "", (at, at)
    while at < end:
        tag = raw[at]
        start, at = _read_block(raw, at + 1, end)
        if tag == _NAMED_NAME and at - start <= _MAX_NAME:
            try:
                name = raw[start:at].decode()
            except UnicodeDecodeError:
                raise malformed("the name of a tensor is not UTF-8") from None
        elif tag == _NAMED_TENSOR:
            tensor = start, at
        else:
            raise malformed("a named tensor holds something else")
    return _read_tensor(raw, name, *tensor)


def _read_tensor(raw: bytes, name: str, at: int, end: int) -> Packed:
    dtype, data = 0, (at, at)
    shape: tuple[int, ...] = ()
    while at < end:
        tag = raw[at]
        if tag == _TENSOR_DTYPE:
            dtype, at = _read_varint(raw, at + 1, end)
            continue
        start, at = _read_block(raw, at + 1, end)
        if tag == _TENSOR_SHAPE:
            shape = _read_shape(raw, start, at)
        elif tag == _TENSOR_DATA:
            data = start, at
        else:
            raise malformed(f"the tensor '{name[:40]}' holds something that is not known")
    return Packed(name, dtype, shape, *data)


def _read_shape(raw: bytes, at: int, end: int) -> tuple[int, ...]:
    shape: list[int] = []
    while at < end:
        if len(shape) == _MAX_RANK:
            raise RejectionError(
                Reason.WRONG_SHAPE, f"A tensor has more than {_MAX_RANK} dimensions."
            )
        size, at = _read_varint(raw, at, end)
        shape.append(size)
    return tuple(shape)


def malformed(what: str) -> RejectionError:
    """Return the rejection of a batch that cannot be read."""
    return RejectionError(Reason.MALFORMED, f"The batch is malformed: {what}.")
