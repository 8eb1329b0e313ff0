"""CRC32C, as the wire and the segment files use it."""

from __future__ import annotations

from assay.core.errors import MissingExtraError

try:
    import google_crc32c
except ImportError:
    raise MissingExtraError("google-crc32c", "server", "The training server") from None


def crc32c(*parts: bytes) -> int:
    """Return the CRC32C of the parts as if they were one.

    Example:
        >>> crc32c(b"123456789") == crc32c(b"1234", b"56789") == 0xE3069283
        True
    """
    checksum = 0
    for part in parts:
        checksum = google_crc32c.extend(checksum, part)
    return checksum
