"""The design that one would write first, to measure ours against in the same run.

A gRPC server in plain Python: it decides remotely, takes one message per step, and keeps everything
in memory. Nothing is checked, nothing is written, nothing is numbered, which favours it.

    python benchmarks/server_reference.py serve     # prints its port; ends with its input
    python benchmarks/server_reference.py add PORT SECONDS
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from server_codec import step_messages

ACT, ADD = "/reference.Server/Act", "/reference.Server/Add"
WIDTHS = (8, 64, 64, 4)
_THREADS = 8


class Reference(grpc.GenericRpcHandler):
    """Both calls of the server."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        pairs = itertools.pairwise(WIDTHS)
        self._weights = [rng.normal(size=pair).astype(np.float32) / 8 for pair in pairs]
        self._message = step_messages()
        self.kept: list[Any] = []

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return what answers a call."""
        calls = {ACT: self.act, ADD: self.add}
        call = calls.get(details.method)
        return None if call is None else grpc.unary_unary_rpc_method_handler(call)

    def act(self, request: bytes, context: Any) -> bytes:
        """Decide for one observation."""
        (step,) = self._message.FromString(request).steps
        x = np.array(step.obs, np.float32)
        for weight in self._weights[:-1]:
            x = np.tanh(x @ weight)
        answer = self._message()
        answer.steps.add(action=int(np.argmax(x @ self._weights[-1])))
        return bytes(answer.SerializeToString())

    def add(self, request: bytes, context: Any) -> bytes:
        """Keep one step."""
        self.kept.extend(self._message.FromString(request).steps)
        return b""


class ReferenceClient:
    """Calls it, one step at a time."""

    def __init__(self, port: int) -> None:
        # It looks for its server ten times a second; gRPC's own pause grows to two minutes.
        pauses = [
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 100),
        ]
        pauses.append(("grpc.min_reconnect_backoff_ms", 100))
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", pauses)
        self._act, self._add = (self._channel.unary_unary(path) for path in (ACT, ADD))
        self._message = step_messages()

    def act(self, obs: np.ndarray, timeout: float = 1.0) -> int:
        """Return an action; a server that is away is an error."""
        request = self._message()
        request.steps.add(obs=obs.tolist())
        answer = self._message.FromString(self._act(request.SerializeToString(), timeout=timeout))
        return int(answer.steps[0].action)

    def add(self, obs: np.ndarray) -> None:
        """Send one step."""
        request = self._message()
        request.steps.add(obs=obs.tolist(), action=1, reward=1.0, log_prob=-1.0, version=7, flags=0)
        self._add(request.SerializeToString())


class ReferenceServer:
    """The server, in a process of its own."""

    def __init__(self, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def reference() -> Iterator[ReferenceServer]:
    """Run the server."""
    server = ReferenceServer()
    try:
        yield server
    finally:
        server.kill()


def main() -> None:
    """Be the server, or one of its clients."""
    if sys.argv[1] == "serve":
        server = grpc.server(ThreadPoolExecutor(_THREADS))
        server.add_generic_rpc_handlers((Reference(),))
        print(server.add_insecure_port(f"127.0.0.1:{sys.argv[2]}"), flush=True)
        server.start()
        sys.stdin.read()
        return
    client, obs = ReferenceClient(int(sys.argv[2])), np.zeros(8, np.float32)
    client.add(obs)
    print("ready", flush=True)
    sys.stdin.readline()
    count, end = 0, time.perf_counter() + float(sys.argv[3])
    while time.perf_counter() < end:
        client.add(obs)
        count += 1
    print(count, flush=True)


if __name__ == "__main__":
    main()
