"""The back end "inproc": learners in threads of the server's own process.

For tests and for trying things out. A learner here shares the process: it brings torch into it,
its crash by a signal ends the server, and its memory cannot be held to a limit. A thread cannot be
killed either, so a learner that hangs is left behind and its answer is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError

import psutil

from assay.server.executor.base import (
    LEARNER_HOST,
    ExecutorError,
    Health,
    LearnerCrashed,
    MemoryLimit,
    answer,
    close_host,
    hung,
    last_words,
    load_host,
    read_answer,
)
from assay.server.executor.frames import Blobs, Head, pack, unpack

_Reply = Future[bytes]


class InprocHandle:
    """A learner in a thread."""

    def __init__(self, name: str, host: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[bytes, _Reply] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the next two
        self._end: str | None = None  # how it ended
        self._waiting: _Reply | None = None
        self._busy_since: float | None = None
        self._thread = threading.Thread(
            target=self._serve, args=(host,), name=f"assay-learner-{name}", daemon=True
        )
        self._thread.start()

    def call(
        self, head: Head, blobs: Sequence[bytes] = (), timeout: float | None = None
    ) -> tuple[Head, Blobs]:
        """Send a message and wait for the answer."""
        # Packed as for a process of its own, so that both see the same.
        message = b"".join(pack(head, blobs))
        reply: _Reply = Future()
        with self._lock:
            if self._end is not None:
                raise LearnerCrashed(self._end)
            self._waiting, self._busy_since = reply, time.monotonic()
            self._calls.put((message, reply))
        try:
            return read_answer(self._name, *unpack(reply.result(timeout)))
        except TimeoutError:
            self._finish("hung and was left behind")
            raise hung(self._name, timeout) from None
        finally:
            self._busy_since = None

    def health(self) -> Health:
        """Say how it is, without waiting for it."""
        rss = int(psutil.Process().memory_info().rss)
        where = f"thread of process {os.getpid()}"
        return Health(self._end is None, where, os.getpid(), 0, rss, self._busy_since)

    def stop(self, timeout: float) -> None:
        """Let it finish its call and end; leave it behind if it takes too long."""
        self._calls.put(None)
        self._thread.join(timeout)
        self._finish("was stopped")

    def kill(self) -> None:
        """Leave it behind at once."""
        self._finish("was killed")

    def _finish(self, how: str, reply: bytes | None = None) -> None:
        """Take no more calls, and give the one that waits its last answer."""
        with self._lock:
            self._end = self._end or f"The learner '{self._name}' {how}."
            waiting, self._waiting = self._waiting, None
            self._calls.put(None)
        if waiting is not None and not waiting.done():
            with contextlib.suppress(InvalidStateError):  # it may come in just now
                if reply is None:
                    waiting.set_exception(LearnerCrashed(self._end))
                else:
                    waiting.set_result(reply)

    def _serve(self, name: str) -> None:
        try:
            host = load_host(name)
        except Exception as error:
            return self._finish_with_next(b"".join(last_words(error)))
        while (item := self._calls.get()) is not None and self._end is None:
            message, reply = item
            pieces, lives = answer(host, *unpack(message))
            if not lives:
                return self._finish("has crashed", b"".join(pieces))
            with contextlib.suppress(InvalidStateError):  # killed in the meantime
                reply.set_result(b"".join(pieces))
        if self._end is None:
            close_host(host)

    def _finish_with_next(self, words: bytes) -> None:
        if self._calls.get() is not None:
            self._finish("has crashed", words)


class InprocExecutor:
    """Runs learners in threads of this process."""

    def __init__(self) -> None:
        self._handles: list[InprocHandle] = []
        self._lock = threading.Lock()
        self._closed = False

    def spawn(
        self, name: str, *, memory_mb: MemoryLimit = None, host: str = LEARNER_HOST
    ) -> InprocHandle:
        """Begin a learner in a thread."""
        if isinstance(memory_mb, int):
            raise ExecutorError(
                f"memory_mb={memory_mb} cannot be held in the executor 'inproc', where learners "
                "share the server's process.",
                "Use the executor 'process', or leave memory_mb out.",
            )
        with self._lock:
            if self._closed:
                raise ExecutorError("The executor was closed.")
            handle = InprocHandle(name, host)
            self._handles = [one for one in self._handles if one.health().alive] + [handle]
            return handle

    def close(self) -> None:
        """End all learners and take no more."""
        with self._lock:
            self._closed = True
        for handle in self._handles:
            handle.kill()
