"""Batches in, acknowledgements out: sessions, numbers, credits, and every way to be refused."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from gateway_support import (
    OTHER,
    SPEC,
    Client,
    Running,
    batch,
    refused,
    running,
    wait_for,
)

from assay.server.errors import Reason
from assay.server.protocol import PROTOCOL
from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import Box
from assay.server.store.store import iterate
from assay.server.tensors import FRAME_BYTES, TRAJECTORY_BYTES, Experience, Layout, encode, split


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("server")) as here:
        here.client().register()
        yield here


@pytest.fixture
def ada(server: Running, request: pytest.FixtureRequest) -> Client:
    """Return a client that no other test has."""
    return server.client(f"ada-{request.node.name}"[:128])


def stored(server: Running, client: Client) -> list[int]:
    return [one.seq for one in iterate(server.store, "queue") if one.client == client.name]


def reason_of(ack: pb.Ack) -> Reason:
    assert len(ack.rejections) == 1, ack
    return Reason(ack.rejections[0].reason)


# Registration and sessions


def test_another_protocol_is_refused_with_who_must_update(server: Running) -> None:
    client = server.client()
    for protocol, who in ((0, "client"), (PROTOCOL + 1, "server")):
        error = refused(client.open, protocol=protocol)
        assert error.reason is Reason.UNSUPPORTED_PROTOCOL
        assert f"Update the {who}" in (error.fix or "")
        request = pb.RegisterRequest(protocol=protocol, spec_json=SPEC.canonical().decode())
        error = refused(client.call, client.session.Register, request)
        assert error.reason is Reason.UNSUPPORTED_PROTOCOL


def test_a_bad_spec_is_refused_with_the_value(server: Running) -> None:
    client = server.client()
    for text in ("[]", "{", '{"name": "x"}', "[" * 100_000):
        request = pb.RegisterRequest(protocol=PROTOCOL, spec_json=text)
        assert refused(client.call, client.session.Register, request).reason is Reason.BAD_SPEC


def test_a_learner_that_does_not_take_a_spec_leaves_no_policy(server: Running) -> None:
    client = server.client()
    server.executor.refuses = "gamma=2: expected at most 1"
    try:
        error = refused(client.register, SPEC.model_copy(update={"name": "refused"}))
    finally:
        server.executor.refuses = ""
    assert error.reason is Reason.BAD_SPEC and "gamma=2" in error.message
    assert server.executor.puppets["refused"].stopped
    assert refused(client.open, "refused").reason is Reason.UNKNOWN_POLICY
    assert client.register(SPEC.model_copy(update={"name": "refused"})).created


def test_another_spec_under_the_same_name_is_refused_with_the_difference(server: Running) -> None:
    client = server.client()
    changed = SPEC.model_copy(update={"observation": Box(shape=(4,))})
    error = refused(client.register, changed)
    assert error.reason is Reason.SPEC_CONFLICT and "observation.shape" in error.message
    assert refused(client.open, spec_hash="0" * 64).reason is Reason.SPEC_CONFLICT


def test_two_who_register_at_once_get_one_policy(server: Running) -> None:
    spec = SPEC.model_copy(update={"name": "together"})
    replies: list[pb.RegisterReply] = []
    threads = [
        threading.Thread(target=lambda: replies.append(server.client().register(spec)))
        for _ in range(4)
    ]
    server.executor.validate_seconds = 0.3
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        server.executor.validate_seconds = 0.0
    assert server.executor.made["together"] == 1
    assert sorted(reply.created for reply in replies) == [False, False, False, True]


def test_an_unknown_policy_is_unknown_everywhere(server: Running) -> None:
    client = server.client()
    calls = [
        lambda: client.open("nobody"),
        lambda: client.put(batch(1, 1), "nobody"),
        lambda: client.fetch("nobody", version=1),
        lambda: client.watch("nobody"),
        lambda: client.call(client.models.Pin, pb.PinRequest(policy="nobody")),
        lambda: client.call(client.admin.Pause, pb.PolicyRequest(policy="nobody")),
        lambda: client.call(client.infer.Act, pb.ActRequest(policy="nobody")),
    ]
    for call in calls:
        assert refused(call).reason is Reason.UNKNOWN_POLICY
    assert client.stream("nobody").ended().reason is Reason.UNKNOWN_POLICY


def test_a_session_is_needed(server: Running, ada: Client) -> None:
    assert ada.stream().ended().reason is Reason.UNKNOWN_SESSION
    assert reason_of(ada.put(batch(1, 1))) is Reason.UNKNOWN_SESSION
    ada.open()
    assert reason_of(ada.put(batch(7, 1))) is Reason.UNKNOWN_SESSION


def test_a_refused_put_says_how_far_the_session_is(server: Running, ada: Client) -> None:
    epoch = ada.open().epoch
    for seq in (1, 2, 3):
        assert ada.put(batch(epoch, seq)).committed == seq
    for bad in (
        batch(epoch, 4, rewards=np.full(4, 3e38)),
        batch(epoch, 6),
        batch(epoch + 1, 4),
    ):
        ack = ada.put(bad)
        assert len(ack.rejections) == 1 and (ack.epoch, ack.committed) == (epoch, 3)
    assert ada.put(batch(epoch, 4)).committed == 4


def test_numbers_that_would_ruin_a_learner_are_refused(server: Running, ada: Client) -> None:
    epoch = ada.open().epoch
    large: dict[Reason, dict[str, Any]] = {
        Reason.REWARD_OUT_OF_BOUNDS: {"rewards": np.full(4, 3e38)},
        Reason.BAD_LOG_PROB: {"log_prob": np.full(4, -3e38, np.float32)},
        Reason.OBSERVATION_OUT_OF_BOUNDS: {"obs": np.full((4, 3), 1e38, np.float32)},
    }
    for reason, changes in large.items():
        ack = ada.put(batch(epoch, 1, **changes))
        assert reason_of(ack) is reason and "expected 1e+" in ack.rejections[0].message


def test_a_newer_session_ends_the_older_one(server: Running, ada: Client) -> None:
    first = ada.open().epoch
    old = ada.stream()
    old.send(batch(first, 1), batch(first, 2))
    old.wait_committed(2)
    reply = ada.open(resume_epoch=first)
    assert (reply.epoch, reply.resumed_committed) == (first + 1, 2)
    # Without having sent anything, the older stream hears of it.
    error = old.ended()
    assert error.reason is Reason.FENCED and f"session {reply.epoch}" in error.message
    assert reason_of(ada.put(batch(first, 3))) is Reason.FENCED
    new = ada.stream()
    new.send(batch(first, 3))
    assert new.ended().reason is Reason.FENCED
    assert new.rejections == [(3, Reason.FENCED)]
    assert stored(server, ada) == [1, 2]


def test_a_client_has_a_session_for_each_policy(server: Running, ada: Client) -> None:
    ada.register(OTHER)
    one, two = ada.open("queue"), ada.open("other")
    stream = ada.stream("queue")
    wait_for(lambda: stream.acks)
    ada.open("other")
    stream.send(batch(one.epoch, 1))
    stream.wait_committed(1)  # the other policy's new session does not concern it
    assert two.epoch == 1
    stream.cancel()


# Numbers


def test_what_comes_twice_is_kept_once_and_a_gap_is_reported(server: Running, ada: Client) -> None:
    epoch = ada.open().epoch
    stream = ada.stream()
    stream.send(batch(epoch, 1), batch(epoch, 2), batch(epoch, 2), batch(epoch, 1))
    wait_for(lambda: sum(ack.duplicates for ack in stream.acks) == 2)
    stream.send(batch(epoch, 5))
    wait_for(lambda: stream.rejections)
    assert stream.rejections == [(5, Reason.SEQUENCE_GAP)]
    stream.send(batch(epoch, 5, dropped=2), batch(epoch, 6))
    stream.wait_committed(6)
    assert stored(server, ada) == [1, 2, 5, 6]
    stream.cancel()


def test_one_acknowledgement_stands_for_all_that_is_committed(server: Running, ada: Client) -> None:
    epoch = ada.open().epoch
    stream = ada.stream()
    stream.send(*(batch(epoch, seq, steps=1) for seq in range(1, 301)))
    stream.wait_committed(300)
    assert len(stream.acks) < 300
    assert [ack.committed for ack in stream.acks] == sorted(ack.committed for ack in stream.acks)
    assert stored(server, ada) == list(range(1, 301))
    stream.cancel()


# Content


def mutated(**changes: Any) -> pb.Batch:
    made = batch(1, 1)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


BAD: dict[str, tuple[pb.Batch, Reason]] = {
    "not finite": (batch(1, 1, rewards=[1.0, np.nan, 1.0, 1.0]), Reason.NOT_FINITE),
    "infinite observation": (
        batch(1, 1, obs=np.full((4, 3), np.inf, np.float32)),
        Reason.NOT_FINITE,
    ),
    "action": (batch(1, 1, action=np.array([0, 1, 2, 3])), Reason.ACTION_OUT_OF_BOUNDS),
    "flags": (batch(1, 1, flags=np.full(4, 32, np.uint8)), Reason.BAD_FLAG),
    "version of the future": (batch(1, 1, version=99), Reason.BAD_VERSION),
    "version stated": (mutated(version=3), Reason.BAD_VERSION),
    "checksum": (mutated(crc32c=1), Reason.CHECKSUM_MISMATCH),
    "codec": (mutated(codec=7), Reason.UNSUPPORTED_CODEC),
    "bomb": (mutated(raw_size=1 << 25), Reason.DECOMPRESSED_TOO_LARGE),
    "trajectory": (mutated(size=TRAJECTORY_BYTES + 1), Reason.TRAJECTORY_TOO_LARGE),
    "number 0": (mutated(seq=0), Reason.MALFORMED),
    "part of nothing": (mutated(part=1, parts=3), Reason.PART_OUT_OF_ORDER),
    "shape": (
        batch(
            1,
            1,
            spec=SPEC.model_copy(update={"observation": Box(shape=(2,))}),
            obs=np.zeros((4, 2), np.float32),
            bootstrap=np.zeros((1, 2), np.float32),
        ),
        Reason.WRONG_SHAPE,
    ),
    "dtype": (
        batch(
            1,
            1,
            spec=SPEC.model_copy(update={"observation": Box(shape=(3,), dtype="float64")}),
            obs=np.zeros((4, 3), np.float64),
            bootstrap=np.zeros((1, 3), np.float64),
        ),
        Reason.WRONG_DTYPE,
    ),
    "frame": (mutated(tensors=bytes(FRAME_BYTES + 1)), Reason.FRAME_TOO_LARGE),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_content_is_refused_alone(server: Running, kind: str) -> None:
    bad, reason = BAD[kind]
    client = server.client(f"bad-{kind.replace(' ', '-')}")
    bad.epoch = epoch = client.open().epoch
    stream = client.stream()
    stream.send(bad)
    wait_for(lambda: stream.rejections or stream.error)
    assert stream.rejections == [(bad.seq, reason)]
    message = next(one for ack in stream.acks for one in ack.rejections)
    assert message.message.endswith(".") and "\n" not in message.message
    stream.send(batch(epoch, 1))  # the stream lives on
    stream.wait_committed(1)
    stream.cancel()
    assert reason_of(client.put(bad)) is reason or kind == "part of nothing"
    assert stored(server, client) == [1]


def test_unknown_and_missing_tensors(server: Running, ada: Client) -> None:
    epoch = ada.open().epoch
    spec = SPEC.model_copy(update={"action": Box(shape=(1,), low=0, high=1)})
    fields = {"action": np.zeros((4, 1), np.float32), "raw_action": np.zeros((4, 1), np.float32)}
    assert reason_of(ada.put(batch(epoch, 1, spec=spec, **fields))) in (
        Reason.UNKNOWN_TENSOR,
        Reason.WRONG_DTYPE,
    )
    whole = batch(epoch, 1)
    cut = pb.TensorMap.FromString(whole.tensors)
    del cut.tensors[2]
    from assay.server.crc import crc32c

    data = cut.SerializeToString()
    whole.tensors, whole.size, whole.raw_size = data, len(data), len(data)
    whole.crc32c = crc32c(data)
    assert reason_of(ada.put(whole)) is Reason.MISSING_TENSOR


def test_a_message_above_the_limit_is_refused_before_it_is_read(
    server: Running, ada: Client
) -> None:
    epoch = ada.open().epoch
    large = mutated(epoch=epoch, tensors=bytes(FRAME_BYTES + (1 << 20)))
    stream = ada.stream()
    stream.send(large)
    assert stream.ended().reason is Reason.FRAME_TOO_LARGE
    assert refused(ada.put, large).reason is Reason.FRAME_TOO_LARGE
    assert server.gateway.hub.under_way == 0


def test_a_batch_in_parts(server: Running) -> None:
    wide = SPEC.model_copy(update={"name": "wide", "observation": Box(shape=(20_000,))})
    client = server.client("parts")
    client.register(wide)
    epoch = client.open("wide").epoch
    rng = np.random.default_rng(0)
    steps = 150
    fields = {
        "obs": rng.normal(size=(steps, 20_000)).astype(np.float32),
        "bootstrap": rng.normal(size=(1, 20_000)).astype(np.float32),
    }
    whole = batch(epoch, 1, steps=steps, spec=wide, **fields)
    parts = list(split(whole))
    assert len(parts) > 2
    stream = client.stream("wide")
    stream.send(parts[0], parts[2])
    wait_for(lambda: stream.rejections)
    assert stream.rejections == [(1, Reason.PART_OUT_OF_ORDER)]
    assert server.gateway.hub.assembling == 0
    stream.send(*parts)
    stream.wait_committed(1)
    (found,) = iterate(server.store, "wide")
    assert found.payload == whole.SerializeToString()
    # What was begun and never finished is forgotten with its stream.
    whole.seq = 2
    stream.send(next(iter(split(whole))))
    wait_for(lambda: server.gateway.hub.assembling > 0)
    stream.cancel()
    wait_for(lambda: server.gateway.hub.assembling == 0)
    assert refused(client.put, parts[0], "wide").reason is Reason.MALFORMED


def test_a_stream_is_for_one_policy(server: Running, ada: Client) -> None:
    ada.register(OTHER)
    for _ in range(20):  # the refusal may meet the answer to the greeting
        epoch = ada.open().epoch
        stream = ada.stream()
        with stream._ready:
            stream._queue.append(pb.IngestRequest(policy="other", batch=batch(epoch, 1)))
            stream._ready.notify()
        assert stream.ended().reason is Reason.MALFORMED


def test_late_rewards_travel_alone(server: Running, ada: Client) -> None:
    epoch = ada.open().epoch
    patch = encode(Experience(epoch, 1, {}, patches={7: 2.5}), Layout(SPEC))
    ack = ada.put(patch)
    assert ack.committed == 1 and not ack.rejections


# Pausing and deleting


def test_a_paused_policy_takes_nothing_and_goes_on(server: Running) -> None:
    client = server.client("paused")
    spec = SPEC.model_copy(update={"name": "paused"})
    client.register(spec)
    epoch = client.open("paused").epoch
    info = client.call(client.admin.Pause, pb.PolicyRequest(policy="paused"))
    assert info.state == pb.PAUSED and server.puppet("paused").state == "paused"
    stream = client.stream("paused")
    stream.send(batch(epoch, 1))
    wait_for(lambda: stream.rejections)
    assert stream.rejections == [(1, Reason.POLICY_PAUSED)]
    info = client.call(client.admin.Resume, pb.PolicyRequest(policy="paused"))
    assert info.state == pb.ACTIVE and server.puppet("paused").state == "learning"
    stream.send(batch(epoch, 1))
    stream.wait_committed(1)
    stream.cancel()


def test_a_deleted_policy_ends_its_streams_and_keeps_its_name(server: Running) -> None:
    client = server.client("deleted")
    spec = SPEC.model_copy(update={"name": "deleted"})
    client.register(spec)
    epoch = client.open("deleted").epoch
    stream = client.stream("deleted")
    stream.send(batch(epoch, 1))
    stream.wait_committed(1)
    watch = client.watch("deleted")
    wait_for(lambda: server.gateway.hub.meters.watchers.get("deleted"), "the watch")
    info = client.call(client.admin.Delete, pb.PolicyRequest(policy="deleted"))
    assert info.state == pb.DELETED
    assert stream.ended().reason is Reason.POLICY_DELETED
    assert refused(lambda: watch).reason is Reason.POLICY_DELETED
    assert server.puppet("deleted").stopped
    assert refused(client.open, "deleted").reason is Reason.UNKNOWN_POLICY
    assert refused(client.register, spec).reason is Reason.POLICY_DELETED
    assert "deleted" not in server.gateway.hub.meters.text()


# Credits, quotas, and disks


def test_credits_fall_with_the_backlog_and_come_back(tmp_path: Path) -> None:
    with running(tmp_path, backlog_steps=400, credits={"batches": 8}) as server:
        ada = server.client()
        ada.register()
        puppet = server.puppet()
        puppet.follows = False
        opened = ada.open()
        assert opened.credit_batches == 8
        stream = ada.stream()
        for seq in range(1, 41):  # 10 steps each: 400 in all
            stream.send(batch(opened.epoch, seq, steps=10))
            stream.wait_committed(seq)
        seen = [ack.credit_batches for ack in stream.acks if ack.committed]
        assert seen[0] == 8 and 0 < min(seen[:-1]) < 8
        assert stream.acks[-1].credit_batches == 0 and ada.open().credit_batches == 0
        stream.cancel()
        # Whoever sends beyond the credits waits, and nothing is held for them in memory.
        epoch = ada.open().epoch
        stream = ada.stream()
        wait_for(lambda: stream.acks)
        stream.send(*(batch(epoch, seq, steps=10) for seq in range(1, 4)))
        wait_for(lambda: stream.taken >= 2)
        server.run(_pulses(server))
        assert stream.committed == 0 and server.gateway.hub.under_way == 0
        # The learner catches up: an acknowledgement says so, unasked, and the rest is taken.
        puppet.follows = True
        stream.wait_committed(3)
        assert stream.acks[-1].credit_batches == 8
        stream.cancel()


async def _pulses(server: Running) -> None:
    for hosted in server.gateway.hub.policies.values():
        for _ in range(3):
            await server.gateway.hub.look_at(hosted)


def test_a_waiting_client_hears_that_credits_are_back(tmp_path: Path) -> None:
    with running(tmp_path, backlog_steps=10) as server:
        ada = server.client()
        ada.register()
        server.puppet().follows = False
        epoch = ada.open().epoch
        ada.put(batch(epoch, 1, steps=10))
        stream = ada.stream()
        wait_for(lambda: stream.acks)
        assert stream.acks[0].credit_batches == 0
        server.puppet().follows = True
        wait_for(lambda: stream.acks[-1].credit_batches > 0)
        stream.cancel()


def test_a_quota_holds_one_client_and_not_the_others(tmp_path: Path) -> None:
    now = [0.0]
    options = {"store_options": {"clock": lambda: now[0]}}
    with running(tmp_path, quota={"steps": 10, "seconds": 60}, **options) as server:
        flood, calm = server.client("flood"), server.client("calm")
        flood.register()
        one, two = flood.open().epoch, calm.open().epoch
        stream = flood.stream()
        stream.send(*(batch(one, seq) for seq in range(1, 4)))
        wait_for(lambda: stream.rejections)
        assert stream.rejections == [(3, Reason.QUOTA_EXCEEDED)]
        assert stream.committed == 2
        assert calm.put(batch(two, 1)).committed == 1
        assert server.gateway.hub.meters.quota_refusals.get("queue") == 1
        now[0] += 60
        stream.send(batch(one, 3))
        stream.wait_committed(3)
        stream.cancel()


def test_a_disk_that_fails_acknowledges_nothing(tmp_path: Path) -> None:
    failures = [0]

    def sync(handle: int) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(handle)

    with running(tmp_path, store_options={"sync": sync}) as server:
        ada = server.client()
        ada.register()
        epoch = ada.open().epoch
        stream = ada.stream()
        stream.send(batch(epoch, 1))
        stream.wait_committed(1)
        failures[0] = 1
        stream.send(batch(epoch, 2))
        wait_for(lambda: stream.rejections)
        assert stream.rejections == [(2, Reason.RESOURCE_EXHAUSTED)]
        assert stream.committed == 1
        failures[0] = 1
        assert reason_of(ada.put(batch(epoch, 2))) is Reason.RESOURCE_EXHAUSTED
        # A session is a promise as well.
        failures[0] = 1
        assert refused(server.client("bob").open).reason is Reason.RESOURCE_EXHAUSTED
        stream.send(batch(epoch, 2), batch(epoch, 3))
        stream.wait_committed(3)
        assert [one.seq for one in iterate(server.store, "queue")] == [1, 2, 3]
        stream.cancel()


def test_as_many_policies_as_the_server_may(tmp_path: Path) -> None:
    with running(tmp_path, max_policies=1) as server:
        ada = server.client()
        ada.register()
        assert refused(ada.register, OTHER).reason is Reason.QUOTA_EXCEEDED
        ada.register()


# Beginnings and ends


def test_drain_under_load_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        clients = [server.client(f"c{number}") for number in range(4)]
        clients[0].register()
        streams = []
        for client in clients:
            epoch = client.open().epoch
            stream = client.stream()
            stream.send(*(batch(epoch, seq, steps=50) for seq in range(1, 400)))
            streams.append(stream)
        wait_for(lambda: all(stream.committed > 5 for stream in streams))
        assert server.run(server.gateway.drain(10.0)) is True
        assert server.puppet().drained
        for stream in streams:
            assert stream.ended().reason is Reason.DRAINING
        counts = {client.name: stored(server, client) for client in clients}
        for client, stream in zip(clients, streams, strict=True):
            # Everything that was taken was acknowledged before the end, and nothing else.
            assert counts[client.name] == list(range(1, stream.committed + 1))
        error = refused(clients[0].open)
        assert error.reason is Reason.DRAINING
        assert refused(clients[0].register).reason is Reason.DRAINING
        assert refused(clients[0].put, batch(1, 1)).reason is Reason.DRAINING
        assert clients[0].stream().ended().reason is Reason.DRAINING


def test_a_restart_keeps_policies_sessions_versions_and_statistics(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        ada = server.client()
        ada.register()
        epoch = ada.open().epoch
        for seq in (1, 2, 3):
            ada.put(batch(epoch, seq))
        server.puppet().publish()
        server.puppet().publish()
        ada.call(ada.models.Pin, pb.PinRequest(policy="queue", version=1))
        before = ada.call(ada.admin.ListPolicies, pb.ListPoliciesRequest())
        ada.call(ada.admin.Pause, pb.PolicyRequest(policy="queue"))
    with running(tmp_path) as server:
        ada = server.client()
        assert server.puppet().state == "paused"
        ada.call(ada.admin.Resume, pb.PolicyRequest(policy="queue"))
        after = ada.call(ada.admin.ListPolicies, pb.ListPoliciesRequest())
        for one in (*before.policies, *after.policies):
            one.ClearField("traffic")  # counted since the server began
        assert after == before
        (policy,) = after.policies
        assert (policy.batches, policy.steps, policy.newest_version) == (3, 12, 2)
        assert policy.cursor == policy.position == 3 and policy.channels == {"stable": 1}
        assert server.gateway.hub.meters.steps.get("queue") == 12
        # A batch in doubt: the old session is over, and its mark is known.
        reply = ada.open(resume_epoch=epoch)
        assert (reply.epoch, reply.resumed_committed) == (epoch + 1, 3)
        info = next(ada.watch())
        assert (info.version, info.pinned) == (1, True)
        assert not ada.register().created


def test_a_client_that_goes_away_leaves_nothing_behind(server: Running, ada: Client) -> None:
    hosted = server.gateway.hub.policies["queue"]
    epoch = ada.open().epoch
    stream = ada.stream()
    stream.send(batch(epoch, 1))
    stream.wait_committed(1)
    assert ada.name in hosted.streams
    stream.cancel()
    wait_for(lambda: ada.name not in hosted.streams)
    wait_for(lambda: server.gateway.hub.under_way == 0)


def test_a_stream_without_a_message_is_no_error(server: Running, ada: Client) -> None:
    stream = ada.stream(greet=False)
    stream.close()
    stream._thread.join(20)
    assert stream.error is None and not stream.acks


def test_silence_is_broken_now_and_then(tmp_path: Path) -> None:
    with running(tmp_path, announce_seconds=0.1, recheck_seconds=0.05) as server:
        ada = server.client()
        ada.register()
        ada.open()
        server.puppet().publish()
        stream, watch = ada.stream(), ada.watch()
        assert [next(watch).version for _ in range(3)] == [1, 1, 1]
        wait_for(lambda: len(stream.acks) >= 3)
        stream.cancel()
        watch.cancel()


def test_what_nobody_expected_is_logged_and_tells_nothing(
    server: Running, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(server.store, "open_session", fail)
    with pytest.raises(grpc.RpcError) as found:
        ada.open()
    assert found.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in found.value.details()


def test_a_single_batch_has_its_part_in_the_memory_for_all(server: Running, ada: Client) -> None:
    epoch = ada.open().epoch
    hub = server.gateway.hub
    before, hub.under_way = hub.under_way, hub.config.ingest_mb << 20
    try:
        assert refused(ada.put, batch(epoch, 1)).reason is Reason.RESOURCE_EXHAUSTED
    finally:
        hub.under_way = before
    assert ada.put(batch(epoch, 1)).committed == 1
