"""The backend "processes": environments in worker processes, for those that are slow to step.

Observations, rewards and actions are in shared memory; a step sends each worker one byte and
receives one. A failure in a worker arrives here as an `EnvError`: an exception with its own
traceback, or the cause of the worker's death. Workers never outlive this process.

Messages other than steps are pickled, as in multiprocessing. They come from children that this
process has started itself, over a private socket.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from assay.core import errors
from assay.core.errors import AssayError, EnvError
from assay.core.types import State, Team, Tree, tree_map
from assay.envs.limits import Factory, warn_unending
from assay.envs.one_env_parameters import read_parameters
from assay.envs.spaces import ActionMap, ObservationMap
from assay.envs.sync import Step, Terms, in_order, merge_terms
from assay.envs.teams import Outcome
from assay.envs.worker import CUT_OFF, NONE_DONE, SOME_DONE, STEP, Arena

_PATIENCE_S = 5.0  # how long a worker may take to close its environments


class _Link:
    """The parent's end of a worker."""

    def __init__(self, number: int, first: int, count: int, memory: int) -> None:
        self.number = number
        self.first = first
        self.count = count
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        fds = (theirs.fileno(), lifeline, memory)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "assay.envs.worker", *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        finally:
            theirs.close()
            os.close(lifeline)
        self.pipe = Connection(ours.detach())

    @property
    def environments(self) -> str:
        last = self.first + self.count - 1
        if self.count == 1:
            return f"environment {self.first}"
        return f"environments {self.first} to {last}"

    def send_bytes(self, message: bytes) -> None:
        try:
            self.pipe.send_bytes(message)
        except OSError:
            raise self._death() from None

    def receive_bytes(self) -> bytes:
        try:
            return self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._death() from None

    def receive(self, message: bytes | None = None) -> Any:
        """Return the worker's answer, or raise the error that it reports."""
        kind, payload = pickle.loads(self.receive_bytes() if message is None else message)
        if kind == "error":
            name, text, fix = payload
            raise _rebuild(name, text, fix)
        return payload

    def _death(self) -> EnvError:
        try:
            code: int | None = self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        fix = "Run it with the backend sync to see more."
        if code is None:
            how = "closed its connection"
        elif code >= 0:
            how = f"exited with status {code}"
        else:
            how = f"was killed by signal {-code} ({_signal_name(-code)})"
            if -code == signal.SIGKILL:
                fix = "Check whether memory ran out; use fewer environments or workers."
        return EnvError(
            f"Worker process {self.number} (pid {self.process.pid}), which held "
            f"{self.environments}, died: it {how}.",
            fix,
        )

    def close(self) -> None:
        """Ask the worker to stop; `reap` waits for it."""
        with contextlib.suppress(OSError, AssayError):
            self.pipe.send_bytes(pickle.dumps(("close", ())))
        with contextlib.suppress(OSError):
            self.pipe.close()

    def reap(self) -> None:
        """Wait for the worker to end, and kill it if it does not."""
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self._lifeline)


class Processes:
    """Environments in worker processes.

    By default there is one worker per core, and never more than environments. Factories are sent to
    them by cloudpickle. For `bound` and `text` see `Group`.

    Raises:
        EnvError: A factory cannot be sent, or an environment cannot be made.
        SpaceError: A space is not supported.
    """

    always_finite = False

    def __init__(
        self,
        factories: Sequence[Factory],
        name: str,
        workers: int | None = None,
        bound: int | None = None,
        text: int = 0,
    ) -> None:
        self.num_envs = len(factories)
        self._text = text
        self.name = name
        self._bound = bound  # None once it was warned of
        self._factory = factories[0]
        self._lent: Any = None
        if workers is not None and workers < 1:
            raise EnvError(f"workers={workers}; a positive integer was expected.")
        if os.name != "posix":
            raise EnvError("The backend 'processes' needs a POSIX system.", "Use the backend sync.")
        count = min(workers or os.cpu_count() or 1, self.num_envs)
        bounds = [self.num_envs * i // count for i in range(count + 1)]
        parts = [(first, factories[first:last]) for first, last in pairwise(bounds)]
        try:
            payloads = [cloudpickle.dumps(list(part)) for _, part in parts]
        except Exception as error:
            raise EnvError(
                f"The factory of '{name}' cannot be sent to a worker process: {error}",
                "Make the environment inside the factory, and do not let it refer to open files, "
                "locks or threads.",
            ) from error
        memory = _shared_file()
        self._links: list[_Link] = []
        self._finalizer = weakref.finalize(self, _shut_down, self._links, os.getpid())
        try:
            for number, (first, part) in enumerate(parts):
                self._links.append(_Link(number, first, len(part), memory))
            jobs = zip(self._links, payloads, strict=True)
            self._agree(
                name,
                self._exchange(
                    [
                        pickle.dumps(("make", (payload, name, link.first, bound, text)))
                        for link, payload in jobs
                    ]
                ),
            )
            agents = 0 if self.team is None else self.team.size
            shape = self.observations, self.actions, self.num_envs, agents
            size = Arena(None, *shape).size
            os.ftruncate(memory, size)
            self._call("attach", size, self.num_envs)
            shared = mmap.mmap(memory, size)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(memory)
        self._arena = Arena(shared, *shape)

    def _agree(self, name: str, answers: list[Any]) -> None:
        """Take the spaces from the workers, which must all have the same."""
        observation, mask_size, action, team = answers[0]
        for link, answer in zip(self._links, answers, strict=True):
            if answer != answers[0]:
                raise EnvError(
                    f"The spaces of {link.environments} of '{name}' differ from those of "
                    f"environment 0: {answer[0]}, {answer[2]} instead of {observation}, {action}.",
                    "Make all copies with the same spaces.",
                )
        self.observations = ObservationMap(observation, mask_size, self._text)
        self.actions = ActionMap(action)
        self.team: Team | None = team

    def _call(self, command: str, *arguments: Any) -> list[Any]:
        """Send every worker the same message, and return their answers."""
        return self._exchange([pickle.dumps((command, arguments))] * len(self._open()))

    def _exchange(self, messages: list[bytes]) -> list[Any]:
        """Send each worker its message and return the answers."""
        try:
            for link, message in zip(self._open(), messages, strict=True):
                link.send_bytes(message)
            return [link.receive() for link in self._links]
        except BaseException:
            # Also on Ctrl-C: some answers may still arrive, and could not be distinguished from
            # later ones.
            self.close()
            raise

    def _open(self) -> list[_Link]:
        if not self._links:
            raise EnvError("The worker processes are closed.", "Make the environments again.")
        return self._links

    def reset(self, seed: int) -> Tree:
        """Reset all environments."""
        self._call("reset", seed)
        return tree_map(np.copy, self._arena.obs)

    def step(self, actions: NDArray[Any]) -> Step:
        """Step all environments; every returned array is new."""
        links = self._open()
        arena = self._arena
        arena.actions[...] = actions
        some_done = cut_off = False
        try:
            for link in links:
                link.send_bytes(STEP)
            for link in links:
                message = link.receive_bytes()
                if message == SOME_DONE:
                    some_done = True
                elif message == CUT_OFF:
                    some_done = cut_off = True
                elif message != NONE_DONE:
                    link.receive(message)
        except BaseException:
            self.close()  # for the same reason as in `_exchange`
            raise
        if cut_off and self._bound is not None:
            warn_unending(self.name, self._bound)
            self._bound = None
        return (
            tree_map(np.copy, arena.obs),
            arena.reward.copy(),
            arena.terminated.copy(),
            arena.truncated.copy(),
            None,
            tree_map(np.copy, arena.final) if some_done else None,
        )

    @property
    def outcome(self) -> Outcome:
        """Return what the last step did to each agent."""
        return Outcome(*(array.copy() for array in self._arena.outcome))

    @property
    def success(self) -> NDArray[np.float64]:
        """Return what the infos of the last step say."""
        return self._arena.success

    def first_env(self) -> Any:
        """Return an environment in this process, made for this purpose."""
        if self._lent is None:
            self._lent = self._factory()
            self._lent.reset(seed=0)  # some set the scale of their goals only then
        return self._lent

    def parameters(self) -> dict[str, NDArray[np.float64]]:
        """Return the parameters of all environments, each [num_envs]."""
        return self._joined(None)

    def named_parameters(self, names: list[str]) -> dict[str, NDArray[np.float64]]:
        """Return parameters by name, also such as are not listed."""
        read_parameters(self.first_env(), names)  # an error in a worker would end all of them
        return self._joined(names)

    def _joined(self, names: list[str] | None) -> dict[str, NDArray[np.float64]]:
        parts = self._call("parameters", names)
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in shared}

    def set_parameters(
        self, values: Mapping[str, NDArray[np.float64]], later: bool = False
    ) -> None:
        """Set parameters, each [num_envs], now or (`later`) at the start of next episodes."""
        rows = [slice(link.first, link.first + link.count) for link in self._open()]
        self._exchange(
            [
                pickle.dumps(
                    ("set_parameters", ({name: x[part] for name, x in values.items()}, later))
                )
                for part in rows
            ]
        )

    def get_state(self) -> State | None:
        """Return the state of all environments, or None if one cannot be saved."""
        parts = self._call("get_state")
        if any(part is None for part in parts):
            return None
        return {str(i): state for i, state in enumerate(chain(*parts))}

    def set_state(self, state: State) -> None:
        """Restore what `get_state` returned, whatever the number of workers was then."""
        states = in_order(state)
        parts = [states[link.first : link.first + link.count] for link in self._open()]
        self._exchange([pickle.dumps(("set_state", (part,))) for part in parts])

    def take_terms(self) -> Terms:
        """Return the terms of the reward since the last time."""
        found: Terms = {}
        for part in self._call("take_terms"):
            merge_terms(found, part)
        return found

    def render(self) -> Any:
        """Render the first environment."""
        return self._call("render")[0]

    def close(self) -> None:
        """Stop the workers and wait for them."""
        self._finalizer()
        if self._lent is not None:
            self._lent.close()
            self._lent = None


def _shut_down(links: list[_Link], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the owner does not stop the workers
        return
    for link in links:
        link.close()
    for link in links:
        link.reap()
    links.clear()


def _shared_file() -> int:
    """Return a file without a name, so that nothing is left behind however this process ends."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("assay-envs")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _environment() -> dict[str, str]:
    """Let a worker import what this process can, and limit it to one core."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    return {**threads, **os.environ, "PYTHONPATH": path}


def _rebuild(name: str, text: str, fix: str | None) -> AssayError:
    """Build the error that a worker reported."""
    kind = getattr(errors, name, EnvError)
    error = AssayError.__new__(kind)
    AssayError.__init__(error, text, fix)
    return error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
