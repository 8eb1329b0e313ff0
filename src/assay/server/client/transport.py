"""Between the outbox and the network: what a transport brings, and the thread that uses it."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.core.wording import counted
from assay.server.client.keeper import ModelKeeper
from assay.server.client.outbox import Item, Outbox
from assay.server.errors import Reason

if TYPE_CHECKING:
    from assay.server.client.grpc_transport import GrpcTransport

State = Literal[
    "new", "connecting", "connected", "away", "busy", "paused", "refused", "fenced", "stopped"
]

# The server will not have this client as it is; a person has to do something.
NEEDS_A_PERSON = frozenset(
    {
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
        Reason.SPEC_CONFLICT,
        Reason.BAD_SPEC,
        Reason.UNSUPPORTED_PROTOCOL,
        Reason.POLICY_DELETED,
        Reason.UNKNOWN_POLICY,
    }
)
# First and longest pause before a connection is opened again, in units of `retry_seconds`.
_PAUSES: dict[State, tuple[int, int]] = {
    "away": (1, 100),
    "busy": (1, 100),
    "paused": (10, 50),  # the policy will take something again, and nothing is broken
    "refused": (50, 600),  # a person has to do something first
    "fenced": (50, 3000),  # two processes must not take a client's place in turns
}
_REPORT_SECONDS = 60.0
_QUIET_FAILURES = 3  # a server that is restarted is not worth a report


class TransportError(Exception):
    """The server cannot be reached, or the connection broke. The courier opens a new one."""


class RefusedError(TransportError):
    """The server answered, and does not want this session.

    Attributes:
        reason: What the courier decides on.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Everything up to this sequence number is durable."""

    seq: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The server will never take this item."""

    seq: int
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class SendAgain:
    """This item and all behind it have to be sent again, under the same numbers."""

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


@dataclass(frozen=True, slots=True)
class ModelRefused:
    """A model was not even fetched."""

    message: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person should hear of, while the session goes on."""

    reason: Reason
    message: str


Event = Acknowledged | Refused | SendAgain | ModelArrived | ModelConfirmed | ModelRefused | Notice


class Courier:
    """Moves items from an outbox to a transport, and models from there to a keeper.

    Nothing is lost by a broken connection: what was not acknowledged is sent again, and the server
    drops what it has. What the server refuses for its content is dropped and counted.

    Args:
        outbox: What waits to be sent.
        keeper: Takes new models.
        transport: The connection, called from one thread, but for `abort`. Whatever it raises, it
            is closed and opened again.
        poll_seconds: How long one look for events lasts.
        retry_seconds: First pause before a connection is opened again; see `_PAUSES`.
        report: Told, about once a minute, what a person should know.
        rng: Draws the share of each pause that is waited, so that clients do not come at once.
        clock: Seconds that only grow.

    Attributes:
        state: Where it stands: `away` (no server), `busy` (it takes nothing now), `paused` (nor
            does the policy), `refused` (a person has to do something) and `fenced` (another
            process has this client's place) are tried again.
            The other attributes are those of `ConnectionStatus`.
    """

    def __init__(
        self,
        outbox: Outbox,
        keeper: ModelKeeper,
        transport: GrpcTransport,
        *,
        poll_seconds: float = 0.05,
        retry_seconds: float = 0.1,
        report: Callable[[str], None] | None = None,
        rng: np.random.Generator | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outbox, self._keeper, self._transport = outbox, keeper, transport
        self._poll_seconds = poll_seconds
        self._retry_seconds = retry_seconds
        self._pause, self._paused_for = 0.0, "new"
        self._in_a_row = 0  # failures to get a session at all
        self._report = report
        self._reported: dict[str, float] = {}
        self._rng = np.random.default_rng() if rng is None else rng
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._again: deque[tuple[int, Item]] = deque()
        self._opened_at: float | None = None
        self.state: State = "new"
        self.failures = 0
        self.last_failure = ""
        self.trouble = ""
        self.refusals: Counter[str] = Counter()
        self.last_refusal = ""

    def start(self) -> None:
        """Begin to work, in a thread of its own that does not keep the process alive."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="assay-courier", daemon=True)
            self._thread.start()

    def stop(self, seconds: float = 5.0) -> bool:
        """Send what waits, so long at most, and end; return whether everything was acknowledged."""
        self.wait_until_empty(seconds)
        self._stop.set()
        if self._thread is not None:
            self._thread.join(0.5 + 2 * self._poll_seconds)
            if self._thread.is_alive():  # it waits for a server that does not answer
                self._transport.abort()
                self._thread.join(2.0)
        return self._outbox.empty

    def abandon(self) -> None:
        """End soon, without sending what waits and without waiting for it."""
        self._stop.set()

    def wait_until_empty(self, seconds: float) -> bool:
        """Wait until everything is acknowledged, so long at most; return whether it is."""
        # In real seconds: the clock that was given may stand still.
        deadline = time.monotonic() + seconds
        while not self._outbox.empty and time.monotonic() < deadline:
            if self._thread is None or not self._thread.is_alive():
                break
            time.sleep(min(0.01, self._poll_seconds))
        return self._outbox.empty

    def _run(self) -> None:
        while not self._stop.is_set():
            self.state, self._opened_at = "connecting", None
            try:
                self._session()
                break
            except Exception as error:  # whatever a transport does, the client lives on
                pause = self._failed(error)
                self._close()
            self._stop.wait(pause * (0.5 + 0.5 * self._rng.random()))
        self.state = "stopped"

    def _session(self) -> None:
        """Work with one connection until asked to stop."""
        self._outbox.acknowledge(self._transport.open())
        self._again = deque(self._outbox.under_way())
        self.state, self.trouble = "connected", ""
        self._opened_at = self._clock()
        while not self._stop.is_set():
            while self._transport.ready():
                numbered = self._again.popleft() if self._again else self._outbox.take()
                if numbered is None:
                    break
                self._transport.send(*numbered)
            for event in self._transport.poll(self._poll_seconds):
                self._handle(event)
        self._close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Acknowledged):
            self._outbox.acknowledge(event.seq)
        elif isinstance(event, Refused):
            steps = self._outbox.refuse(event.seq)
            self.refusals[event.reason.name] += 1
            self.last_refusal = f"{event.reason.name}: {event.message}"
            self._tell(
                event.reason.name, f"The server refused {counted(steps, 'step')}. {event.message}"
            )
        elif isinstance(event, SendAgain):
            under_way = self._outbox.under_way()
            self._again = deque(numbered for numbered in under_way if numbered[0] >= event.seq)
        elif isinstance(event, ModelArrived):
            self._keeper.offer(event.data, event.sha256)
        elif isinstance(event, ModelConfirmed):
            self._keeper.confirm(event.sha256)
        elif isinstance(event, ModelRefused):
            self._keeper.refuse(event.message)
        else:
            self._tell(event.reason.name, event.message)

    def _failed(self, error: Exception) -> float:
        """Note why a session ended, and return how long to wait before the next."""
        kind = _kind(error)
        lasted = None if self._opened_at is None else self._clock() - self._opened_at
        self.state = kind
        self.failures += 1
        self._in_a_row = self._in_a_row + 1 if lasted is None else 0
        self.last_failure = self.trouble = f"{type(error).__name__}: {error}"
        if isinstance(error, RefusedError):
            self.trouble = f"{error.reason.name}: {error}"
            self._tell(error.reason.name, str(error))
        elif self._in_a_row >= _QUIET_FAILURES:
            self._tell(kind, f"The training server cannot be reached. {error}")
        # A connection that worked and broke is worth a quick try; a refusal has to stay away.
        fresh = lasted is not None and (kind == "away" or lasted > 2.0 * self._pause)
        first, longest = (self._retry_seconds * factor for factor in _PAUSES[kind])
        fresh = fresh or kind != self._paused_for
        self._pause = first if fresh else min(2.0 * self._pause, longest)
        self._paused_for = kind
        return self._pause

    def _tell(self, what: str, message: str) -> None:
        """Report something, unless that was done within the last minute."""
        now = self._clock()
        if self._report is None or now - self._reported.get(what, -np.inf) < _REPORT_SECONDS:
            return
        self._reported[what] = now
        try:
            self._report(message)
        except Exception as error:  # also a warning that was made an error
            self.last_failure = f"{type(error).__name__}: {error}"

    def _close(self) -> None:
        try:
            self._transport.close()
        except Exception as error:
            self.last_failure = f"{type(error).__name__}: {error}"


def _kind(error: Exception) -> State:
    """Return the state that an error leads to."""
    if not isinstance(error, RefusedError):
        return "away"
    if error.reason is Reason.FENCED:
        return "fenced"
    if error.reason is Reason.POLICY_PAUSED:
        return "paused"
    return "refused" if error.reason in NEEDS_A_PERSON else "busy"
