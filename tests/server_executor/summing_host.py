"""A host that adds up what it consumes, so that what was lost or learned twice can be seen.

A batch's payload is a number in ASCII. The state is the list of the numbers consumed, in order; a
checkpoint holds it, and so does each snapshot. How it behaves is in the policy's settings, and what
may change in the meantime is in files of the folder `place`:

publish_every     batches per version
checkpoint_every  versions per checkpoint
window            batches that the "replay" holds, to be refilled after a restart
nap               seconds per batch
poison            a number that ends the process, while the file `poison` exists
venom             one that ends it at the version after it, while the file `venom` exists
deadly            every number ends the process, while the file `deadly` exists
hang              a number that it never gets past, while the file `hang` exists
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from assay.core.errors import ConfigError
from assay.server.learner.messages import Consume, Outcome, Publication, Ready, Start

Head = dict[str, Any]
Blobs = tuple[bytes, ...]


class SummingHost:
    def handle(self, head: Head, blobs: Blobs) -> tuple[Head, Blobs]:
        if head["method"] == "start":
            return self.start(Start.from_frame(head, blobs)).to_frame()
        if head["method"] == "consume":
            return self.consume(Consume.from_frame(head, blobs)).to_frame()
        publication = self.publish(checkpoint=True) if self.unpublished else None
        if publication is None:
            return {"publication": None}, ()
        inner, parts = publication.to_frame()
        return {"publication": inner}, parts

    def start(self, start: Start) -> Ready:
        settings = json.loads(start.spec)["settings"]
        if settings.get("lr", 1) < 0:
            raise ConfigError("lr=-1: expected a positive number.", "Give a larger lr.")
        if settings.get("broken"):
            raise ZeroDivisionError("a bug")
        self.place = Path(settings["place"])
        self.publish_every = settings.get("publish_every", 3)
        self.checkpoint_every = settings.get("checkpoint_every", 1)
        self.window = settings.get("window", 0)
        self.settings = settings
        begin = {"consumed": [], "position": start.position}
        state = json.loads(start.checkpoint or start.weights or json.dumps(begin))
        if start.checkpoint:
            assert state["position"] == start.position, "the checkpoint is not that of the cursor"
        self.consumed: list[int] = state["consumed"]
        self.position, self.version, self.epoch = start.position, start.version, start.epoch
        self.replayed: list[int] = []
        self.keep_after = max(0, self.position - self.window)
        self.unpublished = self.since_checkpoint = 0
        self.note("started", weights=bool(start.weights), metrics=dict(start.metrics))
        first = () if self.version else (self.publish(checkpoint=True),)
        return Ready(self.keep_after, first)

    def consume(self, message: Consume) -> Outcome:
        publications = []
        for position, _, payload in message.batches:
            number = int(payload.split()[0])
            if self.settings.get("poison") == number and (self.place / "poison").exists():
                os._exit(3)
            if (self.place / "deadly").exists():
                os._exit(3)
            if self.settings.get("hang") == number and (self.place / "hang").exists():
                threading.Event().wait()
            if message.replaying:
                assert position <= self.position, "a batch that is new is not a replay"
                self.replayed.append(number)
                continue
            assert position > self.position, "a batch came twice"
            time.sleep(self.settings.get("nap", 0.0))
            self.consumed.append(number)
            self.position = position
            self.unpublished += 1
            if self.unpublished >= self.publish_every:
                publications.append(self.publish())
        if message.replaying:
            self.note("replayed", numbers=self.replayed)
        total = {"train/sum": float(sum(self.consumed))}
        return Outcome(self.position, self.keep_after, tuple(publications), total)

    def publish(self, *, checkpoint: bool = False) -> Publication:
        if self.settings.get("venom") in self.consumed and (self.place / "venom").exists():
            os._exit(3)
        parent, self.version = self.version, self.version + 1
        self.unpublished = 0
        self.since_checkpoint += 1
        state = {"consumed": self.consumed, "position": self.position}
        kept = b""
        if checkpoint or self.since_checkpoint >= self.checkpoint_every:
            self.since_checkpoint = 0
            kept = json.dumps(state).encode()
            self.keep_after = max(0, self.position - self.window)
        snapshot = json.dumps({**state, "version": self.version}).encode()
        return Publication(self.version, self.position, snapshot, kept, parent)

    def note(self, what: str, **more: Any) -> None:
        """Leave a line for the test to read."""
        line = {"what": what, "pid": os.getpid(), "epoch": self.epoch, "at": self.position, **more}
        with open(self.place / "notes", "a") as file:
            file.write(json.dumps(line) + "\n")
