"""Hosts that the tests put where a learner would be."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from assay.core.errors import ConfigError

Head = dict[str, Any]
Blobs = tuple[bytes, ...]


class Puppet:
    """Does what a message asks for, good or bad."""

    def __init__(self) -> None:
        self.calls = 0
        self.kept: list[bytearray] = []

    def handle(self, head: Head, blobs: Blobs) -> tuple[Head, Blobs]:
        self.calls += 1
        answer = getattr(self, head["method"])(head, blobs)
        return answer if isinstance(answer, tuple) else (answer, ())

    def echo(self, head: Head, blobs: Blobs) -> tuple[Head, Blobs]:
        return {"saw": head, "calls": self.calls}, tuple(blob[::-1] for blob in blobs)

    def who(self, head: Head, blobs: Blobs) -> Head:
        return {"pid": os.getpid(), "session": os.getsid(0)}

    def refuse(self, head: Head, blobs: Blobs) -> Head:
        raise ConfigError("lr=-1: expected a positive number.", "Give a larger lr.")

    def fail(self, head: Head, blobs: Blobs) -> Head:
        raise ZeroDivisionError("a bug of the learner")

    def exit(self, head: Head, blobs: Blobs) -> Head:
        os._exit(7)

    def segfault(self, head: Head, blobs: Blobs) -> Head:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    def hang(self, head: Head, blobs: Blobs) -> Head:
        Path(head["began"]).touch()
        threading.Event().wait()
        return {}

    def hang_in_c(self, head: Head, blobs: Blobs) -> Head:
        """Hold the interpreter's lock for good, so that no thread of it can do anything."""
        Path(head["began"]).touch()
        ctypes.PyDLL(None).pause()
        return {}

    def nap(self, head: Head, blobs: Blobs) -> Head:
        Path(head["began"]).touch()
        time.sleep(head["seconds"])
        return {"rested": True}

    def allocate(self, head: Head, blobs: Blobs) -> Head:
        for _ in range(head["megabytes"]):
            self.kept.append(bytearray(b"x") * (1 << 20))
        return {"held": len(self.kept)}

    def no_json(self, head: Head, blobs: Blobs) -> Head:
        return {"a set": {1, 2}}

    def leave_note(self, head: Head, blobs: Blobs) -> Head:
        self.note = Path(head["path"])
        return {}

    def close(self) -> None:
        if hasattr(self, "note"):
            self.note.write_text("closed in good order")


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no such device")
