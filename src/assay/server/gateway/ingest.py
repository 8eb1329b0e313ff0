"""The service `Ingest`: batches in, acknowledgements out.

A stream is two tasks. One reads, checks and hands batches to the group committer; the other waits
for what is durable and writes one `Ack` for all of it. The first stops reading where the credits
end, so that what a client sends beyond them stays on the network, and memory stays flat.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import grpc

from assay.server.errors import Reason, RejectionError
from assay.server.gateway.auth import Principal
from assay.server.gateway.hosted import Hosted
from assay.server.gateway.hub import Hub, answers, draining, refuse
from assay.server.protocol import assay_pb2 as pb
from assay.server.protocol.assay_pb2_grpc import IngestServicer
from assay.server.rejections import to_message
from assay.server.store.registry import CANARY, Verb
from assay.server.store.store import Ack, Incoming, Refused
from assay.server.tensors import TRAJECTORY_BYTES, Assembler, Experience, decode

_SMALL = 256 << 10  # bytes that are checked in the loop; more would keep other streams waiting
_MOST_REJECTIONS = 64  # in one Ack
_FIRST_SECONDS = 30.0  # for the first message of a stream
_PART_SECONDS = 60.0  # for the next part of a batch, whose other parts take memory meanwhile
# After these the session is over, and so is its stream.
_FINAL = frozenset(
    {
        Reason.FENCED,
        Reason.UNKNOWN_SESSION,
        Reason.UNKNOWN_POLICY,
        Reason.POLICY_DELETED,
        Reason.DRAINING,
    }
)
# A client that hits these is slowed, or it would do nothing but send the same again.
_PAUSES = {Reason.QUOTA_EXCEEDED: 0.2, Reason.RESOURCE_EXHAUSTED: 0.2, Reason.POLICY_PAUSED: 0.2}


@dataclass(slots=True)
class _Pending:
    """A batch that was taken and is not answered yet."""

    epoch: int
    seq: int
    steps: int
    size: int
    arrived: float
    submitted: float = 0.0
    experience: Experience | None = None  # for the guard, once it is durable
    answer: Ack | Refused | None = None


class Ingest(IngestServicer):
    """Takes experience."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    async def Stream(self, requests: Any, context: Any) -> None:
        """Take batches until the client ends, is fenced, or the server drains."""
        await self._stream(None, context)

    @answers
    async def _stream(self, _: Any, context: Any) -> None:
        hub = self.hub
        # Who has no credential keeps no call open, and who has one says soon what for.
        await hub.principal(context)
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                first = await context.read()
        except TimeoutError:
            raise RejectionError(
                Reason.MALFORMED,
                f"The stream brought nothing for {_FIRST_SECONDS:g} s.",
                "Begin with a message that names the policy.",
            ) from None
        if first is grpc.aio.EOF:
            return
        principal = await hub.enter(context, first.policy, Verb.WRITE)
        hub.refuse_draining()
        hosted = hub.hosted(first.policy)
        stream = IngestStream(hub, hosted, principal, context)
        await stream.begin()
        await stream.run(first)

    @answers
    async def Put(self, request: pb.IngestRequest, context: Any) -> pb.Ack:
        """Take one batch."""
        hub = self.hub
        principal = await hub.enter(context, request.policy, Verb.WRITE)
        hub.refuse_draining()
        if hub.under_way >= hub.config.ingest_mb << 20:
            raise RejectionError(
                Reason.RESOURCE_EXHAUSTED,
                "Too many batches are on their way to this server at once.",
                "Send it again in a while, or use a stream, which waits by itself.",
            )
        hosted = hub.hosted(request.policy)
        stream = IngestStream(hub, hosted, principal, context)
        await stream.look_up()
        pending = await stream.take(request)
        if pending is None:
            raise RejectionError(
                Reason.MALFORMED,
                "Put takes one whole batch; this is empty, or a part of one.",
                "Send large batches over a stream.",
            )
        while pending.answer is None:
            await stream.woken()
        return stream.collect()


class IngestStream:
    """One stream of one client.

    Attributes:
        epoch: The client's newest session when the stream began.
    """

    def __init__(self, hub: Hub, hosted: Hosted, principal: Principal, context: Any) -> None:
        self._hub, self._hosted, self._context = hub, hosted, context
        self._client = principal.name
        self.epoch = 0
        self._committed = 0
        self._assembler = Assembler()
        self._assembling = 0
        self._waiting: deque[_Pending] = deque()
        self._bytes = 0
        self._duplicates = 0
        self._rejections: list[pb.Rejection] = []
        self._ending: RejectionError | None = None
        self._read_all = False
        self._wake = asyncio.Event()  # for the writer
        self._room = asyncio.Event()  # for the reader
        self._pause = 0.0

    async def look_up(self) -> None:
        """Learn the client's newest session and how far it is; one without has 0 and 0."""
        registry, name = self._hub.store.registry, self._hosted.name
        self.epoch = await self._hub.work(registry.epoch, name, self._client)
        if self.epoch:
            self._committed = await self._hub.work(
                registry.committed, name, self._client, self.epoch
            )

    async def begin(self) -> None:
        """Learn the client's session, which there has to be.

        Raises:
            RejectionError: UNKNOWN_SESSION.
        """
        await self.look_up()
        if not self.epoch:
            raise RejectionError(
                Reason.UNKNOWN_SESSION,
                f"'{self._client}' has no session with '{self._hosted.name}'.",
                "Open a session first.",
            )

    async def run(self, first: pb.IngestRequest) -> None:
        """Work until the end of the stream."""
        hosted, meters = self._hosted, self._hub.meters
        streams = hosted.streams.setdefault(self._client, set())
        streams.add(self)
        meters.sessions.add(1, hosted.name)
        if self._hub.draining:  # it may have begun while the session was looked up
            self.finish(draining())
        reader = asyncio.create_task(self._read(first))
        writer = asyncio.create_task(self._write())
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and reader.exception() is None:
                await writer
            for task in (reader, writer):
                if task.done():
                    task.result()
            if self._ending is not None:
                await refuse(self._context, self._ending)
        finally:
            for task in (reader, writer):
                task.cancel()
            with contextlib.suppress(BaseException):
                await asyncio.gather(reader, writer, return_exceptions=True)
            self._count_assembling(0)
            streams.discard(self)
            if not streams and hosted.streams.get(self._client) is streams:
                del hosted.streams[self._client]
            meters.sessions.add(-1, hosted.name)

    # What others may do with it

    def wake(self) -> None:
        """Look at the credits again."""
        self._room.set()
        self._wake.set()

    def finish(self, error: RejectionError) -> None:
        """Acknowledge what was taken, then end with a status."""
        if self._ending is None:
            self._ending = error
        self.wake()

    async def woken(self) -> None:
        """Wait until something happened."""
        await self._wake.wait()
        self._wake.clear()

    # Reading

    async def _read(self, first: pb.IngestRequest) -> None:
        request: Any = first
        while request is not grpc.aio.EOF and self._ending is None:
            try:
                await self.take(request)
            except RejectionError as error:
                # The writer ends first: a status that meets a running write is lost.
                self.finish(error)
                return
            await self._wait_for_room()
            if self._ending is not None:
                return
            try:
                async with asyncio.timeout(_PART_SECONDS if self._assembling else None):
                    request = await self._context.read()
            except TimeoutError:
                self.finish(_left_unfinished())
                return
        self._read_all = True
        self._wake.set()

    async def _wait_for_room(self) -> None:
        if self._pause:
            pause, self._pause = self._pause, 0.0
            await asyncio.sleep(pause)
        while self._ending is None:
            self._room.clear()
            batches, size = self._hosted.credits()
            full = len(self._waiting) >= batches or self._bytes >= max(size, 1)
            if not full and self._hub.under_way < self._hub.config.ingest_mb << 20:
                return
            if not full:
                # Another stream's commitment makes room, and does not wake this one.
                await asyncio.sleep(0.01)
                continue
            await self._room.wait()

    async def take(self, request: pb.IngestRequest) -> _Pending | None:
        """Check a message, and hand in the batch that it completes, if it does."""
        if request.policy and request.policy != self._hosted.name:
            raise RejectionError(
                Reason.MALFORMED,
                f"A stream is for one policy, '{self._hosted.name}'; this message names "
                f"'{request.policy[:64]}'.",
                "Open a stream for each policy.",
            )
        if not request.HasField("batch"):
            self._wake.set()  # a greeting, which is answered with the credits
            return None
        arrived = time.monotonic()
        part = request.batch
        pending = _Pending(part.epoch, part.seq, part.steps, 0, arrived)
        try:
            batch = self._assembled(part)
            if batch is None:
                return None
            pending.steps = batch.steps
            payload = await self._checked(batch, pending)
            pending.size = len(payload)
            incoming = Incoming(
                self._hosted.name,
                self._client,
                batch.epoch,
                batch.seq,
                batch.steps,
                payload,
                batch.dropped,
            )
            future = self._hub.committer.submit(incoming)
        except RejectionError as error:
            self._refuse(pending, error)
            return pending
        pending.submitted = time.monotonic()
        self._waiting.append(pending)
        self._bytes += pending.size
        self._hub.under_way += pending.size
        asyncio.wrap_future(future).add_done_callback(lambda done: self._answered(pending, done))
        return pending

    def _assembled(self, part: pb.Batch) -> pb.Batch | None:
        budget = self._hub.config.ingest_mb << 20
        if part.parts > 1:
            whose = None
            if self._hub.assembling + len(part.tensors) > budget:
                whose = "this server"
            elif self._unfinished() + len(part.tensors) > TRAJECTORY_BYTES:
                whose = f"this server from '{self._client}'"
            if whose is not None:
                self._assembler = Assembler()
                self._count_assembling(0)
                raise RejectionError(
                    Reason.RESOURCE_EXHAUSTED,
                    f"Too many large batches are on their way to {whose} at once.",
                    "Send it again in a while.",
                )
        try:
            batch = self._assembler.add(part)
        except RejectionError:
            self._count_assembling(0)
            raise
        if batch is None:
            self._count_assembling(self._assembling + len(part.tensors))
        else:
            self._count_assembling(0)
        return batch

    def _unfinished(self) -> int:
        """Return the bytes of unfinished batches on all streams of this client."""
        streams = self._hosted.streams.get(self._client, ())
        return sum(one._assembling for one in streams)

    def _count_assembling(self, size: int) -> None:
        self._hub.assembling += size - self._assembling
        self._assembling = size

    async def _checked(self, batch: pb.Batch, pending: _Pending) -> bytes:
        """Return the payload of a batch whose content is in order."""
        if max(len(batch.tensors), batch.raw_size) <= _SMALL:
            experience = decode(batch, self._hosted.layout)
        else:
            experience = await self._hub.work(decode, batch, self._hosted.layout)
        if experience.steps:
            highest = int(experience.fields["version"].max())
            if highest > self._hosted.newest:
                await self._hub.refresh(self._hosted)
            if highest > self._hosted.newest:
                raise RejectionError(
                    Reason.BAD_VERSION,
                    f"A step was decided by version {highest}; the newest of "
                    f"'{self._hosted.name}' is {self._hosted.newest}.",
                )
            self._hosted.note_version(highest)
        if self._hosted.guard is not None:
            pending.experience = experience
        payload: bytes = batch.SerializeToString()
        return payload

    # Answers

    def _refuse(self, pending: _Pending, error: RejectionError) -> None:
        pending.answer = Refused(pending.epoch, pending.seq, self._committed, error)
        self._waiting.append(pending)
        self._wake.set()

    def _answered(self, pending: _Pending, done: asyncio.Future[Ack | Refused]) -> None:
        self._bytes -= pending.size
        self._hub.under_way -= pending.size
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            pending.answer = done.result()
        else:
            failure = error if isinstance(error, RejectionError) else RejectionError(
                Reason.RESOURCE_EXHAUSTED, f"The store failed: {error}."
            )  # fmt: skip
            pending.answer = Refused(pending.epoch, pending.seq, self._committed, failure)
        hosted, meters = self._hosted, self._hub.meters
        meters.commit_seconds.observe(time.monotonic() - pending.submitted, hosted.name)
        if isinstance(pending.answer, Refused):
            if pending.answer.error.reason is Reason.RESOURCE_EXHAUSTED:
                hosted.refused(pending.answer.error.message)
        if isinstance(pending.answer, Ack) and not pending.answer.duplicate:
            meters.batches.add(1, hosted.name)
            meters.steps.add(pending.steps, hosted.name)
            meters.bytes.add(pending.size, hosted.name)
            hosted.committed(pending.steps)
            hosted.supervisor.notify()
            if hosted.guard is not None and pending.experience is not None:
                trying = hosted.channel_of(self._client) == CANARY
                version = hosted.version_of(CANARY) if trying else 0
                hosted.guard.record(self._client, pending.experience, version)
                self._hub.spawn(self._hub.guard(hosted))
        pending.experience = None
        self.wake()

    def collect(self) -> pb.Ack:
        """Return one acknowledgement for everything that has an answer."""
        hosted, meters = self._hosted, self._hub.meters
        now = time.monotonic()
        while self._waiting and len(self._rejections) < _MOST_REJECTIONS:
            answer = self._waiting[0].answer
            if answer is None:
                break
            pending = self._waiting.popleft()
            meters.ack_seconds.observe(now - pending.arrived, hosted.name)
            self.epoch = max(self.epoch, answer.epoch if isinstance(answer, Ack) else 0)
            if isinstance(answer, Ack):
                self._committed = max(self._committed, answer.committed)
                self._duplicates += answer.duplicate
                meters.duplicates.add(int(answer.duplicate), hosted.name)
                continue
            error = answer.error
            meters.rejections.add(1, hosted.name, error.reason.name)
            if error.reason is Reason.QUOTA_EXCEEDED:
                meters.quota_refusals.add(1, hosted.name)
            self._pause = max(self._pause, _PAUSES.get(error.reason, 0.0))
            self._rejections.append(to_message(error, epoch=answer.epoch, seq=answer.seq))
            if error.reason in _FINAL:
                self.finish(error)
        batches, size = hosted.credits()
        ack = pb.Ack(
            epoch=self.epoch,
            committed=self._committed,
            credit_bytes=size,
            credit_batches=batches,
            newest_version=hosted.newest,
            duplicates=self._duplicates,
            rejections=self._rejections,
        )
        self._duplicates, self._rejections = 0, []
        self._room.set()
        return ack

    async def _write(self) -> None:
        config = self._hub.config
        told = -1
        spoke = checked = time.monotonic()
        step = min(config.announce_seconds, config.recheck_seconds)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(step):
                    await self.woken()
            now = time.monotonic()
            if now - checked >= config.recheck_seconds:
                # A token may have been revoked, also from a client that never falls silent.
                await self._hub.enter(self._context, self._hosted.name, Verb.WRITE)
                checked = now
            answered = bool(self._waiting) and self._waiting[0].answer is not None
            credits = self._hosted.credits()[0]
            # Less of them is told with the next answer; more of them is what a client waits for.
            if answered or credits > told or now - spoke >= config.announce_seconds:
                ack = self.collect()
                await self._context.write(ack)
                spoke, told = now, ack.credit_batches
            if self._waiting and self._waiting[0].answer is not None:
                self._wake.set()
            elif not self._waiting and (self._read_all or self._ending is not None):
                return


def _left_unfinished() -> RejectionError:
    return RejectionError(
        Reason.RESOURCE_EXHAUSTED,
        f"A batch was left unfinished: its next part did not come for {_PART_SECONDS:g} s.",
        "Send the batch again from its first part.",
    )
