"""What a replay of stacked frames costs in memory, by plan and (with --allocate) in truth.

    python benchmarks/memory.py                # the plan, for a million transitions
    python benchmarks/memory.py --allocate     # fill one (7.5 GB) and look at the process
    python benchmarks/memory.py --allocate --capacity 50000
    python benchmarks/memory.py --allocate --store   # ... and keep the result as evidence

A frame that two neighbouring stacks share is stored once. The filled replay gets random frames in
episodes of a thousand steps that start with a padded stack, as Atari's do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import evidence
import numpy as np
import psutil
from children import finish
from gymnasium.spaces import Box, Discrete

from assay.buffers.replay import ReplayBuffer, replay_bytes
from assay.core.types import Spaces, Transition

CAPACITY = 1_000_000
STACK, SIDE = 4, 84
EPISODE = 1_000
LIMIT = 1.1


def spaces() -> Spaces:
    """Return those of an Atari game after the usual preprocessing."""
    return Spaces(Box(0, 255, (STACK, SIDE, SIDE), np.uint8), Discrete(18))


def frame_bytes(capacity: int) -> int:
    """Return the bytes of one frame per transition."""
    return capacity * SIDE * SIDE


def planned_bytes(capacity: int) -> int:
    """Return what the replay says that it will allocate."""
    return replay_bytes(spaces(), capacity, frame_stack=STACK)


def fill(capacity: int, seed: int = 0) -> dict[str, Any]:
    """Fill a replay and return what the process grew by."""
    rng = np.random.default_rng(seed)
    process = psutil.Process()
    before = process.memory_info().rss
    replay = ReplayBuffer(spaces(), capacity, rng=rng, frame_stack=STACK)
    # Random frames from a pool: drawing each afresh would take most of the time.
    pool = rng.integers(0, 256, (509, SIDE, SIDE), np.uint8)
    none, yes = np.zeros(1, np.bool_), np.ones(1, np.bool_)
    action, reward = np.zeros(1, np.int64), np.ones(1, np.float32)
    stack = np.repeat(pool[:1], STACK, axis=0)[None]
    began = time.perf_counter()
    for step in range(capacity):
        # A stride that grows keeps neighbours different and the order unlike the pool's.
        frame = pool[(step * 31 + step // 509) % 509]
        following = np.concatenate([stack[:, 1:], frame[None, None]], axis=1)
        over = step % EPISODE == EPISODE - 1
        replay.add(Transition(stack, action, reward, following, yes if over else none, none))
        stack = np.repeat(frame[None], STACK, axis=0)[None] if over else following
    seconds = time.perf_counter() - began
    resident = process.memory_info().rss - before
    batch = replay.sample(32)
    assert batch.obs.shape == (32, STACK, SIDE, SIDE)
    return {
        "capacity": capacity,
        "stored": len(replay),
        "allocated_bytes": planned_bytes(capacity),
        "resident_bytes": int(resident),
        "fill_seconds": round(seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan, and fill a replay if asked to."""
    parser = argparse.ArgumentParser(description="What a replay of stacked frames costs.")
    parser.add_argument("--capacity", type=int, default=CAPACITY, help="transitions")
    parser.add_argument("--allocate", action="store_true", help="really fill it")
    parser.add_argument("--store", action="store_true", help="keep the result as evidence")
    options = parser.parse_args(arguments)
    frames, planned = frame_bytes(options.capacity), planned_bytes(options.capacity)
    print(f"frames, once each  {frames:>15,} bytes")
    print(f"planned            {planned:>15,} bytes  {planned / frames:.3f}x  (limit {LIMIT}x)")
    print(f"stored in full     {2 * STACK * frames:>15,} bytes  {2 * STACK:.3f}x")
    if options.allocate:
        found = fill(options.capacity)
        resident = found["resident_bytes"]
        print(f"resident           {resident:>15,} bytes  {resident / frames:.3f}x")
        print(f"filled with {found['stored']:,} transitions in {found['fill_seconds']} s")
        if options.store:
            content = {"schema": evidence.SCHEMA, **found, "machine": evidence.machine()}
            evidence.write_json(evidence.MEMORY, content)
    return 0


if __name__ == "__main__":
    finish(main)
