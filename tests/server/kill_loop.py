"""Kill a writer again and again, and count what is lost or doubled.

    python kill_loop.py --kills 1000 --mode power

A child process is the gateway and a client at once: it sends numbered payloads, resumes as a client
would (the number that the server says was committed), and reports each acknowledgement through a
pipe. A second task in it learns: it reads what is new and publishes a version with its cursor.

kill     SIGKILL at a random moment: every other time right from the start, so that it hits the
         opening, else some time after the first acknowledgement
power    the child stops dead before or after a sync; what was not synced is then taken from the
         files, all of it or a part, and the database loses what it had not written through
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from assay.server.spec import Box, Discrete, PolicySpec
from assay.server.store.sqlite import DATABASE, SqliteRegistry
from assay.server.store.store import Ack, Incoming, Store, iterate

SPEC = PolicySpec(name="p", observation=Box(shape=(2,)), action=Discrete(n=2), algorithm="ppo")
SEGMENT_BYTES = 4096


class Writer:
    """The child: runs until it is killed."""

    def __init__(self, directory: Path, pipe: int, seed: int, crash_at: int | None) -> None:
        self.pipe = pipe
        self.random = random.Random(seed)
        self.crash_at = crash_at
        self.syncs = 0
        self.directory = directory

    def say(self, **what: Any) -> None:
        os.write(self.pipe, json.dumps(what).encode() + b"\n")  # short enough to be atomic

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        if self.crash_at == self.syncs:
            os._exit(9)
        os.fdatasync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.say(synced=path, size=os.fstat(descriptor).st_size)
        if self.crash_at == -self.syncs:
            os._exit(9)

    def run(self, epoch: int, base: int) -> None:
        # A short journal, so that it begins again now and then.
        place = self.directory / "registry"
        registry = SqliteRegistry(place, sync=self.sync, snapshot_after=7)
        store = Store(self.directory, registry, segment_bytes=SEGMENT_BYTES, sync=self.sync)
        store.register(SPEC)
        learner = store.registry.open_learner("p")
        self.say(learner=[learner.epoch, learner.position, learner.version])
        session = store.open_session("p", "ada", resume_epoch=epoch)
        base += session.resumed_committed
        self.say(epoch=session.epoch, base=base, repairs=store.repairs)
        seq, position = 0, learner.position
        while True:
            group = []
            for _ in range(self.random.randint(1, 4)):
                seq += 1
                payload = f"{base + seq} ".encode() * self.random.randint(1, 60)
                group.append(Incoming("p", "ada", session.epoch, seq, 1, payload))
            for answer in store.append(group):
                assert isinstance(answer, Ack), answer
                self.say(acked=answer.seq)
            if self.random.random() < 0.3:
                new = store.read("p", after=position)
                assert [int(one.payload.split()[0]) for one in new] == list(
                    range(position + 1, position + 1 + len(new))
                )
                position = new[-1].position if new else position
                version = store.publish("p", learner.epoch, position, b"%d" % position)
                self.say(version=version, position=position)


class Loop:
    """The parent: kills, and remembers what was promised."""

    def __init__(self, directory: Path, mode: str, seed: int) -> None:
        self.directory = directory
        self.mode = mode
        self.random = random.Random(seed)
        self.epoch = 0
        self.base = 0  # payloads before the first of this session
        self.acked = 0  # the highest number of a payload that was acknowledged
        self.version = self.position = self.trainer = 0
        self.cuts = 0
        self.late = False

    def once(self) -> None:
        reading, writing = os.pipe()
        seed = self.random.randrange(1 << 30)
        crash_at = self.random.choice([-1, 1]) * self.random.randint(1, 12)
        child = os.fork()
        if not child:
            os.close(reading)
            try:
                crash = crash_at if self.mode == "power" else None
                Writer(self.directory, writing, seed, crash).run(self.epoch, self.base)
            except BaseException as error:
                os.write(writing, json.dumps({"failed": repr(error)[:2000]}).encode() + b"\n")
            os._exit(1)
        os.close(writing)
        with open(reading, "rb") as pipe:
            heard = b""
            if self.mode == "kill":
                self.late = not self.late
                while self.late and b"acked" not in heard:
                    line = pipe.readline()
                    heard += line
                    if not line:
                        break
                time.sleep(self.random.random() * (0.03 if self.late else 0.1))
                os.kill(child, signal.SIGKILL)
            lines = (heard + pipe.read()).split(b"\n")[:-1]
        os.waitpid(child, 0)
        synced: dict[str, int] = {}
        for line in lines:
            self.hear(json.loads(line), synced)
        if self.mode == "power":
            self.lose_what_was_not_synced(synced)

    def hear(self, said: dict[str, Any], synced: dict[str, int]) -> None:
        if "failed" in said:
            raise AssertionError(f"the writer failed: {said['failed']}")
        if "synced" in said:
            synced[said["synced"]] = said["size"]
        elif "acked" in said:
            self.acked = self.base + said["acked"]
        elif "epoch" in said:
            assert said["epoch"] > self.epoch, "an epoch was given twice"
            assert said["base"] >= self.acked, f"lost: {self.acked} acked, {said['base']} there"
            self.epoch, self.base = said["epoch"], said["base"]
            self.cuts += bool(said["repairs"])
        elif "learner" in said:
            trainer, position, version = said["learner"]
            assert trainer > self.trainer, "a trainer's epoch was given twice"
            assert position >= self.position, "the cursor went back"
            assert version >= self.version, "a version went back"
            self.trainer, self.position, self.version = trainer, position, version
        else:
            assert said["version"] > self.version, "a version was given twice"
            self.version, self.position = said["version"], said["position"]

    def lose_what_was_not_synced(self, synced: dict[str, int]) -> None:
        for name, size in synced.items():
            path = Path(name)
            if path.exists() and path.stat().st_size > size:
                kept = self.random.choice([size, self.random.randint(size, path.stat().st_size)])
                os.truncate(path, kept)
        if self.random.random() < 0.5:
            for end in ("-wal", "-shm"):
                (self.directory / "registry" / f"{DATABASE}{end}").unlink(missing_ok=True)

    def check(self) -> int:
        """Return how many payloads there are, all of them once and in order."""
        with Store(self.directory, segment_bytes=SEGMENT_BYTES) as store:
            store.register(SPEC)
            numbers = [int(one.payload.split()[0]) for one in iterate(store, "p")]
            assert numbers == list(range(1, len(numbers) + 1)), "lost or doubled"
            assert len(numbers) >= self.acked, f"{self.acked - len(numbers)} lost"
            learner = store.registry.learner("p")
            assert learner.version >= self.version
            versions = [one.version for one in store.registry.models("p", newest=10**6)]
            assert versions == list(range(learner.version, 0, -1))
            return len(numbers)


def main() -> None:
    """Run the loop and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--mode", choices=["kill", "power"], default="kill")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        loop = Loop(Path(temporary) / "store", options.mode, options.seed)
        for _ in range(options.kills):
            loop.once()
        stored = loop.check()
    sys.stdout.write(
        f"{options.kills} kills, {loop.acked} acknowledged, {stored} stored, "
        f"{loop.version} versions, {loop.cuts} torn ends repaired, 0 lost, 0 duplicated\n"
    )


if __name__ == "__main__":
    main()
