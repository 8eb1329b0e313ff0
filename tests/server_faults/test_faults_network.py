"""A network that cuts, doubles, swaps, loses and falls silent, between real clients and gateway."""

from __future__ import annotations

import signal

import pytest
from fault_proxy import FaultProxy, Faults
from gateway_support import SPEC, Client, batch, refused
from players import Player, numbers_in
from served import Forge, until

from assay.server.client import grpc_transport
from assay.server.errors import Reason
from assay.server.protocol import PROTOCOL
from assay.server.protocol import assay_pb2 as pb

TCP = "127.0.0.1:0"


@pytest.mark.parametrize("seed", [1, 2])
def test_streams_that_are_cut_doubled_and_reordered(seed: int) -> None:
    faults = Faults(cut=0.02, lose=0.05, double=0.1, swap=0.1, delay=0.1)
    with Forge(listen=TCP) as forge:
        forge.start()
        with FaultProxy(forge.port, seed) as proxy:
            players = [
                Player(proxy.address, f"client-{i}", stall_seconds=1.0, call_seconds=2.0)
                for i in range(2)
            ]
            try:
                for player in players:
                    player.play(5)
                    assert player.connection.flush(60)
                proxy.faults = faults
                for _ in range(8):
                    for player in players:
                        player.play(40)
                        player.connection.flush(0.1)
                # At least one of each, however the messages were laid out in frames.
                for name in ("cut", "double", "swap"):

                    def more(name: str = name) -> bool:
                        players[0].play(8)
                        players[0].connection.flush(0.05)
                        return proxy.done[name] > 0

                    until(more, name)
                proxy.faults = Faults()
                for player in players:
                    assert player.finish(), player.connection.status()
            finally:
                for player in players:
                    player.connection.close(0.0)
        # What came twice was noticed as such, and what was missing was asked for.
        assert forge.metric("assay_duplicates_total") > 0 or forge.metric(
            "assay_rejections_total", reason="SEQUENCE_GAP"
        )
        assert forge.end(signal.SIGTERM) == 0
        found = numbers_in(forge.config["data"])
        assert found == {player.name: list(range(player.steps)) for player in players}


def test_a_peer_that_fell_silent_is_found_and_its_session_resumed() -> None:
    with Forge(listen=TCP) as forge:
        forge.start()
        with FaultProxy(forge.port) as proxy:
            options = {"keepalive_seconds": 0.3, "keepalive_timeout": 0.5, "stall_seconds": 1e6}
            player = Player(proxy.address, "ada", **options)
            try:
                player.play(9)
                assert player.connection.flush(60)
                proxy.silent.set()
                player.play(20)
                until(lambda: player.connection.status().failures >= 1, "keepalive")
                player.play(20)  # it decides all the time
                proxy.cut_all()
                proxy.silent.clear()
                assert player.finish(), player.connection.status()
                assert player.connection.status().epoch >= 2
            finally:
                player.connection.close(0.0)
        assert forge.end(signal.SIGTERM) == 0
        assert numbers_in(forge.config["data"]) == {"ada": list(range(player.steps))}


def test_what_a_half_open_session_sends_late_does_not_count() -> None:
    # A client's machine hangs and another takes its place; then the first one's packets arrive.
    with Forge(listen=TCP) as forge:
        forge.start()
        with FaultProxy(forge.port) as proxy:
            # It neither looks whether the server is there nor comes back soon.
            old = Player(proxy.address, "ada", keepalive_seconds=1e3, retry_seconds=5.0)
            new = None
            try:
                old.play(9)
                assert old.connection.flush(60)
                before = old.acknowledged
                proxy.silent.set()
                old.play(20)
                until(lambda: old.connection.status().sent_batches >= 6, "batches into silence")
                new = Player(forge.address, "ada")
                new.play(30)
                assert new.finish()
                proxy.silent.clear()
                until(lambda: old.connection.status().state == "fenced", "the older one's end")
                assert old.acknowledged == before
                old.play(3)  # it is told, and goes on deciding
                assert old.wrong == 0
            finally:
                for player in (old, new):
                    if player is not None:
                        player.connection.close(0.0)
        assert forge.end(signal.SIGTERM) == 0
        assert numbers_in(forge.config["data"]) == {"ada": [*range(before), *range(new.steps)]}


def test_an_older_client_that_says_less_works() -> None:
    # Neither the hash of the spec, nor a session to resume, nor its own version, nor events.
    with Forge(listen=TCP) as forge:
        forge.start()
        with grpc_transport.grpc.insecure_channel(forge.address) as channel:
            client = Client(channel, "old")
            client.register()
            epoch = client.open().epoch
            assert client.put(batch(epoch, 1)).committed == 1
            stream = client.stream(greet=False)
            stream.send(batch(epoch, 2), batch(epoch, 3))
            stream.wait_committed(3)
            stream.cancel()


def test_a_client_of_another_protocol_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with Forge(listen=TCP) as forge:
        forge.start()
        with grpc_transport.grpc.insecure_channel(forge.address) as channel:
            text = SPEC.canonical().decode()
            request = pb.RegisterRequest(protocol=PROTOCOL + 1, spec_json=text)
            client = Client(channel, "new")
            error = refused(client.call, client.session.Register, request)
            assert error.reason is Reason.UNSUPPORTED_PROTOCOL
        monkeypatch.setattr(grpc_transport, "PROTOCOL", PROTOCOL + 1)
        reports: list[str] = []
        player = Player(forge.address, "ada", on_trouble=reports.append)
        try:
            until(lambda: reports, "the report")
            player.play(20)
            status = player.connection.status()
            assert status.state in ("refused", "connecting")
            assert "UNSUPPORTED_PROTOCOL" in status.trouble
            assert str(PROTOCOL + 1) in reports[0] and str(PROTOCOL) in reports[0]
            assert player.wrong == 0 and status.acting.decisions == 20
        finally:
            player.connection.close(0.0)
