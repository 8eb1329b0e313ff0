"""Files named by their SHA-256: model snapshots and the learner's checkpoints."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container
from pathlib import Path

from assay.runs.files import write_atomic
from assay.server.errors import Reason, RejectionError, StoreError
from assay.server.store.log import GONE, make_directory

_NAME = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """A directory of files that never change; made if missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        make_directory(directory)

    def put(self, data: bytes) -> str:
        """Keep data and return its SHA-256, once it is on the disk.

        Raises:
            StoreError: It cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        path = self._directory / digest
        # One of the right size may still be damaged, and the right bytes are at hand.
        if not (path.is_file() and path.read_bytes() == data):
            try:
                write_atomic(path, data)
            except OSError as error:
                raise StoreError.of(error, f"write '{path}'") from None
        return digest

    def get(self, digest: str) -> bytes:
        """Return what was kept.

        Raises:
            RejectionError: UNKNOWN_VERSION, where it is not there; HASH_MISMATCH, where it is
                damaged.
            StoreError: It cannot be read now.
        """
        path = self._directory / digest
        try:
            data = path.read_bytes() if _NAME.fullmatch(digest) else None
        except OSError as error:
            if error.errno not in GONE:
                raise StoreError.of(error, f"read '{path}'") from None
            data = None
        if data is None:
            raise RejectionError(
                Reason.UNKNOWN_VERSION, f"There is no file with the SHA-256 '{digest[:64]}'."
            )
        if hashlib.sha256(data).hexdigest() != digest:
            raise RejectionError(
                Reason.HASH_MISMATCH,
                f"The file '{path}' does not match its name: it is damaged.",
                "Restore it from a backup, or roll back to another version.",
            )
        return data

    def keep_only(self, digests: Container[str]) -> int:
        """Delete all other files and return how many there were."""
        others = [
            path
            for path in self._directory.iterdir()
            if _NAME.fullmatch(path.name) and path.name not in digests
        ]
        for path in others:
            path.unlink()
        return len(others)
