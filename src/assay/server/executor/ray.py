"""The back end "ray": learners as actors of a Ray cluster, which may have many machines.

Each learner is a detached actor with a name of its own. Detached: it outlives a server that is
killed, and the next one finds it by its name instead of starting a process. Named, and restarted by
Ray without limit: when its node is lost, Ray begins it again on another. What it had learned in
memory is gone then, as in any crash, so this is a `LearnerCrashed`, and the supervisor goes on from
the last checkpoint.

Every `spawn` gives the actor a new learner with a token, and a call with another token does not
reach it. So no call can meet a learner that Ray has restarted in the meantime, or that belongs to
another server by now.

Ray carries bytes alone: the frames of the other back ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import socket
import threading
import time
from typing import Any

import psutil

from assay.core.errors import MissingExtraError
from assay.server.executor.base import (
    LEARNER_HOST,
    ExecutorError,
    Handle,
    Health,
    Host,
    LearnerCrashed,
    MemoryLimit,
    answer,
    close_host,
    last_words,
    load_host,
)
from assay.server.executor.child import held, limit_memory
from assay.server.executor.frames import Blobs, Head, unpack

NAMESPACE = "assay"
_AGAIN_S = 0.1  # between two attempts to reach an actor that is on its way
_CONNECT_S = 10.0
_HEALTH_S = 1.0  # how old news of an actor may be before new ones are asked for


class LearnerActor:
    """What runs on a node of the cluster."""

    def __init__(self) -> None:
        self._bare = held()
        self._token = b""
        self._host: Host | None = None
        self._words: list[bytes] = []

    def begin(self, request: bytes) -> bytes:
        """Take the place of the learner that was here, and say where it is."""
        if self._host is not None:
            close_host(self._host)
        wanted = json.loads(request)
        limit_memory(wanted["memory_mb"], self._bare)
        self._host, self._token = None, wanted["token"].encode()
        try:
            self._host = load_host(wanted["host"])
        except Exception as error:
            self._words = last_words(error)
        context = importlib.import_module("ray").get_runtime_context()
        known = {
            "pid": os.getpid(),
            "node": context.get_node_id(),
            "restarted": bool(context.was_current_actor_reconstructed),
        }
        return json.dumps(known).encode()

    def call(self, token: bytes, message: bytes) -> bytes:
        """Answer a message; nothing, where the token is not that of this learner."""
        if token != self._token:
            return b""
        if self._host is None:
            return b"".join(self._words)
        pieces, lives = answer(self._host, *unpack(message))
        if not lives:
            self._host, self._words = None, pieces
        return b"".join(pieces)

    def close(self, token: bytes) -> bytes:
        """End the learner in good order."""
        if token == self._token and self._host is not None:
            close_host(self._host)
            self._host, self._token = None, b""
        return b""

    def rss(self, token: bytes) -> bytes:
        """Return how much memory the process holds; nothing, as `call`, for another learner."""
        return b"%d" % psutil.Process().memory_info().rss if token == self._token else b""


class RayHandle(Handle):
    """A learner on a Ray cluster."""

    def __init__(
        self,
        executor: RayExecutor,
        name: str,
        actor: Any,
        token: str,
        known: dict[str, Any],
        restarts: int,
    ) -> None:
        super().__init__(name)
        self._executor = executor
        self._ray = executor.ray
        self._actor = actor
        self._token = token.encode()  # that calls need
        self._pid = int(known["pid"])
        self._node = str(known["node"])
        self._restarts = restarts
        self._lock = threading.Lock()
        self._rss = 0
        self._asked: Any = None
        self._asked_at = 0.0

    def _exchange(self, pieces: list[bytes], timeout: float | None) -> tuple[Head, Blobs]:
        if self._end is not None:
            raise LearnerCrashed(self._end)
        message = b"".join(pieces)
        try:
            reply = self._ray.get(self._actor.call.remote(self._token, message), timeout=timeout)
        except self._ray.exceptions.GetTimeoutError:
            raise TimeoutError from None
        except self._ray.exceptions.RayError as error:
            raise self._lost(error) from None
        if not reply:
            raise self._replaced()
        return unpack(reply)

    def health(self) -> Health:
        """Say how it is, by the newest that Ray has told, without waiting for it."""
        if self._end is None:
            with self._lock:
                self._hear()
        where = f"process {self._pid} on Ray node {self._node[:8]}"
        alive = self._end is None
        return Health(
            alive, where, self._pid, self._restarts, self._rss if alive else 0, self._busy_since
        )

    def _let_end(self, timeout: float) -> None:
        if self._end is None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(self._actor.close.remote(self._token), timeout=timeout)

    def _hear(self) -> None:
        """Take in the news that were asked for, and ask for new ones."""
        if self._asked is not None:
            if not self._ray.wait([self._asked], timeout=0)[0]:
                return
            try:
                rss = self._ray.get(self._asked)
            except self._ray.exceptions.RayError as error:
                self._lost(error)
            else:
                if rss:
                    self._rss = int(rss)
                else:
                    self._replaced()
            self._asked = None
        elif time.monotonic() - self._asked_at > _HEALTH_S:
            self._asked_at = time.monotonic()
            self._asked = self._actor.rss.options(concurrency_group="health").remote(self._token)

    def _replaced(self) -> LearnerCrashed:
        """Note that Ray has begun its actor again, or that the actor has another learner."""
        self._end = self._end or f"Another learner has taken the place of '{self._name}'."
        return LearnerCrashed(self._end)

    def _lost(self, error: Exception) -> LearnerCrashed:
        if self._end is None:
            # The first line says what happened; the rest is about Ray.
            what = str(error).strip().partition("\n")[0]
            place = f"process {self._pid} on node {self._node[:8]}"
            self._end = f"Ray has lost the learner '{self._name}' ({place}): {what}"
        return LearnerCrashed(self._end)

    def _finish(self, how: str) -> None:
        """Have Ray begin the actor again; the next `spawn` finds it by its name."""
        self._note_end(how)
        if self._executor.current(self._name) is self:
            self._executor.killed[self._name] = (self._node, self._pid)
            self._ray.kill(self._actor, no_restart=False)

    def _remove(self, how: str) -> None:
        """End it for good, and its actor with it."""
        self._note_end(how)
        if self._executor.forget(self._name, self):
            self._ray.kill(self._actor)


class RayExecutor:
    """Runs each learner as an actor of a Ray cluster.

    Args:
        address: Of the cluster, as `ray.init` takes it. By default the one that Ray is connected
            to already or that the variable RAY_ADDRESS names, else one of this machine alone,
            which ends with this executor.
        namespace: Where names of actors count. Servers that share a cluster need one each.
        num_cpus: Cores that a learner reserves.
        patience: Seconds that the cluster may take to give a learner a place.

    Raises:
        MissingExtraError: Ray is not installed.
        ExecutorError: The cluster cannot be reached.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str = NAMESPACE,
        num_cpus: float = 1,
        patience: float = 60.0,
    ) -> None:
        # A server does not report on itself to third parties.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise MissingExtraError("ray", "ray", "The executor 'ray'") from None
        self.ray = ray
        self._patience = patience
        self._owns = not ray.is_initialized()
        if self._owns:
            _connect(ray, address or os.environ.get("RAY_ADDRESS"), namespace)
        self._options = {
            "namespace": namespace,
            "lifetime": "detached",
            "get_if_exists": True,
            "max_restarts": -1,
            "max_task_retries": 0,
            "num_cpus": num_cpus,
        }
        self._actor_class = ray.remote(concurrency_groups={"health": 1})(LearnerActor)
        self._lock = threading.Lock()
        self._handles: dict[str, RayHandle] = {}
        self._restarts: dict[str, int] = {}
        self.killed: dict[str, tuple[str, int]] = {}  # node and process of a name's last learner
        self._closed = False

    def spawn(
        self, name: str, *, memory_mb: MemoryLimit = None, host: str = LEARNER_HOST
    ) -> RayHandle:
        """Begin a learner: in the actor of its name, or in a new one."""
        if memory_mb == "auto":  # memory that is reserved for nothing keeps others off a node
            memory_mb = None
        if self._closed:
            raise ExecutorError("The executor was closed.")
        token = secrets.token_hex(16)
        wanted = {"host": host, "memory_mb": memory_mb or 0, "token": token}
        actor, known = self._begin(name, memory_mb, json.dumps(wanted).encode())
        with self._lock:
            self._restarts[name] = self._restarts.get(name, 0) + bool(known["restarted"])
            handle = RayHandle(self, name, actor, token, known, self._restarts[name])
            self._handles[name] = handle
        return handle

    def close(self) -> None:
        """End all learners and take no more."""
        self._closed = True
        for handle in list(self._handles.values()):
            handle.kill()
        if self._owns:
            self.ray.shutdown()

    def current(self, name: str) -> RayHandle | None:
        """Return the newest handle of a name."""
        return self._handles.get(name)

    def forget(self, name: str, handle: RayHandle) -> bool:
        """Return whether a handle is the newest of its name, which it is no longer."""
        with self._lock:
            mine = self._handles.get(name) is handle
            if mine:
                del self._handles[name]
            return mine

    def _begin(
        self, name: str, memory_mb: int | None, request: bytes
    ) -> tuple[Any, dict[str, Any]]:
        options: dict[str, Any] = {**self._options, "name": f"learner-{name}"}
        if memory_mb is not None:
            options["memory"] = memory_mb << 20
        errors = self.ray.exceptions
        now = time.monotonic()
        until, half = now + self._patience, now + self._patience / 2
        while True:
            actor = self._actor_class.options(**options).remote()
            now = time.monotonic()
            left = max(0.0, (half if now < half else until) - now)
            try:
                known = json.loads(self.ray.get(actor.begin.remote(request), timeout=left))
                if (known["node"], known["pid"]) != self.killed.get(name):
                    return actor, known
                time.sleep(_AGAIN_S)  # Ray has yet to kill it
            except errors.GetTimeoutError:
                # It waits for a node, or hangs in a call of a server that is gone.
                self.ray.kill(actor)
                if time.monotonic() < until - _AGAIN_S:
                    continue
                raise ExecutorError(
                    f"The Ray cluster has had no place for the learner '{name}' for "
                    f"{self._patience:g} seconds.",
                    "Check `ray status` for free cores and memory, or add a node.",
                ) from None
            except errors.RayError as error:
                # It is being restarted elsewhere, or its end has not got round yet.
                if time.monotonic() > until:
                    what = str(error).strip().partition("\n")[0]
                    raise ExecutorError(
                        f"Ray could not begin the learner '{name}': {what}",
                        "Check `ray status` and the logs of the cluster.",
                    ) from None
                time.sleep(_AGAIN_S)


def _connect(ray: Any, address: str | None, namespace: str) -> None:
    """Connect to a cluster, or begin one on this machine."""
    host, _, port = (address or "").rpartition(":")
    try:
        if host and port.isdecimal() and "//" not in host:
            # Ray itself would try for many minutes.
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        local = {} if address else {"include_dashboard": False}
        ray.init(address, namespace=namespace, log_to_driver=False, **local)
    except (OSError, RuntimeError, ValueError) as error:
        raise ExecutorError(
            f"The Ray cluster at '{address or 'this machine'}' cannot be reached: {error}",
            "Check the address, and that `ray start --head` runs there.",
        ) from None
