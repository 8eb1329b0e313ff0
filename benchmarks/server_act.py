"""Measure how fast a client decides: an 8-64-64-4 policy, in Python and in C++.

    python benchmarks/server_act.py [--calls 20000] [--cpp build/cpp]

Three ways through Python are timed: the learner's own `act` on a batch of one, the policy from a
model file, and the whole client, with its fallback chain, shield and record.
C++ is timed by its own program, `act-benchmark`, if it was built (`make cpp`). The targets are a
p50 of 20 us or less for the client in Python and a p99 of 3 us or less in C++.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# One thread: more of them only make a small product slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from gymnasium import spaces

from assay.server.client.agent import ClientAgent
from assay.server.client.policy import Policy
from assay.testing.algorithms import make_algorithm

OBSERVATION = spaces.Box(-5, 5, (8,), np.float32)
KNOBS = spaces.Box(-1, 1, (4,), np.float32)
REPLAY = {"buffer_size": 64, "learning_starts": 4, "batch_size": 4, "hidden": (64, 64)}
CASES: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    "categorical": ("ppo", spaces.Discrete(4), 0, {"horizon": 8, "minibatch_size": 8}),
    "action values": ("dqn", spaces.Discrete(4), 0, REPLAY),
    "gaussian": ("ppo", KNOBS, np.zeros(4), {"horizon": 8, "minibatch_size": 8}),
    "squashed gaussian": ("sac", KNOBS, np.zeros(4), REPLAY),
}


def main() -> None:
    """Print a table of p50 and p99 in microseconds."""
    parser = argparse.ArgumentParser(description="Measure how fast a client decides.")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--cpp", type=Path, default=Path("build/cpp"), help="The C++ build.")
    options = parser.parse_args()
    program = options.cpp / "core" / "act-benchmark"
    print("8-64-64-4, microseconds: p50 / p99")
    columns = ("learner", "policy", "whole client", "C++")
    print(f"{'head':<18}" + "".join(f"{name:>18}" for name in columns))
    for name in CASES:
        found = measure(name, options.calls, program)
        cells = [f"{found[c][0]:.2f} / {found[c][1]:.2f}" if c in found else "-" for c in columns]
        print(f"{name:<18}" + "".join(f"{cell:>18}" for cell in cells))
    if not program.exists():
        print(f"C++ was not measured: there is no {program}. Build it with `make cpp`.")
    print("targets: 20 us p50 in Python, 3 us p99 in C++")


def measure(case: str, calls: int, program: Path) -> dict[str, tuple[float, float]]:
    """Return p50 and p99 of one head, in microseconds, for each way that could be measured."""
    name, action, safe, settings = CASES[case]
    learner = make_algorithm(name, OBSERVATION, action, **settings)
    snapshot = learner.policy.snapshot(learner.spec.name, version=1)
    policy, rng = Policy(snapshot), np.random.default_rng(0)
    client = ClientAgent(OBSERVATION, action, safe)
    if not client.keeper.offer(snapshot.data, snapshot.sha256):
        raise SystemExit(client.keeper.last_rejection)
    observations = rng.standard_normal((256, 8)).astype(np.float32)
    found = {
        "learner": timed(lambda obs: learner.act(obs[None], None, True), observations, calls),
        "policy": timed(lambda obs: policy.act(obs, None, rng), observations, calls),
        "whole client": timed(client.act, observations, calls),
    }
    if client.status().sources != {"model": calls + calls // 10}:
        raise SystemExit(f"The model did not answer every call: {client.status()}")
    if program.exists():
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "model.safetensors"
            snapshot.write(path)
            command = [program, path, str(max(10 * calls, 1000))]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        figures = json.loads(done.stdout)
        found["C++"] = figures["p50_ns"] / 1e3, figures["p99_ns"] / 1e3
    return found


def timed(call: Callable[[Any], Any], observations: Any, calls: int) -> tuple[float, float]:
    """Return p50 and p99 of a call in microseconds, after a tenth of the calls to warm up."""
    for i in range(calls // 10):
        call(observations[i % len(observations)])
    times = np.empty(calls)
    for i in range(calls):
        obs = observations[i % len(observations)]
        begin = time.perf_counter_ns()
        call(obs)
        times[i] = time.perf_counter_ns() - begin
    p50, p99 = np.percentile(times, [50, 99]) / 1e3
    return float(p50), float(p99)


if __name__ == "__main__":
    main()
