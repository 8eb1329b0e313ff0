"""Append-only segment files: records with a length and a CRC32C, which survive a power cut.

```
<directory>/<first position, 20 digits>.seg     16 bytes of header, then records
record: size of the body u32 | CRC32C of all that follows u32 | position u64 | body
```
Positions count up by one within a segment, and may jump between segments. Where a segment begins,
the one before it ends: what that holds at this position or behind it was written and never
committed.

A crash can leave the end of the last segment torn. Opening cuts that off, puts it into a file
`.damaged` beside the segment, and says so. No crash explains any other damage: a record that does
not match its CRC and is indexed, or that a whole record follows, stays where it is. It cannot be
read, and all others can.
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
from typing import IO

from assay.runs.files import fsync_directory, write_atomic
from assay.server.crc import crc32c
from assay.server.errors import DamagedError, StoreError

SEGMENT_BYTES = 64 << 20
MAX_BODY = 80 << 20  # above the largest batch; a longer length is damage
_FILE_HEADER = b"ASSAYSEG" + struct.pack("<II", 1, 0)  # format version, reserved
_HEAD = struct.Struct("<IIQ")
_POSITION = struct.Struct("<Q")
_SUFFIX = ".seg"
_ASIDE = ".damaged"
# What reading says where it will never succeed; other errors, such as too many open files, pass.
GONE = frozenset({errno.ENOENT, errno.EIO})

Sync = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies."""

    position: int  # its number in the log
    segment: int  # first position of its segment
    offset: int  # of the record in the segment, in bytes
    size: int  # of the record, its head included


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in a segment that is not a record."""

    path: Path  # the segment
    offset: int  # where it begins
    size: int  # how many bytes it has
    reason: str  # what is wrong
    last: int | None = None  # position of the last record that stood there, if that is known
    cut: bool = False  # whether it was taken off
    # The file beside the segment that has what was taken off, if there was room.
    aside: str | None = None

    def __str__(self) -> str:
        if not self.cut:
            done = "cannot be read"
        elif self.aside is None:
            done = "were cut off, and there was no room to keep them"
        else:
            done = f"were cut off, and are in '{self.aside}'"
        return (
            f"'{self.path.name}' of '{self.path.parent}' is damaged at byte {self.offset} "
            f"({self.reason}): {self.size} bytes {done}"
        )


class SegmentLog:
    """The records of one directory; one process writes at a time.

    What `write` puts down counts once `sync` and then `commit` were called; `rollback` takes it
    back. Where that is impossible, the log is broken and takes nothing until it is opened again.

    Args:
        directory: Made if missing.
        segment_bytes: A new segment begins when the last is larger.
        sync: How a file is brought to the disk.
        indexed: Returns the places of a segment's records that somebody relies on, in order.
            Opening asks for them where it finds damage.

    Attributes:
        damage: What opening found.
        last: Position of the last committed record; 0 where there is none.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync: Sync = os.fdatasync,
        indexed: Callable[[int], Sequence[Place]] = lambda segment: (),
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
        self._recover(indexed)

    def _recover(self, indexed: Callable[[int], Sequence[Place]]) -> None:
        """Find the end of the log, cutting off what a crash left behind it."""
        while segments := self.segments():
            first = segments[-1]
            path = self.path_of(first)
            size = path.stat().st_size
            with open(path, "rb") as file:
                header = file.read(len(_FILE_HEADER))
            known: Sequence[Place] = ()
            if header != _FILE_HEADER:
                known = indexed(first) if size > len(_FILE_HEADER) else ()
                if not known:
                    self._put_aside(path, size)
                    continue
                self.damage.append(Damage(path, 0, len(_FILE_HEADER), "it has no header"))
            found = self._places(first)
            if any(isinstance(one, Damage) for one in found):
                known = known or indexed(first)
                found = self._places(first, known)
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self._segment = first
            self._end = self._tail = self._cut_tail(path, size, found, known)
            self.damage += [one for one in found if isinstance(one, Damage)]
            self.last = max(
                (one.last or 0 if isinstance(one, Damage) else one.position for one in found),
                default=first - 1,
            )
            return

    def _put_aside(self, path: Path, size: int) -> None:
        """Take a file off the log that is not a segment."""
        if size <= len(_FILE_HEADER):  # the crash came while it was being created
            path.unlink()
        else:
            aside = path.with_suffix(_ASIDE)
            path.rename(aside)
            self.damage.append(
                Damage(path, 0, size, "it has no header", cut=True, aside=aside.name)
            )
        fsync_directory(self.directory)

    def _cut_tail(
        self, path: Path, size: int, found: list[Place | Damage], known: Sequence[Place]
    ) -> int:
        """Cut off what a crash left at the end, and return where the segment ends now.

        The last entry of `found` is replaced where that is damage; what is `known` must stay.
        """
        if not found or isinstance(found[-1], Place):
            return size
        tail = found.pop()
        assert isinstance(tail, Damage)
        # A record that lies within the file and is indexed was not torn by a crash.
        within = [one for one in known if tail.offset <= one.offset <= size - one.size]
        end = tail.offset
        if within:
            end = within[-1].offset + within[-1].size
            last = within[-1].position
            found.append(Damage(path, tail.offset, end - tail.offset, tail.reason, last))
        if end < size:
            assert self._file is not None
            aside = path.with_name(f"{path.stem}-{end}{_ASIDE}")
            try:
                write_atomic(aside, _read_at(self._file, end, size - end))
                name = aside.name
            except OSError:  # a full disk must not keep the log from being opened
                name = None
            os.ftruncate(self._file, end)
            os.fsync(self._file)
            self.damage.append(Damage(path, end, size - end, tail.reason, cut=True, aside=name))
        return end

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
            DamagedError: It is not there or damaged.
            StoreError: It cannot be read now.
        """
        what = f"Record {place.position} in '{self.path_of(place.segment)}'"
        fix = "Restore the file from a backup; what it held is lost otherwise."
        try:
            with self._reading:
                data = os.pread(self._reader(place.segment), place.size, place.offset)
        except OSError as error:
            kind = DamagedError if error.errno in GONE else StoreError
            raise kind(f"{what} cannot be read: {error.strerror}.", fix) from None
        found = _body(data, place.position)
        if found is None:
            raise DamagedError(f"{what} is damaged.", fix)
        return found

    def scan(self, after: int = 0) -> Iterator[tuple[Place, bytes] | Damage]:
        """Yield all committed records behind a position, and what is damaged among them."""
        segments = self.segments()
        for number, first in enumerate(segments):
            limit = segments[number + 1] if number + 1 < len(segments) else self.last + 1
            if limit <= after + 1:
                continue
            for found in self._records(first, limit):
                last = found.last if isinstance(found, Damage) else found[0].position
                if last is None or last > after:
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

    def _records(
        self, first: int, limit: int | None, known: Sequence[Place] = ()
    ) -> Iterator[tuple[Place, bytes] | Damage]:
        """Yield the records of a segment below a position, and what is damaged among them.

        Behind damage it goes on where a record is known to stand. Else it does where the damaged
        one says that it ends, if the next one stands there; nothing is looked for in between, for
        what clients send could look like a record.
        """
        path = self.path_of(first)
        sizes = {one.offset: one.size for one in known}
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = len(file.read(len(_FILE_HEADER)))
            position = first
            while at < size and (limit is None or position < limit):
                length, body = _read_record(file, at, position, size)
                if body is not None:
                    yield Place(position, first, at, _HEAD.size + length), body
                    at, position = at + _HEAD.size + length, position + 1
                    continue
                end = at + sizes.get(at, _HEAD.size + length)
                reason = "a record does not match its CRC" if end <= size else "a record is cut off"
                later = [one for one in known if at < one.offset < size]
                if _read_record(file, end, position + 1, size)[1] is not None:
                    follows, number = end, position + 1
                elif later:
                    follows, number = later[0].offset, later[0].position
                else:
                    yield Damage(path, at, size - at, reason)
                    return
                yield Damage(path, at, follows - at, reason, number - 1)
                at, position = follows, number

    def _places(self, first: int, known: Sequence[Place] = ()) -> list[Place | Damage]:
        found = self._records(first, None, known)
        return [one if isinstance(one, Damage) else one[0] for one in found]

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
                f"The log '{self.directory}' could not be written or repaired; it takes nothing.",
                "Check the disk, then start the server again.",
            )


def _read_record(file: IO[bytes], at: int, position: int, size: int) -> tuple[int, bytes | None]:
    """Return the length of a body as its head says, and the body, or None if it is damaged."""
    file.seek(at)
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return 0, None
    length = _HEAD.unpack(head)[0]
    # Before it is read: a length that is damage must not be allocated.
    if length > min(MAX_BODY, size - at - _HEAD.size):
        return length, None
    return length, _body(head + file.read(length), position)


def _body(data: bytes, position: int) -> bytes | None:
    """Return the body of a record; None where this is not the record of that position."""
    if len(data) < _HEAD.size:
        return None
    length, checksum, stated = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    # The position is never 0, so that zeros are not a record.
    if length != len(body) or stated != position:
        return None
    return body if crc32c(_POSITION.pack(position), body) == checksum else None


def _read_at(descriptor: int, at: int, size: int) -> bytes:
    pieces = []
    while size and (piece := os.pread(descriptor, size, at)):
        pieces.append(piece)
        at, size = at + len(piece), size - len(piece)
    return b"".join(pieces)


def make_directory(path: Path) -> None:
    """Make a directory that survives a power cut, and those above it."""
    if not path.is_dir():
        if path.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        fsync_directory(path.parent)
