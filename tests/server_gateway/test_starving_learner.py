"""A learner whose steps are all too old says so, instead of standing still in silence."""

from __future__ import annotations

import json
import logging
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
from gateway_support import SPEC, Puppet, Running, Status, batch, parse_text, running, wait_for
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from assay.cli.app import app
from assay.server.executor.inproc import InprocExecutor
from assay.server.gateway.hosted import BACKLOG_SECONDS, STEPS, TOO_OLD, WINDOW, Freshness
from assay.server.protocol import assay_pb2 as pb
from assay.server.supervisor import Patience, Supervisor

SERVING = health_pb2.HealthCheckResponse.SERVING


def counts(steps: float, old: float) -> dict[str, float]:
    return {STEPS: steps, TOO_OLD: old}


def test_steps_are_judged_by_the_window() -> None:
    one = Freshness()
    assert not one.look({}) and not one.look({STEPS: 5.0})
    assert not one.look(counts(1000, 900))  # what was before we looked is not ours to judge
    assert not one.look(counts(1000 + WINDOW - 1, 900 + WINDOW - 1)) and not one.starving
    assert one.look(counts(1000 + WINDOW, 900 + WINDOW)) and one.starving
    assert (one.left_out, one.of) == (WINDOW, WINDOW)
    assert not one.look(counts(1000 + 2 * WINDOW, 900 + 2 * WINDOW)) and one.starving
    # A learner that begins again counts from its checkpoint.
    assert not one.look(counts(500, 400)) and one.starving
    assert one.look(counts(500 + WINDOW, 400 + WINDOW // 2)) and not one.starving


def test_old_steps_that_clients_had_kept_are_not_starvation() -> None:
    now = [0.0]
    one = Freshness(lambda: now[0])
    one.look(counts(0, 0), reachable=True)
    assert one.look(counts(1000, 1000), reachable=True)
    assert one.catching_up and not one.starving
    now[0] = BACKLOG_SECONDS - 1
    assert not one.look(counts(2000, 2000), reachable=True) and not one.starving
    # It is over.
    assert one.look(counts(3000, 2000), reachable=True)
    assert not one.catching_up and not one.starving
    # It comes again and stays, although clients could have something newer.
    assert one.look(counts(4000, 3000), reachable=True) and one.catching_up
    now[0] += BACKLOG_SECONDS
    assert one.look(counts(5000, 4000), reachable=True)
    assert one.starving and not one.catching_up


class Starved(Puppet):
    """A learner that reports what the test says."""

    reported: ClassVar[dict[str, float]] = {}

    def status(self) -> Status:
        found = super().status()
        found.metrics = dict(self.reported)
        return found


def check(server: Running) -> tuple[Any, str]:
    """Return a policy's health, and what the trailer adds to it."""
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="assay.policy/queue")
        reply, call = stub.Check.with_call(request, timeout=20)
        return reply.status, dict(call.trailing_metadata() or ()).get("assay-detail", "")


def test_it_is_told_wherever_one_looks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Starved.reported = counts(1000, 10)
    caplog.set_level(logging.INFO, "assay.server")
    options = {"supervise": Starved, "metrics_port": 0, "learner": {"max_lag": 3}}
    with running(tmp_path, **options) as server:
        ada = server.client()
        ada.register()
        for _ in range(8):
            server.puppet().publish()
        ada.call(ada.models.Pin, pb.PinRequest(policy="queue", channel="stable", version=2))
        hub = server.gateway.hub
        wait_for(lambda: hub.policies["queue"].freshness._from is not None)

        def note() -> str:
            info = ada.call(ada.admin.GetPolicy, pb.PolicyRequest(policy="queue")).info
            return " ".join(info.notes)

        def healthz() -> str:
            address = f"http://127.0.0.1:{server.gateway.metrics_port}/healthz"
            with urllib.request.urlopen(address, timeout=10) as reply:
                assert reply.status == 200
                return str(reply.read().decode())

        def starving() -> float:
            return parse_text(hub.meters.text()).get('assay_learner_starving{policy="queue"}', 0.0)

        assert (note(), healthz(), starving()) == ("", "serving\n", 0)
        Starved.reported = counts(1400, 400)
        wait_for(starving)
        for told in (note(), healthz(), " ".join(caplog.text.split()), check(server)[1]):
            assert "The learner starves: 390 of the last 400 steps were left out" in told
            assert "more than 3 behind the newest, which is 8" in told
            assert "stable is pinned to version 2" in told
        assert check(server)[0] == SERVING  # it takes steps all the same
        text = CliRunner().invoke(app, ["server", "policy", "queue", "--address", server.address])
        assert "note:" in text.stdout and "The learner starves" in text.stdout
        # Once in the log, however long it lasts.
        Starved.reported = counts(2400, 1400)
        wait_for(lambda: "1000 of the last 1000" in note())
        assert caplog.text.count("The learner starves") == 1
        Starved.reported = counts(3400, 1400)
        wait_for(lambda: not starving())
        assert (note(), healthz(), check(server)) == ("", "serving\n", (SERVING, ""))
        assert "gets steps again that it can learn from" in caplog.text


def test_a_backlog_is_not_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Starved.reported = counts(1000, 10)
    caplog.set_level(logging.INFO, "assay.server")
    with running(tmp_path, supervise=Starved, learner={"max_lag": 3}) as server:
        server.client().register()
        for _ in range(8):
            server.puppet().publish()
        hosted = server.gateway.hub.policies["queue"]
        wait_for(lambda: hosted.version_of("stable") == 8 and hosted.freshness._from is not None)
        Starved.reported = counts(3000, 2010)  # as after an outage
        wait_for(lambda: "2000 of the last 2000 steps were left out as too old" in caplog.text)
        assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert hosted.notes() == [] and hosted.works


@pytest.mark.slow
def test_a_pinned_channel_starves_a_real_on_policy_learner(tmp_path: Path) -> None:
    settings = {"horizon": 16, "num_envs": 1, "minibatch_size": 16, "epochs": 1, "hidden": [8]}
    spec = SPEC.model_copy(update={"settings": settings})
    executor = InprocExecutor()
    supervise = partial(Supervisor, patience=Patience(poll_seconds=0.05))
    options = {"executor_object": executor, "supervise": supervise, "learner": {"max_lag": 1}}
    try:
        with running(tmp_path, **options) as server:
            ada = server.client()
            ada.timeout = 90.0
            ada.register(spec)
            watch = ada.watch()
            assert next(watch).version == 1
            watch.cancel()
            pin = pb.PinRequest(policy="queue", channel="stable", version=1)
            ada.call(ada.models.Pin, pin)
            epoch, seq = ada.open().epoch, 0
            hub = server.gateway.hub

            def starves() -> bool:
                nonlocal seq
                seq += 1
                ada.put(batch(epoch, seq, steps=16, spec=spec, version=1, start=16 * seq))
                return hub.policies["queue"].freshness.starving

            wait_for(starves)
            newest = server.store.registry.learner("queue").version
            assert newest == 3  # one more than max_lag allows, and then nothing comes
            assert hub.meters.learner.get("queue", TOO_OLD) > 0
            command = ["server", "policy", "queue", "--json", "--address", server.address]
            facts = json.loads(CliRunner().invoke(app, command).stdout)
            assert "stable is pinned to version 1" in facts["notes"][0]
            assert facts["learner"]["metrics"][TOO_OLD] > 0
            # Clients that follow the channel which was let go feed it again.
            info = ada.call(ada.models.Pin, pb.PinRequest(policy="queue", channel="stable"))
            assert info.version == newest

            def recovers() -> bool:
                nonlocal seq
                seq += 1
                version = server.store.registry.channel("queue", "stable").version
                ada.put(batch(epoch, seq, steps=16, spec=spec, version=version, start=16 * seq))
                return not hub.policies["queue"].freshness.starving

            wait_for(recovers)
            assert server.store.registry.learner("queue").version > newest
    finally:
        executor.close()
