"""Where the time of a training loop goes, phase by phase, and the least it could take.

    taskset -c 1 env OMP_NUM_THREADS=1 python benchmarks/phases.py ppo dqn sac --compile

A stopwatch is put around the real components of a real run: what a phase calls counts for the
phase inside, so the parts add up to the whole. The loop runs once without the stopwatch first, to
show what the stopwatch itself costs.

The floor: the matrix products of one update, as torch counts their operations, at the best rate at
which this core multiplies matrices of the widest layer's shape, plus the environment's own time.
Activations, the optimizer, acting and sampling come on top of it: a program that learns from the
same products in float32 on this core stays above the floor.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import evidence
import report
import torch
from children import finish
from torch.utils.flop_counter import FlopCounterMode

from assay.core.errors import ConfigError, nearest
from assay.loops.config import RunConfig, resolve
from assay.loops.on_policy import OnPolicyLoop
from assay.loops.training import Training
from assay.optim.update import Step
from assay.optim.wide import has_wide_layers, wide_products
from assay.runs.directory import RunDirectory


@dataclass(frozen=True, slots=True)
class Workload:
    """A loop to look into.

    Attributes:
        algorithm: Registry name.
        env: Environment id.
        env_steps: Steps that are timed.
        warm_steps: Steps before that, for caches and compilation.
        preset: Start from the shipped preset.
        settings: Over the preset or the defaults.
    """

    algorithm: str
    env: str
    env_steps: int
    warm_steps: int
    preset: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


WORKLOADS = {
    "ppo": Workload("ppo", "CartPole-v1", 100_000, 8_192, preset=True),
    "dqn": Workload("dqn", "CartPole-v1", 20_000, 10_000),
    "sac": Workload("sac", "Pendulum-v1", 2_000, 300),
}


class Stopwatch:
    """Time by phase, without what a phase inside already counted.

    Example:
        >>> watch = Stopwatch()
        >>> inner = watch.timed("inner", lambda: None)
        >>> watch.timed("outer", inner)()
        >>> sorted(watch.calls.items())
        [('inner', 1), ('outer', 1)]
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._inside = [0.0]  # seconds of the phases within each open phase

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time added to a phase."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            began = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                took = self.now() - began
                self.seconds[phase] += took - self._inside.pop()
                self.calls[phase] += 1
                self._inside[-1] += took

        return call

    def clear(self) -> None:
        """Start again from zero."""
        self.seconds.clear()
        self.calls.clear()


@contextmanager
def instrumented(training: Training, watch: Stopwatch) -> Iterator[None]:
    """Put the stopwatch around the components of a run."""
    algorithm, loop = training.algorithm, training.loop
    places: list[tuple[Any, str, str]] = [
        (training.env, "step", "environment step"),
        (algorithm, "act", "act"),
        (algorithm, "update", "update: around the step"),
        (Step, "__call__", "update: optimizer step"),
    ]
    if isinstance(loop, OnPolicyLoop):
        places.append((loop.rollout, "write", "buffer write"))
    else:
        places.append((loop.replay, "add", "buffer write"))
        places.append((loop.replay, "sample", "buffer sample"))
    originals = [(owner, name, vars(owner).get(name)) for owner, name, _ in places]
    for owner, name, phase in places:
        # On a class the plain function that `timed` returns becomes a method again.
        setattr(owner, name, watch.timed(phase, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, original in originals:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


@contextmanager
def prepared(workload: Workload, compile: bool) -> Iterator[Training]:
    """Build a run that is ready to iterate, and take it down again."""
    # The budget is what will be run, so that schedules (exploration!) are where they would be.
    total = workload.warm_steps + 2 * workload.env_steps
    config: RunConfig = resolve(
        workload.algorithm,
        workload.env,
        {"env_steps": total, "device": "cpu", "compile": compile, "sinks": ()},
        workload.settings,
        use_preset=workload.preset,
    )
    with tempfile.TemporaryDirectory() as root:
        directory = RunDirectory.create(
            Path(root), None, algorithm=config.algorithm, env=config.env, config=config.to_dict(),
            seed=config.run.seed,
        )  # fmt: skip
        training = Training(config, directory)
        try:
            training.loop.start()
            iterate(training, workload.warm_steps)
            yield training
        finally:
            training.sinks.close()
            training.env.close()
            directory.unlock()


def iterate(training: Training, env_steps: int) -> tuple[float, int, int]:
    """Go on for so many steps; return the seconds, steps and updates that it took."""
    clock = training.clock
    steps, updates = clock.env_steps, clock.updates
    began = time.perf_counter()
    while clock.env_steps < steps + env_steps:
        training.loop.iterate()
    return time.perf_counter() - began, clock.env_steps - steps, clock.updates - updates


def flops_per_update(training: Training) -> int:
    """Return the floating-point operations of one optimizer step, counted on an eager one."""
    counted: list[int] = []
    original = Step.__call__

    def count(step: Step, *args: Any, **kwargs: Any) -> Any:
        with FlopCounterMode(display=False) as counter:
            result = original(step, *args, **kwargs)
        counted.append(counter.get_total_flops())
        return result

    Step.__call__ = count  # type: ignore[method-assign]
    try:
        while not counted:
            training.loop.iterate()
    finally:
        Step.__call__ = original  # type: ignore[method-assign]
    return counted[-1]


def matmul_rate(
    rows: int, width: int, seconds: float = 0.5, now: Callable[[], float] = time.perf_counter
) -> float:
    """Return the best rate, in operations per second, at which this core multiplies matrices.

    It is that of the faster one of torch's two libraries.
    """
    a, b, out = torch.randn(rows, width), torch.randn(width, width), torch.empty(rows, width)
    shortest = math.inf
    for other in {False, has_wide_layers([torch.nn.Linear(256, 256)])}:
        deadline = now() + seconds
        with wide_products(other):
            while (began := now()) < deadline:
                for _ in range(20):
                    torch.mm(a, b, out=out)
                shortest = min(shortest, now() - began)
    return 20 * 2 * rows * width * width / shortest


def breakdown(name: str, compile: bool) -> str:
    """Return the table of one workload."""
    workload = WORKLOADS[name]
    watch = Stopwatch()
    with prepared(workload, compile=False) as training:
        flops = flops_per_update(training)
        hp = training.algorithm.hp
        rows, width = getattr(hp, "minibatch_size", None) or hp.batch_size, max(hp.hidden)
    with prepared(workload, compile) as training:
        plain, steps, updates = iterate(training, workload.env_steps)
        with instrumented(training, watch):
            total, steps_timed, _ = iterate(training, workload.env_steps)
    watch.seconds["loop and bookkeeping"] = total - sum(watch.seconds.values())
    per_step = 1e6 / steps_timed
    lines = [
        f"**{name.upper()} {workload.env}, {'compiled' if compile else 'eager'}**: "
        f"{steps / plain:,.0f} steps/s, {updates / plain:,.0f} updates/s "
        f"({steps_timed / total:,.0f} steps/s with the stopwatch)",
        "",
        "| phase | calls | seconds | share | us per environment step |",
        "| --- | --- | --- | --- | --- |",
    ]
    for phase, seconds in sorted(watch.seconds.items(), key=lambda item: -item[1]):
        calls = f"{watch.calls[phase]:,}" if phase in watch.calls else ""
        share = f"{seconds / total:.1%}"
        lines.append(f"| {phase} | {calls} | {seconds:.3f} | {share} | {seconds * per_step:.2f} |")
    rate = matmul_rate(rows, width)
    multiply = flops * updates / steps / rate * 1e6
    environment = watch.seconds["environment step"] * per_step
    floor = multiply + environment
    lines += [
        "",
        f"Floor: {flops:,} operations per update at {rate / 1e9:.0f} GFLOP/s "
        f"([{rows}, {width}] by [{width}, {width}]) and {updates / steps:.3f} updates per step "
        f"are {multiply:.2f} us, the environment {environment:.2f} us: {1e6 / floor:,.0f} steps/s, "
        f"{1e6 / floor / (steps / plain):.1f} times what we reach.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the breakdowns that were asked for."""
    parser = argparse.ArgumentParser(description="Where the time of a training loop goes.")
    parser.add_argument("workloads", nargs="*", help=f"some of: {', '.join(WORKLOADS)}")
    parser.add_argument("--compile", action="store_true", help="with compiled optimizer steps")
    parser.add_argument("--store", action="store_true", help="keep the output as evidence")
    options = parser.parse_args(arguments)
    for name in options.workloads:
        if name not in WORKLOADS:
            raise ConfigError(f"Unknown workload '{name}'. {nearest(name, WORKLOADS)}")
    torch.set_num_threads(1)
    texts = [f"Measured on one core of {report.machine_line(evidence.machine())}."]
    for name in options.workloads or WORKLOADS:
        texts.append(breakdown(name, options.compile))
        print(texts[-1], end="\n\n", flush=True)
    if options.store:
        evidence.PHASES.write_text("\n\n".join(texts) + "\n")
    return 0


if __name__ == "__main__":
    finish(main)
