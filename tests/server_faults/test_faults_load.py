"""Too much, too slow, no room: what a server does when it cannot keep up."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

import grpc
import pytest
from fault_proxy import FaultProxy
from gateway_support import Client, Running, batch, running
from grpc_health.v1 import health_pb2, health_pb2_grpc
from players import Player, numbers_in, stored_numbers
from served import Forge, memory, until

from assay.server.admin_client import AdminClient
from assay.server.errors import Reason
from assay.server.protocol import assay_pb2 as pb
from assay.server.store.store import Store

TCP = "127.0.0.1:0"
MB = 1 << 20


def test_a_slow_trainer_lowers_the_credits_and_memory_stays_flat(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    settings = {"backlog_steps": 400, "credits": {"batches": 8, "bytes": 4 * MB}}
    with Forge(listen=TCP, **settings) as forge:
        forge.start("Gated", environment={"ASSAY_FAULT_GATE": str(gate)})
        player = Player(forge.address, "ada", buffer_steps=500)
        channel = grpc.insecure_channel(forge.address)
        rude = Client(channel, "rude")
        try:
            player.play(800)
            until(lambda: forge.metric("assay_steps_total") >= 400, "a backlog")
            until(lambda: forge.metric("assay_credit_batches") == 0, "credits at 0")
            held = forge.metric("assay_steps_total")
            assert held <= 400 + 4 * 8 * 4  # the backlog, and a few windows of what was under way
            before = memory(forge.pid)
            # One that does not care about credits: 128 MB, of which the server reads next to none.
            epoch = rude.open().epoch
            stream = rude.stream()
            large = batch(epoch, 1, steps=20_000)
            for seq in range(1, 240):
                large.seq = seq
                copy = pb.Batch()
                copy.CopyFrom(large)
                stream.send(copy)
            assert 239 * large.ByteSize() > 128 * MB
            player.play(3000)
            time.sleep(1.0)
            assert memory(forge.pid) - before < 48 * MB
            assert forge.metric("assay_steps_total") - held <= 2 * 20_000
            status = player.connection.status()
            assert status.acting.held_steps <= 500
            assert status.acting.dropped_steps > 0
            stream.cancel()
            gate.touch()
            assert player.finish(), player.connection.status()
        finally:
            player.connection.close(0.0)
            channel.close()
        assert forge.end(signal.SIGTERM) == 0
        numbers = numbers_in(forge.config["data"])["ada"]
        status = player.connection.status()
        assert numbers == sorted(set(numbers))
        assert len(numbers) == status.acknowledged_steps
        assert len(numbers) + status.acting.dropped_steps == player.steps


def test_a_flood_beside_nine_normal_clients() -> None:
    quota = {"steps": 2000, "seconds": 1.0}
    with Forge(listen=TCP, quota=quota) as forge:
        forge.start()
        players = [Player(forge.address, f"normal-{i}") for i in range(9)]
        channel = grpc.insecure_channel(forge.address)
        flood = Client(channel, "flood")
        try:
            until(lambda: all(p.connection.status().epoch for p in players), "nine sessions")
            began = time.monotonic()
            epoch = flood.open().epoch
            stream = flood.stream()
            one = batch(epoch, 1, steps=500)
            for seq in range(1, 400):
                one.seq = seq
                copy = pb.Batch()
                copy.CopyFrom(one)
                stream.send(copy)
            until(lambda: stream.rejections, "a refusal")
            for player in players:
                player.play(200)
            for player in players:
                assert player.finish(), player.connection.status()
            took = time.monotonic() - began
            # Nobody but the flood was held back, and it got no more than its share.
            assert {reason for _, reason in stream.rejections} <= {
                Reason.QUOTA_EXCEEDED, Reason.SEQUENCE_GAP
            }  # fmt: skip
            assert forge.metric("assay_quota_refusals_total") > 0
            for player in players:
                assert player.connection.status().failures == 0
            assert 500 * stream.committed <= quota["steps"] * (took + 2.0)
            stream.cancel()
        finally:
            for player in players:
                player.connection.close(0.0)
            channel.close()
        assert forge.end(signal.SIGTERM) == 0
        found = numbers_in(forge.config["data"])
        for player in players:
            assert found[player.name] == list(range(player.steps))


def test_sigterm_under_load_loses_nothing() -> None:
    with Forge() as forge:
        forge.start()
        players = [Player(forge.address, f"client-{i}", batch_steps=8).start() for i in range(4)]
        try:
            for _ in range(2):
                before = [player.acknowledged for player in players]
                until(
                    lambda before=before: all(
                        player.acknowledged > 50 + was
                        for player, was in zip(players, before, strict=True)
                    ),
                    "acknowledgements",
                )
                began = time.monotonic()
                assert forge.end(signal.SIGTERM) == 0
                assert time.monotonic() - began < 30.0  # of drain_seconds, which it must not need
                acknowledged = {player.name: player.acknowledged for player in players}
                found = numbers_in(forge.config["data"])
                for name, count in acknowledged.items():
                    assert found[name][:count] == list(range(count))
                with Store(Path(forge.config["data"])) as store:
                    assert store.repairs == []
                forge.start()
                assert forge.repairs == []
            for player in players:
                assert player.finish(), player.connection.status()
        finally:
            for player in players:
                player.finish(0.0)
                player.connection.close(0.0)
        assert forge.end(signal.SIGTERM) == 0
        found = numbers_in(forge.config["data"])
        assert found == {player.name: list(range(player.steps)) for player in players}


def test_a_full_disk_acknowledges_nothing_and_everything_arrives_later() -> None:
    with Forge() as forge:
        forge.start()
        player = Player(forge.address, "ada", batch_steps=32)
        try:
            player.play(64)
            until(lambda: player.acknowledged >= 32, "the first acknowledgement")
            forge.end()
            # From here on no file may grow beyond what it has by more than a little.
            sizes = [p.stat().st_size for p in Path(forge.config["data"]).rglob("*") if p.is_file()]
            forge.start(file_limit=max(sizes) + 20_000)

            def full() -> bool:
                player.play(64)
                before = player.acknowledged
                time.sleep(0.3)  # a group of batches may not fit where a single one still does
                refused = "RESOURCE_EXHAUSTED" in player.connection.status().trouble
                return refused and player.acknowledged == before

            until(full, "refusals, and no more acknowledgements")
            acknowledged = player.acknowledged
            assert acknowledged < player.steps
            forge.end()
            assert numbers_in(forge.config["data"])["ada"][:acknowledged] == list(
                range(acknowledged)
            )
            forge.start()
            assert player.finish(), player.connection.status()
        finally:
            player.connection.close(0.0)
        assert forge.end(signal.SIGTERM) == 0
        assert numbers_in(forge.config["data"]) == {"ada": list(range(player.steps))}


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health_of(server: Running) -> list[int]:
    """Return how the server is, and how the policy is."""
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        asked = [health_pb2.HealthCheckRequest(service=one) for one in ("", "assay.policy/queue")]
        return [stub.Check(one, timeout=20).status for one in asked]


class Disk:
    """Syncs, and fails to when it is told to.

    Attributes:
        fails: "" for never, "once" for each first try (so that what was written can be taken
            back), "always".
        late: It fails after the bytes have reached the disk, and not before.
        failures: How often it did.
    """

    def __init__(self, late: bool = False) -> None:
        self.fails, self.late, self.failures = "", late, 0
        self._failed = False

    def __call__(self, descriptor: int) -> None:
        fails = self.fails == "always" or (self.fails == "once" and not self._failed)
        self._failed = fails
        if self.late or not fails:
            os.fdatasync(descriptor)
        if fails:
            self.failures += 1
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("late", [False, True])
def test_a_sync_that_fails_is_never_acknowledged(tmp_path: Path, late: bool) -> None:
    disk = Disk(late)
    with running(tmp_path, store_options={"sync": disk}) as server:
        player = Player(server.address, "ada")
        try:
            player.play(9)
            assert player.connection.flush(60)
            before = player.acknowledged
            disk.fails = "once"
            player.play(40)
            until(lambda: disk.failures >= 3, "failing syncs")
            until(lambda: "RESOURCE_EXHAUSTED" in player.connection.status().trouble, "a refusal")
            assert player.acknowledged == before == len(stored_numbers(server.store)["ada"])
            disk.fails = ""
            assert player.finish(), player.connection.status()
            assert stored_numbers(server.store) == {"ada": list(range(player.steps))}
        finally:
            player.connection.close(0.0)
    with Store(tmp_path) as store:
        assert store.repairs == []
        assert stored_numbers(store) == {"ada": list(range(player.steps))}


def test_a_disk_that_is_broken_for_good_needs_a_restart_and_loses_nothing(tmp_path: Path) -> None:
    disk = Disk()
    player = None
    with running(tmp_path, store_options={"sync": disk}) as server:
        proxy = FaultProxy(server.gateway.port)
        player = Player(proxy.address, "ada")
        try:
            player.play(9)
            assert player.connection.flush(60)
            before = player.acknowledged
            disk.fails = "always"
            player.play(40)
            until(lambda: "RESOURCE_EXHAUSTED" in player.connection.status().trouble, "a refusal")
            disk.fails = ""
            # What could not be taken back may be there or not: nobody may build on it.
            player.play(40)
            refusals = server.gateway.hub.meters.rejections
            seen = refusals.get("queue", "RESOURCE_EXHAUSTED")
            until(lambda: refusals.get("queue", "RESOURCE_EXHAUSTED") > seen + 2, "refusals")
            assert player.acknowledged == before
            until(lambda: health_of(server) == [NOT_SERVING, NOT_SERVING], "word of it")
            with AdminClient.open({"address": server.address}) as admin:
                (note,) = admin.policy("queue").info.notes  # not also as a disk that is full
            assert "disk has failed" in note and "start it again" in note
        except BaseException:
            player.connection.close(0.0)
            proxy.close()
            raise
    with proxy, running(tmp_path) as server:
        proxy.target = server.gateway.port
        try:
            assert player.finish(), player.connection.status()
            assert stored_numbers(server.store) == {"ada": list(range(player.steps))}
            until(lambda: health_of(server) == [SERVING, SERVING], "health")
        finally:
            player.connection.close(0.0)


def test_a_client_whose_server_is_away_keeps_deciding_within_its_buffer() -> None:
    player = Player("127.0.0.1:1", "ada", buffer_steps=100)
    try:
        player.play(2000)
        status = player.connection.status()
        assert player.wrong == 0 and status.acting.sources == {"constant": 2000}
        assert status.acting.held_steps <= 100
        assert status.state in ("away", "connecting")
    finally:
        player.connection.close(0.0)
    assert status.acting.dropped_steps >= 2000 - 100 - 4
