"""The gateway with real supervisors, and learners that count or fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from gateway_support import OTHER, SPEC, Running, batch, refused, running, wait_for
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tiny_host import GATE, POISON

from assay.server.errors import Reason
from assay.server.executor.inproc import InprocExecutor
from assay.server.supervisor import Patience, Supervisor

PATIENCE = Patience(first_pause=0.01, longest_pause=0.02, crashes=3, poll_seconds=0.05)
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextmanager
def learning(directory: Path, **options: Any) -> Iterator[Running]:
    executor = InprocExecutor()
    supervise = partial(Supervisor, host="tiny_host:TinyHost", patience=PATIENCE)
    try:
        with running(directory, executor_object=executor, supervise=supervise, **options) as server:
            yield server
    finally:
        executor.close()


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    yield
    GATE.set()


def total(server: Running, policy: str = "queue") -> float:
    models = server.store.registry.models(policy, newest=1)
    return float(models[0].metrics["total"]) if models else 0.0


def test_what_is_sent_is_learned_and_what_is_learned_is_announced(tmp_path: Path) -> None:
    with learning(tmp_path) as server:
        ada = server.client()
        ada.register()
        watch = ada.watch()
        assert next(watch).version == 1
        epoch = ada.open().epoch
        for seq in range(1, 4):
            ada.put(batch(epoch, seq, rewards=[seq, 0, 0, 0], version=seq))
            assert wait_for(lambda: next(watch)).version == seq + 1
        wait_for(lambda: total(server) == 6.0)
        meters = server.gateway.hub.meters
        wait_for(lambda: meters.learner.get("queue", "train/total") == 6.0)
        wait_for(lambda: meters.learner_up.get("queue") == 1.0)
        watch.cancel()
    with learning(tmp_path) as server:
        assert next(server.client().watch()).version == 4
        ada = server.client()
        ada.put(batch(ada.open().epoch, 1, rewards=[10, 0, 0, 0]))
        wait_for(lambda: total(server) == 16.0)  # from where it was, and nothing twice
        assert server.store.registry.learner("queue").version == 5


def test_a_spec_that_the_learner_refuses(tmp_path: Path) -> None:
    with learning(tmp_path) as server:
        bad = SPEC.model_copy(update={"settings": {"refuse": True}})
        error = refused(server.client().register, bad)
        assert (error.reason, error.fix) == (Reason.BAD_SPEC, "Leave it out.")
        assert not server.store.registry.policies()
        assert server.client().register().created


def test_a_learner_that_fails_stops_neither_the_clients_nor_the_other_policy(
    tmp_path: Path,
) -> None:
    with learning(tmp_path) as server:
        ada, bob = server.client("ada"), server.client("bob")
        ada.register()
        bob.register(OTHER)
        one, two = ada.open("queue").epoch, bob.open("other").epoch
        ada.put(batch(one, 1, rewards=[POISON, 0, 0, 0]))
        hosted = server.gateway.hub.policies["queue"]
        wait_for(lambda: hosted.state == "failed")
        channel = grpc.insecure_channel(server.address)
        server.channels.append(channel)
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="assay.policy/queue")
        wait_for(lambda: health.Check(request, timeout=20).status == NOT_SERVING)
        assert server.gateway.hub.meters.restarts.get("queue") >= 1
        assert ada.put(batch(one, 2)).committed == 2  # what comes is kept all the same
        assert next(ada.watch()).version == 1  # and what was learned is given out
        bob.put(batch(two, 1, rewards=[1, 2, 3, 4]), "other")
        wait_for(lambda: total(server, "other") == 10.0)
        wait_for(lambda: server.gateway.hub.policies["other"].state in ("learning", "idle"))


def test_a_slow_learner_takes_the_credits_and_gives_them_back(tmp_path: Path) -> None:
    with learning(tmp_path, backlog_steps=40, credits={"batches": 4}) as server:
        ada = server.client()
        ada.register()
        epoch = ada.open().epoch
        GATE.clear()
        stream = ada.stream()
        stream.send(*(batch(epoch, seq, rewards=[1, 0, 0, 0]) for seq in range(1, 61)))
        # One call of the learner may hold some of them; the rest has to wait.
        wait_for(lambda: stream.acks and stream.acks[-1].credit_batches == 0)
        taken = server.store.registry.totals("queue").batches
        assert taken < 30
        GATE.set()
        stream.wait_committed(60)
        wait_for(lambda: total(server) == 60.0)
        wait_for(lambda: stream.acks[-1].credit_batches == 4)
        stream.cancel()


def test_a_canary_gets_the_versions_of_a_real_supervisor(tmp_path: Path) -> None:
    canary = {"share": 0.1, "min_episodes": 2}
    with learning(tmp_path, canary=canary) as server:
        ada = server.client()
        ada.register()
        watch = ada.watch()
        assert next(watch).version == 1
        epoch = ada.open().epoch
        registry = server.store.registry
        seq, version = 0, 1
        while version < 4:  # two episodes of each, and the newest one is next
            for _ in range(2):
                seq += 1
                ada.put(batch(epoch, seq, ends=[3], version=version, episode=seq))
            info = next(watch)
            while info.version == version:  # promoted
                info = next(watch)
            assert (info.version > version) and info.channel == "canary"
            version = info.version
        assert 1 < registry.channel("queue", "stable").version < version
        assert server.gateway.hub.meters.canary_decisions.get("queue", "promote") >= 1
        watch.cancel()


def test_drain_and_pause_reach_the_supervisor(tmp_path: Path) -> None:
    from assay.server.protocol import assay_pb2 as pb

    with learning(tmp_path) as server:
        ada = server.client()
        ada.register()
        hosted = server.gateway.hub.policies["queue"]
        ada.call(ada.admin.Pause, pb.PolicyRequest(policy="queue"))
        wait_for(lambda: hosted.state == "paused")
        ada.call(ada.admin.Resume, pb.PolicyRequest(policy="queue"))
        wait_for(lambda: hosted.state in ("idle", "learning"))
        assert server.run(server.gateway.drain(10.0)) is True
        assert hosted.supervisor.status().state == "stopped"
