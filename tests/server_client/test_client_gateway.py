"""The client against the real gateway and its store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_support import CHOICE, SEEN, model
from fake_server import wait_for
from fault_proxy import FaultProxy, Faults
from test_client_grpc import joined, play

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server_gateway"))
from certificates import Authority
from gateway_support import running

from assay.server.client.spaces import make_spec
from assay.server.protocol import assay_pb2 as pb
from assay.server.store.registry import Verb
from assay.server.store.store import Store, iterate
from assay.server.store.tokens import make_token
from assay.server.tensors import Layout, decode

OBS = np.zeros(3, np.float32)


def stored(store: Store, client: str = "ada") -> list[int]:
    """Return the events of all steps in the store, in order."""
    layout = Layout(make_spec("p", SEEN, CHOICE, "ppo"))
    events: list[int] = []
    for one in iterate(store, "p"):
        if one.client == client:
            experience = decode(pb.Batch.FromString(one.payload), layout)
            events += [int(e) for e in experience.fields["event"]] if experience.steps else []
    return events


def test_experience_is_stored_and_a_model_is_swapped_in(tmp_path: Path):
    with running(tmp_path) as server, joined(server.address) as agent:
        play(agent, 41)
        assert agent.flush(30)
        assert stored(server.store) == list(range(1, 41))
        server.puppet("p").publish(data=model(1, prefers=2).data)
        assert agent.wait_for_model(30) and agent.act(OBS) == 2
        play(agent, 8, 41)
        assert agent.flush(30)
        batches = [pb.Batch.FromString(one.payload) for one in iterate(server.store, "p")]
        assert batches[-1].version == 1
        wait_for(lambda: agent.status().newest_version == 1)
        server.puppet("p").publish(data=model(2, prefers=0).data)
        wait_for(lambda: agent.act(OBS) == 0)
        assert agent.status().failures == 0 and agent.status().acting.rejected_models == 0


def test_late_rewards_compression_and_refused_content(tmp_path: Path):
    with running(tmp_path) as server, joined(server.address, compress=True) as agent:
        events = [agent.decide(OBS).event for _ in range(9)]
        wait_for(lambda: agent.status().acknowledged_steps == 8)
        for event in events[:8]:
            agent.reward(3.0, event)
        assert agent.flush(30)
        layout = Layout(agent.spec)
        late: dict[int, float] = {}
        for one in iterate(server.store, "p"):
            late |= decode(pb.Batch.FromString(one.payload), layout).patches
        assert late == dict.fromkeys(events[:8], 3.0)
        # A version that the server never published: the batch goes, the rest arrives.
        assert agent.agent.keeper.offer(model(9).data, model(9).sha256)
        play(agent, 4, 9)
        wait_for(lambda: agent.status().refusals.get("BAD_VERSION"))
        assert agent.status().state == "connected"


def test_a_gateway_that_comes_back_has_everything_once(tmp_path: Path):
    with running(tmp_path) as server:
        port = server.gateway.port
        agent_ = joined(server.address)
        agent = agent_.__enter__()
        play(agent, 21)
        assert agent.flush(30)
    try:
        wait_for(lambda: agent.status().state != "connected")
        play(agent, 20, 21)
        assert agent.act(OBS) == 1
        with running(tmp_path, listen=f"127.0.0.1:{port}") as server:
            assert agent.flush(30)
            assert stored(server.store) == list(range(1, 42))
            assert agent.status().epoch == 2
    finally:
        agent_.__exit__(None, None, None)


def test_two_clients_with_one_name(tmp_path: Path):
    with running(tmp_path) as server, joined(server.address) as old:
        play(old, 5)
        assert old.flush(30)
        with joined(server.address) as new:
            play(new, 5)
            assert new.flush(30)
            wait_for(lambda: old.status().state == "fenced")
            assert "taken over" in old.status().trouble and old.act(OBS) == 1
            assert len(old.reports) == 1
        assert old.flush(30)
        assert len(stored(server.store)) == 9


def test_tokens(tmp_path: Path):
    with running(tmp_path / "data", tokens=True) as server:
        token, entry = make_token("ada", {"p": frozenset({Verb.REGISTER, Verb.WRITE, Verb.READ})})
        path = tmp_path / "token"
        path.write_text("assay_0000000000000000_" + "0" * 64)
        with joined(server.address, token_file=path, client="somebody") as agent:
            play(agent, 5)
            wait_for(lambda: agent.status().state == "refused")
            assert agent.status().trouble.startswith("UNAUTHENTICATED")
            assert agent.act(OBS) == 1
            server.store.registry.add_token(entry)
            path.write_text(token)  # without a restart
            assert agent.flush(30)
        assert stored(server.store, "ada") == [1, 2, 3, 4, 5]  # by the token, not by the claim


def test_mutual_tls(tmp_path: Path):
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    for one, name in ((authority, "ada"), (stranger, "eve")):
        one.issue(name, name)
    place = authority.directory
    tls = {
        "cert": str(place / "server.crt"),
        "key": str(place / "server.key"),
        "client_ca": str(place / "ca.crt"),
    }
    grants = {"ada": {"p": ["register", "write", "read"]}}

    def files(one: Authority, name: str, trusts: Authority = authority) -> dict[str, str]:
        return {
            "ca": str(trusts.directory / "ca.crt"),
            "certificate": str(one.directory / f"{name}.crt"),
            "key": str(one.directory / f"{name}.key"),
        }

    with running(tmp_path / "data", tls=tls, grants=grants) as server:
        with joined(server.address, tls=files(authority, "ada"), client="claims") as agent:
            play(agent, 5)
            assert agent.flush(30)
        assert stored(server.store) == [1, 2, 3, 4]  # by the certificate, not by the claim
        for bad in (
            files(stranger, "eve"),  # the server does not know who signed it
            files(authority, "ada", stranger),  # the client does not know the server's
            {"ca": str(place / "ca.crt")},  # none
        ):
            with joined(server.address, tls=bad) as agent:
                play(agent, 5)
                wait_for(lambda agent=agent: agent.status().failures >= 2)
                assert agent.act(OBS) == 1 and agent.status().epoch == 0
        assert len(stored(server.store)) == 4


@pytest.mark.parametrize("seed", range(2))
def test_a_bad_network_costs_nothing(tmp_path: Path, seed: int):
    faults = Faults(cut=0.02, lose=0.04, double=0.06, swap=0.06, delay=0.1)
    with running(tmp_path) as server, FaultProxy(server.gateway.port, seed) as proxy:
        with joined(proxy.address, stall_seconds=0.5) as agent:
            wait_for(lambda: agent.status().state == "connected")
            proxy.faults = faults
            for i in range(8):
                play(agent, 40, 40 * i)
                agent.flush(0.2)
            proxy.faults = Faults()
            assert agent.flush(30)
            status = agent.status()
            assert status.refusals == {}
            assert stored(server.store) == list(range(1, 320))
    assert sum(proxy.done.values()) > 5


def test_a_half_open_peer_loses_its_place(tmp_path: Path):
    with running(tmp_path) as server, FaultProxy(server.gateway.port) as proxy:
        options: dict[str, Any] = {"keepalive_seconds": 0.3, "keepalive_timeout": 0.3}
        with joined(proxy.address, **options) as agent:
            play(agent, 5)
            assert agent.flush(30)
            proxy.silent.set()
            wait_for(lambda: agent.status().failures >= 1)
            play(agent, 8)
            proxy.cut_all()
            proxy.silent.clear()
            assert agent.flush(30)
            assert stored(server.store) == list(range(1, 13))
