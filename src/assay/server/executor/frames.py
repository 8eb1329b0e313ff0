"""Messages between the server and a learner: a JSON object, and bytes beside it.

```
magic, length of the head, number of blobs    three little-endian numbers of 32 bits
length of each blob                           64 bits each
the head                                      JSON, an object
the blobs
```
A peer may be broken, so every length is checked against a limit before anything of that size is
read, and memory is taken only as bytes arrive.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from assay.core.errors import AssayError

Head = dict[str, Any]
Blobs = tuple[bytes, ...]

MAGIC = 0x31465341  # "ASF1"
MAX_HEAD = 16 << 20
MAX_BLOBS = 1 << 16
MAX_BYTES = 4 << 30  # of all blobs of a frame together

_PREFIX = struct.Struct("<III")
_CHUNK = 1 << 20


class FrameError(AssayError):
    """A message that is none, or is larger than allowed."""


def pack(head: Head, blobs: Sequence[bytes] = ()) -> list[bytes]:
    """Return a message as pieces that are sent one after the other.

    Raises:
        FrameError: It is too large, or its head is not JSON.

    Example:
        >>> unpack(b"".join(pack({"method": "sum"}, [b"ab", b""])))
        ({'method': 'sum'}, (b'ab', b''))
    """
    try:
        text = json.dumps(head, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"The head of a message cannot be written as JSON: {error}.") from None
    sizes = [len(blob) for blob in blobs]
    _check_sizes(len(text), len(sizes))
    _check_total(sizes)
    lengths = struct.pack(f"<{len(sizes)}Q", *sizes)
    return [_PREFIX.pack(MAGIC, len(text), len(sizes)) + lengths + text, *blobs]


def unpack(data: bytes) -> tuple[Head, Blobs]:
    """Return the one message that `data` holds.

    Raises:
        FrameError: It is not a message, cut off, followed by something, or too large.
    """
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        if at > len(data):
            raise FrameError(f"A message of {len(data)} bytes is cut off; expected {at} or more.")
        return data[at - size : at]

    message = _parse(take)
    if at != len(data):
        raise FrameError(f"{len(data) - at} bytes follow a message; expected none.")
    return message


def send(link: socket.socket, pieces: Sequence[bytes], *, until: float) -> None:
    """Send a message that `pack` made.

    It gives up at the time `until` of `time.monotonic`; infinity for never.

    Raises:
        TimeoutError: The time is over. The link is of no more use.
        OSError: The link broke.
    """
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            _limit(link, until)
            rest = rest[link.send(rest) :]


def receive(link: socket.socket, *, until: float) -> tuple[Head, Blobs]:
    """Wait for the next message.

    It gives up at the time `until` of `time.monotonic`; infinity for never.

    Raises:
        EOFError: The peer has closed the link, between two messages or within one.
        FrameError: What came is not a message, or too large. The link is of no more use.
        TimeoutError: The time is over. The link is of no more use.
        OSError: The link broke.
    """

    def take(size: int) -> bytes:
        pieces = []
        while size:
            _limit(link, until)
            piece = link.recv(min(size, _CHUNK))
            if not piece:
                raise EOFError
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    return _parse(take)


def _limit(link: socket.socket, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    link.settimeout(None if math.isinf(left) else left)


def _parse(take: Callable[[int], bytes]) -> tuple[Head, Blobs]:
    magic, length, count = _PREFIX.unpack(take(_PREFIX.size))
    if magic != MAGIC:
        raise FrameError(f"A message begins with {magic:#010x}; expected {MAGIC:#010x}.")
    _check_sizes(length, count)
    sizes = struct.unpack(f"<{count}Q", take(8 * count))
    _check_total(sizes)
    try:
        head = json.loads(take(length))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"The head of a message is not JSON: {error}.") from None
    if not isinstance(head, dict):
        raise FrameError(f"The head of a message is a {type(head).__name__}; expected an object.")
    return head, tuple(take(size) for size in sizes)


def _check_sizes(length: int, count: int) -> None:
    if length > MAX_HEAD:
        raise FrameError(f"The head of a message has {length} bytes; at most {MAX_HEAD} fit.")
    if count > MAX_BLOBS:
        raise FrameError(f"A message has {count} blobs; at most {MAX_BLOBS} fit.")


def _check_total(sizes: Sequence[int]) -> None:
    if sum(sizes) > MAX_BYTES:
        raise FrameError(f"A message has {sum(sizes)} bytes in blobs; at most {MAX_BYTES} fit.")
