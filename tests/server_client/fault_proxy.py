"""A TCP proxy with faults by a seeded schedule, for any server on this machine.

It knows the frames of HTTP/2, so that it can lose, double and swap whole messages on their way to
the server, which is what a gRPC server sees of a network that does such things. It can also cut
connections anywhere, delay, and go silent while both ends believe that the other is there.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

_PREFACE = 24  # bytes of HTTP/2's first words
_HEAD = 9  # bytes before a frame
_DATA = 0
_END_STREAM = 1
_HOLD = 0.05  # seconds that a message waits for the one it is swapped with


@dataclass(frozen=True)
class Faults:
    """Chances of each fault, for each frame to the server (or piece from it).

    Attributes:
        cut: The connection ends in the middle of the frame.
        lose: A message does not arrive.
        double: It arrives twice.
        swap: It arrives after the next one.
        delay: It arrives later.
        delay_seconds: By so much.
    """

    cut: float = 0.0
    lose: float = 0.0
    double: float = 0.0
    swap: float = 0.0
    delay: float = 0.0
    delay_seconds: float = 0.005


NONE = Faults()


class FaultProxy:
    """Passes connections on to a port of this machine.

    Args:
        target: The port.
        seed: Of the schedule: each connection's faults are drawn from it and its number.
        faults: What to do; may be replaced at any time.

    Attributes:
        port: Where to connect.
        silent: Set to pass nothing on, while connections stay open (a half-open peer).
        refusing: Set to end new connections at once (a server that is away).
        done: How often each fault was done.
        connections: How many there have been.
        passed_at: When something was last passed on.
    """

    def __init__(self, target: int, seed: int = 0, faults: Faults = NONE) -> None:
        self.target, self.seed, self.faults = target, seed, faults
        self.silent = threading.Event()
        self.refusing = threading.Event()
        self.done: Counter[str] = Counter()
        self.connections = 0
        self.passed_at = time.monotonic()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="fault-proxy", daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut_all(self) -> None:
        """End every connection."""
        for one in list(self._open):
            _end(one)

    def close(self) -> None:
        """Stop."""
        self._closed = True
        _end(self._listener)
        self.cut_all()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing.is_set():
                _end(client)
                continue
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=10)
            except OSError:
                _end(client)
                continue
            server.settimeout(None)
            self._open |= {client, server}
            rng = random.Random(f"{self.seed}/{self.connections}")
            for work, source, sink, name in (
                (self._to_server, client, server, "to"),
                (self._to_client, server, client, "from"),
            ):
                own = random.Random(f"{rng.random()}/{name}")
                threading.Thread(
                    target=self._pump, args=(work, source, sink, own), daemon=True
                ).start()

    def _pump(self, work: Any, source: socket.socket, sink: socket.socket, rng: Any) -> None:
        try:
            work(source, sink, rng)
        except (OSError, ValueError):  # a socket that was closed meanwhile
            pass
        finally:
            for one in (source, sink):
                _end(one)
                self._open.discard(one)

    def _send(self, sink: socket.socket, data: bytes) -> None:
        while self.silent.is_set() and not self._closed:
            time.sleep(0.01)  # what came meanwhile is passed on when it speaks again
        sink.sendall(data)
        self.passed_at = time.monotonic()

    def _to_server(self, client: socket.socket, server: socket.socket, rng: random.Random) -> None:
        reader = _Reader(client)
        self._send(server, reader.read(_PREFACE))
        held = b""
        while True:
            if held and not reader.waits(_HOLD):  # there is no next one to be swapped with
                self._send(server, held)
                held = b""
            head = reader.read(_HEAD)
            frame = head + reader.read(int.from_bytes(head[:3], "big"))
            whole = head[3] == _DATA and not head[4] & _END_STREAM
            fault = self._draw(rng, whole)
            if fault == "cut":
                self._send(server, frame[: rng.randrange(len(frame))])
                return
            if fault == "delay":
                time.sleep(self.faults.delay_seconds)
            if fault == "swap":
                held += frame
                continue
            copies = {"lose": 0, "double": 2}.get(fault, 1)
            self._send(server, frame * copies + held)
            held = b""

    def _to_client(self, server: socket.socket, client: socket.socket, rng: random.Random) -> None:
        while data := server.recv(1 << 16):
            fault = self._draw(rng, False)
            if fault == "cut":
                self._send(client, data[: rng.randrange(len(data))])
                return
            if fault == "delay":
                time.sleep(self.faults.delay_seconds)
            self._send(client, data)

    def _draw(self, rng: random.Random, message: bool) -> str:
        names = ("cut", "delay", "lose", "double", "swap") if message else ("cut", "delay")
        point = rng.random()
        for name in names:
            point -= getattr(self.faults, name)
            if point < 0:
                self.done[name] += 1
                return name
        return ""


class _Reader:
    """Reads so many bytes, and can say whether there are any."""

    def __init__(self, source: socket.socket) -> None:
        self._source, self._data = source, b""

    def waits(self, seconds: float) -> bool:
        return bool(self._data) or bool(select.select([self._source], [], [], seconds)[0])

    def read(self, count: int) -> bytes:
        while len(self._data) < count:
            more = self._source.recv(1 << 16)
            if not more:
                raise OSError("the end")
            self._data += more
        data, self._data = self._data[:count], self._data[count:]
        return data


def _end(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
