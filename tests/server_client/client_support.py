"""What the client's tests share: small models by hand, and a transport in memory with faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from assay.policies import description as arch
from assay.policies import layers, recurrent
from assay.policies.model_file import Snapshot, make_snapshot
from assay.server.client.outbox import Item
from assay.server.client.transport import Acknowledged, Event, TransportError

SEEN = spaces.Box(-10, 10, (3,), np.float32)
CHOICE = spaces.Discrete(3)
KNOB = spaces.Box(-1, 1, (2,), np.float32)


def model(
    version: int = 1,
    *,
    prefers: int = 2,
    observation: gym.Space[Any] = SEEN,
    action: gym.Space[Any] = CHOICE,
    key: str | None = None,
    memory: bool = False,
    scale: float = 0.0,
) -> Snapshot:
    """Return a model that wants one choice, or the same numbers of a Box, whatever it sees."""
    width = 3
    parts: list[Any] = []
    arrays: dict[str, Any] = {}
    if memory:
        gates = recurrent.Gates(input="gru.input", bias="gru.bias", hidden="gru.hidden")
        parts.append(recurrent.Recurrent(kind="gru", size=2, layers=(gates,)))
        arrays |= {
            "gru.input": np.full((6, 3), 0.5, np.float32),
            "gru.bias": np.zeros(6, np.float32),
            "gru.hidden": np.full((6, 2), 0.5, np.float32),
        }
        width = 2
    head: arch.Head
    if isinstance(action, spaces.Box):
        n = 2
        head = arch.Deterministic(
            noise=0.0, low=arch.finite_or_none(action.low), high=arch.finite_or_none(action.high)
        )
        bias = np.full(n, prefers, np.float32)
    else:
        n = int(action.n)
        head = arch.Categorical(n=n)
        bias = np.where(np.arange(n) == prefers, 50.0, 0.0).astype(np.float32)
    parts.append(layers.Dense(weight="w", bias="b"))
    arrays |= {"w": np.full((n, width), scale, np.float32), "b": bias}
    architecture = arch.Architecture(
        version=version,
        epoch=1,
        algorithm="test",
        observation=arch.describe_space(observation),
        action=arch.describe_space(action),
        inputs=(arch.Entry(key=key, width=3),),
        layers=tuple(parts),
        head=head,
    )
    return make_snapshot(architecture, arrays)


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class MemoryServer:
    """What a server keeps: items by number, each once, and a high-water mark."""

    def __init__(self) -> None:
        self.items: dict[int, Item] = {}
        self.duplicates = 0
        self.gaps = 0
        self.mark = 0

    def receive(self, seq: int, item: Item) -> None:
        if seq <= self.mark:
            self.duplicates += 1
        elif seq == self.mark + 1:
            self.items[seq] = item
            self.mark = seq
        else:
            self.gaps += 1


class MemoryTransport:
    """A transport to a `MemoryServer` that breaks by chance, as the seed says.

    Args:
        server: The other end.
        seed: Of the faults.
        faults: Chance of a fault at each call.
    """

    def __init__(self, server: MemoryServer, seed: int = 0, faults: float = 0.0) -> None:
        self.server = server
        self.rng = np.random.default_rng(seed)
        self.faults = faults
        self.events: list[Event] = []
        self.up = True
        self.opened = 0
        self._open = False

    def open(self) -> int:
        if not self.up:
            raise TransportError("the server is away")
        self._break("open")
        self.opened += 1
        self._open = True
        return self.server.mark

    def ready(self) -> bool:
        return True

    def send(self, seq: int, item: Item) -> None:
        assert self._open
        self._break("lost on the way")
        self.server.receive(seq, item)
        self._break("broken after it arrived")

    def poll(self, seconds: float) -> Sequence[Event]:
        self._break("poll")
        events, self.events = self.events, []
        return [*events, Acknowledged(self.server.mark)]

    def close(self) -> None:
        self._open = False

    def abort(self) -> None:
        self._open = False

    def _break(self, why: str) -> None:
        if not self.up or self.rng.random() < self.faults:
            raise TransportError(why)
