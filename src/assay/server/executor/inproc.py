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
from concurrent.futures import Future, InvalidStateError

import psutil

from assay.server.executor.base import (
    LEARNER_HOST,
    ExecutorError,
    Handle,
    Health,
    LearnerCrashed,
    MemoryLimit,
    answer,
    close_host,
    last_words,
    load_host,
)
from assay.server.executor.frames import Blobs, Head, unpack

_Reply = Future[bytes]


class InprocHandle(Handle):
    """A learner in a thread."""

    _hung, _killed = "hung and was left behind", "was killed"

    def __init__(self, name: str, host: str) -> None:
        super().__init__(name)
        self._calls: queue.SimpleQueue[tuple[bytes, _Reply] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the end, and of what waits
        self._waiting: _Reply | None = None
        self._thread = threading.Thread(
            target=self._serve, args=(host,), name=f"assay-learner-{name}", daemon=True
        )
        self._thread.start()

    def _exchange(self, pieces: list[bytes], timeout: float | None) -> tuple[Head, Blobs]:
        reply: _Reply = Future()
        with self._lock:
            if self._end is not None:
                raise LearnerCrashed(self._end)
            self._waiting = reply
            # Joined as for a process of its own, so that both see the same.
            self._calls.put((b"".join(pieces), reply))
        return unpack(reply.result(timeout))

    def health(self) -> Health:
        """Say how it is, without waiting for it."""
        rss = int(psutil.Process().memory_info().rss)
        where = f"thread of process {os.getpid()}"
        return Health(self._end is None, where, os.getpid(), 0, rss, self._busy_since)

    def _let_end(self, timeout: float) -> None:
        self._calls.put(None)
        self._thread.join(timeout)

    def _finish(self, how: str, reply: bytes | None = None) -> None:
        """Take no more calls, and give the one that waits its last answer."""
        with self._lock:
            self._note_end(how)
            waiting, self._waiting = self._waiting, None
            self._calls.put(None)
        if waiting is not None and not waiting.done():
            with contextlib.suppress(InvalidStateError):  # it may come in just now
                if reply is None:
                    waiting.set_exception(LearnerCrashed(str(self._end)))
                else:
                    waiting.set_result(reply)

    def _serve(self, name: str) -> None:
        try:
            host = load_host(name)
        except Exception as error:
            if self._calls.get() is not None:  # the first call is told
                self._finish("has crashed", b"".join(last_words(error)))
            return
        while (item := self._calls.get()) is not None and self._end is None:
            message, reply = item
            pieces, lives = answer(host, *unpack(message))
            if not lives:
                return self._finish("has crashed", b"".join(pieces))
            with contextlib.suppress(InvalidStateError):  # killed in the meantime
                reply.set_result(b"".join(pieces))
        if self._end is None:
            close_host(host)


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
