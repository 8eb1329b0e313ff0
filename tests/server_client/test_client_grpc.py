"""The transport over gRPC, against a server that refuses, cuts, holds back and lies."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_support import CHOICE, KNOB, SEEN, FakeClock, model
from fake_server import FakeServer, wait_for
from fault_proxy import FaultProxy, Faults

from assay.core.errors import ConfigError
from assay.server.client.config import ClientConfig, Tls
from assay.server.client.connect import Connection, connect
from assay.server.client.grpc_transport import Endpoint, is_loopback
from assay.server.client.outbox import RewardPatch
from assay.server.errors import Reason
from assay.server.protocol import assay_pb2 as pb

OBS = np.zeros(3, np.float32)


@contextlib.contextmanager
def joined(address: str, **options: Any) -> Iterator[Connection]:
    """Connect quickly and quietly, and let go in the end without waiting."""
    reports: list[str] = []
    values: dict[str, Any] = {
        "observation": SEEN,
        "action": CHOICE,
        "algorithm": "ppo",
        "safe_action": 1,
        "batch_steps": 4,
        "batch_seconds": 1e6,  # by steps alone, so that each batch is known
        "client": "ada",
        "retry_seconds": 0.01,
        "on_trouble": reports.append,
    }
    connection = connect(address, **{"policy": "p", **values, **options})
    connection.reports = reports  # type: ignore[attr-defined]
    try:
        yield connection
    finally:
        connection.close(0.0)


def play(connection: Connection, steps: int, first: int = 0) -> None:
    for i in range(first, first + steps):
        connection.act(np.full(3, i % 7, np.float32))
        connection.reward(float(i))


def cut_often(server: FakeServer, connection: Connection) -> None:
    """Play until there have been several sessions."""

    def again() -> bool:
        play(connection, 8)
        return server.epochs["ada"] >= 4

    wait_for(again)


def test_experience_arrives_once_and_in_order():
    with FakeServer() as server, joined(server.address) as agent:
        play(agent, 41)
        assert agent.flush(30)
        assert server.steps() == list(range(1, 41))
        rewards = [r for _, _, _, one in server.kept for r in one.fields["reward"]]
        assert rewards == list(range(40))
        starts = [one.start_step for _, _, _, one in server.kept]
        assert starts == list(range(0, 40, 4))
        assert (server.duplicates, server.gaps) == (0, 0)
        status = agent.status()
        assert status.state == "connected" and status.acknowledged_steps == 40
        assert status.acting.held_steps == 0 and status.epoch == 1
        assert server.seen_metadata["Stream"]["assay-client"] == "ada"
        assert "authorization" not in server.seen_metadata["Open"]


def test_flags_and_raw_actions_arrive():
    with FakeServer() as server:
        with joined(
            server.address, action=KNOB, safe_action=[0.0, 0.0], heuristic=lambda o, m: [5.0, 0.5]
        ) as agent:
            play(agent, 5)
            assert agent.flush(30)
        (_, _, _, one), *_ = server.kept
        np.testing.assert_array_equal(one.fields["flags"], [9] * 4)  # fallback, and out of bounds
        np.testing.assert_array_equal(one.fields["action"], [[1.0, 0.5]] * 4)
        np.testing.assert_array_equal(one.fields["raw_action"], [[5.0, 0.5]] * 4)


def test_bounds_reach_the_shield_and_the_model():
    with FakeServer() as server:
        options: dict[str, Any] = {
            "action": KNOB,
            "safe_action": [0.0, 0.0],
            "bounds": {"low": -0.25, "high": [0.25, None]},
            "heuristic": lambda o, m: [0.9, 0.9],
        }
        with joined(server.address, **options) as agent:
            np.testing.assert_allclose(agent.act(OBS), [0.25, 0.9])
            wait_for(lambda: "p" in server.specs)
            assert server.specs["p"].bounds.high == (0.25, None)
        with pytest.raises(ConfigError, match="outside the bounds"):
            connect(
                server.address,
                "p",
                observation=SEEN,
                algorithm="ppo",
                **options | {"safe_action": [0.9, 0]},
            )


def test_a_batch_refused_for_its_content_is_dropped_and_the_rest_arrives():
    with FakeServer() as server:
        bad = {3, 4, 8}  # by the number of the batch's first event: 9, 13, 29
        server.judge = lambda batch: (
            Reason.NOT_FINITE if batch.steps and batch.start_step // 4 + 1 in bad else None
        )
        with joined(server.address) as agent:
            play(agent, 41)
            assert agent.flush(30)
            gone = {4 * (n - 1) + i for n in bad for i in range(1, 5)}
            assert server.steps() == [e for e in range(1, 41) if e not in gone]
            status = agent.status()
            assert status.refusals == {"NOT_FINITE": 3} and status.refused_steps == 12
            assert "NOT_FINITE it is" in status.last_refusal
            assert status.state == "connected" and status.failures == 0  # all in one session
            assert len(agent.reports) == 1
    assert server.gaps > 0  # what was under way behind the refused ones


def test_a_batch_that_cannot_be_encoded_is_dropped_here():
    with FakeServer() as server, joined(server.address) as agent:
        play(agent, 5)
        assert agent.flush(30)
        transport = agent._transport
        encode = transport._experience

        def wrong(item: Any, number: int) -> Any:
            experience = encode(item, number)
            if experience.steps and experience.fields["event"][0] == 9:
                experience.fields["reward"] = experience.fields["reward"].astype(str)
            return experience

        transport._experience = wrong
        play(agent, 12)
        assert agent.flush(30)
        assert agent.status().refusals == {"WRONG_DTYPE": 1}
        assert [e for e in server.steps() if not 9 <= e <= 12] == server.steps()
        assert server.gaps == 0


def test_damage_on_the_way_is_sent_again_and_not_for_ever():
    with FakeServer() as server:
        seen: list[int] = []

        def judge(batch: Any) -> Reason | None:
            seen.append(batch.start_step)
            if batch.start_step == 4 and seen.count(4) <= 2:
                return Reason.CHECKSUM_MISMATCH
            return Reason.CHECKSUM_MISMATCH if batch.start_step == 12 else None

        server.judge = judge
        with joined(server.address) as agent:
            play(agent, 25)
            assert agent.flush(30)
            assert server.steps() == [e for e in range(1, 25) if not 13 <= e <= 16]
            assert seen.count(12) == 5
            assert agent.status().refused_steps == 4


def test_a_batch_that_ends_the_stream_each_time_is_given_up():
    with FakeServer() as server:

        def judge(batch: Any) -> Reason | None:
            if batch.start_step == 4:
                raise RuntimeError("a bug of the server")
            return None

        def broken(client: str, policy: str, batch: Any) -> Any:
            try:
                return take(client, policy, batch)
            except RuntimeError:
                return "bug"

        take, server._take = server._take, broken
        server.judge = judge
        # What is not a pair of answers makes the handler fail: the stream ends with UNKNOWN.
        with joined(server.address) as agent:
            play(agent, 13)
            assert agent.flush(30)
            assert server.steps() == [1, 2, 3, 4, 9, 10, 11, 12]
            assert agent.status().refused_steps == 4
            assert agent.status().failures == 5


def test_no_more_is_under_way_than_granted():
    with FakeServer(credits=(2, 1 << 20)) as server:
        server.answer.clear()
        with joined(server.address) as agent:
            play(agent, 61)
            wait_for(lambda: server.most_held == 2)
            server.grant(0)  # a learner that is behind
            server.answer.set()
            wait_for(lambda: len(server.steps()) == 8)
            assert not agent.flush(0.3)
            assert len(server.steps()) == 8 and agent.status().state == "connected"
            server.grant(3)  # told by itself
            assert agent.flush(30)
            assert server.steps() == list(range(1, 61))
            assert server.most_held <= 3


def test_bytes_are_credits_too():
    with FakeServer(credits=(100, 1)) as server:  # not even one batch: they go one by one
        server.answer.clear()
        with joined(server.address) as agent:
            play(agent, 41)
            wait_for(lambda: server.most_held == 1)
            server.answer.set()
            assert agent.flush(30)
            assert server.most_held == 1
            assert server.steps() == list(range(1, 41))


@pytest.mark.parametrize("after", [0, 1, 3])
def test_streams_that_are_cut_lose_and_double_nothing(after):
    with FakeServer() as server:
        server.cut_after = after
        with joined(server.address) as agent:
            cut_often(server, agent)
            server.cut_after = None
            assert agent.flush(30)
            # Answers were lost, so that only the marks of the sessions told what was kept.
            count = agent.status().acting.decisions - 1
            assert server.steps() == list(range(1, count + 1))
            assert agent.status().failures >= 2


def test_a_server_that_is_away_at_the_start_and_in_mid_run():
    server = FakeServer()
    port = server.port
    server.stop()
    with joined(f"127.0.0.1:{port}", buffer_steps=40) as agent:
        for i in range(200):
            assert agent.act(OBS) == 1
            agent.reward(float(i))
            assert agent.agent.outbox.held_steps <= 40
        wait_for(lambda: agent.status().failures >= 3)
        status = agent.status()
        assert status.state in ("away", "connecting") and str(port) in status.last_failure
        assert status.acting.dropped_steps > 0
        wait_for(lambda: agent.reports)
        server.start()
        try:
            server.publish(model(4, prefers=2))
            # What is under way is never dropped, so it must be gone before there is more to hold.
            wait_for(lambda: agent.agent.outbox.empty)
            assert agent.wait_for_model(30) and agent.act(OBS) == 2
            assert agent.flush(30)
            assert server.steps() == list(range(157, 201))
            server.stop()
            for _ in range(20):
                assert agent.act(OBS) == 2  # with the model that it has
                agent.reward(1.0)
            wait_for(lambda: agent.status().state != "connected")
            server.start()
            assert agent.flush(30)
            assert server.steps() == list(range(157, 221))
        finally:
            server.stop()


@pytest.mark.parametrize("call", ["Register", "Open", "Stream"])
@pytest.mark.parametrize("reason", [Reason.UNAUTHENTICATED, Reason.SPEC_CONFLICT])
def test_refusals_are_reported_and_the_system_goes_on(call, reason):
    with FakeServer() as server:
        server.refuse_calls[call] = reason
        with joined(server.address) as agent:
            play(agent, 5)
            wait_for(lambda: agent.status().state == "refused")
            status = agent.status()
            assert status.trouble == f"{reason.name}: {reason.name} it is."
            wait_for(lambda: agent.reports == [f"{reason.name} it is."])
            assert agent.act(OBS) == 1
            server.refuse_calls.clear()
            assert agent.flush(30)
            assert agent.status().trouble == ""
            assert len(agent.reports) == 1


def test_a_client_that_may_not_register_uses_what_is_registered():
    with FakeServer() as server:
        with joined(server.address) as agent:
            play(agent, 5)
            assert agent.flush(30)
        server.refuse_calls["Register"] = Reason.PERMISSION_DENIED
        with joined(server.address, client="bob") as agent:
            play(agent, 5)
            assert agent.flush(30)
            server.refuse_calls["Open"] = Reason.UNKNOWN_POLICY
        with joined(server.address, client="eve") as agent:
            wait_for(lambda: agent.status().state == "refused")
            assert "PERMISSION_DENIED" in agent.status().trouble  # which is the reason


def test_a_client_without_models_sends_nevertheless():
    with FakeServer() as server:
        server.refuse_calls["Watch"] = Reason.PERMISSION_DENIED
        with joined(server.address) as agent:
            play(agent, 5)
            assert agent.flush(30)
            wait_for(lambda: agent.reports and "No models come" in agent.reports[0])
            assert agent.status().state == "connected"


def test_the_newer_of_two_clients_with_one_name_stays():
    with FakeServer() as server, joined(server.address) as old:
        play(old, 5)
        assert old.flush(30)
        with joined(server.address) as new:
            play(new, 5)
            assert new.flush(30)
            play(old, 8)
            wait_for(lambda: old.status().state == "fenced")
            wait_for(lambda: any("taken over" in r or "FENCED" in r for r in old.reports))
            assert old.act(OBS) == 1
            assert new.status().state == "connected"
        # The other one is gone: the fenced one comes back, and loses nothing.
        assert old.flush(30)
        assert server.steps()[-9:] == list(range(5, 14))


# ---------------------------------------------------------------------- models


def test_models_are_fetched_by_hash_and_confirmed():
    clock = FakeClock()
    with FakeServer() as server, joined(server.address, clock=clock, model_ttl=10.0) as agent:
        server.publish(model(1, prefers=2))
        assert agent.wait_for_model(30)
        assert agent.act(OBS) == 2
        clock.now += 11.0
        assert agent.act(OBS) == 1  # silent for too long
        wait_for(lambda: server._watchers)
        server.repeat()
        wait_for(lambda: agent.act(OBS) == 2)
        assert server.calls["Fetch"] == 1
        server.publish(model(2, prefers=0))
        wait_for(lambda: agent.act(OBS) == 0)
        assert agent.status().acting.version == 2
        server.publish(model(1, prefers=2))  # rolled back
        wait_for(lambda: agent.act(OBS) == 2)


def bad_weights() -> Any:
    snapshot = model(2, prefers=0)
    data = bytearray(snapshot.data)
    data[-4:] = np.float32(np.nan).tobytes()
    return bytes(data)


def test_bad_models_are_refused_and_the_one_before_is_kept():
    import hashlib

    with FakeServer() as server, joined(server.address) as agent:
        server.publish(model(1, prefers=2))
        assert agent.wait_for_model(30)

        def refused(count: int, words: str) -> None:
            wait_for(lambda: agent.status().acting.rejected_models >= count, words)
            assert words in agent.status().acting.last_rejection
            assert agent.act(OBS) == 2 and agent.status().acting.version == 1

        server.lie = lambda data: data[:-1] + b"x"
        server.publish(model(2, prefers=0))
        refused(1, "is not what its SHA-256")
        server.lie = lambda data: data + b"x"
        server.publish(model(3, prefers=0))
        refused(2, "bytes in all")
        server.lie = lambda data: data
        nan = bad_weights()
        server.publish(model(4), sha256=hashlib.sha256(nan).hexdigest())
        server._model = (server._model[0], nan)
        refused(3, "")
        from gymnasium import spaces

        server.publish(model(5, action=spaces.Discrete(4)))
        refused(4, "action space")
        server.publish(model(6), size=1 << 40)
        refused(5, "expected 268435456 or fewer")
        # Said again and again, it is fetched a few times and then left alone.
        server.lie = lambda data: data[:-1] + b"x"
        server.publish(model(7))
        fetched = server.calls["Fetch"]
        for _ in range(10):
            server.repeat()
        refused(8, "SHA-256")
        server.lie = lambda data: data
        server.publish(model(8, prefers=0))
        wait_for(lambda: agent.act(OBS) == 0)
        assert server.calls["Fetch"] - fetched <= 4
        assert agent.status().state == "connected"


def test_models_are_kept_for_the_next_start(tmp_path: Path):
    with FakeServer() as server, joined(server.address, models=tmp_path) as agent:
        server.publish(model(3, prefers=2))
        assert agent.wait_for_model(30)
    with joined("127.0.0.1:9", models=tmp_path) as agent:  # nobody is there
        decided = agent.decide(OBS)
        assert (decided.action, decided.source, decided.version) == (2, "last_good", 3)
    # Another policy with the same spaces and the same directory has none yet.
    with joined("127.0.0.1:9", models=tmp_path, policy="another") as agent:
        assert agent.decide(OBS).source == "constant"


# ---------------------------------------------------------------------- late rewards, compression


def test_late_rewards_arrive_in_few_messages():
    with FakeServer() as server:
        server.grant(0)
        with joined(server.address) as agent:
            events = [agent.decide(OBS).event for _ in range(41)]
            for event in events[:40]:
                agent.reward(2.0, event)
            for event in events[:5]:
                agent.reward(0.5, event)
            server.grant(8)
            assert agent.flush(30)
            expected = {event: 2.0 for event in events[:40]} | {e: 2.5 for e in events[:5]}
            assert server.rewards() == expected
            patches = [m for m in server.messages if m.HasField("patch")]
            assert 1 <= len(patches) <= 3
            assert agent.status().acting.late_rewards == 45


@pytest.mark.parametrize("offered", [True, False])
def test_compression_where_the_server_offers_it(offered):
    with FakeServer() as server:
        server.codecs = [pb.RAW, pb.ZSTD] if offered else [pb.RAW]
        with joined(server.address, compress=True, batch_steps=200) as agent:
            play(agent, 401)
            assert agent.flush(30)
        assert server.codecs_seen == {pb.ZSTD if offered else pb.RAW: 2}
        assert server.steps() == list(range(1, 401))


def test_a_batch_above_the_frame_limit_travels_in_parts():
    from gymnasium import spaces

    wide = spaces.Box(-1, 1, (50_000,), np.float32)
    with FakeServer(credits=(4, 64 << 20)) as server:
        with joined(server.address, observation=wide, batch_steps=30) as agent:
            for i in range(61):
                agent.act(np.full(50_000, i / 100, np.float32))
            assert agent.flush(60)
        assert server.steps() == list(range(1, 61))
        assert max(m.size for m in server.messages) > 4 << 20
        np.testing.assert_allclose(server.kept[1][3].fields["obs"][:, 7], np.arange(30, 60) / 100)


# ---------------------------------------------------------------------- the network


@pytest.mark.parametrize("seed", range(3))
def test_a_network_that_cuts_loses_doubles_and_swaps(seed):
    faults = Faults(cut=0.02, lose=0.05, double=0.08, swap=0.08, delay=0.1)
    with FakeServer(credits=(4, 1 << 20)) as server, FaultProxy(server.port, seed) as proxy:
        with joined(proxy.address, stall_seconds=0.5) as agent:
            wait_for(lambda: agent.status().state == "connected")
            proxy.faults = faults
            for i in range(10):
                play(agent, 40, 40 * i)
                agent.flush(0.2)
            proxy.faults = Faults()
            assert agent.flush(30)
            assert server.steps() == list(range(1, 400))
    assert sum(proxy.done.values()) > 10
    assert len(set(server.steps())) == len(server.steps())


def test_a_half_open_peer_is_found_by_keepalive():
    with FakeServer() as server, FaultProxy(server.port) as proxy:
        options = {"keepalive_seconds": 1.0, "keepalive_timeout": 0.3, "stall_seconds": 1e6}
        with joined(proxy.address, **options) as agent:
            play(agent, 5)
            assert agent.flush(30)
            # Quiet first, so that no ping of gRPC's own is on its way.
            wait_for(lambda: time.monotonic() - proxy.passed_at > 0.3)
            proxy.silent.set()
            wait_for(lambda: agent.status().failures >= 1, "keepalive")
            play(agent, 8)
            assert agent.act(OBS) == 1
            proxy.cut_all()
            proxy.silent.clear()
            assert agent.flush(30)
            assert server.steps() == list(range(1, 14))
            assert agent.status().epoch >= 2  # a new session has taken over


def test_a_server_that_takes_batches_and_never_answers_is_given_up():
    clock = FakeClock()
    with FakeServer() as server:
        server.answer.clear()
        with joined(server.address, clock=clock, stall_seconds=5.0) as agent:
            play(agent, 5)
            wait_for(lambda: server.most_held >= 1)
            assert agent.status().failures == 0
            clock.now += 6.0
            wait_for(lambda: "unanswered" in agent.status().last_failure)
            server.answer.set()
            assert agent.flush(30)
            assert server.steps() == [1, 2, 3, 4]


def test_a_clock_that_jumps_costs_nothing():
    clock = FakeClock()
    with FakeServer() as server, joined(server.address, clock=clock, model_ttl=1e4) as agent:
        server.publish(model(1, prefers=2))
        assert agent.wait_for_model(30)
        for i, jump in enumerate((1e9, -2e9, 3e9, -1.0, 0.0)):
            clock.now += jump
            server.repeat()
            wait_for(lambda: agent.act(OBS) == 2)
            play(agent, 8, 8 * i)
        assert agent.flush(30)
        steps = server.steps()
        assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 40


# ---------------------------------------------------------------------- who and where


def test_tokens_are_sent_and_read_again_for_each_session(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text("first\n")
    with FakeServer() as server, joined(server.address, token_file=path) as agent:
        wait_for(lambda: agent.status().state == "connected")
        assert server.seen_metadata["Open"]["authorization"] == "Bearer first"
        path.write_text("second\n")
        server.cut_after = 0

        def playing(condition: Any) -> None:
            wait_for(lambda: play(agent, 8) or condition())

        playing(lambda: server.seen_metadata["Open"]["authorization"] == "Bearer second")
        path.unlink()  # in mid-run: it goes on trying
        playing(lambda: "token_file" in agent.status().last_failure)
        path.write_text("third")
        server.cut_after = None
        assert agent.flush(30)


def endpoint(address: str, **settings: Any) -> Endpoint:
    return Endpoint(ClientConfig(address=address, client="ada", **settings))


def test_plaintext_off_this_machine_is_refused(tmp_path: Path):
    assert not is_loopback("example.com:1") and not is_loopback("0.0.0.0:1")
    with pytest.raises(ConfigError, match=r"'example.com:1' is another machine"):
        endpoint("example.com:1")
    with pytest.raises(ConfigError, match=r"tls.ca='.*nothing' cannot be read"):
        endpoint("example.com:1", tls=Tls(ca=tmp_path / "nothing"))
    endpoint("example.com:1", tls=Tls())
    with pytest.raises(ConfigError, match="token_file"):
        endpoint("localhost:1", token_file=tmp_path / "nothing")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="holds no token"):
        endpoint("localhost:1", token_file=tmp_path / "empty")


def test_no_thread_is_left_behind():
    def ours() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("assay-")]

    before = ours()
    with FakeServer() as server:
        server.cut_after = 1
        with joined(server.address) as agent:
            cut_often(server, agent)
        wait_for(lambda: set(ours()) <= set(before), f"{ours()}")


def test_an_item_that_cannot_be_encoded_does_not_keep_back_the_rest():
    with FakeServer() as server, joined(server.address) as agent:
        for _ in range(5):
            agent.act(OBS)
        agent.agent.outbox.offer(RewardPatch(2.5, 1.0))  # type: ignore[arg-type]
        for _ in range(8):
            agent.act(OBS)
        wait_for(lambda: agent.status().acknowledged_steps == 12)
        status = agent.status()
        assert status.refusals == {"MALFORMED": 1} and "TypeError" in status.last_refusal
        assert status.failures == 0
