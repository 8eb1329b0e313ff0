"""The back end "process": one process per learner, the server's default.

Messages go over a socket pair as length-prefixed frames. Whatever happens to a learner's process
(an exception, a signal, no memory, a call that never returns) is a `LearnerCrashed` here, and
touches no other learner. Processes never outlive the server.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil

from assay.core.system_memory import total_bytes
from assay.server.executor.base import (
    LEARNER_HOST,
    ExecutorError,
    Handle,
    Health,
    LearnerCrashed,
    MemoryLimit,
)
from assay.server.executor.frames import Blobs, Head, receive, send

_REAP_S = 5.0  # how long a process may take to be gone once its socket is


class ProcessHandle(Handle):
    """A learner in a process of its own."""

    _broke = "was killed because it broke the protocol"

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], link: socket.socket, lifeline: int
    ) -> None:
        super().__init__(name)
        self._process = process
        self._link = link
        self._lifeline: int | None = lifeline  # an end of a pipe, whose closing ends the process
        self._ending = threading.Lock()

    def _exchange(self, pieces: list[bytes], timeout: float | None) -> tuple[Head, Blobs]:
        until = math.inf if timeout is None else time.monotonic() + timeout
        try:
            send(self._link, pieces, until=until)
            return receive(self._link, until=until)
        except TimeoutError:
            raise
        except (EOFError, OSError):
            raise self._death() from None

    def health(self) -> Health:
        """Say how it is, without waiting for it."""
        pid = self._process.pid
        alive = self._process.poll() is None and self._end is None
        rss = 0
        if alive:
            with contextlib.suppress(psutil.Error):
                rss = int(psutil.Process(pid).memory_info().rss)
        return Health(alive, f"process {pid}", pid, 0, rss, self._busy_since)

    def _let_end(self, timeout: float) -> None:
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def _finish(self, how: str) -> None:
        with self._ending:
            self._note_end(how)
            self._process.kill()  # Popen knows when it is gone already
            self._process.wait()
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)  # wakes a call that waits for it
            if self._lifeline is not None:
                os.close(self._lifeline)
                self._lifeline = None

    def _death(self) -> LearnerCrashed:
        """Return the error about a process whose link has ended."""
        try:
            code: int | None = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            code = None
        if self._end is not None:
            return LearnerCrashed(self._end)
        self._finish("has crashed")
        fix = None
        if code is None:
            how = "closed its connection"
        elif code >= 0:
            how = f"exited with status {code}"
        else:
            how = f"was killed by signal {-code} ({_signal_name(-code)})"
            if -code in (signal.SIGKILL, signal.SIGABRT):
                fix = "Check whether memory ran out; its memory can be limited with memory_mb."
        pid = self._process.pid
        return LearnerCrashed(f"The learner '{self._name}' (pid {pid}) died: it {how}.", fix)

    def __del__(self) -> None:
        if getattr(self, "_lifeline", None) is not None:
            self.kill()
        self._link.close()


class ProcessExecutor:
    """Runs each learner in a process of its own."""

    def __init__(self) -> None:
        self._handles: list[ProcessHandle] = []
        self._lock = threading.Lock()
        # The kernel means the thread when it says parent, so the one that begins processes must
        # live as long as they do.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="assay-spawn")

    def spawn(
        self, name: str, *, memory_mb: MemoryLimit = None, host: str = LEARNER_HOST
    ) -> ProcessHandle:
        """Begin a learner in a process; "auto" gives it half of the machine's memory."""
        if memory_mb == "auto":
            memory_mb = (total_bytes() >> 20) // 2
        try:
            handle = self._spawner.submit(self._begin, name, host, memory_mb).result()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ExecutorError(
                f"No process could be started for the learner '{name}': {reason}.",
                "Check the machine's limits on processes, open files and memory.",
            ) from None
        except RuntimeError:  # of the thread pool
            raise ExecutorError("The executor was closed.") from None
        with self._lock:
            self._handles = [one for one in self._handles if one.health().alive] + [handle]
        return handle

    def close(self) -> None:
        """End all learners and take no more."""
        self._spawner.shutdown()
        for handle in self._handles:
            handle.kill()

    def _begin(self, name: str, host: str, memory_mb: int | None) -> ProcessHandle:
        ours, theirs = socket.socketpair()
        lifeline, our_end = os.pipe()
        fds = (theirs.fileno(), lifeline)
        # A learner can import what the server can.
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        command = [
            sys.executable, "-P", "-m", "assay.server.executor.child",
            str(os.getpid()), *map(str, fds), host, str(memory_mb or 0),
        ]  # fmt: skip
        try:
            process = subprocess.Popen(
                command,
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=2,  # the server's own output is for who reads it
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(our_end)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        return ProcessHandle(name, process, ours, our_end)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
