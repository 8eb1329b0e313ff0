"""What an executor is: the place where learners run.

A learner is a *host*, an object with one method that answers messages. The executor gives it a
place of its own and carries the messages there; what they mean is between the supervisor and the
host. Experience goes to a learner in the blobs of an ordinary call.

Three back ends run the same contract suite, `tests/server_executor/executor_contract.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from assay.core.errors import AssayError
from assay.server.executor.frames import Blobs, FrameError, Head, pack

LEARNER_HOST = "assay.server.learner.learner:LearnerHost"
MemoryLimit = int | Literal["auto"] | None  # in MB

_REFUSED = "error"  # the key of an answer that is a refusal
_CRASHED = "crash"  # the key of a host's last words


class ExecutorError(AssayError):
    """An executor cannot give a learner a place."""


class LearnerCrashed(AssayError):
    """A learner is gone, or in a state that nobody knows. Its handle is of no more use."""


class LearnerRefused(AssayError):
    """A learner did not take a message, and said why."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a learner is."""

    alive: bool  # whether it can be called
    where: str  # the place it runs at, for a person
    pid: int  # of its process
    restarts: int = 0  # how often its back end has restarted it by itself
    rss: int = 0  # bytes of memory that its process holds; 0 where that is not known
    # When the call that it works on began, on the clock `time.monotonic`; None when it waits for
    # one.
    busy_since: float | None = None


class Host(Protocol):
    """What answers messages at the other end. It is made without arguments.

    It may have a method `close()`, which is called when it is stopped and not when it is killed.
    """

    def handle(self, head: Head, blobs: Blobs) -> tuple[Head, Blobs]:
        """Answer a message.

        Raises:
            AssayError: The message is refused; the host goes on. Any other error ends it.
        """


class Handle(ABC):
    """A learner, seen from the server. One call at a time; the rest at any time.

    A back end carries a message (`_exchange`), and ends a learner in order or at once.
    """

    _hung, _broke, _killed = "hung and was killed", "broke the protocol", "was killed by the server"

    def __init__(self, name: str) -> None:
        self._name = name
        self._end: str | None = None  # how it ended
        self._busy_since: float | None = None
        self._calling = threading.Lock()

    def call(
        self, head: Head, blobs: Sequence[bytes] = (), timeout: float | None = None
    ) -> tuple[Head, Blobs]:
        """Send a message and wait for the answer.

        Args:
            head: A JSON object.
            blobs: Bytes beside it; batches go this way.
            timeout: Seconds after which the learner counts as hung and is killed; None for never.

        Raises:
            LearnerRefused: It did not take the message.
            LearnerCrashed: It died, was killed, or hung.
            FrameError: The message is too large. The learner did not see it.
        """
        pieces = pack(head, blobs)
        with self._calling:
            self._busy_since = time.monotonic()
            try:
                return read_answer(self._name, *self._exchange(pieces, timeout))
            except TimeoutError:
                self._finish(self._hung)
                raise hung(self._name, timeout) from None
            except FrameError as error:
                self._finish(self._broke)
                raise LearnerCrashed(
                    f"The learner '{self._name}' broke the protocol: {error.message}"
                ) from None
            except LearnerCrashed:
                if self._end is None:
                    self._finish("has crashed")
                raise
            finally:
                self._busy_since = None

    @abstractmethod
    def health(self) -> Health:
        """Say how it is, without waiting for it."""

    def stop(self, timeout: float) -> None:
        """Let it finish its call and end; kill it if it takes longer than `timeout` seconds."""
        self._let_end(timeout)
        self._remove("was stopped")

    def kill(self) -> None:
        """End it at once. A call that waits for it raises `LearnerCrashed`."""
        self._remove(self._killed)

    @abstractmethod
    def _exchange(self, pieces: list[bytes], timeout: float | None) -> tuple[Head, Blobs]:
        """Send a packed message, and return the answer.

        Raises:
            LearnerCrashed: The learner is gone.
            TimeoutError: It does not answer.
            FrameError: What it answers is not a message.
        """

    @abstractmethod
    def _let_end(self, timeout: float) -> None:
        """Let it finish its call and end, so long at most."""

    @abstractmethod
    def _finish(self, how: str) -> None:
        """End it, if it has not ended, and keep how it did in `_end`."""

    def _remove(self, how: str) -> None:
        """End it for good."""
        self._finish(how)

    def _note_end(self, how: str) -> None:
        self._end = self._end or f"The learner '{self._name}' {how}."


class Executor(Protocol):
    """Gives learners a place."""

    def spawn(
        self, name: str, *, memory_mb: MemoryLimit = None, host: str = LEARNER_HOST
    ) -> Handle:
        """Begin a learner.

        Args:
            name: Whose, for messages and for finding it again. One learner at a time has a name.
            memory_mb: How much memory it may take on top of that of its bare process; "auto" where
                the executor may choose, which need not be a limit.
            host: `module:class` of what answers.

        A host that cannot be loaded crashes the first call.

        Raises:
            ExecutorError: There is no place, or it cannot hold to `memory_mb`.
        """

    def close(self) -> None:
        """End all learners and take no more."""


def load_host(name: str) -> Host:
    """Make the host that `module:class` names."""
    module, _, attribute = name.partition(":")
    made: Host = getattr(importlib.import_module(module), attribute)()
    return made


def close_host(host: Host) -> None:
    """Call a host's `close`, if it has one; it ends in any case."""
    with contextlib.suppress(Exception):
        getattr(host, "close", lambda: None)()


def answer(host: Host, head: Head, blobs: Blobs) -> tuple[list[bytes], bool]:
    """Let a host answer; return the packed answer and whether the host lives on.

    What it raises is put into the head: a refusal, or its last words.
    """
    try:
        head, blobs = host.handle(head, blobs)
    except AssayError as error:
        kind = type(error).__name__
        head, blobs = {_REFUSED: kind, "message": error.message, "fix": error.fix}, ()
    except Exception as error:
        return last_words(error), False
    try:
        return pack(head, blobs), True
    except FrameError as error:
        return last_words(error), False


def last_words(error: Exception) -> list[bytes]:
    """Return the packed answer of a host that an error has ended."""
    line = traceback.format_exception_only(error)[-1].strip()
    places = traceback.extract_tb(error.__traceback__)
    at = f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
    return pack({_CRASHED: f"{line}{at}"})


def read_answer(name: str, head: Head, blobs: Blobs) -> tuple[Head, Blobs]:
    """Return an answer, or raise what it reports.

    Raises:
        LearnerRefused: A refusal.
        LearnerCrashed: The host's last words.
    """
    if _REFUSED in head:
        fix = head.get("fix")
        message = str(head.get("message", ""))
        raise LearnerRefused(message, None if fix is None else str(fix))
    if _CRASHED in head:
        raise LearnerCrashed(f"The learner '{name}' crashed: {head[_CRASHED]}")
    return head, blobs


def hung(name: str, timeout: float | None) -> LearnerCrashed:
    """Return the error about a learner that does not answer."""
    return LearnerCrashed(
        f"The learner '{name}' did not answer within {timeout:g} seconds and was killed.",
        "Allow more time for a call, or make updates smaller.",
    )
