"""Compile a run's optimizer steps in a process of its own while the run goes on eagerly."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping
from typing import IO

import torch

from assay.algorithms.base import Algorithm
from assay.core.types import State
from assay.loops import compile_worker
from assay.loops.config import RunConfig
from assay.optim import compile_cache
from assay.optim.compiled_step import CompiledStep
from assay.runs.checkpoint import state_to_bytes


class BackgroundCompile:
    """What knows when a step of a run can change from eager to compiled.

    Of several runs that want the same step, the first one to ask compiles it and the others wait
    for it to appear in the cache.
    """

    def __init__(self, algorithm: Algorithm, config: RunConfig, spaces: State) -> None:
        self.algorithm, self.config, self.spaces = algorithm, config, spaces
        self._worker: subprocess.Popen[bytes] | None = None
        self._tried: set[str] = set()  # names of steps that were compiled for, with or without luck

    @property
    def is_over(self) -> bool:
        """Return whether no step will ever change."""
        written_here = type(self.algorithm).__module__ == "__main__"  # no other process finds it
        return written_here or not any(step.auto for step in self.algorithm.steps.values())

    def ready(self) -> list[str]:
        """Return the steps that can be compiled from now on, and see to those that are missing."""
        if self._worker is not None:
            self._check(self._worker)
        waiting = {
            name: step
            for name, step in self.algorithm.steps.items()
            if isinstance(step, CompiledStep) and step.awaits_compiled
        }
        ready = [name for name, step in waiting.items() if step.is_cached]
        missing = {
            name: step
            for name, step in waiting.items()
            if name not in ready and name not in self._tried
        }
        if self._worker is None and missing and self.algorithm.is_worth_compiling:
            self._start(missing)
        return ready

    def close(self, *, finished: bool) -> None:
        """Leave the worker: to itself if the run is finished, so that the next run has the step."""
        if self._worker is None:
            return
        worker, self._worker = self._worker, None
        assert worker.stdin is not None and worker.stdout is not None
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            if finished:
                worker.stdin.write(compile_worker.GO_ON)
            else:
                os.killpg(worker.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            worker.stdin.close()
        worker.stdout.close()
        if not finished:
            worker.wait()

    def _check(self, worker: subprocess.Popen[bytes]) -> None:
        """Take note of a worker's end."""
        code = worker.poll()
        if code is None:
            return
        assert worker.stdin is not None and worker.stdout is not None
        reason = worker.stdout.read().decode(errors="replace").strip()
        with contextlib.suppress(OSError):
            worker.stdin.close()
        worker.stdout.close()
        self._worker = None
        if code:
            _give_up(reason.rstrip(".") or f"the compiler ended with exit code {code}")

    def _start(self, steps: Mapping[str, CompiledStep]) -> None:
        try:
            with contextlib.ExitStack() as stack:
                claim = _claim(next(iter(steps.values())).cache_name)
                if claim is None:  # another run compiles; if it dies, the claim is free again
                    return
                stack.enter_context(claim)
                self._worker = self._spawn(steps, claim)
        except OSError as error:
            _give_up(f"{error.strerror or error}")
        self._tried |= steps.keys()

    def _spawn(self, steps: Mapping[str, CompiledStep], claim: IO[str]) -> subprocess.Popen[bytes]:
        # What was imported from beside a script must be importable there, too.
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", compile_worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
            process_group=0,  # a Ctrl-C is for the run, which then ends its worker
            pass_fds=(claim.fileno(),),  # the lock lives as long as the worker
        )
        assert worker.stdin is not None
        order = state_to_bytes(self.order(steps))
        worker.stdin.write(len(order).to_bytes(compile_worker.HEADER, "big") + order)
        worker.stdin.flush()
        return worker

    def order(self, steps: Mapping[str, CompiledStep]) -> State:
        """Return what a worker needs to know to compile some steps."""
        return {
            "config": self.config.to_dict(),
            "spaces": self.spaces,
            "threads": torch.get_num_threads(),
            "steps": {name: _call(step) for name, step in steps.items()},
        }


def _call(step: CompiledStep) -> State:
    assert step.seen is not None
    inputs = [[list(shape), str(kind).removeprefix("torch.")] for shape, kind in step.seen.inputs]
    return {"names": list(step.seen.names), "inputs": inputs, "gather": step.seen.gather}


def _claim(name: str) -> IO[str] | None:
    """Return a file that is locked for compiling a step, or None if another process has it."""
    directory = compile_cache.steps_path()
    directory.mkdir(parents=True, exist_ok=True)
    file = (directory / f"{name}.claim").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _give_up(reason: str) -> None:
    warnings.warn(
        f"Optimizer steps stay eager, because compiling them in the background failed: {reason}.",
        stacklevel=2,
    )
