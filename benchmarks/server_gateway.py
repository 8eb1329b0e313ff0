"""How many steps a second one gateway makes durable, over gRPC, with clients in processes.

    python benchmarks/server_gateway.py --clients 4 --seconds 5

The clients use the transport of the real client (session, credits, encoding, acknowledgements) and
send batches of 1000 steps as fast as they are acknowledged. Acting is left out: it happens in the
controlled systems, of which there are many. The gateway checks, syncs and indexes every batch. It
is measured without a learner, and with one that reads every batch in a thread of the gateway.
Beside it, in the same run: a server that keeps a message per step in memory.

The store lies where the system has its temporary files (TMPDIR).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import server_paths  # noqa: F401
from served import Forge
from server_codec import experience
from server_ingest import SPEC, bare
from server_reference import reference

from assay.server.client.config import ClientConfig
from assay.server.client.grpc_transport import GrpcTransport
from assay.server.client.outbox import Segment
from assay.server.client.transport import Acknowledged, Refused
from assay.server.store.store import Store
from assay.server.tensors import Array

TARGET = 500_000
# Nothing is to be held back for a learner that is not there.
READER = "server_hosts:Reader"
SETTINGS = {"listen": "127.0.0.1:0", "backlog_steps": 10**12}


@dataclass(frozen=True, slots=True)
class Packed(Segment):
    """Steps that are packed already."""

    packed: dict[str, Array] | None = None

    def fields(self) -> dict[str, Array]:
        """Return the arrays."""
        assert self.packed is not None
        return self.packed


def client(address: str, name: str, steps: int, seconds: float) -> None:
    """Send for some time; print how many steps were acknowledged, and in how many seconds."""
    transport = GrpcTransport(ClientConfig(address=address, client=name), SPEC)
    transport.open()
    # No version was published, so a fallback has decided.
    fields = {**experience(steps).fields, "version": np.zeros(steps, np.int64)}
    item = Packed((), 0, 0, packed=fields)
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.perf_counter()
    sent = acknowledged = 0
    while time.perf_counter() < begin + seconds or acknowledged < sent:
        while transport.ready() and time.perf_counter() < begin + seconds:
            sent += 1
            transport.send(sent, item)
        for event in transport.poll(0.05):
            if isinstance(event, Refused):
                raise SystemExit(f"refused: {event}")
            if isinstance(event, Acknowledged):
                acknowledged = event.seq
    print(acknowledged * steps, time.perf_counter() - begin, flush=True)
    transport.close()


def together(commands: list[list[str]]) -> list[list[float]]:
    """Start processes, let them begin at the same time, and return the numbers they print."""
    processes = [
        subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdin is not None
            if process.stdout.readline().strip() != "ready":
                raise SystemExit("a client of the benchmark did not start")
        for process in processes:
            process.stdin.write("go\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        said = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit("a client of the benchmark failed")
        return [[float(word) for word in text.split()] for text in said]
    finally:
        for process in processes:
            process.kill()


def through_gateway(clients: int, steps: int, seconds: float, learner: str = "") -> dict[str, Any]:
    """Return the durable steps per second, after counting what is in the store."""
    with Forge(**SETTINGS) as forge:
        forge.start(learner, places=[str(Path(__file__).parent)])
        names = [f"client-{i}" for i in range(clients)]
        own = [__file__, "--client", forge.address]
        said = together([[*own, name, str(steps), str(seconds)] for name in names])
        total, took = sum(steps for steps, _ in said), max(took for _, took in said)
        forge.end()
        with Store(Path(forge.config["data"])) as store:
            stored = store.registry.totals(SPEC.name).steps
        if stored != total:
            raise SystemExit(f"{total:,.0f} steps acknowledged, {stored:,} stored")
        syncs = bare(forge.directory, 64_000, min(seconds, 2.0))
    return {"steps_per_second": total / took, "syncs_per_second": syncs}


def through_reference(clients: int, seconds: float) -> float:
    """Return how many steps a second the reference takes, one message each."""
    with reference() as server:
        program = str(Path(__file__).with_name("server_reference.py"))
        said = together([[program, "add", str(server.port), str(seconds)]] * clients)
    return sum(count for (count,) in said) / seconds


def measure(clients: int, steps: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Return both sides, taking turns."""
    rates, learned, peers, syncs = [], [], [], 0.0
    for _ in range(repeats):
        found = through_gateway(clients, steps, seconds)
        rates.append(found["steps_per_second"])
        syncs = found["syncs_per_second"]
        learned.append(through_gateway(clients, steps, seconds, READER)["steps_per_second"])
        peers.append(through_reference(clients, seconds))
    return {
        "clients": clients, "batch_steps": steps, "seconds": seconds, "assay": rates,
        "with_reader": learned, "reference": peers, "bare_syncs": syncs,
    }  # fmt: skip


def main() -> None:
    """Measure and print, or be one of the clients."""
    if sys.argv[1:2] == ["--client"]:
        address, name, steps, seconds = sys.argv[2:]
        client(address, name, int(steps), float(seconds))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000, help="in a batch")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    found = measure(options.clients, options.steps, options.seconds, options.repeats)
    for name in ("assay", "with_reader", "reference"):
        print(f"{name:12} " + ", ".join(f"{rate:,.0f}" for rate in found[name]) + " steps/s")
    print(f"the disk does {found['bare_syncs']:,.0f} writes of 64 kB with a sync a second")


if __name__ == "__main__":
    main()
