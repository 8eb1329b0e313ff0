"""The main loop of a worker process of the backend "processes".

A worker is a plain interpreter that gets everything over a socket, so it neither imports the
user's main module again (as multiprocessing's "spawn" does) nor inherits threads and locks (as
"fork" does). It ends when its parent does: the socket breaks, and a thread watches a pipe that only
the parent holds open, in case an environment is busy at that time.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import AssayError
from assay.core.types import Tree, tree_map
from assay.envs.spaces import ActionMap, ObservationMap
from assay.envs.sync import Group

STEP = b"s"
NONE_DONE = b"0"
SOME_DONE = b"1"
CUT_OFF = b"2"  # some are done, and the bound has ended an episode
_ALIGNMENT = 64  # a cache line, so that two workers never write to the same one


class Arena:
    """The arrays of all environments, in memory that parent and workers share.

    Both sides compute the same layout, so only the file is passed on.

    Without `memory` it only finds out how large that has to be.
    """

    def __init__(
        self,
        memory: mmap.mmap | None,
        observations: ObservationMap,
        actions: ActionMap,
        num_envs: int,
        agents: int = 0,
    ) -> None:
        self.size = 0

        def array(shape: tuple[int, ...], dtype: Any) -> Any:
            dtype = np.dtype(dtype)
            count = num_envs * int(np.prod(shape))
            start = self.size
            self.size += -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
            if memory is None:
                return None
            flat = np.frombuffer(memory, dtype, count, start)
            return flat.reshape(num_envs, *shape)

        self.obs: Tree = observations.build(array)
        self.final: Tree = observations.build(array)
        self.reward = array((), np.float64)
        self.terminated = array((), np.bool_)
        self.truncated = array((), np.bool_)
        self.success = array((), np.float64)
        kinds = (np.float32, np.bool_, np.bool_) if agents else ()
        self.outcome = tuple(array((agents,), kind) for kind in kinds)
        space = actions.source
        self.actions: NDArray[Any] = array(space.shape or (), space.dtype)
        self.size = max(self.size, 1)


def main() -> None:
    """Serve a parent until it goes away. Arguments: the socket, the lifeline, the memory."""
    socket, lifeline, memory = map(int, sys.argv[1:4])
    # Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    worker = _Worker(Connection(socket), memory)
    try:
        worker.serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        worker.close()


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)  # returns when the parent is gone: nothing is ever written
    os._exit(1)


class _Worker:
    def __init__(self, pipe: Connection, memory: int) -> None:
        self.pipe = pipe
        self.memory = memory
        self.group: Group | None = None

    def serve(self) -> None:
        while True:
            message = self.pipe.recv_bytes()
            try:
                if message == STEP:
                    self.pipe.send_bytes(self.step())
                    continue
                command, arguments = pickle.loads(message)
                if command == "close":
                    return
                # What a worker does not do itself, its environments do.
                asked = getattr(self, command, None) or getattr(self._made(), command)
                self.pipe.send(("ok", asked(*arguments)))
            except AssayError as error:
                self.pipe.send(("error", (type(error).__name__, error.message, error.fix)))

    def make(
        self, factories: bytes, name: str, first: int, bound: int | None, text: int
    ) -> tuple[Any, Any, Any, Any]:
        group = Group(pickle.loads(factories), name, first, bound, text)
        self.group = group
        observations = group.observations
        return observations.source, observations.mask_size, group.actions.source, group.team

    def attach(self, size: int, num_envs: int) -> None:
        group = self._made()
        memory, agents = mmap.mmap(self.memory, size), group.team.size if group.team else 0
        shared = Arena(memory, group.observations, group.actions, num_envs, agents)
        rows = slice(group.first, group.first + len(group.envs))
        self.obs = tree_map(lambda array: array[rows], shared.obs)
        self.final = tree_map(lambda array: array[rows], shared.final)
        self.actions = shared.actions[rows]
        self.out = shared.reward[rows], shared.terminated[rows], shared.truncated[rows]
        self.outcome = [array[rows] for array in shared.outcome]
        group.success = shared.success[rows]
        group.success.fill(np.nan)

    def reset(self, seed: int) -> None:
        self._made().reset(seed, self.obs)

    def step(self) -> bytes:
        # A copy, so that an environment cannot keep or change the shared array.
        group = self._made()
        done = group.step(self.actions.copy(), self.obs, *self.out, self.final)
        if self.outcome:
            for shared, own in zip(self.outcome, group.outcome(), strict=True):
                shared[:] = own
        if done is None:
            return NONE_DONE
        return CUT_OFF if group.cut_off else SOME_DONE

    def _made(self) -> Group:
        assert self.group is not None, "make() comes first"
        return self.group

    def close(self) -> None:
        if self.group is not None:
            self.group.close()


if __name__ == "__main__":
    main()
