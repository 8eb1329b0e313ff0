"""Append-only segment files: records with a length and a CRC32C, which survive a power cut.

```
<directory>/<first position, 20 digits>.seg     16 bytes of header, then records
record: size of the body u32 | CRC32C of all that follows u32 | position u64 | body
```
Positions count up by one within a segment, and may jump between segments. Where a segment begins,
the one before it ends: what that holds at this position or behind it was written and never
committed.

A crash can leave the last segment torn. Opening cuts it back to its last good record and says so.
Damage in an older segment is left as it is, since no crash explains it; what comes behind it in
that segment cannot be reached.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.runs.files import fsync_directory
from assay.server.crc import crc32c
from assay.server.errors import StoreError

SEGMENT_BYTES = 64 << 20
MAX_BODY = 80 << 20  # above the largest batch; a longer length is damage
_FILE_HEADER = b"ASSAYSEG" + struct.pack("<II", 1, 0)  # format version, reserved
_HEAD = struct.Struct("<IIQ")
_POSITION = struct.Struct("<Q")
_SUFFIX = ".seg"

Sync = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies.

    Attributes:
        position: Its number in the log.
        segment: First position of its segment.
        offset: Of the record in the segment, in bytes.
        size: Of the record, its head included.
    """

    position: int
    segment: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in a segment that is no record.

    Attributes:
        path: The segment.
        offset: Where the last good record before it ends.
        size: How many bytes follow.
        cut: Whether they were taken off.
        reason: What is wrong.
    """

    path: Path
    offset: int
    size: int
    cut: bool
    reason: str

    def __str__(self) -> str:
        done = "cut off" if self.cut else "left as they are, and cannot be reached"
        return (
            f"'{self.path.name}' of '{self.path.parent}' is damaged at byte {self.offset} "
            f"({self.reason}): {self.size} bytes were {done}"
        )


class SegmentLog:
    """The records of one directory; one process writes at a time.

    What `write` puts down counts once `sync` and then `commit` were called; `rollback` takes it
    back. Where that is impossible, the log is broken and takes nothing until it is opened again.

    Args:
        directory: Made if missing.
        segment_bytes: A new segment begins when the last is larger.
        sync: How a file is brought to the disk.

    Attributes:
        damage: What opening found.
        last: Position of the last committed record; 0 where there is none.
    """

    def __init__(
        self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES, sync: Sync = os.fdatasync
    ) -> None:
        self.directory = directory
        self.damage: list[Damage] = []
        self.last = 0
        self.broken = False
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._file: int | None = None
        self._segment = 0
        self._end = 0  # of what is committed in the open segment
        self._written = 0  # records since then
        self._dirty = False  # whether the file may hold more than is committed
        self._tail = 0  # where the next record goes
        self._readers: dict[int, int] = {}
        self._reading = threading.Lock()  # or a descriptor would be closed under a reader
        make_directory(directory)
        self._recover()

    def _recover(self) -> None:
        """Find the end of the log, cutting off what a crash left behind it."""
        while segments := self.segments():
            first = segments[-1]
            path = self.path_of(first)
            size = path.stat().st_size
            with open(path, "rb") as file:
                header = file.read(len(_FILE_HEADER))
            if header != _FILE_HEADER:
                if size <= len(_FILE_HEADER):  # the crash came while it was being created
                    path.unlink()
                else:
                    path.rename(path.with_suffix(".damaged"))
                    self.damage.append(Damage(path, 0, size, True, "it has no header"))
                fsync_directory(self.directory)
                continue
            end, last = len(_FILE_HEADER), first - 1
            reason = None
            for found in self._records(first, None):
                if isinstance(found, Damage):
                    reason = found.reason
                else:
                    place = found[0]
                    end, last = place.offset + place.size, place.position
            self._open(first)
            assert self._file is not None
            if end < size:
                os.ftruncate(self._file, end)
                os.fsync(self._file)
                cut = Damage(path, end, size - end, True, reason or "it is torn")
                self.damage.append(cut)
            self._end = self._tail = end
            self.last = last
            return

    def segments(self) -> list[int]:
        """Return the first positions of all segments, in order."""
        names = (path.stem for path in self.directory.glob(f"*{_SUFFIX}"))
        return sorted(int(name) for name in names if name.isdecimal())

    def path_of(self, segment: int) -> Path:
        """Return the file of a segment."""
        return self.directory / f"{segment:020d}{_SUFFIX}"

    def skip_to(self, position: int) -> None:
        """Never use a position up to this one for a new record."""
        if position > self.last:
            self._close_file()
            self.last = position

    def write(self, bodies: Sequence[tuple[bytes, ...]]) -> list[Place]:
        """Put records behind the last; each body is given in pieces.

        Raises:
            OSError: The disk is full or failed. Call `rollback`.
            StoreError: The log is broken.
        """
        self._refuse_broken()
        if self._file is not None and self._tail > self._segment_bytes and not self._written:
            self._close_file()
        if self._file is None:
            self._create(self.last + self._written + 1)
        assert self._file is not None
        self._dirty = True
        pieces: list[bytes] = []
        places: list[Place] = []
        offset = self._tail
        position = self.last + self._written
        for body in bodies:
            position += 1
            size = sum(map(len, body))
            numbered = _POSITION.pack(position)
            pieces.append(_HEAD.pack(size, crc32c(numbered, *body), position))
            pieces.extend(body)
            places.append(Place(position, self._segment, offset, _HEAD.size + size))
            offset += _HEAD.size + size
        data = memoryview(b"".join(pieces))
        # A full disk writes as much as it can before it says no.
        at = self._tail
        while data:
            wrote = os.pwrite(self._file, data, at)
            data = data[wrote:]
            at += wrote
        self._tail = at
        self._written += len(places)
        return places

    def sync(self) -> None:
        """Wait until everything written is on the disk.

        Raises:
            OSError: It failed. Call `rollback`: the next sync would succeed without it.
        """
        if self._file is not None and self._written:
            self._sync(self._file)

    def commit(self) -> None:
        """Keep what was written and synced."""
        self.last += self._written
        self._written = 0
        self._end = self._tail
        self._dirty = False

    def rollback(self) -> None:
        """Take back what was not committed."""
        self._written = 0
        if self._file is None or not self._dirty:
            return
        try:
            os.ftruncate(self._file, self._end)
            self._sync(self._file)
        except OSError:
            # What is on the disk now is unknown. Whoever opens the log next will see.
            self.broken = True
            self._close_file()
        else:
            self._tail = self._end
            self._dirty = False

    def read(self, place: Place) -> bytes:
        """Return the body of a record.

        Raises:
            StoreError: It is not there or damaged.
        """
        try:
            with self._reading:
                data = os.pread(self._reader(place.segment), place.size, place.offset)
        except OSError as error:
            raise StoreError(
                f"Cannot read '{self.path_of(place.segment)}': {error.strerror}.",
                "Restore the file from a backup, or delete the policy.",
            ) from None
        head, body = data[: _HEAD.size], data[_HEAD.size :]
        if len(head) == _HEAD.size:
            size, checksum, position = _HEAD.unpack(head)
            whole = size == len(body) and position == place.position
            if whole and crc32c(_POSITION.pack(position), body) == checksum:
                return body
        raise StoreError(
            f"Record {place.position} in '{self.path_of(place.segment)}' is damaged.",
            "Restore the file from a backup; what it held is lost otherwise.",
        )

    def scan(self, after: int = 0) -> Iterator[tuple[Place, bytes] | Damage]:
        """Yield all committed records behind a position, and what is damaged among them."""
        segments = self.segments()
        for number, first in enumerate(segments):
            limit = segments[number + 1] if number + 1 < len(segments) else self.last + 1
            if limit <= after + 1:
                continue
            for found in self._records(first, limit):
                if isinstance(found, Damage) or found[0].position > after:
                    yield found

    def drop_before(self, position: int) -> list[int]:
        """Delete the segments that hold nothing at this position or behind it."""
        segments = self.segments()
        dropped = [first for first, end in itertools.pairwise(segments) if end <= position]
        with self._reading:
            for first in dropped:
                if first in self._readers:
                    os.close(self._readers.pop(first))
                self.path_of(first).unlink()
        if dropped:
            fsync_directory(self.directory)
        return dropped

    def close(self) -> None:
        """Close all files; what was not committed is taken back."""
        if self._written:
            self.rollback()
        self._close_file()
        with self._reading:
            for descriptor in self._readers.values():
                os.close(descriptor)
            self._readers.clear()

    def _records(self, first: int, limit: int | None) -> Iterator[tuple[Place, bytes] | Damage]:
        """Yield the records of a segment below a position, then its damage, if there is any."""
        path = self.path_of(first)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = len(file.read(len(_FILE_HEADER)))
            position = first
            while at < size and (limit is None or position < limit):
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    yield Damage(path, at, size - at, False, "a record is cut off")
                    return
                length, checksum, stated = _HEAD.unpack(head)
                # Before it is read: a length that is damage must not be allocated.
                if length > min(MAX_BODY, size - at - _HEAD.size):
                    yield Damage(path, at, size - at, False, "a record is cut off")
                    return
                body = file.read(length)
                # The position is never 0, so that zeros are no record.
                if stated != position or crc32c(head[-_POSITION.size :], body) != checksum:
                    yield Damage(path, at, size - at, False, "a record does not match its CRC")
                    return
                yield Place(position, first, at, _HEAD.size + length), body
                at += _HEAD.size + length
                position += 1

    def _create(self, first: int) -> None:
        path = self.path_of(first)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(self._file, _FILE_HEADER, 0)
            self._sync(self._file)
            fsync_directory(self.directory)
        except OSError:
            # Its name must be free for the next attempt.
            self._close_file()
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._segment = first
        self._end = self._tail = len(_FILE_HEADER)

    def _open(self, first: int) -> None:
        self._file = os.open(self.path_of(first), os.O_RDWR | os.O_CLOEXEC)
        self._segment = first

    def _reader(self, segment: int) -> int:
        if segment not in self._readers:
            if len(self._readers) >= 8:
                os.close(self._readers.pop(next(iter(self._readers))))
            path = self.path_of(segment)
            self._readers[segment] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._readers[segment]

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _refuse_broken(self) -> None:
        if self.broken:
            raise StoreError(
                f"The log '{self.directory}' could not be written or mended; it takes nothing.",
                "Check the disk, then start the server again.",
            )


def make_directory(path: Path) -> None:
    """Make a directory that survives a power cut, and those above it."""
    if not path.is_dir():
        if path.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        fsync_directory(path.parent)
