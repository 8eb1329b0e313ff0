"""What a server counts, in the text format of Prometheus.

Labels come from registered policies and our own enums alone: what a stranger writes into a message
must not become a time series.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from assay.core.errors import ConfigError

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_RECENT = 1000  # values that a histogram remembers as they were
_REQUEST_BYTES = 8192
_REQUEST_SECONDS = 5.0
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]
T = TypeVar("T")


class _Labelled(Generic[T]):
    """Something for each combination of labels, the first of which is the policy.

    Safe to use from any thread.
    """

    def __init__(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str],
        kind: Literal["counter", "gauge", "histogram"],
    ) -> None:
        self.name, self.meaning, self.kind = name, meaning, kind
        self._labels = tuple(labels)
        self._lock = threading.Lock()
        self._values: dict[Labels, T] = {}

    def forget(self, policy: str) -> None:
        """Forget what is known of a policy."""
        with self._lock:
            self._values = {key: v for key, v in self._values.items() if key[:1] != (policy,)}


class Metric(_Labelled[float]):
    """A number for each combination of labels; that of a counter only grows."""

    def add(self, amount: float, *labels: str) -> None:
        """Add to the number of some labels."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + amount

    def set(self, value: float, *labels: str) -> None:
        """Set the number of some labels."""
        with self._lock:
            self._values[labels] = value

    def get(self, *labels: str) -> float:
        """Return the number of some labels; 0 where there is none."""
        with self._lock:
            return self._values.get(labels, 0.0)

    def total(self, policy: str) -> float:
        """Return the sum of a policy's numbers, whatever their other labels are."""
        with self._lock:
            return sum(value for key, value in self._values.items() if key[:1] == (policy,))

    def lines(self) -> Iterator[str]:
        """Yield its part of the text."""
        with self._lock:
            values = sorted(self._values.items())
        for labels, value in values:
            yield f"{self.name}{_braced(self._labels, labels)} {_number(value)}"


@dataclass(slots=True)
class _Observed:
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))


class Histogram(_Labelled[_Observed]):
    """How long something took, for each combination of labels."""

    def observe(self, value: float, *labels: str) -> None:
        """Count one value."""
        with self._lock:
            if labels not in self._values:
                self._values[labels] = _Observed()
            observed = self._values[labels]
            observed.counts[bisect_left(SECONDS, value)] += 1
            observed.total += value
            observed.recent.append(value)

    def recent(self, *labels: str) -> list[float]:
        """Return the latest values."""
        with self._lock:
            return list(self._values[labels].recent) if labels in self._values else []

    def lines(self) -> Iterator[str]:
        """Yield its part of the text."""
        with self._lock:
            items = sorted((key, list(v.counts), v.total) for key, v in self._values.items())
        names = (*self._labels, "le")
        for labels, counts, total in items:
            reached = 0
            for bound, count in zip((*SECONDS, math.inf), counts, strict=True):
                reached += count
                where = _braced(names, (*labels, _number(bound)))
                yield f"{self.name}_bucket{where} {reached}"
            where = _braced(self._labels, labels)
            yield f"{self.name}_sum{where} {_number(total)}"
            yield f"{self.name}_count{where} {reached}"


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"assay_{name}_total", meaning, ("policy", *labels), "counter")


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"assay_{name}", meaning, ("policy", *labels), "gauge")


def _seconds(name: str, meaning: str) -> Histogram:
    return Histogram(f"assay_{name}_seconds", meaning, ("policy",), "histogram")


class Meters:
    """All metrics of a server."""

    def __init__(self) -> None:
        self.steps = _counter("steps", "Steps committed.")
        self.batches = _counter("batches", "Batches committed.")
        self.bytes = _counter("bytes", "Bytes of batches committed.")
        self.duplicates = _counter("duplicates", "Batches that were there already.")
        self.rejections = _counter("rejections", "Calls and batches refused.", "reason")
        self.quota_refusals = _counter("quota_refusals", "Batches refused for a client's quota.")
        self.ack_seconds = _seconds("ack", "From a batch's arrival to its acknowledgement.")
        self.commit_seconds = _seconds("commit", "From a batch's check to its commitment.")
        self.sessions_opened = _counter("sessions_opened", "Sessions opened.")
        self.sessions = _gauge("sessions", "Streams of experience now open.")
        self.watchers = _gauge("watchers", "Clients that wait for models now.")
        self.behind = _gauge("learner_behind_batches", "Batches that the learner has not consumed.")
        self.behind_steps = _gauge(
            "learner_behind_steps", "Steps that the learner has not consumed."
        )
        self.credit = _gauge("credit_batches", "Batches that a stream may have under way.")
        self.version = _gauge("model_version", "Newest version published.")
        self.restarts = _gauge(
            "learner_restarts", "Restarts of the learner since the server began."
        )
        self.skipped = _gauge(
            "learner_skipped_batches",
            "Batches passed over, as learners died of them or they cannot be read.",
        )
        self.broken = _gauge("store_broken", "Whether nothing is committed until a restart.")
        self.refusing = _gauge("store_refusing", "Whether batches are refused, as on a full disk.")
        self.learner_failed = _gauge("learner_failed", "Whether the learner waits for an operator.")
        self.learner_up = _gauge("learner_up", "Whether the learner is alive.")
        self.learner_memory = _gauge("learner_memory_bytes", "Resident memory of the learner.")
        self.learner = _gauge("learner_metric", "What the learner reports.", "name")
        self.publications = _counter("publications", "Versions published since the server began.")
        self.fetches = _counter("fetches", "Models fetched by clients.")
        self.fetched_bytes = _counter("fetched_bytes", "Bytes of models sent to clients.")
        self.differences = _counter(
            "fetched_differences", "Models sent as a difference to another."
        )
        self.starving = _gauge(
            "learner_starving", "Whether nearly all steps are left out as too old."
        )
        self.canary_failed = _gauge(
            "canary_failed_version", "The last version that was rolled back."
        )
        self.canary_return = _gauge(
            "canary_return", "Mean returns that the last decision was made by.", "version"
        )
        self.canary_decisions = _counter(
            "canary_decisions", "Trials of a version, by their outcome.", "decision"
        )
        self.actions = _counter("remote_actions", "Actions chosen by the server.")

    def _all(self) -> list[Metric | Histogram]:
        return [value for value in vars(self).values() if isinstance(value, Metric | Histogram)]

    def forget(self, policy: str) -> None:
        """Forget a policy that was deleted."""
        for metric in self._all():
            metric.forget(policy)

    def of_policy(self, policy: str) -> dict[str, float]:
        """Return what belongs beside the metrics of a policy's learner."""
        recent = self.ack_seconds.recent(policy)
        return {
            "server/version": self.version.get(policy),
            "server/behind_batches": self.behind.get(policy),
            "server/sessions": self.sessions.get(policy),
            "server/restarts": self.restarts.get(policy),
            "server/skipped_batches": self.skipped.get(policy),
            "server/learner_memory_bytes": self.learner_memory.get(policy),
            "server/steps_received": self.steps.get(policy),
            "server/ack_p50_seconds": quantile(recent, 0.5),
            "server/ack_p99_seconds": quantile(recent, 0.99),
        }

    def text(self) -> str:
        """Return all of it as Prometheus reads it."""
        lines: list[str] = []
        for metric in self._all():
            lines += (
                f"# HELP {metric.name} {metric.meaning}",
                f"# TYPE {metric.name} {metric.kind}",
            )
            lines += metric.lines()
        return "\n".join(lines) + "\n"


class MetricsServer:
    """Answers `GET /metrics` and `GET /healthz` over HTTP, and nothing else."""

    def __init__(
        self,
        text: Callable[[], str],
        health: Callable[[], str],
        troubles: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._text, self._health, self._troubles = text, health, troubles
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port.

        Raises:
            ConfigError: The port is taken or not ours to have.
        """
        try:
            self._server = await asyncio.start_server(
                self._answer, host, port, limit=_REQUEST_BYTES
            )
        except OSError as error:
            raise ConfigError(
                f"Cannot serve metrics on {host}:{port}: {error.strerror or error}.",
                "Choose another port with --metrics-port.",
            ) from None
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        """Let go of the port."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Whoever asks nonsense, or nothing, or goes away: it is their connection.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")[:2]
                writer.write(self._reply(method, path.partition("?")[0]))
                await writer.drain()
        with contextlib.suppress(Exception):
            writer.close()
            await writer.wait_closed()

    def _reply(self, method: str, path: str) -> bytes:
        status, body = "404 Not Found", "There is /metrics and /healthz.\n"
        if method not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", "Only GET.\n"
        elif path == "/metrics":
            status, body = "200 OK", self._text()
        elif path == "/healthz":
            health = self._health()
            status = "200 OK" if health == "serving" else "503 Service Unavailable"
            body = "".join(f"{line}\n" for line in (health, *self._troubles()))
        data = body.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {_CONTENT}\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else data)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the others does not exceed; 0 where there is none.

    Example:
        >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([], 0.5)
        (2.0, 0.0)
    """
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _braced(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
