"""How fast a batch of steps is packed and unpacked, next to a message per step.

    python benchmarks/server_codec.py --steps 1000

Both ways go from arrays to the bytes of a frame and back to arrays, for the same steps (8 numbers
observed, 4 actions). The alternative is what one would write first: a protobuf message with plain
fields for each step. It is spared the checks of content, which favours it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import Box, Discrete, PolicySpec
from assay.server.tensors import Array, Experience, Layout, decode, encode

TARGET_MS = 0.1
OURS, PEER = "one tensor per field", "a message per step"
PLAIN = {
    "obs": "TYPE_FLOAT",
    "action": "TYPE_INT64",
    "reward": "TYPE_FLOAT",
    "log_prob": "TYPE_FLOAT",
    "version": "TYPE_INT64",
    "flags": "TYPE_UINT32",
    "terminated": "TYPE_BOOL",
    "truncated": "TYPE_BOOL",
}


def experience(steps: int) -> Experience:
    """Return steps such as a lander's, with an episode end in the middle."""
    rng = np.random.default_rng(0)
    terminated = np.zeros(steps, bool)
    terminated[steps // 2] = True
    fields: dict[str, Array] = {
        "obs": rng.normal(size=(steps, 8)).astype(np.float32),
        "action": rng.integers(0, 4, steps),
        "reward": rng.normal(size=steps).astype(np.float32),
        "log_prob": -rng.random(steps).astype(np.float32),
        "version": np.full(steps, 7),
        "flags": np.zeros(steps, np.uint8),
        "terminated": terminated,
        "truncated": np.zeros(steps, bool),
        "bootstrap": rng.normal(size=(1, 8)).astype(np.float32),
    }
    return Experience(epoch=1, seq=1, fields=fields)


def packed(layout: Layout, steps: Experience, compress: bool) -> tuple[Callable[[], bytes], ...]:
    """Return how a batch is written and read as Assay does it."""
    frame = encode(steps, layout, compress=compress).SerializeToString()

    def write() -> bytes:
        return bytes(encode(steps, layout, compress=compress).SerializeToString())

    def read() -> bytes:
        decode(pb.Batch.FromString(frame), layout)
        return frame

    return write, read


def step_messages() -> Any:
    """Make the message that one would write first: plain fields, one message per step."""
    file = descriptor_pb2.FileDescriptorProto(
        name="per_step.proto", package="per_step", syntax="proto3"
    )
    step, envelope = file.message_type.add(name="Step"), file.message_type.add(name="Steps")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(PLAIN.items(), 1):
        label = kinds.LABEL_REPEATED if name == "obs" else kinds.LABEL_OPTIONAL
        step.field.add(name=name, number=number, label=label, type=getattr(kinds, kind))
    envelope.field.add(
        name="steps", number=1, label=kinds.LABEL_REPEATED, type=kinds.TYPE_MESSAGE,
        type_name=".per_step.Step",
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("per_step.Steps"))


def per_step(steps: Experience) -> tuple[Callable[[], bytes], ...]:
    """Return the same with a message per step."""
    message = step_messages()
    lists = {name: steps.fields[name].tolist() for name in PLAIN}

    def write() -> bytes:
        envelope = message()
        for values in zip(*lists.values(), strict=True):
            envelope.steps.add(**dict(zip(PLAIN, values, strict=True)))
        return bytes(envelope.SerializeToString())

    frame = write()

    def read() -> bytes:
        received = message.FromString(frame).steps
        for name in PLAIN:
            np.array([getattr(step, name) for step in received], steps.fields[name].dtype)
        return frame

    return write, read


def milliseconds(call: Callable[[], bytes], times: int) -> float:
    """Return the median time of a call."""
    call()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3


def measure(count: int, times: int) -> dict[str, tuple[int, float, float]]:
    """Return bytes, and milliseconds to write and to read, for each way."""
    spec = PolicySpec(
        name="codec", observation=Box(shape=(8,)), action=Discrete(n=4), algorithm="ppo"
    )
    layout, steps = Layout(spec), experience(count)
    ways = {
        OURS: (*packed(layout, steps, False), times),
        "the same with zstd": (*packed(layout, steps, True), times),
        PEER: (*per_step(steps), max(times // 20, 3)),
    }
    return {
        name: (len(write()), milliseconds(write, turns), milliseconds(read, turns))
        for name, (write, read, turns) in ways.items()
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--times", type=int, default=300)
    options = parser.parse_args()
    found = measure(options.steps, options.times)
    print(f"{options.steps:,} steps; target: write + read in {TARGET_MS} ms (for 1,000 steps)")
    print(f"{'way':22} {'bytes':>9} {'write ms':>9} {'read ms':>9} {'both ms':>9} {'ratio':>7}")
    first = sum(found[OURS][1:])
    for name, (size, wrote, got) in found.items():
        both = wrote + got
        print(f"{name:22} {size:9,} {wrote:9.3f} {got:9.3f} {both:9.3f} {both / first:7.1f}")


if __name__ == "__main__":
    main()
