"""A live gateway: how fast a model reaches a client, and what a restart costs it.

    python benchmarks/server_live.py act        # a decision, while experience flows
    python benchmarks/server_live.py publish    # from the learner's hand to the client's decision
    python benchmarks/server_live.py restart    # decisions missed while the server is away

act: a client decides with an 8-64-64-4 network and streams what it does to a gateway. Beside it, a
client of the reference, which asks its server for every decision.

publish: a learner hands over versions of 100,444 parameters; each is committed with a sync,
announced, fetched, checked and warmed up. The time is from the moment the learner has it to the
moment that the client decides with it.

restart: a client decides a thousand times a second while its server is killed and started again,
again and again. A decision is missed if there is no answer. Beside it, a client of the reference.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Before NumPy: one thread, as in a controlled system.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import grpc
import numpy as np
import server_paths  # noqa: F401
from served import Forge, until
from server_hosts import CHOICE, HERALD_LOG, SEEN
from server_reference import ReferenceClient, ReferenceServer

from assay.server.client.connect import Connection, connect

PUBLISH_TARGET_MS = 50.0
PERIOD = 0.001  # seconds between two decisions
OBS = np.zeros(8, np.float32)
HERALD, SMALL = "server_hosts:Herald", "server_hosts:Small"


def joined(address: str, **options: Any) -> Connection:
    """Connect a real client."""
    given = {"batch_steps": 8, "batch_seconds": 60.0, "retry_seconds": 0.01, "client": "bench"}
    return connect(
        address, "bench", observation=SEEN, action=CHOICE, algorithm="ppo", safe_action=0,
        on_trouble=lambda message: None, **{**given, **options},
    )  # fmt: skip


def start(forge: Forge, learner: str = HERALD) -> None:
    """Start a gateway whose learner publishes."""
    log = forge.directory / "herald"
    environment = {HERALD_LOG: str(log)}
    forge.start(learner, environment=environment, places=[str(Path(__file__).parent)])


def act(calls: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return p50 and p99 of a decision in microseconds, ours and the reference's.

    The two take turns; of the rounds of each, the one with the median p50 counts.
    """
    found: dict[str, list[tuple[float, float]]] = {"assay": [], "reference": []}
    observations = np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32)
    for _ in range(rounds):
        found["assay"].append(_act_here(calls, observations))
        found["reference"].append(_act_remotely(calls, observations))
    return {side: sorted(times)[rounds // 2] for side, times in found.items()}


def _act_here(calls: int, observations: Any) -> tuple[float, float]:
    with Forge(listen="127.0.0.1:0") as forge:
        start(forge, SMALL)
        client = joined(forge.address, batch_steps=256)
        try:
            if not client.wait_for_model(60):
                raise SystemExit(f"no model came: {client.status()}")
            times = _timed(client.act, observations, calls, lambda: client.reward(1.0))
            status = client.status()
            if status.acting.sources != {"model": calls + calls // 10} or status.acting.errors:
                raise SystemExit(f"the model did not answer every call: {status}")
            return times
        finally:
            client.close(0.0)


def _act_remotely(calls: int, observations: Any) -> tuple[float, float]:
    server = ReferenceServer()
    try:
        remote = ReferenceClient(server.port)
        return _timed(remote.act, observations, calls, lambda: None)
    finally:
        server.kill()


def _timed(
    call: Callable[[Any], object], observations: Any, calls: int, after: Callable[[], object]
) -> tuple[float, float]:
    times = np.empty(calls)
    for i in range(-(calls // 10), calls):
        obs = observations[i % len(observations)]
        begin = time.perf_counter_ns()
        call(obs)
        times[max(i, 0)] = time.perf_counter_ns() - begin
        after()
    p50, p99 = np.percentile(times, [50, 99]) / 1e3
    return float(p50), float(p99)


def publish(times: int) -> list[float]:
    """Return the milliseconds from the learner to the swapped-in model, once for each version."""
    with Forge(listen="127.0.0.1:0") as forge:
        start(forge)
        client = joined(forge.address)
        swapped: dict[int, float] = {}
        try:
            if not client.wait_for_model(60):
                raise SystemExit(f"no model came: {client.status()}")
            for version in range(2, times + 2):
                for _ in range(9):  # a batch, whose arrival makes the learner publish
                    client.act(OBS)
                    client.reward(1.0)
                client.flush()
                end = time.monotonic() + 60
                while client.decide(OBS).version < version:
                    if time.monotonic() > end:
                        raise SystemExit(f"version {version} did not come: {client.status()}")
                    time.sleep(0.0002)
                swapped[version] = time.monotonic()
        finally:
            client.close(0.0)
        lines = (forge.directory / "herald").read_text().split("\n")[:-1]
        handed = {int(line.split()[0]): float(line.split()[1]) for line in lines}
    return [1e3 * (at - handed[version]) for version, at in swapped.items() if version in handed]


def decisions(
    decide: Callable[[], object], trouble: Callable[[], None], rounds: int, seconds: float
) -> dict[str, Any]:
    """Decide in a steady rhythm, with trouble at the beginning of each round.

    Returns:
        How many decisions there were and were missed, and p50, p99 and the most of their
        microseconds.
    """
    times: list[float] = []
    missed = 0
    for _ in range(rounds):
        worker = threading.Thread(target=trouble)
        worker.start()
        end = time.perf_counter() + seconds
        due = time.perf_counter()
        while due < end or worker.is_alive():
            due += PERIOD
            begin = time.perf_counter()
            try:
                decide()
            except grpc.RpcError:
                missed += 1
            done = time.perf_counter()
            times.append(done - begin)
            # What the rhythm asked for while one answer was awaited was not decided.
            while due + PERIOD < done:
                due += PERIOD
                missed += 1
                times.append(done - begin)
            time.sleep(max(due - done, 0.0))
        worker.join()
    p50, p99, most = np.percentile(np.array(times) * 1e6, [50, 99, 100])
    return {"decisions": len(times), "missed": missed, "us": [float(p50), float(p99), float(most)]}


def restart(rounds: int, seconds: float) -> dict[str, Any]:
    """Return what restarts cost a client of ours, and one of the reference."""
    with Forge(listen=f"127.0.0.1:{_free_port()}") as forge:
        start(forge)
        client = joined(forge.address)
        unanswered = 0

        def decide() -> None:
            nonlocal unanswered
            unanswered += client.act(OBS) not in range(4)
            client.reward(1.0)

        def again() -> None:
            forge.end()
            time.sleep(seconds / 4)
            start(forge)

        try:
            if not client.wait_for_model(60):
                raise SystemExit(f"no model came: {client.status()}")
            ours = decisions(decide, again, rounds, seconds)
            status = client.status()
            ours["late"] = ours.pop("missed")
            ours["missed"] = unanswered + sum(status.acting.errors.values())
            ours["sessions"] = status.epoch
            until(lambda: client.flush(1.0), "what was recorded meanwhile")
            ours["dropped_steps"] = client.status().acting.dropped_steps
        finally:
            client.close(0.0)
    server = [ReferenceServer()]
    remote = ReferenceClient(server[0].port)

    def reference_again() -> None:
        port = server[0].port
        server[0].kill()
        time.sleep(seconds / 4)
        server[0] = ReferenceServer(port)

    try:
        remote.act(OBS)
        theirs = decisions(lambda: remote.act(OBS), reference_again, rounds, seconds)
    finally:
        server[0].kill()
    return {"rounds": rounds, "period_ms": 1e3 * PERIOD, "assay": ours, "reference": theirs}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["act", "publish", "restart"])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args(arguments)
    if options.what == "act":
        for name, (p50, p99) in act(options.calls).items():
            print(f"{name}: p50 {p50:.1f} us, p99 {p99:.1f} us")
    elif options.what == "publish":
        p50, p99 = np.percentile(publish(options.times), [50, 99])
        print(f"publish to swapped-in: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        print(f"target: p99 {PUBLISH_TARGET_MS:g} ms")
    else:
        for name, found in restart(options.rounds, options.seconds).items():
            print(name, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
