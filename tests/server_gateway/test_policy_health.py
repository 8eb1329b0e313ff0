"""A policy that does not learn, or whose experience is refused, is seen from outside."""

from __future__ import annotations

import errno
import logging
import os
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from gateway_support import OTHER, Running, batch, parse_text, running, wait_for
from grpc_health.v1 import health_pb2, health_pb2_grpc

from assay.server.errors import Reason
from assay.server.gateway import hosted as hosted_module

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def healthz(server: Running) -> tuple[int, str]:
    address = f"http://127.0.0.1:{server.gateway.metrics_port}/healthz"
    try:
        with urllib.request.urlopen(address, timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def health(server: Running, policy: str = "") -> Any:
    with grpc.insecure_channel(server.address) as channel:
        request = health_pb2.HealthCheckRequest(service=policy and f"assay.policy/{policy}")
        return health_pb2_grpc.HealthStub(channel).Check(request, timeout=20).status


def meter(server: Running, name: str) -> float:
    return parse_text(server.gateway.hub.meters.text()).get(f'{name}{{policy="queue"}}', 0.0)


def test_a_failed_policy_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "assay.server")
    with running(tmp_path, metrics_port=0) as server:
        ada = server.client()
        ada.register()
        ada.register(OTHER)
        wait_for(lambda: healthz(server) == (200, "serving\n"))
        puppet = server.puppet()
        puppet.state = "failed"
        status = puppet.status

        def why() -> Any:
            found = status()
            found.last_error = "It is out of memory."
            return found

        puppet.status = why  # type: ignore[method-assign]
        wait_for(lambda: healthz(server)[0] == 503)
        first, line = healthz(server)[1].splitlines()
        assert first == "degraded"
        assert line.startswith("queue: The learner has failed: It is out of memory.")
        assert "`assay server resume queue`" in line
        assert meter(server, "assay_learner_failed") == 1
        # The other policy and the server as a whole take work.
        wait_for(lambda: health(server, "queue") == NOT_SERVING)
        assert health(server, "other") == SERVING and health(server) == SERVING
        puppet.state = "learning"
        wait_for(lambda: healthz(server) == (200, "serving\n"))
        wait_for(lambda: "queue: the learner is begun again" in caplog.text)


def test_a_paused_policy_is_what_its_operator_wants(tmp_path: Path) -> None:
    with running(tmp_path, metrics_port=0) as server:
        server.client().register()
        server.puppet().state = "paused"
        wait_for(lambda: server.gateway.hub.policies["queue"].state == "paused")
        assert healthz(server) == (200, "serving\n")


def test_a_full_disk_is_named_as_long_as_it_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "assay.server")
    monkeypatch.setattr(hosted_module, "_CALM_SECONDS", 0.0)
    full = [False]

    def sync(descriptor: int) -> None:
        if full[0] and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".seg"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with running(tmp_path, metrics_port=0, store_options={"sync": sync}) as server:
        ada = server.client()
        ada.register()
        epoch = ada.open().epoch
        ada.put(batch(epoch, 1))
        wait_for(lambda: healthz(server) == (200, "serving\n"))
        # Batches are refused, and can be taken back: the log is not broken.
        log = server.store._logs["queue"]
        monkeypatch.setattr(log, "rollback", partial(rolled_back, log, full, log.rollback))
        full[0] = True
        refusal = ada.put(batch(epoch, 2)).rejections[0]
        assert refusal.reason == Reason.RESOURCE_EXHAUSTED
        wait_for(lambda: healthz(server)[0] == 503)
        first, line = healthz(server)[1].splitlines()
        assert first == "degraded" and line.startswith("queue: Batches are refused; clients keep")
        assert "the disk is full" in line
        wait_for(lambda: health(server, "queue") == NOT_SERVING)
        assert health(server) == SERVING  # a restart would not help
        assert meter(server, "assay_store_refusing") == 1
        full[0] = False
        assert ada.put(batch(epoch, 2)).committed == 2
        wait_for(lambda: healthz(server) == (200, "serving\n"))
        wait_for(lambda: "queue: batches are taken again" in caplog.text)
        lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        assert [one.startswith("queue: Batches are refused") for one in lines] == [True]


def rolled_back(log: Any, full: list[bool], rollback: Any) -> None:
    """Take back what was written; that needs no room."""
    was, full[0] = full[0], False
    rollback()
    full[0] = was


def test_what_cannot_be_saved_is_told(tmp_path: Path) -> None:
    with running(tmp_path, metrics_port=0) as server:
        server.client().register()
        puppet = server.puppet()
        status = puppet.status

        def full() -> Any:
            found = status()
            found.unsaved = "The disk is full."
            return found

        puppet.status = full  # type: ignore[method-assign]
        wait_for(lambda: healthz(server)[0] == 503)
        body = healthz(server)[1]
        assert body == "degraded\nqueue: What was learned cannot be saved. The disk is full.\n"


def test_a_refusal_is_forgotten_where_nobody_sends_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as server:
        server.client().register()
        hosted = server.gateway.hub.policies["queue"]
        now = [1000.0]
        monkeypatch.setattr(hosted_module.time, "monotonic", lambda: now[0])
        hosted.refused("The disk is full.")
        now[0] += 59.0
        assert hosted.refusing == "The disk is full."
        now[0] += 2.0
        assert hosted.refusing is None
        hosted.refused("The disk is full.")
        hosted.committed(4)  # a small one that fits
        now[0] += 4.0
        assert hosted.refusing is not None
        now[0] += 2.0
        assert hosted.refusing is None
