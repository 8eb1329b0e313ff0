"""Learners without torch, for tests in which the learner is not the matter."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from client_support import model
from gymnasium import spaces

from assay.server.learner.messages import CONSUME, START, Consume, Outcome, Publication, Ready

SEEN = spaces.Box(-np.inf, np.inf, (3,), np.float32)  # of `gateway_support.SPEC`
GATE = "ASSAY_FAULT_GATE"  # path of a file without which `Gated` does not go on


class Tally:
    """Counts what it is given. Its checkpoint tells what it has seen, and in which order.

    A batch that is learned twice, or never, or out of order, gives another checksum.
    """

    every = 8  # batches in a version

    def handle(self, head: Mapping[str, Any], blobs: Sequence[bytes]) -> tuple[Any, Any]:
        method = head["method"]
        if method == START:
            self.version, self.position = head["version"], head["position"]
            self.state = json.loads(blobs[0]) if blobs[0] else {"batches": 0, "crc": 0}
            first = () if self.version else (self._publish(),)
            return Ready(self.position, first).to_frame()
        if method == CONSUME:
            return self.consume(Consume.from_frame(head, blobs)).to_frame()
        publication, blobs = self._publish().to_frame()
        return {"publication": publication}, blobs

    def consume(self, given: Consume) -> Outcome:
        made = []
        for position, _, payload in given.batches:
            self.state = tally(self.state, [(position, payload)])
            self.position = position
            if self.state["batches"] % self.every == 0:
                made.append(self._publish())
        return Outcome(self.position, self.position, tuple(made), {"batches": 1.0})

    def _publish(self) -> Publication:
        self.version += 1
        data = weights(self.version)
        checkpoint = json.dumps(self.state).encode()
        return Publication(self.version, self.position, data, checkpoint, self.version - 1)


class Gated(Tally):
    """Stops in the middle until a file appears."""

    def consume(self, given: Consume) -> Outcome:
        gate = Path(os.environ[GATE])
        while not gate.exists():
            time.sleep(0.01)
        return super().consume(given)


def tally(state: dict[str, int], batches: Iterable[tuple[int, bytes]]) -> dict[str, int]:
    """Return the state of a `Tally` that has seen some more batches."""
    for position, payload in batches:
        crc = zlib.crc32(payload, zlib.crc32(str(position).encode(), state["crc"]))
        state = {"batches": state["batches"] + 1, "crc": crc}
    return state


def weights(version: int, prefers: int = 2) -> bytes:
    """Return a model file for `gateway_support.SPEC` that wants one of the three choices."""
    return model(version, prefers=prefers, observation=SEEN).data
