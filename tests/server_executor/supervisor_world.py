"""A store, a client and supervisors over the summing host, for the tests of the supervisor."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from executor_contract import wait_until

from assay.server.executor.base import Executor
from assay.server.learner.messages import LearnerSettings
from assay.server.spec import Box, Discrete, PolicySpec
from assay.server.store.registry import ModelVersion
from assay.server.store.store import Ack, Incoming, Store
from assay.server.supervisor import Patience, Supervisor

SUMMING = "summing_host:SummingHost"
FAST = {"first_pause": 0.01, "longest_pause": 0.05, "poll_seconds": 0.02, "trim_seconds": None}


class World:
    """Everything around supervisors."""

    def __init__(self, directory: Path, executor: Executor, **store: Any) -> None:
        self.directory = directory
        self.executor = executor
        self.store = Store(directory / "store", **store)
        self.published: list[ModelVersion] = []
        self.metrics: list[dict[str, float]] = []
        self.supervisors: list[Supervisor] = []
        self._seq: dict[str, tuple[int, int]] = {}  # epoch and number of the client's last batch
        self._fed: dict[str, int] = {}

    def spec(self, name: str = "p", **settings: Any) -> PolicySpec:
        place = self.directory / name
        place.mkdir(exist_ok=True)
        return PolicySpec(
            name=name,
            observation=Box(shape=(2,)),
            action=Discrete(n=2),
            algorithm="ppo",
            settings={"place": str(place), **settings},
        )

    def register(self, name: str = "p", **settings: Any) -> None:
        self.store.register(self.spec(name, **settings))

    def feed(self, count: int, name: str = "p", steps: int = 4, size: int = 0) -> None:
        """Commit the next numbers of a policy, a batch each."""
        if name not in self._seq:
            self._seq[name] = self.store.open_session(name, "ada").epoch, 0
        epoch, seq = self._seq[name]
        group = []
        for _ in range(count):
            seq += 1
            self._fed[name] = self._fed.get(name, 0) + 1
            payload = f"{self._fed[name]} ".encode().ljust(size)
            group.append(Incoming(name, "ada", epoch, seq, steps, payload))
        self._seq[name] = epoch, seq
        for answer in self.store.append(group):
            assert isinstance(answer, Ack), answer
        for one in self.supervisors:
            one.notify()

    def supervise(
        self, name: str = "p", *, start: bool = True, settings: Any = None, **patience: Any
    ) -> Supervisor:
        def publish(model: ModelVersion) -> None:
            self.published.append(model)

        supervisor = Supervisor(
            self.store,
            self.executor,
            name,
            settings or LearnerSettings(),
            on_published=publish,
            on_metrics=lambda metrics: self.metrics.append(dict(metrics)),
            patience=Patience(**{**FAST, **patience}),
            host=SUMMING,
        )
        self.supervisors.append(supervisor)
        if start:
            supervisor.start()
        return supervisor

    def committed(self, name: str = "p") -> list[int]:
        """Return the numbers that are in the committed state."""
        learner = self.store.registry.learner(name)
        if learner.checkpoint is None:
            return []
        state = json.loads(self.store.blobs(name).get(learner.checkpoint))
        assert state["position"] == learner.position
        consumed: list[int] = state["consumed"]
        return consumed

    def await_committed(self, count: int, name: str = "p") -> None:
        wait_until(
            lambda: len(self.committed(name)) >= count, f"{count} batches of '{name}' are committed"
        )

    def notes(self, name: str = "p") -> list[dict[str, Any]]:
        path = self.directory / name / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def assert_exactly_once(self, count: int, name: str = "p") -> None:
        """Check what the committed state and all versions have learned."""
        assert self.committed(name) == list(range(1, count + 1)), "lost or learned twice"
        models = self.store.registry.models(name, newest=10**6)
        newest = self.store.registry.learner(name).version
        assert [one.version for one in models] == list(range(newest, 0, -1))
        seen = 0
        for one in reversed(models):
            snapshot = json.loads(self.store.blobs(name).get(one.sha256))
            assert snapshot["version"] == one.version
            numbers = snapshot["consumed"]
            assert numbers == list(range(1, len(numbers) + 1)), "a version lost or doubled data"
            seen = max(seen, len(numbers))
        assert seen == count

    def damage(self, position: int, name: str = "p") -> None:
        """Flip a bit of a committed batch on the disk."""
        (row,) = self.store.registry.batches(name, position - 1, 1)
        path = self.store.directory / "policies" / name / "segments"
        with open(path / f"{row.place.segment:020d}.seg", "r+b") as file:
            file.seek(row.place.offset + row.place.size - 1)
            (old,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([old ^ 1]))

    def spoil(self, digest: str | None, name: str = "p") -> None:
        """Damage a checkpoint or a model on the disk."""
        assert digest is not None
        path = self.store.directory / "policies" / name / "blobs" / digest
        path.write_bytes(b"damaged")

    def restart(self) -> None:
        """Do what a new server does on the old directory."""
        for one in self.supervisors:
            one.stop()
        self.supervisors.clear()
        self.store.close()
        self.store = Store(self.directory / "store")

    def close(self) -> None:
        for one in self.supervisors:
            one.stop()
        self.store.close()


def await_state(supervisor: Supervisor, *states: str) -> None:
    """Wait until a supervisor is in one of some states."""
    wait_until(lambda: supervisor.status().state in states, f"it is {' or '.join(states)}")


@contextlib.contextmanager
def world(directory: Path, executor: Executor, **store: Any) -> Iterator[World]:
    """Yield a world and end it, whatever happens."""
    made = World(directory, executor, **store)
    try:
        yield made
    finally:
        made.close()
        executor.close()
