"""The ledger: every decision of a study, append-only, each event chained to the one before.

A line is the event as canonical JSON with its hash as the last key. The hash covers the bytes
before it, which include the hash of the event before, so that an edited, removed, inserted or
moved line breaks the chain where it happened. What a chain cannot show by itself, that its end was
cut off or that all of it was written again, shows against the heads that were anchored elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from assay.core.errors import AssayError
from assay.runs.files import run_error
from assay.runs.git import GitError, git
from assay.study.files.documents import canonical

SCHEMA = 1
GENESIS = "0" * 64
REPAIRED = "ledger.repaired"
_FIELDS = 7  # without the hash
_HASH_KEY = b',"hash":"'
_HASH_TAIL = len(_HASH_KEY) + 64 + len(b'"}')
_KEPT_OF_A_TORN_LINE = 2000
_TORN = "the last line is half-written"
_LOOKS = 20
_LOOK_SECONDS = 0.05
_decode = json.JSONDecoder().raw_decode  # what `json.loads` calls, without its detours
WAY_OUT = (
    "See all damage with `assay study verify`. Put ledger.jsonl back as it was, from a backup or a "
    "commit (state.json alone can be deleted); until then nothing is launched or decided."
)


class LedgerError(AssayError):
    """The ledger is damaged, or cannot be written."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest event of a ledger, as it is anchored elsewhere."""

    seq: int = 0  # its number, from 1; 0 where there is no event yet
    hash: str = GENESIS  # its hash


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the ledger."""

    seq: int  # from 1, without gaps
    time: str  # when it was appended, UTC, ISO 8601
    kind: str  # what happened, such as `candidate.registered`
    actor: str  # who did it
    data: Mapping[str, Any]  # what the kind asks for
    prev: str  # hash of the event before
    hash: str  # over the canonical bytes of all of the above


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a verification found."""

    line: int  # where, from 1; 0 where it concerns the whole
    reason: str  # what is wrong there

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}" if self.line else self.reason


@dataclass(frozen=True, slots=True)
class Reading:
    """A whole ledger, read and checked in one pass."""

    events: list[Event]  # those that could be read, in order
    problems: list[Problem]  # what is wrong, in order of the lines; none if the ledger is whole


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Ledger:
    """The events of one study.

    Args:
        path: The JSONL file; it need not exist.
        clock: Source of the events' times.
        refusal: Raised where something would be appended, if it may only be read.

    Example:
        >>> import tempfile
        >>> ledger = Ledger(Path(tempfile.mkdtemp()) / "ledger.jsonl")
        >>> ledger.append("study.created", {"name": "lr"}, actor="ada").seq
        1
        >>> ledger.read().problems
        []
    """

    def __init__(
        self, path: Path, clock: Callable[[], str] = _now, *, refusal: AssayError | None = None
    ) -> None:
        self.path = path
        self._clock = clock
        self._refusal = refusal

    def append(self, kind: str, data: Mapping[str, Any], *, actor: str) -> Event:
        """Add one event and wait until it is on the disk.

        Raises:
            LedgerError: The ledger's end is damaged, or it cannot be written.
        """
        with self.transaction() as writer:
            return writer.append(kind, data, actor=actor)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Writer]:
        """Hold the ledger alone, to decide on what it says and append in one go.

        A line that a crash left half-written is taken off and kept in an event of its own.

        Raises:
            LedgerError: The ledger's end is damaged, or it cannot be written.
        """
        if self._refusal is not None:
            raise self._refusal
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = open(self.path.with_suffix(".lock"), "ab")
        except OSError as error:
            raise self.unwritable(error) from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                # Unbuffered: what could not be written would be written again as it is closed.
                file = open(self.path, "r+b" if self.path.exists() else "x+b", buffering=0)
            except OSError as error:
                raise self.unwritable(error) from None
            with file:
                yield Writer(self, file, self._clock)

    def unwritable(self, error: OSError) -> LedgerError:
        """Return what is raised where the file cannot be written."""
        return LedgerError(*run_error(error, f"write the ledger '{self.path}'").args)

    def events(self) -> Iterator[Event]:
        """Yield all events in order; a half-written last line is passed over.

        Raises:
            LedgerError: A line is not an event of this chain.
        """
        previous = Head()
        for number, line in enumerate(self._lines(), 1):
            if not line.endswith(b"\n"):
                return
            event, reason = _read(line, previous)
            if event is None or reason is not None:
                raise LedgerError(
                    f"The ledger '{self.path}' is damaged in line {number}: {reason}.",
                    WAY_OUT,
                )
            previous = Head(event.seq, event.hash)
            yield event

    def head(self) -> Head:
        """Return the newest event's number and hash, by reading the last line alone."""
        if not self.path.exists():
            return Head()
        with open(self.path, "rb") as file:
            return _tail(file, self.path)[0]

    def read(self, anchors: Mapping[str, Head] | None = None) -> Reading:
        """Read all events and find every place where the ledger is not what was appended.

        Args:
            anchors: Heads that were noted elsewhere, by the name of the place.
        """
        for _ in range(_LOOKS):
            reading = self._read_once(anchors or {})
            if not reading.problems or reading.problems[-1].reason != _TORN:
                break
            # Somebody may be writing that line just now; a line that stays so was torn.
            size = self.path.stat().st_size
            time.sleep(_LOOK_SECONDS)
            if self.path.stat().st_size == size:
                break
        return reading

    def _read_once(self, anchors: Mapping[str, Head]) -> Reading:
        events: list[Event] = []
        problems: list[Problem] = []
        previous = Head()
        wanted: dict[int, list[tuple[str, Head]]] = {}
        for place, anchor in anchors.items():
            wanted.setdefault(anchor.seq, []).append((place, anchor))
        number = 0
        for number, line in enumerate(self._lines(), 1):
            if not line.endswith(b"\n"):
                problems.append(Problem(number, _TORN))
                break
            event, reason = _read(line, previous)
            if reason is not None:
                problems.append(Problem(number, reason))
            if event is None:
                # Go on behind it: what follows is judged by its own predecessor.
                previous = Head(previous.seq + 1, "")
                continue
            events.append(event)
            for place, anchor in wanted.pop(event.seq, ()):
                if anchor.hash != event.hash:
                    reason = (
                        f"{place} knows event {event.seq} by another hash: history was rewritten"
                    )
                    problems.append(Problem(number, reason))
            previous = Head(event.seq, event.hash)
        for seq, places in wanted.items():
            for place, anchor in places:
                if anchor != Head():
                    reason = f"{place} knows event {seq}, which is missing: the end was cut off"
                    problems.append(Problem(number + 1, reason))
        return Reading(events, problems)

    def since(self, head: Head, size: int) -> list[Event] | None:
        """Return the events behind a head, taking no more than hashes of what is before it.

        That is a third of the work of reading everything, and finds an edited line all the same.

        Args:
            head: An event that is known.
            size: Where its line ends, in bytes.

        Returns:
            What follows it; None where something is wrong, so that the whole has to be looked at.
        """
        events: list[Event] = []
        previous, place = Head(), 0
        for line in self._lines():
            if place < size:
                previous = _linked(line, previous)
                place += len(line)
                if not previous.seq:
                    return None
                continue
            if (previous, place) != (head, size):
                return None
            event, reason = _read(line, previous) if line.endswith(b"\n") else (None, None)
            if event is None or reason is not None:
                return None
            previous = head = Head(event.seq, event.hash)
            place = size = place + len(line)
            events.append(event)
        return events if (previous, place) == (head, size) else None

    def _lines(self) -> Iterator[bytes]:
        if not self.path.exists():
            return
        try:
            file = open(self.path, "rb")
        except OSError as error:  # a directory, or another user's file
            raise LedgerError(*run_error(error, f"read the ledger '{self.path}'").args) from None
        with file:
            yield from file


class Writer:
    """Appends to a ledger that is held alone; made by `Ledger.transaction`."""

    def __init__(self, ledger: Ledger, file: BinaryIO, clock: Callable[[], str]) -> None:
        self._ledger = ledger
        self._file = file
        self._clock = clock
        self._events: list[Event] | None = None
        self.head, end = _tail(file, ledger.path)
        file.seek(end)
        torn = file.read()
        if torn:
            file.truncate(end)
            kept = torn[:_KEPT_OF_A_TORN_LINE].decode(errors="replace")
            self.append(REPAIRED, {"bytes": len(torn), "text": kept}, actor="assay")

    def events(self) -> Iterator[Event]:
        """Yield all events, those appended in this transaction included.

        The file is read once: nobody else can write to it until the transaction is over.
        """
        if self._events is None:
            self._events = list(self._ledger.events())
        return iter(self._events)

    def append(self, kind: str, data: Mapping[str, Any], *, actor: str) -> Event:
        """Add one event and wait until it is on the disk.

        Raises:
            LedgerError: It cannot be written; the ledger is then as it was.
        """
        event: dict[str, Any] = {
            "schema": SCHEMA, "seq": self.head.seq + 1, "time": self._clock(), "kind": kind,
            "actor": actor, "data": dict(data), "prev": self.head.hash,
        }  # fmt: skip
        body = canonical(event)
        hashed = hashlib.sha256(body).hexdigest()
        end = self._file.seek(0, os.SEEK_END)
        try:
            line = body[:-1] + _HASH_KEY + hashed.encode() + b'"}\n'
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):  # else the next writer takes the torn line off
                self._file.truncate(end)
            raise self._ledger.unwritable(error) from None
        self.head = Head(event["seq"], hashed)
        event.pop("schema")
        # As a reader will find it: what is kept must not change with the caller's own data.
        event["data"] = json.loads(canonical(event["data"]))
        appended = Event(**event, hash=hashed)
        if self._events is not None:
            self._events.append(appended)
        return appended


def _tail(file: BinaryIO, path: Path) -> tuple[Head, int]:
    """Return the head, and where the last whole line ends, reading from the end."""
    size = file.seek(0, os.SEEK_END)
    block, start = b"", size
    while start > 0:
        step = min(start, 8192)
        start -= step
        file.seek(start)
        block = file.read(step) + block
        end = block.rfind(b"\n")
        begin = block.rfind(b"\n", 0, end)
        if end >= 0 and (begin >= 0 or start == 0):
            event, reason = _read(block[begin + 1 : end + 1], None)
            if event is None or reason is not None:
                raise LedgerError(
                    f"The last line of the ledger '{path}' is damaged: {reason}.",
                    WAY_OUT,
                )
            return Head(event.seq, event.hash), start + end + 1
    return Head(), 0


def _read(line: bytes, previous: Head | None) -> tuple[Event | None, str | None]:
    """Return a line's event, if it can be read, and what is wrong with it."""
    body, tail = line[: -_HASH_TAIL - 1] + b"}", line[-_HASH_TAIL - 1 :]
    if not tail.startswith(_HASH_KEY) or not tail.endswith(b'"}\n'):
        return None, "this is not a ledger event"
    try:
        text = body.decode()
        fields, end = _decode(text)
        stated = tail[len(_HASH_KEY) : -3].decode()
        if fields["schema"] != SCHEMA:
            return None, f"its schema is not {SCHEMA}, the one this version of Assay knows"
        if end != len(text) or len(fields) != _FIELDS or type(fields["data"]) is not dict:
            return None, "this is not a ledger event"
        event = Event(
            fields["seq"], fields["time"], fields["kind"], fields["actor"], fields["data"],
            fields["prev"], stated,
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, "this is not a ledger event"
    if hashlib.sha256(body).hexdigest() != stated:
        return event, "its content does not match its hash: it was edited"
    if previous is not None:
        if event.seq != previous.seq + 1:
            return event, f"event {event.seq} follows event {previous.seq}: a gap, copy or move"
        if previous.hash and event.prev != previous.hash:
            return event, f"event {event.seq} does not continue the event before it"
    return event, None


def _linked(line: bytes, previous: Head) -> Head:
    """Return the head that a line makes, by its hash and its link alone; none if it is broken."""
    body, stated = line[: -_HASH_TAIL - 1] + b"}", line[-67:-3].decode(errors="replace")
    # Keys are sorted, so that what links a line stands together.
    link = f'"prev":"{previous.hash}","schema":{SCHEMA},"seq":{previous.seq + 1},"time":"'
    if hashlib.sha256(body).hexdigest() != stated or link.encode() not in body:
        return Head()
    return Head(previous.seq + 1, stated)


# ---------------------------------------------------------------------- heads in Git


class GitRef:
    """A ref whose commits each note a head, one upon the other, where it cannot be unsaid.

    Args:
        root: The repository; without Git nothing is noted.
        name: The ref's full name.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name

    @property
    def possible(self) -> bool:
        """Return whether the directory is the top of a Git repository."""
        return (self.root / ".git").exists()

    def head(self) -> Head | None:
        """Return the head that was noted last, or None where there is none."""
        return self.last()[0]

    def last(self) -> tuple[Head | None, str]:
        """Return the head that was noted last, and the hash of the state that it comes to."""
        if not self.possible:
            return None, ""
        try:
            text = git(self.root, "cat-file", "commit", self.name).partition("\n\n")[2]
        except GitError:
            return None, ""
        head = _head(text)
        return head, str(json.loads(text).get("state", "")) if head else ""

    def chain(self) -> tuple[list[Head], str]:
        """Return all heads that were noted, the newest first, and why there are none."""
        if not self.possible:
            return [], ""
        try:
            lines = git(self.root, "rev-list", "--format=%B", self.name).splitlines()
        except GitError as error:
            return [], f" ({' '.join(error.message.rstrip('.').split())})"
        heads = [_head(line) for line in lines if line.startswith("{")]
        # A note that says nothing stands for no event, so that it is found wrong.
        return [head or Head(-1, "") for head in heads], ""

    def note(self, head: Head, state: str = "", *, continues: bool = False) -> bool:
        """Note a head in a commit upon those that there are; return whether Git did.

        With it goes the hash of the state that the ledger comes to there, where it is known. Who
        has just read the last note, and that it is of an earlier head, says that this `continues`
        it; then it is not read again.
        """
        if not self.possible:
            return False
        if not continues:
            before, known = self.last()
            if before == head and state in ("", known):
                return True
            continues = before is not None
        values = {"seq": head.seq, "hash": head.hash} | ({"state": state} if state else {})
        text = json.dumps(values) + "\n"
        stream = (
            f"commit {self.name}\ncommitter assay <assay@localhost> {int(time.time())} +0000\n"
            f"data {len(text)}\n{text}" + (f"from {self.name}^0\n" if continues else "")
        )
        try:
            git(self.root, "fast-import", "--quiet", data=stream.encode())
        except GitError:
            return False
        return True


def _head(text: str) -> Head | None:
    """Return the head that a note names, or None if it names none."""
    try:
        values = json.loads(text)
        return Head(int(values["seq"]), str(values["hash"]))
    except (ValueError, TypeError, KeyError):
        return None
