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
from typing import Literal

from assay.core.errors import ConfigError
from assay.server.gateway.activity import quantile

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_RECENT = 1000  # values that a histogram remembers as they were
_REQUEST_BYTES = 8192
_REQUEST_SECONDS = 5.0
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]


class Metric:
    """A number for each combination of labels. Safe to use from any thread.

    Args:
        name: In the text.
        meaning: One line about it.
        labels: Their names.
        kind: A counter only grows.
    """

    def __init__(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str] = (),
        kind: Literal["counter", "gauge"] = "counter",
    ) -> None:
        self.name, self.meaning, self.kind = name, meaning, kind
        self._labels = tuple(labels)
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1.0, *labels: str) -> None:
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

    def forget(self, policy: str) -> None:
        """Forget the numbers of a policy, which is the first label."""
        with self._lock:
            self._values = {key: v for key, v in self._values.items() if key[:1] != (policy,)}

    def lines(self) -> Iterator[str]:
        """Yield its part of the text."""
        with self._lock:
            values = sorted(self._values.items())
        for labels, value in values:
            yield f"{self.name}{_braced(self._labels, labels)} {_number(value)}"


class Histogram:
    """How long something took, for each combination of labels.

    Args:
        name: In the text.
        meaning: One line about it.
        labels: Their names.
        bounds: Upper ends of the buckets.
    """

    kind = "histogram"

    def __init__(
        self, name: str, meaning: str, labels: Sequence[str], bounds: Sequence[float] = SECONDS
    ) -> None:
        self.name, self.meaning = name, meaning
        self._labels, self._bounds = tuple(labels), tuple(bounds)
        self._lock = threading.Lock()
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}
        self._recent: dict[Labels, deque[float]] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Count one value."""
        with self._lock:
            counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
            counts[bisect_left(self._bounds, value)] += 1
            self._sums[labels] = self._sums.get(labels, 0.0) + value
            if labels not in self._recent:
                self._recent[labels] = deque(maxlen=_RECENT)
            self._recent[labels].append(value)

    def recent(self, *labels: str) -> list[float]:
        """Return the latest values."""
        with self._lock:
            return list(self._recent.get(labels, ()))

    def count(self, *labels: str) -> int:
        """Return how many values there were."""
        with self._lock:
            return sum(self._counts.get(labels, ()))

    def forget(self, policy: str) -> None:
        """Forget the values of a policy, which is the first label."""
        with self._lock:
            self._counts = {key: v for key, v in self._counts.items() if key[:1] != (policy,)}
            self._sums = {key: v for key, v in self._sums.items() if key[:1] != (policy,)}
            self._recent = {key: v for key, v in self._recent.items() if key[:1] != (policy,)}

    def lines(self) -> Iterator[str]:
        """Yield its part of the text."""
        with self._lock:
            items = sorted((key, list(counts)) for key, counts in self._counts.items())
            sums = dict(self._sums)
        names = (*self._labels, "le")
        for labels, counts in items:
            total = 0
            for bound, count in zip((*self._bounds, math.inf), counts, strict=True):
                total += count
                where = _braced(names, (*labels, _number(bound)))
                yield f"{self.name}_bucket{where} {total}"
            where = _braced(self._labels, labels)
            yield f"{self.name}_sum{where} {_number(sums[labels])}"
            yield f"{self.name}_count{where} {total}"


class Meters:
    """All metrics of a server."""

    def __init__(self) -> None:
        one = ("policy",)
        self.steps = Metric("assay_steps_total", "Steps committed.", one)
        self.batches = Metric("assay_batches_total", "Batches committed.", one)
        self.bytes = Metric("assay_bytes_total", "Bytes of batches committed.", one)
        self.duplicates = Metric("assay_duplicates_total", "Batches that were there already.", one)
        self.rejections = Metric(
            "assay_rejections_total", "Calls and batches refused.", ("policy", "reason")
        )
        self.quota_refusals = Metric(
            "assay_quota_refusals_total", "Batches refused for a client's quota.", one
        )
        self.ack_seconds = Histogram(
            "assay_ack_seconds", "From a batch's arrival to its acknowledgement.", one
        )
        self.commit_seconds = Histogram(
            "assay_commit_seconds", "From a batch's check to its commitment.", one
        )
        self.sessions_opened = Metric("assay_sessions_opened_total", "Sessions opened.", one)
        self.sessions = Metric("assay_sessions", "Streams of experience now open.", one, "gauge")
        self.watchers = Metric("assay_watchers", "Clients that wait for models now.", one, "gauge")
        self.behind = Metric(
            "assay_learner_behind_batches", "Batches that the learner has not consumed.", one,
            "gauge",
        )  # fmt: skip
        self.behind_steps = Metric(
            "assay_learner_behind_steps", "Steps that the learner has not consumed.", one, "gauge"
        )
        self.credit = Metric(
            "assay_credit_batches", "Batches that a stream may have under way.", one, "gauge"
        )
        self.version = Metric("assay_model_version", "Newest version published.", one, "gauge")
        self.restarts = Metric(
            "assay_learner_restarts", "Restarts of the learner since the server began.", one,
            "gauge",
        )  # fmt: skip
        self.skipped = Metric(
            "assay_learner_skipped_batches",
            "Batches passed over, as learners died of them or they cannot be read.",
            one,
            "gauge",
        )
        self.broken = Metric(
            "assay_store_broken", "Whether nothing is committed until a restart.", one, "gauge"
        )
        self.refusing = Metric(
            "assay_store_refusing", "Whether batches are refused, as on a full disk.", one, "gauge"
        )
        self.learner_failed = Metric(
            "assay_learner_failed", "Whether the learner waits for an operator.", one, "gauge"
        )
        self.learner_up = Metric("assay_learner_up", "Whether the learner is alive.", one, "gauge")
        self.learner_memory = Metric(
            "assay_learner_memory_bytes", "Resident memory of the learner.", one, "gauge"
        )
        self.learner = Metric(
            "assay_learner_metric", "What the learner reports.", ("policy", "name"), "gauge"
        )
        self.publications = Metric(
            "assay_publications_total", "Versions published since the server began.", one
        )
        self.fetches = Metric("assay_fetches_total", "Models fetched by clients.", one)
        self.fetched_bytes = Metric(
            "assay_fetched_bytes_total", "Bytes of models sent to clients.", one
        )
        self.differences = Metric(
            "assay_fetched_differences_total", "Models sent as a difference to another.", one
        )
        self.starving = Metric(
            "assay_learner_starving", "Whether nearly all steps are left out as too old.", one,
            "gauge",
        )  # fmt: skip
        self.canary_failed = Metric(
            "assay_canary_failed_version", "The last version that was rolled back.", one, "gauge"
        )
        self.canary_return = Metric(
            "assay_canary_return", "Mean returns that the last decision was made by.",
            ("policy", "version"), "gauge",
        )  # fmt: skip
        self.canary_decisions = Metric(
            "assay_canary_decisions_total", "Trials of a version, by their outcome.",
            ("policy", "decision"),
        )  # fmt: skip
        self.actions = Metric("assay_remote_actions_total", "Actions chosen by the server.", one)

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
    """Answers `GET /metrics` and `GET /healthz` over HTTP, and nothing else.

    Args:
        text: Makes the metrics.
        health: Says how the server is, in a word; "serving" if everything works.
        troubles: Says what is wrong, a line each.
    """

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
