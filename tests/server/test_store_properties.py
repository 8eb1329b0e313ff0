"""Sent, repeated, reordered, cut off or opened again: acknowledged means there, and once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from server_samples import SPECS

from assay.server.errors import Reason
from assay.server.store.sqlite import DATABASE
from assay.server.store.store import Ack, Incoming, Refused, Store, iterate

POLICIES = ("vector", "nested")
CLIENTS = ("ada", "bob")
Key = tuple[str, int, int]  # client, epoch, seq


class StoreMachine(RuleBasedStateMachine):
    """Compares the store with a list of what it acknowledged."""

    @initialize(segment_bytes=st.sampled_from([100, 500, 1 << 20]))
    def begin(self, segment_bytes: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.segment_bytes = segment_bytes
        self.committed: dict[str, list[Key]] = {policy: [] for policy in POLICIES}
        self.epochs: dict[tuple[str, str], int] = {}
        self.next: dict[tuple[str, str], int] = {}
        self.failures = 0
        self.store = self.open()
        for policy in POLICIES:
            self.store.register(SPECS[policy])
            for client in CLIENTS:
                self.open_session(policy, client, None)

    def open(self) -> Store:
        # Syncing is for power cuts, which the kill loop plays; here it would only take time.
        return Store(self.directory, segment_bytes=self.segment_bytes, sync=self.sync)

    def sync(self, descriptor: int) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(5, "Input/output error")

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)

    @rule(policy=st.sampled_from(POLICIES), client=st.sampled_from(CLIENTS), resume=st.none())
    def open_session(self, policy: str, client: str, resume: None) -> None:
        key = policy, client
        before = self.epochs.get(key, 0)
        session = self.store.open_session(policy, client, resume_epoch=before)
        assert session.epoch > before
        assert session.resumed_committed == self.mark(policy, client, before)
        self.epochs[key], self.next[key] = session.epoch, 1

    def mark(self, policy: str, client: str, epoch: int) -> int:
        sent = [seq for who, when, seq in self.committed[policy] if (who, when) == (client, epoch)]
        return max(sent, default=0)

    def batch(self, policy: str, client: str, epoch: int, seq: int, dropped: int = 0) -> Incoming:
        payload = f"{client} {epoch} {seq}".encode() * (1 + seq % 5)
        return Incoming(policy, client, epoch, seq, 1 + seq % 3, payload, dropped)

    @rule(
        sends=st.lists(
            st.tuples(
                st.sampled_from(POLICIES),
                st.sampled_from(CLIENTS),
                st.integers(-3, 3),  # where it lies relative to the number that is due
                st.integers(0, 2),  # dropped
                st.sampled_from([0, 0, 0, 0, -1, 1]),  # of another session
            ),
            max_size=6,
        ),
        failures=st.sampled_from([0, 0, 0, 1]),
    )
    def append(self, sends: list[tuple[str, str, int, int, int]], failures: int) -> None:
        due = dict(self.next)
        batches, expected = [], []
        for policy, client, off, dropped, session in sends:
            key = policy, client
            epoch, seq = self.epochs[key] + session, max(1, due[key] + off)
            batches.append(self.batch(policy, client, epoch, seq, dropped))
            if session:
                expected.append(Reason.FENCED if session < 0 else Reason.UNKNOWN_SESSION)
            elif seq < due[key]:
                expected.append("duplicate")
            elif seq - dropped != due[key]:
                expected.append(Reason.SEQUENCE_GAP)
            else:
                expected.append("new")
                due[key] = seq + 1
        self.failures = failures
        answers = self.store.append(batches)
        self.failures = 0
        assert len(answers) == len(batches)
        failed: set[str] = set()
        for batch, answer, outcome in zip(batches, answers, expected, strict=True):
            key = batch.policy, batch.client
            exhausted = (
                isinstance(answer, Refused)
                and answer.error.reason == Reason.RESOURCE_EXHAUSTED
                and failures > 0
            )
            if exhausted:
                failed.add(batch.policy)
            elif isinstance(answer, Ack):
                assert outcome == ("duplicate" if answer.duplicate else "new")
                if not answer.duplicate:
                    self.committed[batch.policy].append((batch.client, batch.epoch, batch.seq))
                    self.next[key] = batch.seq + 1
            else:
                assert answer.error.reason == outcome
        assert len(failed) <= failures

    @rule(index=st.sampled_from(["keep", "keep", "lose", "garbage"]))
    def reopen(self, index: str) -> None:
        self.store.close()
        database = self.directory / "registry" / DATABASE
        if index == "lose":
            database.unlink()
        elif index == "garbage":
            database.write_bytes(b"not a database" * 1000)
        self.store = self.open()
        assert bool(self.store.repairs) == (index == "garbage")

    @rule(policy=st.sampled_from(POLICIES), bytes_lost=st.integers(1, 150), lose=st.booleans())
    def cut(self, policy: str, bytes_lost: int, lose: bool) -> None:
        self.store.close()
        segments = sorted((self.directory / "policies" / policy / "segments").glob("*.seg"))
        if segments:
            size = segments[-1].stat().st_size
            os.truncate(segments[-1], max(0, size - bytes_lost))
        if lose:
            (self.directory / "registry" / DATABASE).unlink()
        self.store = self.open()
        found = self.read(policy)
        # What is left is what was there, less its end.
        assert found == self.committed[policy][: len(found)]
        lost = self.committed[policy][len(found) :]
        if lost and not lose:
            assert any(f"lost {len(lost)} batches" in repair for repair in self.store.repairs)
        self.committed[policy] = found
        for client in CLIENTS:
            epoch = self.epochs[policy, client]
            self.next[policy, client] = self.mark(policy, client, epoch) + 1

    def read(self, policy: str) -> list[Key]:
        found = list(iterate(self.store, policy))
        positions = [one.position for one in found]
        assert positions == sorted(set(positions))
        for one in found:
            assert one.payload == self.batch(policy, one.client, one.epoch, one.seq).payload
        return [(one.client, one.epoch, one.seq) for one in found]

    @invariant()
    def acknowledged_is_readable_once_and_in_order(self) -> None:
        if hasattr(self, "store"):
            for policy in POLICIES:
                assert self.read(policy) == self.committed[policy]


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)
