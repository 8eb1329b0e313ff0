"""The store: takes batches, acknowledges them once they are durable, and gives them to a learner.

```
<directory>/registry/                   policies, sessions, versions, ...: see `sqlite`
            policies/<name>/segments/   what clients sent, in the order of commitment: see `log`
                            blobs/      model snapshots and checkpoints: see `blobs`
            lock, id                    one process at a time; which store this is
```
A batch is committed in three steps: it is written to the policy's segment, the segment is synced,
and its key enters the index. Only then is there an `Ack`. After a crash the segments decide: what
stands in them whole is committed, acknowledged or not, and a client that sends it again is told
that it is a duplicate. Nothing that was refused is ever found later, for it is cut off again.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import secrets
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from assay.runs.files import write_atomic
from assay.server.errors import (
    DamagedError,
    Reason,
    RejectionError,
    StoreError,
    StoreInUseError,
)
from assay.server.spec import PolicySpec
from assay.server.store.blobs import Blobs
from assay.server.store.log import (
    MAX_BODY,
    SEGMENT_BYTES,
    Damage,
    Place,
    SegmentLog,
    Sync,
    make_directory,
)
from assay.server.store.quota import Meter
from assay.server.store.registry import IndexedBatch, NewModel, PolicyState
from assay.server.store.sql import Registry
from assay.server.store.sqlite import SqliteRegistry

_BODY = struct.Struct("<QQQIH")  # epoch, seq, dropped, steps, length of the client's id
_MAX_CLIENT = 128
_MAX_NUMBER = 1 << 62  # a database counts in signed 64 bits
_AT_ONCE = 1000  # rows for the index, when it is caught up
_ALL = 1 << 60
_SYNC_THREADS = 8


@dataclass(frozen=True, slots=True)
class Incoming:
    """A batch that wants to be committed."""

    policy: str  # whose
    client: str  # who sends it, by its credential
    epoch: int  # of the session
    seq: int  # in the session, from 1
    steps: int  # how many steps it holds
    payload: bytes  # the batch as it came over the wire, checked
    dropped: int = 0  # how many numbers right before `seq` the client will never send


@dataclass(frozen=True, slots=True)
class Ack:
    """A batch that is durable."""

    epoch: int  # of its session
    seq: int  # of the batch
    committed: int  # every batch of the session up to this one is durable or was dropped
    duplicate: bool = False  # whether it was there before


@dataclass(frozen=True, slots=True)
class Refused:
    """A batch that is not durable, and left no trace."""

    epoch: int  # of its session
    seq: int  # of the batch
    committed: int  # the last number of the session that is durable
    error: RejectionError  # why, with a reason for the program and a sentence for the person


@dataclass(frozen=True, slots=True)
class Stored:
    """A committed batch."""

    position: int  # of the batch in its policy's log; what a learner's cursor counts in
    client: str  # who sent it
    epoch: int  # of the session
    seq: int  # in the session
    steps: int  # how many steps it holds
    payload: bytes  # as it came over the wire; empty where it is damaged
    damage: str | None = None  # why it cannot be read any more, if that is so

    def __str__(self) -> str:
        return f"batch {self.position} (of '{self.client}', session {self.epoch}, {self.seq})"


@dataclass(frozen=True, slots=True)
class Session:
    """A client's right to write."""

    epoch: int  # fences every earlier session of the client
    resumed_committed: int  # how far the session that it asked about came, which is final


@dataclass(slots=True)
class _Mark:
    """How far a client is."""

    epoch: int
    committed: int


class Store(AbstractContextManager["Store"]):
    """A directory with everything that a server must not lose.

    Args:
        directory: Made if missing.
        registry: Where the registry and index are; by default in SQLite under the directory. The
            store closes it.
        segment_bytes: A new segment begins when the last is larger.
        sync: How a segment is brought to the disk.
        clock: Steady seconds, for quotas.

    Attributes:
        registry: For all that is not about batches.
        repairs: What was found damaged, a sentence each.

    Raises:
        StoreInUseError: Another process has it.
        StoreError: It cannot be read or written.

    Example:
        >>> import tempfile
        >>> from assay.server.spec import Box, Discrete
        >>> spec = PolicySpec(
        ...     name="p", observation=Box(shape=(2,)), action=Discrete(n=2), algorithm="ppo"
        ... )
        >>> with Store(Path(tempfile.mkdtemp())) as store:
        ...     _ = store.register(spec)
        ...     epoch = store.open_session("p", "ada").epoch
        ...     acks = store.append([Incoming("p", "ada", epoch, 1, 4, b"steps")])
        ...     [one.payload for one in store.read("p", after=0)]
        [b'steps']
    """

    def __init__(
        self,
        directory: Path,
        registry: Registry | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync: Sync = os.fdatasync,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self.repairs: list[str] = []
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._logs: dict[str, SegmentLog] = {}
        self._marks: dict[tuple[str, str], _Mark] = {}
        self._doubtful: set[str] = set()  # policies whose index may know more than their log
        self._meter = Meter(clock)
        self._writing = threading.Lock()
        self._publishing = threading.Lock()  # a file must not be pruned before its version exists
        self._threads = ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="assay-sync")
        self._lock = _lock(directory)
        try:
            self.registry: Registry = registry or SqliteRegistry(directory / "registry", sync=sync)
            if registry is not None:
                registry.claim(self.identity())
            self.repairs += self.registry.repairs
            for policy in self.registry.policies():
                if policy.state == "deleted":
                    self._remove(policy.name)  # should a crash have come in between
                else:
                    self._logs[policy.name] = self._open_log(policy.name)
        except BaseException:
            self._lock.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files and let another process have the directory."""
        with self._writing:
            self._threads.shutdown()
            for log in self._logs.values():
                log.close()
            self._logs.clear()
            self.registry.close()
            self._lock.close()

    # Policies and sessions

    def register(self, spec: PolicySpec) -> bool:
        """Register a policy and return whether it is new.

        Raises:
            RejectionError: SPEC_CONFLICT with the first difference, or POLICY_DELETED.
        """
        with self._writing:
            created = self.registry.add_policy(spec)
            if spec.name not in self._logs:
                self._logs[spec.name] = self._open_log(spec.name)
            return created

    def open_session(self, policy: str, client: str, *, resume_epoch: int = 0) -> Session:
        """Give a client the next epoch.

        `resume_epoch` is its last session, if it has batches in doubt.

        Raises:
            RejectionError: UNKNOWN_POLICY or POLICY_DELETED.
        """
        if not 0 < len(client.encode()) <= _MAX_CLIENT:
            raise RejectionError(
                Reason.MALFORMED, f"The id of a client has 1 to {_MAX_CLIENT} bytes."
            )
        # Under the same lock as commitment: once the epoch is given, the old session has ended.
        with self._writing:
            epoch = self.registry.open_session(policy, client)
            self._marks[policy, client] = _Mark(epoch, 0)
            known = 0 < resume_epoch < epoch
            return Session(
                epoch, self.registry.committed(policy, client, resume_epoch) if known else 0
            )

    def delete(self, policy: str) -> None:
        """Delete a policy's experience and models; its name and version numbers stay taken."""
        with self._writing:
            self.registry.set_state(policy, "deleted")
            log = self._logs.pop(policy, None)
            if log is not None:
                log.close()
            self._remove(policy)
            self._marks = {key: mark for key, mark in self._marks.items() if key[0] != policy}

    # Batches

    def append(self, batches: Sequence[Incoming]) -> list[Ack | Refused]:
        """Commit batches, all with one sync per policy, and return an answer for each.

        A batch whose number is not the next of its session is not an error of the store: it is a
        duplicate, or it is refused with SEQUENCE_GAP. A disk that is full or fails refuses with
        RESOURCE_EXHAUSTED.
        """
        with self._writing:
            return self._append(batches)

    def _append(self, batches: Sequence[Incoming]) -> list[Ack | Refused]:
        answers: list[Ack | Refused | None] = [None] * len(batches)
        chosen: dict[str, list[int]] = {}
        ahead: dict[tuple[str, str], int] = {}  # where clients will be, if all goes well
        doubles: list[int] = []
        # The registry is asked once per call.
        state_of = functools.cache(self.registry.state)
        quota_of = functools.cache(self.registry.quota)
        for number, batch in enumerate(batches):
            key = batch.policy, batch.client
            try:
                _check_sizes(batch)
                _refuse_inactive(batch.policy, state_of(batch.policy))
                mark = self._mark(batch)
                committed = ahead.get(key, mark.committed)
                if batch.seq <= committed:
                    doubles.append(number)
                    continue
                _check_next(batch, committed)
                self._meter.charge(quota_of(*key), key, steps=batch.steps, size=len(batch.payload))
            except RejectionError as error:
                known = self._marks.get(key)
                at = known.committed if known is not None and known.epoch == batch.epoch else 0
                answers[number] = Refused(batch.epoch, batch.seq, at, error)
                continue
            ahead[key] = batch.seq
            chosen.setdefault(batch.policy, []).append(number)
        self._commit(batches, chosen, answers)
        for number in doubles:
            answers[number] = self._answer_double(batches[number])
        return [answer for answer in answers if answer is not None]

    def is_broken(self, policy: str) -> bool:
        """Return whether nothing of a policy can be committed until the store is opened again.

        The disk has failed in a way that leaves open what is on it.
        """
        log = self._logs.get(policy)
        return self.registry.broken or (log is not None and log.broken)

    def _answer_double(self, batch: Incoming) -> Ack | Refused:
        # What it doubles may stand in the same call and have failed.
        committed = self._marks[batch.policy, batch.client].committed
        if batch.seq <= committed:
            return Ack(batch.epoch, batch.seq, committed, duplicate=True)
        error = StoreError(f"Batch {batch.seq} was not committed.", "Send it again.")
        return Refused(batch.epoch, batch.seq, committed, error)

    def _mark(self, batch: Incoming) -> _Mark:
        """Return how far a batch's session is, or refuse a batch of no open session."""
        key = batch.policy, batch.client
        if key not in self._marks:
            epoch = self.registry.epoch(*key)
            self._marks[key] = _Mark(epoch, self.registry.committed(*key, epoch))
        mark = self._marks[key]
        if batch.epoch < mark.epoch:
            raise taken_over(batch.client, batch.epoch, mark.epoch)
        if batch.epoch > mark.epoch or not batch.epoch:
            raise RejectionError(
                Reason.UNKNOWN_SESSION,
                f"'{batch.client}' has no session {batch.epoch}; its newest is {mark.epoch}.",
                "Open a session first.",
            )
        return mark

    def _commit(
        self,
        batches: Sequence[Incoming],
        chosen: dict[str, list[int]],
        answers: list[Ack | Refused | None],
    ) -> None:
        """Write, sync and index what was chosen, and answer for it."""
        written: dict[str, list[IndexedBatch]] = {}
        errors: dict[str, RejectionError] = {}
        for policy, numbers in chosen.items():
            try:
                if policy in self._doubtful:
                    self.registry.forget_batches_after(policy, self._logs[policy].last)
                    self._doubtful.discard(policy)
                written[policy] = self._write(policy, [batches[number] for number in numbers])
            except (OSError, StoreError) as error:
                errors[policy] = _not_written(error, policy)
        for policy, failure in self._sync_all(list(written)).items():
            errors[policy] = _not_written(failure, policy)
        good = [policy for policy in written if policy not in errors]
        try:
            if good:
                self.registry.add_batches([one for policy in good for one in written[policy]])
        except RejectionError as error:
            errors |= dict.fromkeys(good, error)
            # A connection that broke during the commit does not say whether it came through.
            self._doubtful.update(good)
        except BaseException:
            for policy in chosen:
                self._logs[policy].rollback()
            self._doubtful.update(good)
            raise
        for policy, numbers in chosen.items():
            if policy in errors:
                self._logs[policy].rollback()
            else:
                self._logs[policy].commit()
                for number in numbers:
                    one = batches[number]
                    self._marks[policy, one.client].committed = one.seq
            for number in numbers:
                one = batches[number]
                committed = self._marks[policy, one.client].committed
                answers[number] = (
                    Refused(one.epoch, one.seq, committed, errors[policy])
                    if policy in errors
                    else Ack(one.epoch, one.seq, committed)
                )

    def _write(self, policy: str, batches: list[Incoming]) -> list[IndexedBatch]:
        bodies = []
        for one in batches:
            client = one.client.encode()
            head = _BODY.pack(one.epoch, one.seq, one.dropped, one.steps, len(client))
            bodies.append((head + client, one.payload))
        places = self._logs[policy].write(bodies)
        return [
            IndexedBatch(policy, one.client, one.epoch, one.seq, one.steps, place)
            for one, place in zip(batches, places, strict=True)
        ]

    def _sync_all(self, policies: list[str]) -> dict[str, OSError]:
        """Bring the logs of some policies to the disk, and return what failed."""
        failed: dict[str, OSError] = {}

        def sync(policy: str) -> None:
            try:
                self._logs[policy].sync()
            except OSError as error:
                failed[policy] = error

        if len(policies) == 1:
            sync(policies[0])
        else:
            # A disk does several at once in about the time of one.
            list(self._threads.map(sync, policies))
        return failed

    def read(
        self, policy: str, *, after: int, limit: int = 256, most_bytes: int = 64 << 20
    ) -> list[Stored]:
        """Return committed batches behind a position, in their order, damaged ones included.

        At most `limit` of them, with `most_bytes` together; one is returned in any case.

        Raises:
            StoreError: The disk or the registry cannot be read now.
        """
        self.registry.policy(policy)
        log = self._logs.get(policy)
        found: list[Stored] = []
        size = 0
        for one in self.registry.batches(policy, after, limit) if log is not None else ():
            size += one.place.size
            if found and size > most_bytes:
                break
            assert log is not None
            try:
                found.append(_parse(one.place, log.read(one.place))[0])
            except DamagedError as error:
                key = one.place.position, one.client, one.epoch, one.seq, one.steps
                found.append(Stored(*key, b"", error.message))
        return found

    def trim(self, policy: str, *, keep_after: int | None = None) -> int:
        """Delete segments that the learner has consumed, and return how many.

        Args:
            policy: Whose.
            keep_after: Keep what is behind this position; by default, behind the cursor. What the
                learner has not consumed is kept in any case.
        """
        with self._writing:
            cursor = self.registry.learner(policy).position
            until = cursor if keep_after is None else min(keep_after, cursor)
            log = self._logs[policy]
            segments = log.segments()
            # Whole segments alone: the index must not forget what can still be found.
            kept = [first for first in segments if first <= until + 1]
            if not kept:
                return 0
            self.registry.trim(policy, kept[-1])
            return len(log.drop_before(kept[-1]))

    # Models

    def blobs(self, policy: str) -> Blobs:
        """Return where a policy's snapshots and checkpoints are."""
        self.registry.policy(policy)
        return Blobs(self._place(policy) / "blobs")

    def publish(
        self,
        policy: str,
        epoch: int,
        position: int,
        snapshot: bytes,
        *,
        checkpoint: bytes | None = None,
        architecture: str = "{}",
        parent: int = 0,
        metrics: dict[str, float] | None = None,
        channel: str | None = "stable",
    ) -> int:
        """Commit a model together with the cursor and state that it belongs to.

        `checkpoint` is the trainer's state at this position; for the rest see `Registry.advance`
        and `NewModel`.

        Returns:
            The new version.

        Raises:
            RejectionError: FENCED, BAD_VERSION, or as in `Registry.advance`.
            StoreError: The disk is full or failed; nothing was published.
        """
        with self._publishing:
            blobs = self.blobs(policy)
            # The files first: a version must never point to one that is not there.
            model = NewModel(
                blobs.put(snapshot), len(snapshot), architecture, parent, metrics or {}, channel
            )
            state = None if checkpoint is None else blobs.put(checkpoint)
            return self.registry.advance(policy, epoch, position, checkpoint=state, model=model)

    def prune_models(
        self, policy: str, *, keep: int = 100, minutes: int = 0, hours: int = 0
    ) -> int:
        """Delete old versions with their files, and old checkpoints, and return how many files.

        The two newest checkpoints stay.

        Which versions stay, `Registry.prune_models` says.
        """
        with self._publishing:
            self.registry.prune_models(policy, keep, minutes=minutes, hours=hours)
            newest = self.registry.learner(policy)
            kept = {one.sha256 for one in self.registry.models(policy, newest=newest.version)}
            states = {newest.checkpoint or "", newest.earlier or ""}
            return self.blobs(policy).keep_only(kept | states)

    # Opening

    def identity(self) -> str:
        """Return the id of this directory, which a registry elsewhere knows it by."""
        path = self.directory / "id"
        if not path.exists():
            write_atomic(path, secrets.token_hex(16).encode())
        return path.read_text()

    def _place(self, policy: str) -> Path:
        return self.directory / "policies" / policy

    def _remove(self, policy: str) -> None:
        shutil.rmtree(self._place(policy), ignore_errors=True)

    def _open_log(self, policy: str) -> SegmentLog:
        """Open a policy's log and bring the index in line with it."""

        def places(segment: int) -> list[Place]:
            rows = self.registry.batches(policy, segment - 1, _ALL)
            return [one.place for one in rows if one.place.segment == segment]

        try:
            log = SegmentLog(
                self._place(policy) / "segments",
                segment_bytes=self._segment_bytes,
                sync=self._sync,
                indexed=places,
            )
        except OSError as error:
            doing = f"open the segments of '{policy}'"
            raise StoreError.of(error, doing) from None
        self.repairs += map(str, log.damage)
        indexed = self.registry.last_position(policy)
        if indexed > log.last:
            lost = self.registry.forget_batches_after(policy, log.last)
            self.repairs.append(
                f"The segments of '{policy}' have lost {len(lost)} batches that were "
                f"committed: {_named(lost)}"
            )
        self._catch_up(policy, log, indexed)
        # Positions of lost batches are not used again: a cursor may be behind them.
        log.skip_to(max(indexed, self.registry.learner(policy).position))
        return log

    def _catch_up(self, policy: str, log: SegmentLog, indexed: int) -> None:
        """Bring into the index what stands in the segments behind a position."""
        newest = [log.path_of(one) for one in log.segments()[-1:]]
        in_doubt = False  # whether damage in the newest segment came before
        rows: list[IndexedBatch] = []
        marks: dict[tuple[str, int], int] = {}
        left_out: list[IndexedBatch] = []
        for found in log.scan(indexed):
            if isinstance(found, Damage):
                in_doubt |= found.path in newest
                if found not in log.damage:
                    self.repairs.append(f"Batches of '{policy}' are lost: {found}")
                continue
            place, body = found
            one, dropped = _parse(place, body)
            row = IndexedBatch(policy, one.client, one.epoch, one.seq, one.steps, place)
            key = one.client, one.epoch
            if key not in marks:
                marks[key] = self.registry.committed(policy, *key)
            # The disk may have got a later record of a group before an earlier one. Nobody has
            # heard of them, and the client sends both again.
            if in_doubt and one.seq - dropped != marks[key] + 1:
                left_out.append(row)
                continue
            marks[key] = one.seq
            rows.append(row)
            if len(rows) == _AT_ONCE:
                self.registry.add_batches(rows)
                rows = []
        if rows:
            self.registry.add_batches(rows)
        if left_out:
            self.repairs.append(
                f"{len(left_out)} batches of '{policy}' are left out, since one before them is "
                f"damaged: {_named(left_out)}"
            )


def _refuse_inactive(policy: str, state: PolicyState) -> None:
    if state != "active":
        reason = Reason.POLICY_PAUSED if state == "paused" else Reason.POLICY_DELETED
        raise RejectionError(reason, f"The policy '{policy}' is {state}.")


def taken_over(client: str, epoch: int, newer: int) -> RejectionError:
    """Return the refusal of a session that another one has ended."""
    return RejectionError(
        Reason.FENCED,
        f"Session {epoch} of '{client}' has ended: session {newer} has taken over.",
        "Open a new session, unless another process of this client is meant to run.",
    )


def _check_sizes(batch: Incoming) -> None:
    if len(batch.payload) > MAX_BODY - _BODY.size - _MAX_CLIENT:
        raise RejectionError(
            Reason.TRAJECTORY_TOO_LARGE, f"The batch has {len(batch.payload)} bytes."
        )
    if max(batch.epoch, batch.seq, batch.dropped) >= _MAX_NUMBER or batch.seq < 1:
        raise RejectionError(
            Reason.MALFORMED,
            f"Batch {batch.seq} of session {batch.epoch} with {batch.dropped} dropped is not "
            "possible; expected numbers from 1 that fit 62 bits.",
        )


def _check_next(batch: Incoming, committed: int) -> None:
    expected = committed + 1
    if batch.seq - batch.dropped != expected:
        raise RejectionError(
            Reason.SEQUENCE_GAP,
            f"Batch {batch.seq} of '{batch.client}' came"
            + (f" with {batch.dropped} dropped before it" if batch.dropped else "")
            + f"; expected batch {expected}.",
            f"Send from {expected} on, or say how many were dropped.",
        )


def _not_written(error: OSError | StoreError, policy: str) -> StoreError:
    if isinstance(error, StoreError):
        return error
    return StoreError.of(error, f"write the segments of '{policy}'")


def _parse(place: Place, body: bytes) -> tuple[Stored, int]:
    """Return the batch that a record holds, and how many were dropped before it."""
    epoch, seq, dropped, steps, length = _BODY.unpack_from(body)
    end = _BODY.size + length
    client = body[_BODY.size : end].decode()
    return Stored(place.position, client, epoch, seq, steps, body[end:]), dropped


def _named(lost: list[IndexedBatch]) -> str:
    names = [f"'{one.client}' session {one.epoch} batch {one.seq}" for one in lost[:3]]
    return ", ".join(names) + (", ..." if len(lost) > 3 else "")


def _lock(directory: Path) -> IO[bytes]:
    try:
        make_directory(directory)
        # One that holds other things is not ours to close; what we put there is closed itself.
        if not any(directory.iterdir()):
            os.chmod(directory, 0o700)
        handle = open(directory / "lock", "ab")
    except OSError as error:
        raise StoreError.of(error, f"open the store '{directory}'") from None
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    handle.close()
    raise StoreInUseError(
        f"Another process has the store '{directory}' open.",
        "Stop that server, or give this one another directory.",
    )


def iterate(store: Store, policy: str, *, after: int = 0) -> Iterator[Stored]:
    """Yield all committed batches behind a position, damaged ones included."""
    while found := store.read(policy, after=after):
        yield from found
        after = found[-1].position
