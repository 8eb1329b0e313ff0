"""What runs inside a learner's process of the back end "process".

A plain interpreter that is told everything over a socket. It ends when its parent does, busy or
not: the kernel kills it, and where that cannot be had, a thread watches a pipe that only the parent
holds open. It is the leader of a session of its own, so Ctrl-C at the server does not reach it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import math
import os
import resource
import signal
import socket
import sys
import threading
from pathlib import Path

from assay.server.executor.base import Host, answer, close_host, last_words, load_host
from assay.server.executor.frames import receive, send

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve a parent. Arguments: its pid, the socket, the lifeline, the host, MiB or 0."""
    parent, link, lifeline = map(int, sys.argv[1:4])
    host, memory_mb = sys.argv[4], int(sys.argv[5])
    die_with(parent)
    # Who stops a service may signal all of its processes. What it means, the server decides.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    faulthandler.enable()
    limit_memory(memory_mb, held())
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(socket.socket(fileno=link), host)


def _serve(link: socket.socket, name: str) -> None:
    host: Host | None = None
    try:
        host = load_host(name)
    except Exception as error:
        words = last_words(error)
    while True:
        try:
            message = receive(link, until=math.inf)
        except EOFError:
            if host is not None:
                close_host(host)
            return
        pieces, lives = answer(host, *message) if host is not None else (words, False)
        send(link, pieces, until=math.inf)
        if not lives:
            # Threads that the host has left behind must not keep the process.
            os._exit(1)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone knows how
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)  # it ended before we could ask


def limit_memory(megabytes: int, bare: int) -> None:
    """Hold this process to an amount of memory.

    Beyond it an allocation fails, so that the learner ends and the machine does not.

    Args:
        megabytes: How much, on top of `bare`; 0 for no limit.
        bare: What the process held before it had a learner.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = bare + (megabytes << 20) if megabytes else most
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def held() -> int:
    """Return the bytes of this process that count towards RLIMIT_DATA."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 64 << 20  # about what an interpreter takes
    return next(int(line.split()[1]) for line in status.splitlines() if line[:7] == "VmData:") << 10


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)  # returns when the parent is gone: nobody ever writes
    os._exit(1)


if __name__ == "__main__":
    main()
