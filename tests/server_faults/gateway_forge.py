"""Makes gateways quickly: everything is imported once, and each gateway is a fork of that.

    python gateway_forge.py

Reads lines from its input: `{"start": {...}, "learner": "Tally"}` forks a gateway with these
settings, which says `{"what": "ready", "pid": PID, "port": PORT, ...}` when it serves;
`{"wait": PID}` waits for its end and says "gone". Everything ends with the input. A gateway is
`run_server`, as `assay serve` runs it, but for the learner: one of `fault_hosts`, or
`module:class` with its directory among `places`, or "" for none at all. `file_limit` lets no file
of the gateway grow beyond so many bytes, as on a full disk; `hasty` acknowledges before it commits,
which the kill loop must notice.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
for _place in (HERE, HERE.parent / "server_client", HERE.parent / "server_gateway"):
    if str(_place) not in sys.path:
        sys.path.append(str(_place))

import fault_hosts  # noqa: F401, E402  (imported before the fork)

from assay.server.executor import make_executor  # noqa: E402
from assay.server.gateway import hub as gateway_hub  # noqa: E402
from assay.server.gateway import run as gateway_run  # noqa: E402
from assay.server.gateway.config import ServerConfig  # noqa: E402
from assay.server.gateway.gateway import Gateway  # noqa: E402
from assay.server.spec import PolicySpec  # noqa: E402
from assay.server.store.group import GroupCommitter  # noqa: E402
from assay.server.store.store import Ack, Incoming, Refused, Store  # noqa: E402
from assay.server.supervisor import SupervisorStatus  # noqa: E402


class Hasty(GroupCommitter):
    """Acknowledges at once, and commits a little later."""

    def submit(self, batch: Incoming) -> Future[Ack | Refused]:
        answer: Future[Ack | Refused] = Future()
        answer.set_result(Ack(batch.epoch, batch.seq, batch.seq))
        threading.Timer(0.1, super().submit, [batch]).start()
        return answer


class Absent:
    """The supervisor of a policy that nobody trains."""

    def __init__(self, store: Store, executor: Any, policy: str, *_: Any, **__: Any) -> None:
        self._policy = policy

    def validate(self, spec: PolicySpec) -> None:
        pass

    def start(self) -> None:
        pass

    notify = pause = resume = stop = start

    def drain(self, timeout: float) -> bool:
        return True

    def status(self) -> SupervisorStatus:
        return SupervisorStatus(
            policy=self._policy, state="idle", restarts=0, last_error=None, unsaved=None,
            recovered=None, skipped=0, epoch=1, position=0, committed=0, version=0, behind=0,
            behind_steps=0, keep_after=0, health=None, metrics={},
        )  # fmt: skip


class Light:
    """An executor whose learners are hosts of the tests, in threads of the gateway."""

    def __init__(self, host: str) -> None:
        self._host = host if ":" in host else f"fault_hosts:{host}"
        self._inner = make_executor("inproc")

    def spawn(self, name: str, *, memory_mb: Any = None, host: str = "") -> Any:
        return self._inner.spawn(name, host=self._host)

    def close(self) -> None:
        self._inner.close()


def say(what: str, pid: int, **more: Any) -> None:
    # Short enough to be atomic.
    os.write(1, json.dumps({"what": what, "pid": pid, **more}).encode() + b"\n")


def gateway(command: dict[str, Any]) -> None:
    """Be a gateway until a signal ends it."""
    os.environ.update(command.get("environment", {}))
    sys.path += command.get("places", [])
    learner = command.get("learner", "Tally")
    config = ServerConfig.model_validate(command["start"])
    told: list[str] = []
    if "file_limit" in command:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (command["file_limit"], hard))
    if command.get("hasty"):
        gateway_hub.GroupCommitter = Hasty  # type: ignore[misc]
    gateway_run.make_executor = lambda name: Light(learner)  # type: ignore[assignment]
    if not learner:
        real = gateway_run.Gateway

        def made(*args: Any) -> Gateway:
            return real(*args, supervise=Absent)

        gateway_run.Gateway = made  # type: ignore[assignment, misc]

    def ready(served: Gateway) -> None:
        say(
            "ready", os.getpid(),
            port=served.port, metrics=served.metrics_port, repairs=[one[:500] for one in told[:4]],
        )  # fmt: skip

    complete = gateway_run.run_server(config, told.append, ready)
    os._exit(0 if complete else 1)


def main() -> None:
    children: set[int] = set()
    try:
        for line in sys.stdin:
            command = json.loads(line)
            if "wait" in command:
                _, status = os.waitpid(command["wait"], 0)
                children.discard(command["wait"])
                say("gone", command["wait"], status=status)
                continue
            child = os.fork()
            if not child:
                os.close(0)
                os.open(os.devnull, os.O_RDONLY)
                os.dup2(os.open(command["log"], os.O_WRONLY | os.O_APPEND), 2)
                try:
                    gateway(command)
                except BaseException as error:
                    say("failed", os.getpid(), error=repr(error)[:2000])
                os._exit(1)
            children.add(child)
            say("forked", child)
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
