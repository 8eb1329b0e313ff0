"""Between the outbox and the network: the interface of a transport, and the thread that uses it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from assay.server.client.keeper import ModelKeeper
from assay.server.client.outbox import Item, Outbox


class TransportError(Exception):
    """The server cannot be reached, or the connection broke. The courier opens a new one."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Everything up to this sequence number is durable."""

    seq: int


@dataclass(frozen=True, slots=True)
class ModelArrived:
    """The server wants this model to be used, and here it is."""

    data: bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelConfirmed:
    """The server wants the model with this digest to be used, still or again."""

    sha256: str


Event = Acknowledged | ModelArrived | ModelConfirmed


class Transport(Protocol):
    """What a network client does for the courier, which calls it from one thread.

    Every method may raise `TransportError`; the courier then calls `close` and opens again.
    """

    def open(self) -> int:
        """Begin a session, or resume it; return the highest sequence number that is durable."""

    def send(self, seq: int, item: Item) -> None:
        """Send one item. The same number may come again after a new `open`."""

    def poll(self, seconds: float) -> Sequence[Event]:
        """Return what came from the server, waiting for it so long at most."""

    def close(self) -> None:
        """Let go of the connection; never raises."""


class Courier:
    """Moves items from an outbox to a transport, and models from there to a keeper.

    Nothing is lost by a broken connection: what was not acknowledged is sent again under the same
    number, and the server drops what it has.

    Args:
        outbox: What waits to be sent.
        keeper: Takes new models.
        transport: The connection.
        window: Most items under way.
        poll_seconds: How long one look for events lasts.
        backoff: First and longest pause, in seconds, before a connection is opened again.
        rng: Draws the share of each pause that is waited, so that clients do not come at once.
        clock: Seconds that only grow.

    Attributes:
        connected: Whether there is a session now.
        failures: How often a connection broke or could not be opened.
        last_failure: Why, of the last one.
    """

    def __init__(
        self,
        outbox: Outbox,
        keeper: ModelKeeper,
        transport: Transport,
        *,
        window: int = 8,
        poll_seconds: float = 0.05,
        backoff: tuple[float, float] = (0.1, 10.0),
        rng: np.random.Generator | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outbox, self._keeper, self._transport = outbox, keeper, transport
        self._window, self._poll_seconds, self._backoff = window, poll_seconds, backoff
        self._rng = np.random.default_rng() if rng is None else rng
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.connected = False
        self.failures = 0
        self.last_failure = ""

    def start(self) -> None:
        """Begin to work, in a thread of its own that does not keep the process alive."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="assay-courier", daemon=True)
            self._thread.start()

    def stop(self, seconds: float = 5.0) -> bool:
        """Send what waits, so long at most, and end; return whether everything was acknowledged."""
        deadline = self._clock() + seconds
        while self._thread is not None and not self._outbox.empty and self._clock() < deadline:
            time.sleep(min(0.01, self._poll_seconds))
        self._stop.set()
        if self._thread is not None:
            self._thread.join(max(0.1, deadline - self._clock()) + 2 * self._poll_seconds)
        return self._outbox.empty

    def _run(self) -> None:
        pause = self._backoff[0]
        while not self._stop.is_set():
            try:
                self._session()
                return
            except Exception as error:  # whatever a transport does, the client lives on
                worked, self.connected = self.connected, False
                self.failures += 1
                self.last_failure = f"{type(error).__name__}: {error}"
                self._close()
            pause = self._backoff[0] if worked else min(2.0 * pause, self._backoff[1])
            self._stop.wait(pause * (0.5 + 0.5 * self._rng.random()))

    def _session(self) -> None:
        """Work with one connection until asked to stop."""
        self._outbox.acknowledge(self._transport.open())
        for seq, item in self._outbox.under_way():
            self._transport.send(seq, item)
        self.connected = True
        while not self._stop.is_set():
            while len(self._outbox.under_way()) < self._window:
                numbered = self._outbox.take()
                if numbered is None:
                    break
                self._transport.send(*numbered)
            for event in self._transport.poll(self._poll_seconds):
                self._handle(event)
        self.connected = False
        self._close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Acknowledged):
            self._outbox.acknowledge(event.seq)
        elif isinstance(event, ModelArrived):
            self._keeper.offer(event.data, event.sha256)
        else:
            self._keeper.confirm(event.sha256)

    def _close(self) -> None:
        try:
            self._transport.close()
        except Exception as error:
            self.last_failure = f"{type(error).__name__}: {error}"
