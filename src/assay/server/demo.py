"""`assay serve demo`: a server, live clients that learn through it, and a trainer that is killed.

The server, its learners and the clients are processes of their own, as in real use; this one only
watches them. Everything that it shows comes from the clients' own reports and from `Admin`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError
from assay.server.admin_client import AdminClient, ServerAwayError, policy_facts

_START_SECONDS = 120.0
RESUME_SECONDS = 90.0  # the longest that the end waits for a trainer that was killed
_END_SECONDS = 30.0
_CPP_RATE = 1000  # decisions of the C++ client in a second
_RECENT = 20  # episodes of a client that its mean is of


class DemoError(AssayError):
    """The demonstration could not be given."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the demo runs."""

    env: str  # id of the environment that the Python clients play
    policy: str  # its policy's name
    algorithm: str  # what learns it
    settings: dict[str, Any]  # of the algorithm
    clients: int  # how many Python clients there are
    rate: float  # decisions of each in a second
    seconds: float  # how long they play


def make_plan(*, seconds: float | None = None, quick: bool = False) -> Plan:
    """Return what to run here: LunarLander where it is installed, else the pole."""
    if quick or find_spec("Box2D") is None:
        settings = {"preset": "CartPole-v1", "env_steps": 40_000}
        clients, default = (2, 8.0) if quick else (4, 60.0)
        return Plan("CartPole-v1", "pole", "ppo", settings, clients, 800.0, seconds or default)
    # Shorter rollouts than the preset's, for a minute is short; a rate that a trainer which shares
    # two cores with everything else can follow.
    settings = {
        "preset": "LunarLander-v3", "num_envs": 4, "horizon": 512, "minibatch_size": 256,
        "epochs": 6, "lr": 1e-3,
    }  # fmt: skip
    return Plan("LunarLander-v3", "lander", "ppo", settings, 4, 450.0, seconds or 60.0)


@dataclass(slots=True)
class ClientView:
    """What is known about a client."""

    name: str  # its id
    latest: dict[str, Any] = field(default_factory=dict)  # its last report
    # Of its last episodes.
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    @property
    def mean(self) -> float | None:
        """Return the mean of its last episodes."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    def take(self, report: dict[str, Any]) -> list[float]:
        """Take in a report; return the episodes that ended in it."""
        self.latest = report
        ended: list[float] = report.get("returns", [])
        self.returns.extend(ended)
        return ended


@dataclass(slots=True)
class Summary:
    """What the demo has shown."""

    seconds: float = 0.0  # how long clients played
    decisions: int = 0  # that clients made
    fallbacks: int = 0  # how many of them no model of the server made
    acknowledged: int = 0  # steps that the server has for good
    lost: int = 0  # steps that were dropped or refused
    episodes: int = 0  # that ended
    first: float | None = None  # mean return of the first tenth of them
    last: float | None = None  # mean return of the last tenth
    versions: int = 0  # that were published
    act_p50: float | None = None  # median time of act() of the median client, in seconds
    killed: int | None = None  # process of the trainer that was killed, or None
    resumed_after: float | None = None  # seconds until a version of the next trainer, or None
    # What the C++ example said of its rule and of what was learned.
    program: list[str] = field(default_factory=list)
    drained: bool = False  # whether the server ended in order


class Demo:
    """A server and its clients, while they run. Use it with `with`.

    The program is the C++ example that runs a queue, if there is one; it has a policy of its own.
    """

    def __init__(self, plan: Plan, data: Path, program: Path | None = None) -> None:
        self.plan, self._data = plan, data
        self.address = ""
        self.clients = [ClientView(f"client-{n}") for n in range(1, plan.clients + 1)]
        self.facts: list[dict[str, Any]] = []  # of all policies, as `policy_facts` has them
        self.program_lines: list[str] = []  # what the program has said
        self._program = program
        self._reports: queue.SimpleQueue[tuple[ClientView, dict[str, Any]]] = queue.SimpleQueue()
        self._running: list[tuple[str, subprocess.Popen[str]]] = []
        self._readers: list[threading.Thread] = []
        self._server: subprocess.Popen[str] | None = None
        self._admin: AdminClient | None = None
        self._returns: list[float] = []
        self._summary = Summary()
        self._killed_at = 0.0
        self._killed_version = 0

    def __enter__(self) -> Demo:
        try:
            self._start_server()
            self._start_clients()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for _name, process in self._running:
            _kill(process)
        if self._admin is not None:
            self._admin.close()
        if self._server is not None:
            self._server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(_END_SECONDS)
            _kill(self._server)

    # Beginning

    def _start_server(self) -> None:
        command = ("serve", "--data", str(self._data), "--listen", "127.0.0.1:0", "--quiet")
        self._server = _start([sys.executable, "-m", "assay", *command], stderr=self._log("server"))
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line.startswith("Listening on "):
            raise DemoError(f"The server did not start: {self._said('server')}")
        self.address = line.split()[-1]
        self._admin = AdminClient.open({"address": self.address})

    def _start_clients(self) -> None:
        plan = self.plan
        for number, view in enumerate(self.clients):
            given = {
                "address": self.address,
                "policy": plan.policy,
                "client": view.name,
                "env": plan.env,
                "algorithm": plan.algorithm,
                "settings": plan.settings,
                "rate": plan.rate,
                "seed": number,
            }
            command = [sys.executable, "-m", "assay.server.demo_client", json.dumps(given)]
            process = _start(command, stderr=self._log(view.name))
            self._running.append((view.name, process))
            self._read(process, lambda line, view=view: self._reports.put((view, json.loads(line))))
        if self._program is not None:
            command = [str(self._program), "--address", self.address, "--rate", str(_CPP_RATE)]
            command += ["--steps", str(int(plan.seconds * _CPP_RATE)), "--client", "cpp-client"]
            command += ["--models", str(self._data / "cpp-client")]
            process = _start(command, stderr=self._log("cpp-client"))
            self._running.append(("cpp-client", process))
            self._read(process, self.program_lines.append)

    def _read(self, process: subprocess.Popen[str], take: Any) -> None:
        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    take(line.strip())

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self._readers.append(thread)

    def _log(self, name: str) -> Path:
        self._data.mkdir(parents=True, exist_ok=True)
        return self._data / f"{name}.log"

    def _said(self, name: str) -> str:
        with contextlib.suppress(OSError):
            lines = (self._data / f"{name}.log").read_text(errors="replace").strip().splitlines()
            if lines:
                return lines[-1]
        return "it said nothing."

    # Watching

    def wait_for_models(self) -> None:
        """Wait until every client acts with a model.

        Raises:
            DemoError: It takes too long, or something has died.
        """
        end = time.monotonic() + _START_SECONDS
        while not all(view.latest.get("version") for view in self.clients):
            if time.monotonic() > end:
                raise DemoError(
                    f"No model came within {_START_SECONDS:g} seconds: {self._said('server')}"
                )
            self.look(0.25)
        self._returns.clear()

    def look(self, seconds: float) -> None:
        """Take in what clients report for a while, then ask the server how it is.

        Raises:
            DemoError: The server or a client has died.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                view, report = self._reports.get(timeout=left)
                self._returns += view.take(report)
        assert self._server is not None and self._admin is not None
        if self._server.poll() is not None:
            raise DemoError(f"The server has ended: {self._said('server')}")
        for name, process in self._running:
            if process.poll() not in (None, 0):
                raise DemoError(f"{name} has ended: {self._said(name)}")
        try:
            self.facts = [policy_facts(info) for info in self._admin.policies()]
        except ServerAwayError as error:
            raise DemoError(error.message) from None
        for one in self.facts:
            if one["state"] == "failed":
                why = one["learner"]["last_error"]
                raise DemoError(f"The trainer of '{one['policy']}' has failed: {why}")

    def policy(self) -> dict[str, Any]:
        """Return what the server says about the Python clients' policy."""
        return next((one for one in self.facts if one["policy"] == self.plan.policy), {})

    def kill_trainer(self) -> int | None:
        """Kill the policy's learner with SIGKILL; return its process, or None while it has none."""
        facts = self.policy()
        pid = facts.get("learner", {}).get("pid")
        if not pid:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._killed_at, self._killed_version = time.monotonic(), facts["newest_version"]
        self._summary.killed = pid
        return int(pid)

    def resumed(self) -> float | None:
        """Return how long it took until the next trainer published, or None before that."""
        facts, summary = self.policy(), self._summary
        if summary.killed is not None and summary.resumed_after is None:
            again = facts["learner"]["restarts"] and facts["learner"]["pid"] != summary.killed
            if again and facts["newest_version"] > self._killed_version:
                summary.resumed_after = time.monotonic() - self._killed_at
        return summary.resumed_after

    # Ending

    def finish(self, seconds: float) -> Summary:
        """Stop the clients and drain the server; return what was shown."""
        for _, process in self._running:
            if process.stdin is not None:
                process.stdin.close()
        for _, process in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            _kill(process)
        for thread in self._readers:
            thread.join(_END_SECONDS)
        while not self._reports.empty():
            view, report = self._reports.get()
            self._returns += view.take(report)
        assert self._admin is not None and self._server is not None
        self.facts = [policy_facts(info) for info in self._admin.policies()]
        drained = self._admin.drain(_END_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            drained = self._server.wait(_END_SECONDS) == 0 and drained
        return self._summed(seconds, drained)

    def _summed(self, seconds: float, drained: bool) -> Summary:
        summary, reports = self._summary, [view.latest for view in self.clients]
        summary.seconds, summary.drained = seconds, drained
        for report in reports:
            summary.decisions += report.get("decisions", 0)
            summary.fallbacks += report.get("decisions", 0) - report.get("by_model", 0)
            summary.acknowledged += report.get("acknowledged", 0)
            summary.lost += report.get("lost", 0)
        tenth = max(1, len(self._returns) // 10)
        summary.episodes = len(self._returns)
        if self._returns:
            summary.first = sum(self._returns[:tenth]) / tenth
            summary.last = sum(self._returns[-tenth:]) / tenth
        latencies = sorted(one["act_p50"] for one in reports if one.get("act_p50"))
        summary.act_p50 = latencies[len(latencies) // 2] if latencies else None
        summary.versions = self.policy().get("newest_version", 0)
        said = ("heuristic:", "learned:", "No model")
        summary.program = [line for line in self.program_lines if line.startswith(said)]
        return summary


def _start(command: list[str], *, stderr: Path) -> subprocess.Popen[str]:
    with stderr.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # Ctrl-C is for this process, which ends the others in order.
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


@contextlib.contextmanager
def data_directory(given: Path | None) -> Iterator[Path]:
    """Give a directory for the server: the one that was asked for, or one that is removed again."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="assay-demo-", ignore_cleanup_errors=True) as made:
        yield Path(made)
