"""The difference between two versions of a model, for those too large to send in full each time.

Two snapshots of one architecture differ in the low bits of their weights. So the tensors' bytes are
combined by exclusive or, the bytes of equal weight are laid side by side (the high ones are nearly
all zero), and zstd does the rest:

    magic  "AssayD01"        8 bytes
    base   SHA-256          32 bytes   the snapshot that the reader must have
    result SHA-256          32 bytes   of what comes out
    size                     8 bytes   of what comes out
    head                     8 bytes   how many of its first bytes (safetensors' header) are literal
    body                               one zstd frame: the head, then four planes of the rest

Numbers are little-endian. A reader believes nothing: all sizes are checked before anything is
allocated, and what comes out counts only if it has the SHA-256 that the server promised elsewhere.
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import Any

import numpy as np

from assay.core.errors import AssayError
from assay.policies.model_file import MAX_FILE, MAX_HEADER

MAGIC = b"AssayD01"
MARGIN = 0.9  # a difference that is not this much smaller is not worth its trouble
_PREAMBLE = struct.Struct("<8s32s32sQQ")
_LENGTH = struct.Struct("<Q")
_PLANES = 4  # bytes of a float32
_LEVEL = 1
_LEAST_WINDOW = 1 << 20
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class DeltaError(AssayError):
    """A difference that cannot be used; the full snapshot has to be fetched."""


def have_zstd() -> bool:
    """Return whether differences can be made and applied here."""
    try:
        import zstandard  # noqa: F401
    except ImportError:
        return False
    return True


def make_delta(base: bytes, result: bytes, *, margin: float = MARGIN) -> bytes | None:
    """Return the difference between two snapshots, or None where it is not worth it.

    It is worth it below the share `margin` of the full size.

    Returns:
        None where the two are not laid out alike, the difference is too large, or there is no zstd.
    """
    if not have_zstd():
        return None
    import zstandard

    try:
        old, new = _head(base), _head(result)
    except DeltaError:
        return None
    rest = len(result) - new
    if rest != len(base) - old or rest % _PLANES or not rest or len(result) > MAX_FILE:
        return None
    before = np.frombuffer(base, np.uint8, offset=old).reshape(-1, _PLANES)
    after = np.frombuffer(result, np.uint8, offset=new).reshape(-1, _PLANES)
    planes = np.empty((_PLANES, rest // _PLANES), np.uint8)
    np.bitwise_xor(before.T, after.T, out=planes)
    body = zstandard.ZstdCompressor(level=_LEVEL).compress(result[:new] + planes.tobytes())
    if _PREAMBLE.size + len(body) > margin * len(result):
        return None
    digests = (hashlib.sha256(one).digest() for one in (base, result))
    return _PREAMBLE.pack(MAGIC, *digests, len(result), new) + body


def apply_delta(base: bytes, delta: bytes, sha256: str, *, most_bytes: int = MAX_FILE) -> bytes:
    """Return the snapshot that a difference leads to.

    Beside the base and two copies of the difference it takes as much memory as two results, each of
    which is at most `most_bytes`, and one or two megabytes for zstd.

    The result has at most `most_bytes`, and the digest `sha256` in hexadecimal.

    Raises:
        DeltaError: It is malformed, belongs to another base or result, states a size that does not
            fit, or does not come out right; or zstandard is not installed.
    """
    try:
        import zstandard
    except ImportError:
        raise DeltaError(
            "A difference needs zstandard, which is not installed.",
            "Install it, or fetch the full model.",
        ) from None
    size, head, body = _read(base, delta, sha256, most_bytes)
    try:
        stated = zstandard.get_frame_parameters(body)
        if stated.content_size != size:
            raise DeltaError(
                f"The difference states that it unpacks to {stated.content_size} bytes; expected "
                f"{size}."
            )
        # A torn frame makes zstd set its window aside, which it may state as it likes.
        if stated.window_size > max(size, _LEAST_WINDOW):
            raise DeltaError(f"The difference wants a window of {stated.window_size} bytes.")
        raw = zstandard.ZstdDecompressor().decompress(
            body, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise DeltaError(f"The difference cannot be unpacked: {error}.") from None
    if len(raw) != size:
        raise DeltaError(f"The difference unpacks to {len(raw)} bytes; expected {size}.")
    result = bytearray(size)
    result[:head] = raw[:head]
    _combine(base, raw, result, head)
    del raw
    if hashlib.sha256(result).hexdigest() != sha256.lower():
        raise DeltaError(f"The difference does not lead to the model {sha256[:12]}....")
    return bytes(result)


def _read(base: bytes, delta: bytes, sha256: str, most_bytes: int) -> tuple[int, int, bytes]:
    """Check everything that is known before unpacking; return size, head and the frame."""
    if not _DIGEST.fullmatch(sha256):
        raise DeltaError(f"'{sha256[:80]}' is not a SHA-256.")
    if len(delta) <= _PREAMBLE.size:
        raise DeltaError(f"The difference is torn: it has {len(delta)} bytes.")
    magic, of, to, size, head = _PREAMBLE.unpack_from(delta)
    if magic != MAGIC:
        raise DeltaError(f"The difference begins with {magic!r}; expected {MAGIC!r}.")
    if of != hashlib.sha256(base).digest():
        raise DeltaError("The difference was made from another base than the one at hand.")
    if to.hex() != sha256.lower():
        raise DeltaError(f"The difference leads to {to.hex()[:12]}...; expected {sha256[:12]}....")
    most = min(most_bytes, MAX_FILE)
    if size > most:
        raise DeltaError(f"The difference leads to {size} bytes; expected {most} or fewer.")
    if not _LENGTH.size <= head <= min(size, _LENGTH.size + MAX_HEADER):
        raise DeltaError(f"The difference has a header of {head} bytes, for {size} in all.")
    rest = len(base) - _head(base)
    if size - head != rest or rest % _PLANES or not rest:
        raise DeltaError(f"The difference is for {size - head} bytes of tensors; there are {rest}.")
    return size, head, delta[_PREAMBLE.size :]


def _combine(base: bytes, raw: bytes, result: bytearray, head: int) -> None:
    """Write the tensors of the result, plane by plane and without copies."""
    before = np.frombuffer(base, np.uint8, offset=_head(base)).reshape(-1, _PLANES)
    planes = np.frombuffer(raw, np.uint8, offset=head).reshape(_PLANES, -1)
    after: np.ndarray[Any, Any] = np.frombuffer(result, np.uint8, offset=head)
    np.bitwise_xor(before.T, planes, out=after.reshape(-1, _PLANES).T)


def _head(data: bytes) -> int:
    """Return how long the header of a safetensors file is, its length included."""
    if len(data) < _LENGTH.size:
        raise DeltaError(f"{len(data)} bytes are too few for a snapshot.")
    length = _LENGTH.size + int(_LENGTH.unpack_from(data)[0])
    if length > min(len(data), _LENGTH.size + MAX_HEADER):
        raise DeltaError(f"The snapshot's header would have {length} bytes of {len(data)}.")
    return length
