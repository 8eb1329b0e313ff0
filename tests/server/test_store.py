"""The store: what is acknowledged is there, once and in order; what is refused left no trace."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from server_samples import SPECS

from assay.server.errors import Reason, RejectionError, StoreError
from assay.server.store.group import GroupCommitter
from assay.server.store.log import MAX_BODY
from assay.server.store.registry import STABLE, Quota
from assay.server.store.sqlite import DATABASE
from assay.server.store.store import Ack, Incoming, Refused, Store, iterate

P, Q = "vector", "nested"


class Disk:
    """A sync that fails as often as it is told to."""

    def __init__(self) -> None:
        self.failures = 0
        self.syncs = 0

    def __call__(self, descriptor: int) -> None:
        self.syncs += 1
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def opened(path: Path, **options: object) -> Store:
    store = Store(path, **options)  # type: ignore[arg-type]
    for name in (P, Q):
        store.register(SPECS[name])
    return store


def incoming(
    seq: int, *, policy: str = P, client: str = "ada", epoch: int = 1, **rest: object
) -> Incoming:
    values = {"steps": 10, "payload": f"{policy} {client} {epoch} {seq}".encode(), **rest}
    return Incoming(policy, client, epoch, seq, **values)  # type: ignore[arg-type]


def contents(store: Store, policy: str = P) -> list[tuple[str, int, int]]:
    found = list(iterate(store, policy))
    positions = [one.position for one in found]
    assert positions == sorted(set(positions))
    for one in found:
        assert one.payload == f"{policy} {one.client} {one.epoch} {one.seq}".encode()
    return [(one.client, one.epoch, one.seq) for one in found]


def segments_say(path: Path) -> list[tuple[str, int, int]]:
    """Return what is in a store that has lost its index."""
    for database in (path / "registry").glob(f"{DATABASE}*"):
        database.unlink()
    with Store(path) as store:
        assert store.repairs == []
        return contents(store)


def reason(answer: Ack | Refused) -> Reason:
    assert isinstance(answer, Refused)
    return answer.error.reason


def test_what_is_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.open_session(P, "ada").epoch == 1
    store.open_session(Q, "bob")
    answers = store.append([incoming(1), incoming(2), incoming(1, policy=Q, client="bob")])
    assert answers == [Ack(1, 1, 2), Ack(1, 2, 2), Ack(1, 1, 1)]
    store.close()
    with Store(tmp_path) as again:
        assert again.repairs == []
        assert contents(again) == [("ada", 1, 1), ("ada", 1, 2)]
        assert contents(again, Q) == [("bob", 1, 1)]
        assert again.append([incoming(2), incoming(3)]) == [Ack(1, 2, 3, True), Ack(1, 3, 3)]
        assert again.registry.totals(P).steps == 30


def test_duplicates_are_acknowledged_and_kept_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.open_session(P, "ada")
        answers = store.append([incoming(1), incoming(1), incoming(2)])
        assert answers == [Ack(1, 1, 2), Ack(1, 1, 2, True), Ack(1, 2, 2)]
        assert store.append([incoming(2)]) == [Ack(1, 2, 2, True)]
        assert contents(store) == [("ada", 1, 1), ("ada", 1, 2)]


def test_gaps_and_reordering_are_reported(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.open_session(P, "ada")
        first, third, second = store.append([incoming(1), incoming(3), incoming(2)])
        assert (first, second) == (Ack(1, 1, 2), Ack(1, 2, 2))
        assert reason(third) == Reason.SEQUENCE_GAP
        (gap,) = store.append([incoming(9)])
        assert isinstance(gap, Refused)
        assert gap.committed == 2
        assert "expected batch 3" in str(gap.error)
        assert contents(store) == [("ada", 1, 1), ("ada", 1, 2)]


def test_a_gap_that_was_announced_is_none(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.open_session(P, "ada")
        assert store.append([incoming(1), incoming(5, dropped=3)]) == [Ack(1, 1, 5), Ack(1, 5, 5)]
        for dropped in (1, 2, 4):
            assert reason(store.append([incoming(9, dropped=dropped)])[0]) == Reason.SEQUENCE_GAP
        assert store.append([incoming(3)]) == [Ack(1, 3, 5, True)]  # too late


def test_a_new_session_fences_the_old(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.open_session(P, "ada")
        store.append([incoming(1), incoming(2)])
        session = store.open_session(P, "ada", resume_epoch=1)
        assert (session.epoch, session.resumed_committed) == (2, 2)
        assert reason(store.append([incoming(3)])[0]) == Reason.FENCED
        assert reason(store.append([incoming(1)])[0]) == Reason.FENCED
        assert reason(store.append([incoming(1, epoch=3)])[0]) == Reason.UNKNOWN_SESSION
        assert store.append([incoming(1, epoch=2)]) == [Ack(2, 1, 1)]
        # The reply to the second Open got lost, so that the client asks about the first again.
        assert store.open_session(P, "ada", resume_epoch=1).resumed_committed == 2
        for unknown in (0, 3, 99, 2**64 - 1):
            assert store.open_session(P, "ada", resume_epoch=unknown).resumed_committed == 0


def test_fencing_survives_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.open_session(P, "ada")
    store.open_session(P, "ada")
    store.close()
    with Store(tmp_path) as again:
        assert reason(again.append([incoming(1)])[0]) == Reason.FENCED
        assert again.append([incoming(1, epoch=2)]) == [Ack(2, 1, 1)]


def test_clients_do_not_see_each_others_numbers(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for client in ("ada", "bob"):
            store.open_session(P, client)
        store.append([incoming(1), incoming(2)])
        assert store.append([incoming(1, client="bob")]) == [Ack(1, 1, 1)]
        assert reason(store.append([incoming(1, client="eve")])[0]) == Reason.UNKNOWN_SESSION


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.open_session(P, "ada")
        assert reason(store.append([incoming(1, policy="nobody")])[0]) == Reason.UNKNOWN_POLICY
        assert reason(store.append([incoming(0)])[0]) == Reason.MALFORMED
        huge = 2**63
        bad = incoming(huge + 1, dropped=huge)
        assert reason(store.append([bad])[0]) == Reason.MALFORMED
        large = incoming(1, payload=bytes(MAX_BODY))
        assert reason(store.append([large])[0]) == Reason.TRAJECTORY_TOO_LARGE
        with pytest.raises(RejectionError):
            store.open_session(P, "x" * 200)
        with pytest.raises(RejectionError):
            store.open_session("nobody", "ada")
        assert contents(store) == []


def test_a_paused_policy_takes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.open_session(P, "ada")
        store.registry.set_state(P, "paused")
        assert reason(store.append([incoming(1)])[0]) == Reason.POLICY_PAUSED
        store.registry.set_state(P, "active")
        assert store.append([incoming(1)]) == [Ack(1, 1, 1)]


def test_quotas_hold_back_one_client_alone(tmp_path: Path) -> None:
    now = [0.0]
    with opened(tmp_path, clock=lambda: now[0]) as store:
        for client in ("ada", "bob"):
            store.open_session(P, client)
        store.registry.set_quota(P, "ada", Quota(steps=25, seconds=10.0))
        answers = store.append([incoming(n) for n in (1, 2, 3)])
        assert answers[:2] == [Ack(1, 1, 2), Ack(1, 2, 2)]
        assert reason(answers[2]) == Reason.QUOTA_EXCEEDED
        assert store.append([incoming(1, client="bob")]) == [Ack(1, 1, 1)]
        now[0] = 1.9
        assert reason(store.append([incoming(3)])[0]) == Reason.QUOTA_EXCEEDED
        now[0] = 2.1
        assert store.append([incoming(3)]) == [Ack(1, 3, 3)]
        store.registry.set_quota(P, "bob", Quota(bytes=0))
        assert reason(store.append([incoming(2, client="bob")])[0]) == Reason.QUOTA_EXCEEDED
        # A batch above the limit goes through a full bucket, and is paid for afterwards.
        now[0] = 1000.0
        assert store.append([incoming(4, steps=100)]) == [Ack(1, 4, 4)]
        now[0] = 1030.0
        assert reason(store.append([incoming(5)])[0]) == Reason.QUOTA_EXCEEDED


def test_a_sync_that_fails_acknowledges_nothing(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path, sync=disk) as store:
        store.open_session(P, "ada")
        store.append([incoming(1)])
        disk.failures = 1
        answers = store.append([incoming(2), incoming(2), incoming(3)])
        assert [reason(one) for one in answers] == [Reason.RESOURCE_EXHAUSTED] * 3
        assert [one.committed for one in answers] == [1, 1, 1]
        assert contents(store) == [("ada", 1, 1)]
        assert store.append([incoming(2)]) == [Ack(1, 2, 2)]
    assert segments_say(tmp_path) == [("ada", 1, 1), ("ada", 1, 2)]


def test_a_disk_that_stays_broken_refuses_until_a_restart(tmp_path: Path) -> None:
    disk = Disk()
    store = opened(tmp_path, sync=disk)
    store.open_session(P, "ada")
    store.append([incoming(1)])
    disk.failures = 2  # the second is the rollback's
    assert reason(store.append([incoming(2)])[0]) == Reason.RESOURCE_EXHAUSTED
    assert reason(store.append([incoming(2)])[0]) == Reason.RESOURCE_EXHAUSTED
    store.close()
    with Store(tmp_path) as again:
        assert again.append([incoming(2)])[0].committed == 2
        assert contents(again) == [("ada", 1, 1), ("ada", 1, 2)]


def test_one_policy_that_fails_leaves_the_other_alone(tmp_path: Path) -> None:
    failing: set[int] = set()

    def sync(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino in failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path, sync=sync) as store:
        for policy in (P, Q):
            store.open_session(policy, "ada")
            store.append([incoming(1, policy=policy)])
        (segment,) = (tmp_path / "policies" / P / "segments").iterdir()
        failing.add(segment.stat().st_ino)
        bad, good = store.append([incoming(2), incoming(2, policy=Q)])
        assert good == Ack(1, 2, 2)
        assert reason(bad) == Reason.RESOURCE_EXHAUSTED
        assert "the disk is full" in str(bad.error) if isinstance(bad, Refused) else False


def test_an_index_that_fails_takes_the_batch_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        store.open_session(P, "ada")
        store.append([incoming(1)])

        def full(batches: object) -> None:
            raise StoreError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(store.registry, "add_batches", full)
            assert reason(store.append([incoming(2)])[0]) == Reason.RESOURCE_EXHAUSTED

        def bug(batches: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(store.registry, "add_batches", bug)
            with pytest.raises(ZeroDivisionError):
                store.append([incoming(2)])
        assert store.append([incoming(2)]) == [Ack(1, 2, 2)]
    assert segments_say(tmp_path) == [("ada", 1, 1), ("ada", 1, 2)]


def test_a_sync_comes_before_every_acknowledgement_and_serves_a_group(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path, sync=disk) as store:
        store.open_session(P, "ada")
        store.append([incoming(1)])
        before = disk.syncs
        store.append([incoming(n) for n in range(2, 50)])
        assert disk.syncs == before + 1


@pytest.mark.parametrize("wal", [True, False])
def test_a_corrupt_index_is_built_again_from_the_segments(tmp_path: Path, wal: bool) -> None:
    store = opened(tmp_path, segment_bytes=200)
    for client in ("ada", "bob"):
        store.open_session(P, client)
    for n in range(1, 20):
        store.append([incoming(n), incoming(n, client="bob")])
    epoch = store.registry.open_learner(P).epoch
    version = store.publish(P, epoch, 7, b"weights", metrics={"return": 2.0})
    expected, totals = contents(store), store.registry.totals(P)
    store.close()
    database = tmp_path / "registry" / DATABASE
    data = bytearray(database.read_bytes())
    data[: 100 if wal else len(data)] = b"garbage" * 20
    database.write_bytes(data)
    with Store(tmp_path) as again:
        assert any("built again" in repair for repair in again.repairs)
        assert contents(again) == expected
        assert again.registry.totals(P) == totals
        assert again.registry.learner(P).position == 7
        assert again.registry.channel(P, STABLE).version == version
        assert again.append([incoming(19), incoming(20)]) == [Ack(1, 19, 20, True), Ack(1, 20, 20)]


def test_a_torn_segment_is_cut_back_and_the_loss_is_named(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.open_session(P, "ada")
    store.append([incoming(n) for n in range(1, 6)])
    epoch = store.registry.open_learner(P).epoch
    store.registry.advance(P, epoch, 5)
    store.close()
    (segment,) = (tmp_path / "policies" / P / "segments").iterdir()
    os.truncate(segment, segment.stat().st_size - 1)
    with Store(tmp_path) as again:
        assert any("cut off" in repair for repair in again.repairs)
        assert any("lost 1 batches" in repair and "batch 5" in repair for repair in again.repairs)
        assert again.append([incoming(5)]) == [Ack(1, 5, 5)]
        # The learner's cursor is at position 5, so that the new one must be behind it.
        assert [one.seq for one in again.read(P, after=5)] == [5]
    with Store(tmp_path) as third:
        assert third.repairs == []
        assert [one.position for one in iterate(third, P)] == [1, 2, 3, 4, 6]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("seq", [1, 25, 50])
def test_a_flipped_bit_in_the_newest_segment_costs_one_batch(tmp_path: Path, seq: int) -> None:
    store = opened(tmp_path)
    store.open_session(P, "ada")
    store.append([incoming(n) for n in range(1, 51)])
    place = store.registry.batches(P, seq - 1, 1)[0].place
    store.close()
    (segment,) = (tmp_path / "policies" / P / "segments").iterdir()
    flip(segment, place.offset + place.size - 1)
    for _ in range(2):
        with Store(tmp_path) as again:
            (repair,) = again.repairs
            assert f"damaged at byte {place.offset}" in repair and "cannot be read" in repair
            assert [one.seq for one in again.registry.batches(P, 0, 100)] == list(range(1, 51))
            assert [one.seq for one in again.read(P, after=seq)] == list(range(seq + 1, 51))
            assert again.append([incoming(seq)]) == [Ack(1, seq, 50, True)]
    with Store(tmp_path) as again:
        assert again.append([incoming(51)]) == [Ack(1, 51, 51)]
        assert again.read(P, after=50)[0].seq == 51
    assert sorted(path.name for path in segment.parent.iterdir()) == [segment.name]


def test_a_group_that_reached_the_disk_in_part_is_not_taken_in_part(tmp_path: Path) -> None:
    """A power cut: none of a group is indexed, and its second record is not whole."""
    store = opened(tmp_path)
    for client in ("ada", "bob"):
        store.open_session(P, client)
    store.append([incoming(1)])
    group = [incoming(2), incoming(3), incoming(1, client="bob"), incoming(4)]
    # As far as it got before the power went.
    places = [one.place for one in store._write(P, group)]
    store._logs[P].sync()
    store._logs[P].commit()
    store.close()
    (segment,) = (tmp_path / "policies" / P / "segments").iterdir()
    flip(segment, places[1].offset + places[1].size - 1)
    with Store(tmp_path) as again:
        assert any("1 batches" in one and "batch 4" in one for one in again.repairs)
        # What ada sent behind the damage comes again; bob's was whole, and is there once.
        assert contents(again) == [("ada", 1, 1), ("ada", 1, 2), ("bob", 1, 1)]
        answers = again.append(group)
        assert answers == [Ack(1, 2, 4, True), Ack(1, 3, 4), Ack(1, 1, 1, True), Ack(1, 4, 4)]
        expected = contents(again)
    for path in (tmp_path / "registry").glob(f"{DATABASE}*"):
        path.unlink()
    with Store(tmp_path) as rebuilt:
        assert contents(rebuilt) == expected
        assert sorted(expected) == [("ada", 1, n) for n in range(1, 5)] + [("bob", 1, 1)]


def test_a_damaged_batch_is_named_when_it_is_read(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=10) as store:
        store.open_session(P, "ada")
        for n in (1, 2, 3):
            store.append([incoming(n)])
        first, second, _ = sorted((tmp_path / "policies" / P / "segments").iterdir())
        flip(first, -1)
        second.unlink()
        one, two, three = store.read(P, after=0)
        assert "Record 1 in" in (one.damage or "") and "is damaged" in (one.damage or "")
        assert "Record 2 in" in (two.damage or "") and "No such file" in (two.damage or "")
        assert (one.payload, two.payload, three.damage) == (b"", b"", None)
        # What the index knows of it is there.
        assert (two.position, two.client, two.epoch, two.seq, two.steps) == (2, "ada", 1, 2, 10)


def test_a_batch_that_cannot_be_read_just_now_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(*args: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with opened(tmp_path) as store:
        store.open_session(P, "ada")
        store.append([incoming(1)])
        with monkeypatch.context() as patch:
            patch.setattr("assay.server.store.log.os.pread", too_many)
            with pytest.raises(StoreError, match="Too many open files"):
                store.read(P, after=0)
        assert store.read(P, after=0)[0].damage is None


def test_reading_stops_at_its_limits(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.open_session(P, "ada")
        store.append([incoming(n, payload=bytes(1000)) for n in range(1, 11)])
        assert len(store.read(P, after=0, limit=3)) == 3
        assert len(store.read(P, after=0, most_bytes=2500)) == 2
        assert len(store.read(P, after=0, most_bytes=1)) == 1
        assert store.read(P, after=10) == []
        with pytest.raises(RejectionError):
            store.read("nobody", after=0)


def test_trimming_keeps_what_is_not_consumed(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=100)
    store.open_session(P, "ada")
    for n in range(1, 11):
        store.append([incoming(n, payload=bytes(60))])
    epoch = store.registry.open_learner(P).epoch
    assert store.trim(P) == 0
    store.registry.advance(P, epoch, 5)
    assert store.trim(P, keep_after=0) == 0
    assert store.trim(P) > 0
    kept = [one.seq for one in iterate(store, P)]
    assert kept[0] <= 6
    assert kept[-1] == 10
    assert store.append([incoming(1)]) == [Ack(1, 1, 10, True)]
    store.close()
    for path in (tmp_path / "registry").glob(f"{DATABASE}*"):
        path.unlink()
    with Store(tmp_path) as again:
        assert [one.seq for one in iterate(again, P)] == kept
        assert again.append([incoming(1), incoming(11)]) == [Ack(1, 1, 11, True), Ack(1, 11, 11)]
        assert again.registry.totals(P).batches == 11


def test_publishing_and_cursor_are_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        learner = store.registry.open_learner(P)
        version = store.publish(P, learner.epoch, 3, b"weights", checkpoint=b"state")
        model = store.registry.model(P, version)
        assert store.blobs(P).get(model.sha256) == b"weights"
        now = store.registry.learner(P)
        assert (now.position, now.version) == (3, 1)
        assert now.checkpoint is not None
        assert store.blobs(P).get(now.checkpoint) == b"state"
        old = learner.epoch
        store.registry.open_learner(P)
        with pytest.raises(RejectionError) as refused:
            store.publish(P, old, 9, b"more weights")
        assert refused.value.reason == Reason.FENCED
        assert store.registry.learner(P).position == 3


def test_pruning_deletes_files_that_nothing_needs(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        epoch = store.registry.open_learner(P).epoch
        for n in range(1, 6):
            channel = STABLE if n == 1 else None
            weights, state = b"weights %d" % n, b"state %d" % n
            store.publish(P, epoch, n, weights, checkpoint=state, channel=channel)
        assert store.prune_models(P, keep=2) == 2 + 3  # weights, and all but two checkpoints
        blobs = store.blobs(P)
        for version in (1, 4, 5):
            model = store.registry.model(P, version)
            assert blobs.get(model.sha256) == b"weights %d" % version
        checkpoint = store.registry.learner(P).checkpoint
        assert checkpoint is not None
        assert blobs.get(checkpoint) == b"state 5"
        assert blobs.get(store.registry.learner(P).earlier or "") == b"state 4"
        assert store.prune_models(P, keep=2) == 0


def test_a_damaged_snapshot_is_refused_and_can_be_put_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        blobs = store.blobs(P)
        digest = blobs.put(b"weights")
        (path,) = (tmp_path / "policies" / P / "blobs").iterdir()
        path.write_bytes(b"weightz")
        with pytest.raises(RejectionError) as refused:
            blobs.get(digest)
        assert refused.value.reason == Reason.HASH_MISMATCH
        assert blobs.put(b"weights") == digest
        assert blobs.get(digest) == b"weights"
        for unknown in ("0" * 64, "../../lock", ""):
            with pytest.raises(RejectionError):
                blobs.get(unknown)
        other = blobs.put(b"others")
        assert blobs.keep_only({other}) == 1
        assert blobs.get(other) == b"others"


def test_a_deleted_policy_keeps_its_name(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.open_session(P, "ada")
        store.append([incoming(1)])
        store.delete(P)
        assert reason(store.append([incoming(2)])[0]) == Reason.POLICY_DELETED
        assert store.read(P, after=0) == []
        assert not (tmp_path / "policies" / P).exists()
        with pytest.raises(RejectionError):
            store.register(SPECS[P])
    with Store(tmp_path) as again:
        assert again.registry.state(P) == "deleted"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(StoreError, match="Another process"):
        Store(tmp_path)
    Store(tmp_path).close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="part of the path is a file"):
        Store(tmp_path / "file" / "store")


class TestGroupCommitter:
    def test_threads_share_syncs_and_lose_nothing(self, tmp_path: Path) -> None:
        started = threading.Event()
        syncs = [0]

        def slow(descriptor: int) -> None:
            syncs[0] += 1
            started.wait(0.002)

        with opened(tmp_path, sync=slow) as store:
            group = GroupCommitter(store)
            clients = [f"c{n}" for n in range(6)]
            for client in clients:
                store.open_session(P, client)
            before = syncs[0]

            def send(client: str) -> None:
                futures = [group.submit(incoming(n, client=client)) for n in range(1, 21)]
                assert all(isinstance(one.result(), Ack) for one in futures)

            self.together([lambda c=c: send(c) for c in clients])  # type: ignore[misc]
            group.close()
            assert syncs[0] - before < 60
            found = contents(store)
            assert len(found) == 120
            for client in clients:
                assert [one[2] for one in found if one[0] == client] == list(range(1, 21))
            with pytest.raises(RejectionError) as refused:
                group.submit(incoming(21))
            assert refused.value.reason == Reason.DRAINING

    def test_groups_have_a_size(self, tmp_path: Path) -> None:
        sizes: list[int] = []
        with opened(tmp_path) as store:
            store.open_session(P, "ada")
            append = store.append

            def counted(batches: list[Incoming]) -> list[Ack | Refused]:
                sizes.append(sum(len(one.payload) for one in batches))
                return append(batches)

            store.append = counted  # type: ignore[method-assign, assignment]
            group = GroupCommitter(store, most_bytes=2500)
            futures = [group.submit(incoming(n, payload=bytes(1000))) for n in range(1, 20)]
            assert [one.result().seq for one in futures] == list(range(1, 20))
            group.close()
        assert max(sizes) <= 2500

    def test_a_failure_reaches_those_who_wait(self, tmp_path: Path) -> None:
        with opened(tmp_path) as store:

            def broken(batches: object) -> list[Ack | Refused]:
                raise ZeroDivisionError

            store.append = broken  # type: ignore[method-assign, assignment]
            group = GroupCommitter(store)
            with pytest.raises(ZeroDivisionError):
                group.submit(incoming(1)).result()
            group.close()

    def together(self, calls: list[Callable[[], None]]) -> None:
        failed: list[BaseException] = []

        def run(call: Callable[[], None]) -> None:
            try:
                call()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed


def test_a_directory_with_other_things_stays_as_open_as_it_was(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    for directory in (shared, own):
        directory.mkdir()
        directory.chmod(0o755)
    (shared / "notes.txt").write_text("somebody else's")
    for directory in (shared, own):
        opened(directory).close()
    assert own.stat().st_mode & 0o777 == 0o700
    assert shared.stat().st_mode & 0o777 == 0o755
    for name in ("registry", "policies"):
        assert (shared / name).stat().st_mode & 0o777 == 0o700
