"""A learner that counts: it publishes a version for every batch, and fails when a batch says so."""

from __future__ import annotations

import threading
from typing import Any

from gateway_support import SPEC, snapshot

from assay.core.errors import ConfigError
from assay.server.learner.messages import Consume, Outcome, Publication, Ready, Start
from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import read_spec
from assay.server.tensors import Layout, decode

POISON = -666.0  # a reward that kills the learner
GATE = threading.Event()  # the learner waits for it
GATE.set()


class TinyHost:
    """Sums the rewards that it has consumed."""

    def __init__(self) -> None:
        self.total, self.version, self.position = 0.0, 0, 0

    def handle(self, head: dict[str, Any], blobs: tuple[bytes, ...]) -> Any:
        return getattr(self, f"_{head['method']}")(head, blobs)

    def _start(self, head: dict[str, Any], blobs: tuple[bytes, ...]) -> Any:
        start = Start.from_frame(head, blobs)
        if read_spec(start.spec).settings.get("refuse"):
            raise ConfigError("refuse=true: expected a spec that can be learned.", "Leave it out.")
        self.total = float(start.checkpoint or b"0")
        self.version, self.position = start.version, start.position
        first = () if self.version else (self._publication(),)
        return Ready(self.position, first).to_frame()

    def _publication(self) -> Publication:
        self.version += 1
        state = repr(self.total).encode()
        return Publication(
            self.version,
            self.position,
            snapshot(self.version),
            state,
            self.version - 1,
            {"total": self.total},
        )

    def _consume(self, head: dict[str, Any], blobs: tuple[bytes, ...]) -> Any:
        GATE.wait(30)
        publications = []
        for position, _, payload in Consume.from_frame(head, blobs).batches:
            rewards = decode(pb.Batch.FromString(payload), Layout(SPEC)).fields["reward"]
            if POISON in rewards:
                raise ZeroDivisionError("poison")
            self.total += float(rewards.sum())
            self.position = position
            publications.append(self._publication())
        metrics = {"server/env_steps": self.position * 4.0, "train/total": self.total}
        return Outcome(self.position, self.position, tuple(publications), metrics).to_frame()

    def _checkpoint(self, head: dict[str, Any], blobs: tuple[bytes, ...]) -> Any:
        return {"publication": None}, ()
