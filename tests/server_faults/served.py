"""Servers in processes of their own: `assay serve` as it is, and quick ones from a forge."""

from __future__ import annotations

import atexit
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

HERE = Path(__file__).parent
WAIT = 60.0
# Children of ours must not compete for the few cores with threads of their own.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def until(condition: Callable[[], Any], what: str, seconds: float = WAIT) -> Any:
    """Return what a condition says as soon as it says something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"it did not happen within {seconds:g} s: {what}")


class _Smithy:
    """The one process that all forges of this process fork their gateways from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "gateway_forge.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT,
        )  # fmt: skip
        self._said: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self._end)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self._queue(said["pid"] if said["what"] != "forked" else 0).put(said)

    def _queue(self, pid: int) -> queue.SimpleQueue[dict[str, Any]]:
        with self._lock:
            return self._said.setdefault(pid, queue.SimpleQueue())

    def ask(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def alive(self) -> bool:
        return self._process.poll() is None

    def hear(self, pid: int, what: str) -> dict[str, Any]:
        """Return the next of a kind that a gateway says; 0 is the smithy itself."""
        while True:
            said = self._queue(pid).get(timeout=WAIT)
            assert said["what"] in (what, "ready"), said
            if said["what"] == what:
                return said

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT)


_smithies: list[_Smithy] = []


def _smithy() -> _Smithy:
    """Return the smithy of this process; another one if it has died."""
    if not _smithies or not _smithies[-1].alive():
        _smithies.append(_Smithy())
    return _smithies[-1]


class Forge:
    """Starts gateways by forking one process in which everything is imported.

    Attributes:
        directory: Of the data and of the socket; short, for a socket's path must be.
        address: Where a client reaches whatever gateway runs now.
        pid: Of that gateway.
        port: Where it listens; 0 for a Unix socket.
        repairs: What it had to fix when it started.
        log: What its gateways wrote to stderr.
    """

    def __init__(self, **config: Any) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="assay-f-"))
        self.address = f"unix:{self.directory / 's'}"
        self.config = {"data": str(self.directory / "data"), "listen": self.address, **config}
        self.config["metrics_port"] = 0
        self.pid = self.port = self._metrics = 0
        self.repairs: list[str] = []
        self.log = self.directory / "log"
        self.log.touch()

    def fork(self, learner: str = "Tally", **options: Any) -> None:
        """Begin a gateway, and do not wait until it serves; see `gateway_forge`."""
        smithy = _smithy()
        smithy.ask(start=self.config, learner=learner, log=str(self.log), **options)
        self.pid = smithy.hear(0, "forked")["pid"]

    def ready(self) -> None:
        """Wait until it serves."""
        said = _smithy().hear(self.pid, "ready")
        self.repairs, self.port, self._metrics = said["repairs"], said["port"], said["metrics"]
        if self.port:
            self.address = f"127.0.0.1:{self.port}"

    def start(self, learner: str = "Tally", **options: Any) -> Forge:
        """Begin a gateway and wait until it serves."""
        self.fork(learner, **options)
        self.ready()
        return self

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over everything with these labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/metrics") as reply:
            text = reply.read().decode()
        total = 0.0
        for line in text.splitlines():
            head, _, value = line.rpartition(" ")
            wanted = [f'{label}="{one}"' for label, one in labels.items()]
            if head.partition("{")[0] == name and all(one in head for one in wanted):
                total += float(value)
        return total

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send the gateway a signal, wait for its end, and return its exit status."""
        pid, self.pid = self.pid, 0
        os.kill(pid, number)
        _smithy().ask(wait=pid)
        return int(_smithy().hear(pid, "gone")["status"])

    def close(self) -> None:
        """End the gateway and remove the data."""
        try:
            if self.pid:
                self.end()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Forge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Served:
    """`assay serve`, as a user starts it.

    Attributes:
        address: Where it serves.
        text: What it wrote.
    """

    def __init__(self, data: Path, **config: Any) -> None:
        self.data = data
        self._settings = data.with_suffix(".yaml")
        self._settings.write_text(yaml.safe_dump({"listen": "127.0.0.1:0", **config}))
        self.text = ""
        self.address = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Served:
        command = [sys.executable, "-m", "assay", "serve", "--config", str(self._settings)]
        self.process = subprocess.Popen(
            [*command, "--data", str(self.data)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        self.text = self.address = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        found = until(
            lambda: re.search(r"Listening on (\S+)", self.text) or self.process.poll() is not None,
            "the server's start",
        )
        assert isinstance(found, re.Match), self.text
        self.address = found[1]
        return self

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line

    def learners(self) -> list[psutil.Process]:
        """Return the processes of its learners, the oldest first."""
        assert self.process is not None
        try:
            children = psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return []
        return sorted(children, key=lambda one: one.create_time())

    def end(self, number: int = signal.SIGTERM, seconds: float = WAIT) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        self._reader.join(WAIT)
        return code

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT)

    def __enter__(self) -> Served:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def memory(pid: int) -> int:
    """Return how many bytes a process holds now."""
    return int(psutil.Process(pid).memory_info().rss)


def peak_memory(pid: int) -> int:
    """Return how many bytes a process held at most, where the system tells."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return 1024 * int(found[1])
