"""A gateway on a free port in a thread of its own, with a learner that does what it is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np

from assay.policies import description as arch
from assay.policies import layers, recurrent
from assay.policies.model_file import make_snapshot
from assay.server.errors import Reason, RejectionError
from assay.server.gateway.config import ServerConfig
from assay.server.gateway.gateway import Gateway
from assay.server.protocol import PROTOCOL
from assay.server.protocol import assay_pb2 as pb
from assay.server.protocol import assay_pb2_grpc as services
from assay.server.rejections import rejection_of
from assay.server.spec import Box, Discrete, PolicySpec
from assay.server.store.registry import STABLE, ModelVersion
from assay.server.store.store import Store
from assay.server.tensors import Experience, Layout, encode

SPEC = PolicySpec(name="queue", observation=Box(shape=(3,)), action=Discrete(n=3), algorithm="ppo")
OTHER = SPEC.model_copy(update={"name": "other"})
WAIT = 60.0


def wait_for(condition: Callable[[], Any], what: str = "") -> Any:
    """Return what a condition says as soon as it says something."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"it did not happen: {what or condition}")


def snapshot(version: int, prefers: int = 2, *, memory: bool = False) -> bytes:
    """Return a model file that wants one of three choices, whatever it sees."""
    parts: list[Any] = []
    arrays: dict[str, Any] = {}
    width = 3
    if memory:
        gates = recurrent.Gates(input="gru.input", bias="gru.bias", hidden="gru.hidden")
        parts.append(recurrent.Recurrent(kind="gru", size=2, layers=(gates,)))
        arrays |= {
            "gru.input": np.full((6, 3), 0.5, np.float32),
            "gru.bias": np.zeros(6, np.float32),
            "gru.hidden": np.full((6, 2), 0.5, np.float32),
        }
        width = 2
    parts.append(layers.Dense(weight="w", bias="b"))
    arrays |= {
        "w": np.zeros((3, width), np.float32),
        "b": np.where(np.arange(3) == prefers, 50.0, float(version) / 1e6).astype(np.float32),
    }
    box = {"kind": "box", "shape": [3], "dtype": "float32", "low": None, "high": None}
    architecture = arch.Architecture(
        version=version,
        epoch=1,
        algorithm="ppo",
        observation=box,
        action={"kind": "discrete", "n": 3, "start": 0},
        inputs=(arch.Entry(key=None, width=3),),
        layers=tuple(parts),
        head=arch.Categorical(n=3),
    )
    return make_snapshot(architecture, arrays).data


@dataclass
class Status:
    """What the gateway reads of a `SupervisorStatus`."""

    state: str
    behind: int
    restarts: int = 0
    health: Any = None
    keep_after: int = 0
    behind_steps: int = 0
    last_error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    recovered: str | None = None
    unsaved: str | None = None


class Puppet:
    """A supervisor without a learner: it consumes and publishes when the test says so."""

    def __init__(
        self,
        store: Store,
        executor: Any,
        policy: str,
        settings: Any,
        *,
        on_published: Callable[[ModelVersion], None],
        on_metrics: Callable[[Mapping[str, float]], None],
        channel: Callable[[], str | None] = lambda: STABLE,
    ) -> None:
        self.store, self.policy, self.settings = store, policy, settings
        self._on_published, self.on_metrics, self._channel = on_published, on_metrics, channel
        self.state = "starting"
        self.consumed = self.skipped = 0
        self.recovered: str | None = None
        self.follows = True  # consumes at once what is committed
        self.drained = self.stopped = False
        self.validated: PolicySpec | None = None
        self.refuses = executor.refuses
        self.notified = 0
        self.epoch = 0
        executor.puppets[policy] = self
        executor.made[policy] += 1
        self._slowly = executor.validate_seconds

    def validate(self, spec: PolicySpec) -> None:
        time.sleep(self._slowly)
        if self.refuses:
            raise RejectionError(Reason.BAD_SPEC, self.refuses)
        self.validated = spec

    def start(self) -> None:
        learner = self.store.registry.open_learner(self.policy)
        self.epoch, self.consumed = learner.epoch, learner.position
        self.state = "learning"

    def publish(self, prefers: int = 2, *, data: bytes | None = None, **options: Any) -> int:
        """Publish the next version, as a learner does that has seen everything."""
        registry = self.store.registry
        number = registry.learner(self.policy).version + 1
        version = self.store.publish(
            self.policy,
            self.epoch,
            max(registry.last_position(self.policy), registry.learner(self.policy).position),
            data if data is not None else snapshot(number, prefers),
            checkpoint=f"state {number}".encode(),
            channel=self._channel(),
            metrics={"return": float(number)},
            **options,
        )
        self._on_published(registry.model(self.policy, version))
        return version

    def notify(self) -> None:
        self.notified += 1

    def pause(self) -> None:
        self.state = "paused"

    def resume(self) -> None:
        self.state = "learning"

    def drain(self, timeout: float) -> bool:
        self.drained = True
        return True

    def stop(self) -> None:
        self.stopped = True
        self.state = "stopped"

    def status(self) -> Status:
        registry = self.store.registry
        last = registry.last_position(self.policy)
        if self.follows:
            self.consumed = last
        waiting = registry.batches(self.policy, self.consumed, 10_000)
        steps = sum(one.steps for one in waiting)
        return Status(
            self.state,
            last - self.consumed,
            behind_steps=steps,
            skipped=self.skipped,
            recovered=self.recovered,
        )


class Puppets(SimpleNamespace):
    """An executor that runs nothing, but knows the puppets."""

    def __init__(self) -> None:
        super().__init__(puppets={}, made=Counter(), refuses="", validate_seconds=0.0)


@dataclass
class Running:
    """A gateway that runs."""

    gateway: Gateway
    store: Store
    executor: Any
    loop: asyncio.AbstractEventLoop
    channels: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"localhost:{self.gateway.port}"

    def run(self, work: Any) -> Any:
        """Await something in the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT)

    def puppet(self, policy: str = "queue") -> Puppet:
        return self.executor.puppets[policy]

    def client(self, name: str = "ada", **options: Any) -> Client:
        channel = options.pop("channel", None) or grpc.insecure_channel(self.address)
        self.channels.append(channel)
        return Client(channel, name, **options)


@contextmanager
def running(directory: Path, **options: Any) -> Iterator[Running]:
    """Run a gateway; keywords are of `ServerConfig`, but for store, supervise, executor, clock."""
    made = options.pop("store_options", {})
    supervise = options.pop("supervise", Puppet)
    executor = options.pop("executor_object", None) or Puppets()
    extra = {name: options.pop(name) for name in ("clock",) if name in options}
    values = {"listen": "127.0.0.1:0", "data": directory, **options}
    config = ServerConfig.model_validate(values)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        with Store(directory, **made) as store:
            gateway = Gateway(config, store, executor, supervise=supervise, **extra)
            here = Running(gateway, store, executor, loop)
            here.run(gateway.start())
            try:
                yield here
            finally:
                for channel in here.channels:
                    channel.close()
                here.run(gateway.stop(grace=0.2))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT)
        loop.close()


class Client:
    """The stubs of all services, as one client sees them."""

    def __init__(
        self, channel: Any, name: str = "ada", *, token: str | None = None, timeout: float = WAIT
    ) -> None:
        self.name, self.timeout = name, timeout
        self.metadata: list[tuple[str, str]] = [("assay-client", name)]
        if token is not None:
            self.metadata.append(("authorization", f"Bearer {token}"))
        self.session = services.SessionStub(channel)
        self.ingest = services.IngestStub(channel)
        self.models = services.ModelsStub(channel)
        self.infer = services.InferStub(channel)
        self.admin = services.AdminStub(channel)

    def call(self, method: Any, request: Any) -> Any:
        return method(request, metadata=self.metadata, timeout=self.timeout)

    def register(self, spec: PolicySpec = SPEC) -> pb.RegisterReply:
        text = spec.canonical().decode()
        request = pb.RegisterRequest(protocol=PROTOCOL, spec_json=text)
        return self.call(self.session.Register, request)

    def open(self, policy: str = "queue", **options: Any) -> pb.OpenReply:
        request = pb.OpenRequest(**{"protocol": PROTOCOL, "policy": policy, **options})
        return self.call(self.session.Open, request)

    def put(self, batch: pb.Batch, policy: str = "queue") -> pb.Ack:
        return self.call(self.ingest.Put, pb.IngestRequest(policy=policy, batch=batch))

    def watch(self, policy: str = "queue", channel: str = "") -> Any:
        request = pb.WatchRequest(policy=policy, channel=channel)
        return self.models.Watch(request, metadata=self.metadata, timeout=3 * WAIT)

    def fetch(self, policy: str = "queue", **which: Any) -> tuple[pb.ModelInfo, bytes]:
        chunks = list(self.call(self.models.Fetch, pb.FetchRequest(policy=policy, **which)))
        return chunks[0].info, b"".join(chunk.data for chunk in chunks)

    def stream(self, policy: str = "queue", *, greet: bool = True) -> Stream:
        return Stream(self, policy, greet)


class Stream:
    """An open stream: send batches, look at acknowledgements as they come."""

    def __init__(self, client: Client, policy: str, greet: bool) -> None:
        self._ready = threading.Condition()
        self._queue: list[Any] = []
        self._closed = False
        self.acks: list[pb.Ack] = []
        self.error: grpc.RpcError | None = None
        self.taken = 0  # messages that gRPC has asked for
        if greet:
            self._queue.append(pb.IngestRequest(policy=policy))
        self.policy = policy
        self.call = client.ingest.Stream(self._requests(), metadata=client.metadata)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _requests(self) -> Iterator[pb.IngestRequest]:
        while True:
            with self._ready:
                while not self._queue:
                    if self._closed:
                        return
                    self._ready.wait()
                request = self._queue.pop(0)
                self.taken += 1
            yield request

    def _read(self) -> None:
        try:
            for ack in self.call:
                self.acks.append(ack)
        except grpc.RpcError as error:
            self.error = error

    def send(self, *batches: pb.Batch) -> None:
        with self._ready:
            self._queue += [pb.IngestRequest(policy=self.policy, batch=one) for one in batches]
            self._ready.notify()

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify()

    def cancel(self) -> None:
        self.close()
        self.call.cancel()
        self._thread.join(WAIT)

    @property
    def committed(self) -> int:
        return max((ack.committed for ack in self.acks), default=0)

    @property
    def rejections(self) -> list[tuple[int, Reason]]:
        return [(one.seq, Reason(one.reason)) for ack in self.acks for one in ack.rejections]

    def wait_committed(self, seq: int) -> None:
        wait_for(lambda: self.committed >= seq or self.error, f"batch {seq}")
        assert self.committed >= seq, self.error

    def ended(self) -> RejectionError:
        """Return why the server has ended it."""
        wait_for(lambda: self.error is not None, "the end of the stream")
        found = rejection_of(self.error)
        assert found is not None, self.error
        return found


def refused(call: Callable[..., Any], *args: Any, **options: Any) -> RejectionError:
    """Return why a call was refused."""
    try:
        result = call(*args, **options)
        if hasattr(result, "__next__"):
            list(result)
    except grpc.RpcError as error:
        found = rejection_of(error)
        assert found is not None, error
        return found
    raise AssertionError("it was not refused")


def batch(
    epoch: int,
    seq: int,
    *,
    steps: int = 4,
    spec: PolicySpec = SPEC,
    rewards: Sequence[float] | None = None,
    ends: Sequence[int] = (),
    version: int = 0,
    episode: int = 0,
    start: int = 0,
    dropped: int = 0,
    patches: Mapping[int, float] | None = None,
    events: Sequence[int] | None = None,
    **changes: Any,
) -> pb.Batch:
    """Return a batch of steps; `ends` are the steps at which an episode terminates."""
    rng = np.random.default_rng(seq)
    terminated = np.isin(np.arange(steps), ends)
    fields: dict[str, Any] = {
        "obs": rng.normal(size=(steps, 3)).astype(np.float32),
        "action": rng.integers(0, 3, steps),
        "reward": np.array(rewards if rewards is not None else np.ones(steps), np.float32),
        "log_prob": np.full(steps, -1.0, np.float32),
        "version": np.full(steps, version, np.int64),
        "flags": np.zeros(steps, np.uint8),
        "terminated": terminated,
        "truncated": np.zeros(steps, bool),
        "bootstrap": rng.normal(size=(int(not terminated[-1]), 3)).astype(np.float32),
    }
    if events is not None:
        fields["event"] = np.array(events, np.uint64)
    fields |= changes
    experience = Experience(epoch, seq, fields, episode, start, dropped, patches or {})
    return encode(experience, Layout(spec))


def parse_text(text: str) -> dict[str, float]:
    """Read the metrics of a server: `{name{labels}: value}`; a malformed line is a ValueError."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            if not name or name in found:
                raise ValueError(f"'{line}' is not a sample, or is there twice")
            found[name] = float(value)
    return found
