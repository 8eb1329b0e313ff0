"""Real clients that number what they do, and what the store then has of it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from gateway_support import SPEC

from assay.server.client.connect import Connection, connect
from assay.server.protocol import assay_pb2 as pb
from assay.server.store.store import Store, iterate
from assay.server.tensors import Layout, decode

PAUSE = 0.003  # seconds between two decisions of a client
LARGEST = 1 << 24  # numbers up to here are exact in a float32 reward


class Player:
    """A client that decides all the time, and whose rewards are numbers from 0."""

    def __init__(self, address: str, name: str, **options: Any) -> None:
        given: dict[str, Any] = {
            "spec": SPEC,
            "client": name,
            "safe_action": 1,
            "batch_steps": 4,
            "buffer_steps": 1_000_000,
            "retry_seconds": 0.002,  # a pause grows to a hundred times that
            "call_seconds": 5.0,
            "on_trouble": lambda message: None,
        }
        self.name = name
        self.connection: Connection = connect(address, **{**given, **options})
        self.steps = 0
        self.wrong = 0  # answers that are not actions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def start(self) -> Player:
        self._thread.start()
        return self

    def play(self, steps: int) -> None:
        """Decide some times in this thread."""
        for _ in range(steps):
            action = self.connection.act(np.full(3, self.steps % 5, np.float32))
            self.wrong += action not in (0, 1, 2)
            self.connection.reward(float(self.steps))
            self.steps += 1

    def _play(self) -> None:
        while not self._stop.is_set() and self.steps < LARGEST:
            self.play(1)
            time.sleep(PAUSE)

    @property
    def acknowledged(self) -> int:
        return self.connection.status().acknowledged_steps

    def finish(self, seconds: float = 60.0) -> bool:
        """Stop deciding, and return whether the server has everything within a time."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        # The last step is complete once its episode has ended.
        self.connection.end(truncated=True, final_obs=np.zeros(3, np.float32))
        return self.connection.flush(seconds)


def stored_numbers(store: Store, policy: str = SPEC.name) -> dict[str, list[int]]:
    """Return the numbers of the stored steps, by client and in the order of the log."""
    layout = Layout(store.registry.policy(policy).spec)
    found: dict[str, list[int]] = {}
    for one in iterate(store, policy):
        rewards = decode(pb.Batch.FromString(one.payload), layout).fields["reward"]
        found.setdefault(one.client, []).extend(int(value) for value in rewards)
    return found


def numbers_in(data: str | Path) -> dict[str, list[int]]:
    """Return the same for a directory that no server has open."""
    with Store(Path(data)) as store:
        return stored_numbers(store)
