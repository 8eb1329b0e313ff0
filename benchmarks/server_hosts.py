"""Learners without torch for the benchmarks of the server: they read, or publish."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from assay.policies import description as arch
from assay.policies import layers
from assay.policies.model_file import make_snapshot
from assay.server.learner.messages import CONSUME, START, Consume, Outcome, Publication, Ready

SEEN = spaces.Box(-np.inf, np.inf, (8,), np.float32)
CHOICE = spaces.Discrete(4)
HERALD_LOG = "ASSAY_BENCH_HERALD"  # path of the file where `Herald` notes when it published
_WIDTH = 310  # 8-310-310-4 has 100,444 parameters


class Reader:
    """Takes everything that it is given, and does nothing with it."""

    def handle(self, head: Mapping[str, Any], blobs: Sequence[bytes]) -> tuple[Any, Any]:
        """Answer a supervisor."""
        if head["method"] == START:
            return Ready(head["position"]).to_frame()
        if head["method"] == CONSUME:
            last = Consume.from_frame(head, blobs).batches[-1][0]
            return Outcome(last, last).to_frame()
        return {"publication": None}, ()


class Small(Reader):
    """Publishes one model, 8-64-64-4, and reads from then on."""

    def handle(self, head: Mapping[str, Any], blobs: Sequence[bytes]) -> tuple[Any, Any]:
        """Answer a supervisor."""
        if head["method"] == START and not head["version"]:
            first = Publication(1, head["position"], made_model(1, 64), b"state")
            return Ready(head["position"], (first,)).to_frame()
        return super().handle(head, blobs)


class Herald:
    """Publishes a model of 100,000 parameters for each call, and notes when it handed it over."""

    def handle(self, head: Mapping[str, Any], blobs: Sequence[bytes]) -> tuple[Any, Any]:
        """Answer a supervisor."""
        if head["method"] == START:
            self.version, self.position = head["version"], head["position"]
            first = () if self.version else (self._publish(),)
            return Ready(self.position, first).to_frame()
        if head["method"] == CONSUME:
            self.position = Consume.from_frame(head, blobs).batches[-1][0]
            made = self._publish()
            with open(os.environ[HERALD_LOG], "a") as file:
                file.write(f"{self.version} {time.monotonic()!r}\n")
            return Outcome(self.position, self.position, (made,)).to_frame()
        return {"publication": None}, ()

    def _publish(self) -> Publication:
        self.version += 1
        data = made_model(self.version, _WIDTH)
        return Publication(self.version, self.position, data, b"state", self.version - 1)


def made_model(version: int, width: int) -> bytes:
    """Return a model file with two hidden layers, with other weights for each version."""
    rng = np.random.default_rng(version)
    widths = (SEEN.shape[0], width, width, int(CHOICE.n))
    arrays, parts = {}, []
    for i in range(3):
        arrays[f"w{i}"] = rng.normal(size=(widths[i + 1], widths[i])).astype(np.float32) / 20
        arrays[f"b{i}"] = np.zeros(widths[i + 1], np.float32)
        activation = "tanh" if i < 2 else None
        parts.append(layers.Dense(weight=f"w{i}", bias=f"b{i}", activation=activation))
    architecture = arch.Architecture(
        version=version,
        epoch=1,
        algorithm="benchmark",
        observation=arch.describe_space(SEEN),
        action=arch.describe_space(CHOICE),
        inputs=(arch.Entry(key=None, width=widths[0]),),
        layers=tuple(parts),
        head=arch.Categorical(n=widths[-1]),
    )
    return make_snapshot(architecture, arrays).data
