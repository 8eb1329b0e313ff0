"""The transport over gRPC: one stream of batches, one of news about models, and calls between.

One thread of the courier calls it; two more read what the streams bring into a queue. Nothing here
holds a lock that acting could want.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay import __version__
from assay.core.errors import ConfigError, MissingExtraError
from assay.policies.parts import ModelError
from assay.server.addresses import is_local
from assay.server.client.config import ClientConfig
from assay.server.client.outbox import Item, Segment
from assay.server.client.transport import (
    NEEDS_A_PERSON,
    Acknowledged,
    Event,
    ModelArrived,
    ModelConfirmed,
    ModelRefused,
    Notice,
    Refused,
    RefusedError,
    SendAgain,
    TransportError,
)
from assay.server.client.window import Window
from assay.server.errors import Reason, RejectionError
from assay.server.model_delta import DeltaError, apply_delta, have_zstd
from assay.server.protocol import PROTOCOL
from assay.server.spec import PolicySpec

try:
    import grpc

    from assay.server.protocol import assay_pb2 as pb
    from assay.server.protocol import assay_pb2_grpc as rpc
    from assay.server.rejections import message_of, reason_of
    from assay.server.tensors import FRAME_BYTES, Experience, Layout, encode, split
except ImportError as error:
    _packages = {"grpc": "grpcio", "google": "protobuf", "google_crc32c": "google-crc32c"}
    raise MissingExtraError(
        _packages.get((error.name or "grpc").partition(".")[0], "grpcio"),
        "server",
        "A connection to a training server",
    ) from None

_RECEIVE_BYTES = 8 << 20  # of one message: a chunk of a model, with room
_TRIES = 5  # how often an item may come back damaged or end a session
_FETCH_TRIES = 3
_REGISTER_SECONDS = 180.0  # the server starts a learner for it; a large model takes its time, too

_DAMAGED = frozenset({Reason.CHECKSUM_MISMATCH, Reason.PART_OUT_OF_ORDER})
# Refused whatever is done: the batch itself is at fault, the message or its content.
_CONTENT = {one for one in Reason if 0 < one < Reason.UNKNOWN_POLICY} - _DAMAGED
# A model that was announced is not there any more, or lies damaged on the server's disk.
_NO_MODEL = frozenset({Reason.UNKNOWN_VERSION, Reason.HASH_MISMATCH})
# What a server answers that has trouble with what it was sent, and not with the network.
_SUSPICIOUS = frozenset(
    {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.RESOURCE_EXHAUSTED}
)
_BY_CODE = {
    grpc.StatusCode.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED: Reason.UNSUPPORTED_PROTOCOL,
}


class Endpoint:
    """Where the server is, and who we are to it, as a client's settings say.

    Raises:
        ConfigError: The settings do not go together, or a file cannot be read.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.address = config.address
        self.client = config.client_id()  # a server without credentials on this machine believes it
        if config.tls is None and not is_loopback(self.address):
            raise ConfigError(
                f"address='{self.address}' is another machine, and there is no TLS.",
                "Give tls (its certificate authority, or {} for the system's), or connect through "
                "a tunnel to 127.0.0.1.",
            )
        self.metadata()
        self._credentials()

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what every call carries; a token file is read again, for it may be renewed."""
        own = (("assay-client", self.client),)
        token, path = self._config.token, self._config.token_file
        if path is not None:
            token = _read(path, "token_file").decode(errors="replace").strip()
            if not token.isascii() or not token:
                raise ConfigError(
                    f"token_file='{path}' holds no token.",
                    "Put the token, as the server printed it, on its only line.",
                )
        return own if token is None else (*own, ("authorization", f"Bearer {token}"))

    def channel(self) -> Any:
        """Return a new connection."""
        config = self._config
        timeout = int(1000 * config.keepalive_timeout)
        options: list[tuple[str, int | str]] = [
            # The default would share connections, and the pauses after a failure, with others.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.keepalive_time_ms", int(1000 * config.keepalive_seconds)),
            ("grpc.keepalive_timeout_ms", timeout),
            # A ping that gRPC sends for reasons of its own would else have a minute.
            ("grpc.http2.ping_timeout_ms", timeout),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_receive_message_length", _RECEIVE_BYTES),
            ("grpc.enable_retries", 0),
        ]
        if config.tls is not None and config.tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", config.tls.server_name))
        credentials = self._credentials()
        if credentials is None:
            return grpc.insecure_channel(self.address, options)
        return grpc.secure_channel(self.address, credentials, options)

    def _credentials(self) -> Any:
        tls = self._config.tls
        if tls is None:
            return None
        files = {"tls.ca": tls.ca, "tls.certificate": tls.certificate, "tls.key": tls.key}
        read = [None if path is None else _read(path, name) for name, path in files.items()]
        return grpc.ssl_channel_credentials(read[0], read[2], read[1])


def is_loopback(address: str) -> bool:
    """Return whether an address stays on this machine.

    Example:
        >>> [is_loopback(one) for one in ("localhost:1", "127.0.0.1:1", "[::1]:1", "unix:/x")]
        [True, True, True, True]
        >>> is_loopback("10.0.0.1:1"), is_loopback("localhost.example.com:1")
        (False, False)
    """
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    return is_local(address.rpartition(":")[0].strip("[]"))


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}='{path}' cannot be read: {error.strerror}.") from None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A stream is over."""

    stream: str
    error: Exception | None


class GrpcTransport:
    """Sends batches to a gateway, and brings what it answers.

    Its counts are those of `ConnectionStatus`. A model comes as the difference to the last one if
    the server gives that, which costs the memory of that one; without zstandard, always in full.
    """

    def __init__(
        self,
        config: ClientConfig,
        spec: PolicySpec,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._spec = config, spec
        self._endpoint = Endpoint(config)
        self._layout = Layout(spec)
        self._spec_json = spec.canonical().decode()
        self._spec_hash = spec.hash()
        self._most_model_bytes = config.largest_model_mb << 20
        self._clock = clock
        self._channel: Any = None
        self._window = Window(0, 0, 0)
        self._acknowledged = 0  # by the outbox's numbers
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outgoing: queue.SimpleQueue[Any] | None = None
        self._waiting: tuple[int, int, Any] | None = None  # encoded, and without credit yet
        self._events: list[Event] = []
        self._broken: TransportError | None = None
        self._answered_at = 0.0
        self._frame_bytes = FRAME_BYTES
        self._zstd = False
        self._trials: Counter[int] = Counter()  # by the outbox's numbers
        self._fetched = ""  # the digest of the model that was handed over last
        self._fetch_trials: Counter[str] = Counter()
        self._differences = have_zstd()
        self._base: tuple[str, bytes] | None = None  # the last model, which differences are to
        self.sent_batches = self.sent_bytes = self.duplicates = 0
        self.newest_version = self.epoch = 0
        self.differences = self.bad_differences = 0  # the bad ones could not be used

    # ------------------------------------------------------------------ what the courier calls

    def open(self) -> int:
        """Register, open a session, and begin the two streams; return what is durable so far.

        That is the highest number of the outbox up to which the server has everything.
        """
        self.close()
        metadata = self._endpoint.metadata()
        self._channel = channel = self._endpoint.channel()
        session = _stub(rpc.SessionStub, channel)
        registered = self._register(session, metadata)
        request = pb.OpenRequest(
            protocol=PROTOCOL,
            policy=self._spec.name,
            spec_hash=self._spec_hash,
            resume_epoch=self.epoch,
            client_version=f"assay-python/{__version__}",
        )
        try:
            reply = self._call(session.Open, request, metadata, self._config.call_seconds)
        except RefusedError as error:
            raise registered or error from None
        last = self._window.commit(reply.resumed_committed)
        self._acknowledged = self._acknowledged if last is None else last
        self._window = Window(reply.epoch, reply.credit_batches, reply.credit_bytes)
        self.epoch, self.newest_version = reply.epoch, reply.newest_version
        self._frame_bytes = min(FRAME_BYTES, reply.limits.frame_bytes or FRAME_BYTES)
        self._zstd = self._config.compress and pb.ZSTD in reply.limits.codecs
        self._start_streams(channel, metadata)
        return self._acknowledged

    def ready(self) -> bool:
        """Return whether the server's credits let another item go."""
        return self._waiting is None and self._window.ready

    def send(self, seq: int, item: Item) -> None:
        """Encode an item and send it, or keep it until the credits for its size are there.

        The same number may come again after a new `open` or `SendAgain`.
        """
        if self._trials[seq] >= _TRIES:
            why = f"It ended {_TRIES} sessions, or came back damaged as often."
            return self._give_up(seq, Reason.MALFORMED, why)
        number = self._window.number(seq)
        try:
            batch = encode(self._experience(item, number), self._layout, compress=self._zstd)
        except RejectionError as error:
            return self._give_up(seq, error.reason, error.message)
        except Exception as error:  # one item must not keep back all that follow
            why = f"It cannot be sent: {type(error).__name__}: {error}."
            return self._give_up(seq, Reason.MALFORMED, why)
        self._waiting = (seq, number, batch)
        self._send_waiting()

    def _give_up(self, seq: int, reason: Reason, why: str) -> None:
        self._window.give_up(seq)
        self._events.append(Refused(seq, reason, why))

    def poll(self, seconds: float) -> Sequence[Event]:
        """Return what came from the server, waiting for it so long at most."""
        if self._broken is not None:
            raise self._broken
        events, self._events = self._events, []
        with contextlib.suppress(queue.Empty):
            news = self._inbox.get(timeout=0.0 if events else seconds)
            while True:
                self._take_in(news, events)
                news = self._inbox.get_nowait()
        self._send_waiting()
        if self._broken is not None and not events:
            raise self._broken
        most = self._config.stall_seconds
        if not self._window.idle and self._clock() - self._answered_at > most:
            raise TransportError(f"The server left a batch unanswered for {most} s.")
        return events

    def close(self) -> None:
        """Let go of the connection; never raises."""
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            outgoing.put(None)  # else gRPC's thread would wait here for ever
        self.abort()
        self._channel = None
        self._inbox = queue.SimpleQueue()  # what the old streams still bring reaches nobody
        self._waiting, self._broken, self._events = None, None, []

    def abort(self) -> None:
        """End every call that is under way; may come from any thread."""
        channel = self._channel
        if channel is not None:
            channel.close()

    # ------------------------------------------------------------------ opening

    def _register(self, session: Any, metadata: Any) -> RefusedError | None:
        """Register the spec; return why that was not allowed, for it may be there already."""
        request = pb.RegisterRequest(protocol=PROTOCOL, spec_json=self._spec_json)
        try:
            self._call(session.Register, request, metadata, _REGISTER_SECONDS)
        except RefusedError as error:
            if error.reason is not Reason.PERMISSION_DENIED:
                raise
            return error
        return None

    def _call(self, method: Any, request: Any, metadata: Any, seconds: float) -> Any:
        try:
            return method(request, metadata=metadata, timeout=seconds)
        except grpc.RpcError as error:
            raise self._failure(error) from None
        except ValueError as error:  # the channel was closed by `abort`
            raise TransportError(str(error)) from None

    def _start_streams(self, channel: Any, metadata: Any) -> None:
        outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outgoing = outgoing
        # The first message only says which policy: the answer brings the credits.
        outgoing.put(pb.IngestRequest(policy=self._spec.name))
        stream = _stub(rpc.IngestStub, channel).Stream(iter(outgoing.get, None), metadata=metadata)
        self._answered_at = self._clock()
        models = _stub(rpc.ModelsStub, channel)
        for name, work in (
            ("assay-acks", lambda inbox: _listen(stream, inbox)),
            ("assay-models", lambda inbox: self._watch(models, metadata, inbox)),
        ):
            threading.Thread(target=work, args=(self._inbox,), name=name, daemon=True).start()

    # ------------------------------------------------------------------ sending

    def _experience(self, item: Item, number: int) -> Experience:
        epoch, dropped = self._window.epoch, self._window.dropped_before(number)
        if isinstance(item, Segment):
            return Experience(epoch, number, item.fields(), item.episode, item.start_step, dropped)
        return Experience(epoch, number, {}, dropped=dropped, patches=item.by_event)

    def _send_waiting(self) -> None:
        if self._waiting is None or self._outgoing is None:
            return
        seq, number, batch = self._waiting
        size = batch.ByteSize()
        if not self._window.fits(size):
            return
        self._waiting = None
        if self._window.idle:
            self._answered_at = self._clock()
        self._window.sent(seq, number, size)
        for part in split(batch, self._frame_bytes):
            self._outgoing.put(pb.IngestRequest(batch=part))
        self.sent_batches += 1
        self.sent_bytes += size

    # ------------------------------------------------------------------ what comes back

    def _take_in(self, news: Any, events: list[Event]) -> None:
        if isinstance(news, pb.Ack):
            self._take_ack(news, events)
        elif isinstance(news, _Ended):
            self._take_end(news, events)
        else:
            events.append(news)

    def _take_ack(self, ack: Any, events: list[Event]) -> None:
        window = self._window
        if ack.epoch > window.epoch and self._broken is None:
            self._broken = RefusedError(
                Reason.FENCED,
                f"Session {window.epoch} of '{self._endpoint.client}' has ended: session "
                f"{ack.epoch} has taken over. Give each process a client id or token of its own.",
            )
        if ack.epoch != window.epoch:
            return
        window.grant(ack.credit_batches, ack.credit_bytes)
        self.newest_version = max(self.newest_version, ack.newest_version)
        self.duplicates += ack.duplicates
        last = window.commit(ack.committed)
        if last is not None:
            self._answered_at = self._clock()
            self._acknowledged = last
            events.append(Acknowledged(last))
        for rejection in ack.rejections:
            self._take_rejection(rejection, events)
        again = window.again()
        if again is not None:
            self._waiting = None  # it comes again with the rest, and with the right `dropped`
            events.append(SendAgain(again))

    def _take_rejection(self, rejection: Any, events: list[Event]) -> None:
        reason = reason_of(rejection)
        if rejection.epoch not in (0, self._window.epoch):
            return
        if reason in _CONTENT or reason in _DAMAGED or reason is Reason.SEQUENCE_GAP:
            forever = reason in _CONTENT
            seq = self._window.refuse(rejection.seq, forever=forever)
            if seq is None:
                return
            if forever:
                self._answered_at = self._clock()
                events.append(Refused(seq, reason, rejection.message))
            elif reason in _DAMAGED:
                self._trials[seq] += 1
        elif self._broken is None:
            self._broken = RefusedError(reason, _sentence(rejection))

    def _take_end(self, end: _Ended, events: list[Event]) -> None:
        failure = self._failure(end.error)
        if end.stream == "models" and isinstance(failure, RefusedError):
            if failure.reason in NEEDS_A_PERSON:
                # Without models the experience is still worth sending.
                events.append(Notice(failure.reason, f"No models come: {failure}"))
                return
        if end.stream == "batches":
            self._suspect(end.error, failure, events)
        if self._broken is None:
            self._broken = failure

    def _suspect(
        self, error: Exception | None, failure: TransportError, events: list[Event]
    ) -> None:
        """Find out whether a batch ended the stream, so that it is not sent for ever."""
        rejection = message_of(error)
        content = isinstance(failure, RefusedError) and failure.reason in _CONTENT
        if rejection is not None and content and rejection.seq:
            seq = self._window.refuse(rejection.seq, forever=True)
            if seq is not None:
                events.append(Refused(seq, reason_of(rejection), rejection.message))
            return
        code = error.code() if isinstance(error, grpc.RpcError) else None
        oldest = self._window.oldest
        if oldest is not None and (content or (rejection is None and code in _SUSPICIOUS)):
            self._trials[oldest] += 1

    def _failure(self, error: Exception | None) -> TransportError:
        """Say what a failed call means."""
        where = self._endpoint.address
        rejection = message_of(error)
        if rejection is not None:
            return RefusedError(reason_of(rejection), _sentence(rejection))
        if not isinstance(error, grpc.RpcError):
            return TransportError(f"{where} ended the stream.")
        code, details = error.code(), error.details()
        if code in _BY_CODE:
            return RefusedError(_BY_CODE[code], f"{where} answers {code.name}: {details}.")
        return TransportError(f"{where} answers {code.name}: {details}")

    # ------------------------------------------------------------------ models

    def _watch(self, models: Any, metadata: Any, inbox: queue.SimpleQueue[Any]) -> None:
        """Follow which model is wanted; in a thread of its own, so that batches do not wait."""
        try:
            request = pb.WatchRequest(policy=self._spec.name)
            for info in models.Watch(request, metadata=metadata):
                if info.sha256 == self._fetched:
                    inbox.put(ModelConfirmed(info.sha256))
                elif self._fetch_trials[info.sha256] < _FETCH_TRIES:
                    inbox.put(self._fetch(models, metadata, info))
            inbox.put(_Ended("models", None))
        except Exception as error:
            inbox.put(_Ended("models", error))

    def _fetch(self, models: Any, metadata: Any, info: Any) -> Event:
        if info.size > self._most_model_bytes:
            self._fetch_trials[info.sha256] = _FETCH_TRIES
            return ModelRefused(
                f"Model {info.version} has {info.size} bytes; expected {self._most_model_bytes} or "
                "fewer."
            )
        self._fetch_trials[info.sha256] += 1
        try:
            data = self._download(models, metadata, info)
        except ModelError as error:
            self._base = None  # the next trial is without
            return ModelRefused(error.message)
        except grpc.RpcError as error:
            failure = self._failure(error)
            if isinstance(failure, RefusedError) and failure.reason in _NO_MODEL:
                return ModelRefused(str(failure))  # another one will be announced
            raise
        self._fetched = info.sha256
        self._fetch_trials.pop(info.sha256)
        if self._differences:
            self._base = (info.sha256, data)
        return ModelArrived(data, info.sha256)

    def _download(self, models: Any, metadata: Any, info: Any) -> bytes:
        """Return a model, by its difference to the last one if the server gives that."""
        base = self._base
        data, is_difference = self._receive(models, metadata, info, base[0] if base else "")
        if base is not None and is_difference:
            try:
                most = min(info.size, self._most_model_bytes)
                data = apply_delta(base[1], data, info.sha256, most_bytes=most)
            except DeltaError:
                self.bad_differences += 1
                data, _ = self._receive(models, metadata, info, "")
            else:
                self.differences += 1
        if hashlib.sha256(data).hexdigest() != info.sha256:
            raise ModelError(
                f"Model {info.version} is not what its SHA-256 {info.sha256[:12]}... says."
            )
        return data

    def _receive(self, models: Any, metadata: Any, info: Any, base: str) -> tuple[bytes, bool]:
        """Return what the server sends, and whether it is a difference to the base."""
        request = pb.FetchRequest(policy=self._spec.name, sha256=info.sha256, base_sha256=base)
        data = bytearray()
        of = ""
        call = models.Fetch(request, metadata=metadata, timeout=_REGISTER_SECONDS)
        for chunk in call:
            if chunk.offset != len(data) or len(data) + len(chunk.data) > info.size:
                call.cancel()
                raise ModelError(
                    f"Model {info.version} came with a chunk at {chunk.offset}; expected one at "
                    f"{len(data)}, and {info.size} bytes in all."
                )
            of = of or chunk.base_sha256
            data += chunk.data
        if of not in ("", base):
            raise ModelError(
                f"Model {info.version} came as a difference to {of[:64]!r}; expected {base!r}."
            )
        return bytes(data), bool(of)


def _stub(kind: Any, channel: Any) -> Any:
    return kind(channel)  # generated without types


def _listen(stream: Any, inbox: queue.SimpleQueue[Any]) -> None:
    try:
        for ack in stream:
            inbox.put(ack)
        inbox.put(_Ended("batches", None))
    except Exception as error:
        inbox.put(_Ended("batches", error))


def _sentence(rejection: Any) -> str:
    return f"{rejection.message} {rejection.fix}".strip()
