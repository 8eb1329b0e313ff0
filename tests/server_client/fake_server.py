"""A small gateway on gRPC's threads that can refuse, cut, hold back and lie, as a test says."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from assay.server.errors import Reason, RejectionError
from assay.server.protocol import PROTOCOL
from assay.server.protocol import assay_pb2 as pb
from assay.server.protocol import assay_pb2_grpc as rpc
from assay.server.spec import PolicySpec, read_spec
from assay.server.tensors import Assembler, Experience, Layout, decode

WAIT = 30.0
_CHUNK = 1000  # of a model, small, so that there are several


def wait_for(condition: Callable[[], Any], what: str = "") -> Any:
    """Return what a condition says as soon as it says something."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.003)
    raise AssertionError(f"it did not happen: {what or condition}")


class FakeServer(rpc.SessionServicer, rpc.IngestServicer, rpc.ModelsServicer):
    """What a server keeps, and what a test makes it do.

    Attributes:
        specs: What was registered, by name.
        kept: `(client, epoch, seq, experience)` of each batch that was committed, in order.
        duplicates: Batches that were there already.
        gaps: Batches that were refused because one before them is missing.
        most_held: Most batches that were ever received and not answered.
        credits: Batches and bytes that may be under way.
        judge: Returns the reason to refuse a batch for, or None.
        refuse_calls: Reasons by the name of a method (Register, Open, Stream, Watch, Fetch).
        cut_after: Streams end without warning after so many batches; None for never.
        answer: Cleared to hold back every answer.
        lie: Changes what Fetch sends.
        epochs: How many sessions each client has had.
    """

    def __init__(self, port: int = 0, *, credits: tuple[int, int] = (8, 1 << 20)) -> None:
        self.specs: dict[str, PolicySpec] = {}
        self.kept: list[tuple[str, int, int, Experience]] = []
        self.codecs_seen: Counter[int] = Counter()
        self.messages: list[Any] = []
        self.duplicates = self.gaps = self.most_held = 0
        self.credits = credits
        self.codecs = [pb.RAW]
        self.judge: Callable[[Any], Reason | None] = lambda batch: None
        self.refuse_calls: dict[str, Reason] = {}
        self.calls: Counter[str] = Counter()
        self.seen_metadata: dict[str, dict[str, str]] = {}
        self.cut_after: int | None = None
        self.answer = threading.Event()
        self.answer.set()
        self.lie: Callable[[bytes], bytes] = lambda data: data
        self.epochs: Counter[str] = Counter()
        self._marks: dict[tuple[str, int], int] = {}
        self._model: tuple[Any, bytes] | None = None
        self._watchers: list[queue.Queue[Any]] = []
        self._streams: list[queue.Queue[Any]] = []
        self._held = 0
        self._lock = threading.RLock()
        self.port = port
        self._server: Any = None
        self.start()

    # Running

    def start(self) -> None:
        def listen() -> bool:
            server = grpc.server(
                futures.ThreadPoolExecutor(32),
                options=[
                    ("grpc.so_reuseport", 0),
                    ("grpc.http2.min_ping_interval_without_data_ms", 10),
                    ("grpc.http2.max_ping_strikes", 0),
                ],
            )
            rpc.add_SessionServicer_to_server(self, server)
            rpc.add_IngestServicer_to_server(self, server)
            rpc.add_ModelsServicer_to_server(self, server)
            try:
                self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
            except RuntimeError:  # the port is not free again yet
                return False
            self._server = server
            server.start()
            return True

        wait_for(listen, "a port")

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            for waiting in (*self._watchers, *self._streams):
                waiting.put(None)
            self.answer.set()
            server.stop(0).wait(WAIT)

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # What a test reads and does

    def steps(self, client: str | None = None) -> list[int]:
        """Return the events of all steps kept, in order."""
        return [
            int(event)
            for who, _, _, one in self.kept
            if client in (None, who) and one.steps
            for event in one.fields["event"]
        ]

    def rewards(self) -> dict[int, float]:
        """Return the late rewards kept."""
        total: Counter[int] = Counter()
        for _, _, _, one in self.kept:
            total.update(one.patches)
        return dict(total)

    def publish(self, snapshot: Any, **changes: Any) -> None:
        """Announce a model."""
        architecture = snapshot.architecture
        info = pb.ModelInfo(
            policy="p",
            version=architecture.version,
            epoch=architecture.epoch,
            sha256=snapshot.sha256,
            size=len(snapshot.data),
        )
        for name, value in changes.items():
            setattr(info, name, value)
        self._model = (info, snapshot.data)
        self.repeat()

    def repeat(self) -> None:
        """Announce the same model again."""
        for watcher in self._watchers:
            watcher.put(self._model[0] if self._model else None)

    def grant(self, batches: int, size: int = 1 << 20) -> None:
        """Change the credits and tell the clients."""
        self.credits = (batches, size)
        for stream in self._streams:
            stream.put("credits")

    # The services

    def _enter(self, context: Any, name: str) -> str:
        metadata = {key: value for key, value in context.invocation_metadata()}
        self.seen_metadata[name] = metadata
        self.calls[name] += 1
        if name in self.refuse_calls:
            reason = self.refuse_calls[name]
            rejection = pb.Rejection(reason=int(reason), message=f"{reason.name} it is.")
            context.set_trailing_metadata((("assay-rejection-bin", rejection.SerializeToString()),))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "refused")
        return metadata["assay-client"]

    def Register(self, request: Any, context: Any) -> Any:
        self._enter(context, "Register")
        assert request.protocol == PROTOCOL
        spec = read_spec(request.spec_json)
        created = spec.name not in self.specs
        self.specs.setdefault(spec.name, spec)
        return pb.RegisterReply(policy=spec.name, spec_hash=spec.hash(), created=created)

    def Open(self, request: Any, context: Any) -> Any:
        client = self._enter(context, "Open")
        with self._lock:
            self.epochs[client] += 1
            epoch = self.epochs[client]
            return pb.OpenReply(
                epoch=epoch,
                resumed_committed=self._marks.get((client, request.resume_epoch), 0),
                limits=pb.Limits(frame_bytes=4 << 20, codecs=self.codecs),
                credit_batches=self.credits[0],
                credit_bytes=self.credits[1],
            )

    def Stream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        client = self._enter(context, "Stream")
        answers: queue.Queue[Any] = queue.Queue()
        self._streams.append(answers)
        arrived: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._receive, args=(requests, arrived), daemon=True).start()
        threading.Thread(target=self._work, args=(client, arrived, answers), daemon=True).start()
        count = 0
        while (thing := _next(answers, context)) is not None:
            if thing == "credits":
                yield self._ack(client, [])
                continue
            rejections, duplicate = thing
            count += 1
            if self.cut_after is not None and count > self.cut_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            yield self._ack(client, rejections, duplicate)

    def _receive(self, requests: Iterator[Any], arrived: queue.Queue[Any]) -> None:
        try:
            for request in requests:
                if request.HasField("batch"):
                    with self._lock:
                        self._held += request.batch.part == 0
                        self.most_held = max(self.most_held, self._held)
                arrived.put(request)
        except Exception:
            pass
        arrived.put(None)

    def _work(self, client: str, arrived: queue.Queue[Any], answers: queue.Queue[Any]) -> None:
        assembler, policy = Assembler(), ""
        while (request := arrived.get()) is not None:
            policy = request.policy or policy
            if policy not in self.specs:  # the first message was lost on the way
                break
            if not request.HasField("batch"):
                answers.put("credits")
                continue
            self.answer.wait(WAIT)
            batch = assembler.add(request.batch)
            if batch is None:
                continue
            self.messages.append(batch)
            with self._lock:
                self._held -= 1
                answers.put(self._take(client, policy, batch))
        answers.put(None)

    def _take(self, client: str, policy: str, batch: Any) -> tuple[list[Any], bool]:
        mark = self._marks.setdefault((client, batch.epoch), 0)
        if batch.epoch != self.epochs[client]:
            return [_rejection(batch, Reason.FENCED)], False
        reason = self.judge(batch)
        if reason is None:
            try:
                experience = decode(batch, Layout(self.specs[policy]))
            except RejectionError as error:
                reason = error.reason
        if reason is not None:
            return [_rejection(batch, reason)], False
        if batch.seq <= mark:
            self.duplicates += 1
            return [], True
        if batch.seq - batch.dropped != mark + 1:
            self.gaps += 1
            return [_rejection(batch, Reason.SEQUENCE_GAP)], False
        self._marks[client, batch.epoch] = batch.seq
        self.codecs_seen[batch.codec] += 1
        self.kept.append((client, batch.epoch, batch.seq, experience))
        return [], False

    def _ack(self, client: str, rejections: list[Any], duplicate: bool = False) -> Any:
        epoch = self.epochs[client]
        return pb.Ack(
            epoch=epoch,
            committed=self._marks.get((client, epoch), 0),
            credit_batches=self.credits[0],
            credit_bytes=self.credits[1],
            duplicates=int(duplicate),
            rejections=rejections,
        )

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:
        self._enter(context, "Watch")
        news: queue.Queue[Any] = queue.Queue()
        self._watchers.append(news)
        if self._model is not None:
            news.put(self._model[0])
        while (info := _next(news, context)) is not None:
            yield info

    def Fetch(self, request: Any, context: Any) -> Iterator[Any]:
        self._enter(context, "Fetch")
        assert self._model is not None
        info, data = self._model
        data = self.lie(data)
        for offset in range(0, len(data), _CHUNK):
            yield pb.ModelChunk(
                info=info if offset == 0 else None,
                offset=offset,
                data=data[offset : offset + _CHUNK],
            )


def _next(things: queue.Queue[Any], context: Any) -> Any:
    """Return the next thing; None when the client is gone."""
    while context.is_active():
        try:
            return things.get(timeout=0.05)
        except queue.Empty:
            pass
    return None


def _rejection(batch: Any, reason: Reason) -> Any:
    return pb.Rejection(
        epoch=batch.epoch, seq=batch.seq, reason=int(reason), message=f"{reason.name} it is."
    )
