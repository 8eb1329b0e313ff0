"""How many steps a second the store makes durable, with a sync before every acknowledgement.

    python benchmarks/server_ingest.py --directory /some/place/on/a/real/disk

Clients send packed batches (8 numbers observed, 4 actions) as fast as they are acknowledged, with a
few in flight each, and the store commits in groups. Three ways are timed: the store alone; the
store after each batch was unpacked and checked, as the gateway does it; and the store without a
group, one batch and one sync at a time. A bare loop of writes and syncs of the same size in the
same directory shows what the disk has to give.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from server_codec import experience

from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import Box, Discrete, PolicySpec
from assay.server.store.group import GroupCommitter
from assay.server.store.store import Ack, Incoming, Refused, Store, iterate
from assay.server.tensors import Layout, decode, encode

TARGET = 500_000
SPEC = PolicySpec(name="ingest", observation=Box(shape=(8,)), action=Discrete(n=4), algorithm="ppo")
IN_FLIGHT = 16  # about a megabyte for each client
Send = Callable[[Incoming], Callable[[], Ack | Refused]]


def client(send: Send, name: str, epoch: int, frame: bytes, steps: int, until: float) -> int:
    """Send batches until a time, and return how many were acknowledged."""
    waiting: deque[Callable[[], Ack | Refused]] = deque()
    seq = acked = 0
    while time.perf_counter() < until or waiting:
        if time.perf_counter() < until and len(waiting) < IN_FLIGHT:
            seq += 1
            waiting.append(send(Incoming(SPEC.name, name, epoch, seq, steps, frame)))
            continue
        answer = waiting.popleft()()
        if not isinstance(answer, Ack):
            raise SystemExit(f"refused: {answer.error}")
        acked += 1
    return acked


def measure(
    directory: Path, clients: int, steps: int, seconds: float, *, checked: bool, grouped: bool
) -> tuple[float, int]:
    """Return the durable steps per second and the number of syncs."""
    layout = Layout(SPEC)
    frame = encode(experience(steps), layout).SerializeToString()
    syncs = [0]

    def sync(descriptor: int) -> None:
        os.fdatasync(descriptor)
        syncs[0] += 1

    with Store(directory, sync=sync) as store:
        store.register(SPEC)
        group = GroupCommitter(store)

        def send(batch: Incoming) -> Callable[[], Ack | Refused]:
            if checked:
                decode(pb.Batch.FromString(batch.payload), layout)
            if grouped:
                return group.submit(batch).result
            (answer,) = store.append([batch])
            return lambda: answer

        acked: list[int] = []
        begin = time.perf_counter()
        threads = []
        for number in range(clients):
            name = f"client-{number}"
            epoch = store.open_session(SPEC.name, name).epoch
            arguments = (send, name, epoch, frame, steps, begin + seconds)
            threads.append(
                threading.Thread(target=lambda a=arguments: acked.append(client(*a)))  # type: ignore[misc]
            )
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken = time.perf_counter() - begin
        group.close()
        stored = sum(one.steps for one in iterate(store, SPEC.name))
        if stored != sum(acked) * steps:
            raise SystemExit(f"{sum(acked) * steps} steps acknowledged, {stored} stored")
    return stored / taken, syncs[0]


def bare(directory: Path, size: int, seconds: float) -> float:
    """Return how often a second the disk takes a write of some size with a sync."""
    descriptor = os.open(directory / "bare", os.O_CREAT | os.O_WRONLY)
    data, count = os.urandom(size), 0
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        count += 1
    os.close(descriptor)
    return count / (time.perf_counter() - begin)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000, help="in a batch")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--directory", type=Path, help="where; a new directory inside it is used")
    options = parser.parse_args()
    frame = encode(experience(options.steps), Layout(SPEC)).SerializeToString()
    ways = {
        "store alone": {"checked": False, "grouped": True},
        "checked, then stored": {"checked": True, "grouped": True},
        "one batch, one sync": {"checked": False, "grouped": False},
    }
    print(
        f"{options.clients} clients, batches of {options.steps:,} steps ({len(frame):,} bytes), "
        f"sync before every acknowledgement; target {TARGET:,} steps/s"
    )
    print(f"{'way':22} {'steps/s':>12} {'of target':>10} {'syncs/s':>9}")
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        root = Path(temporary)
        for name, how in ways.items():
            place = root / name.replace(" ", "-")
            rate, syncs = measure(place, options.clients, options.steps, options.seconds, **how)
            print(f"{name:22} {rate:12,.0f} {rate / TARGET:10.2f} {syncs / options.seconds:9,.0f}")
        disk = bare(root, len(frame), min(options.seconds, 2.0))
        print(f"{'the disk alone':22} {disk * options.steps:12,.0f} {'':10} {disk:9,.0f}")


if __name__ == "__main__":
    main()
