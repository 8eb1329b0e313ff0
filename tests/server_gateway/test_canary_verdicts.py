"""A version that failed its trial is never tried again, and everyone can see why it failed."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway_support import Running, parse_text, running, wait_for
from test_gateway_models import Fleet
from typer.testing import CliRunner

from assay.cli.app import app
from assay.server.gateway.guard import VERDICTS, Failed, Verdicts
from assay.server.protocol import assay_pb2 as pb

CANARY: dict[str, Any] = {"canary": {"share": 0.1, "min_episodes": 4, "tolerance": 0.05}}
VALUES = {1: 10.0, 2: 5.0, 3: 12.0}


def channel(server: Running, name: str) -> int:
    return server.store.registry.channel("queue", name).version


def fail_second(directory: Path) -> None:
    """Let version 2 fail its trial, and end the server."""
    with running(directory, **CANARY) as server:
        server.client().register()
        server.puppet().publish()
        fleet = Fleet(server, ["alone"])
        fleet.play(VALUES)
        server.puppet().publish()
        follower = fleet.followers["alone"]
        follower.wait_version(2)
        fleet.play(VALUES)
        follower.wait_version(1)
        fleet.stop()


def test_a_version_that_failed_is_not_tried_after_a_restart(tmp_path: Path) -> None:
    fail_second(tmp_path)
    with running(tmp_path, **CANARY) as server:
        assert server.gateway.hub.meters.canary_failed.get("queue") == 2
        fleet = Fleet(server, ["alone"])
        follower = fleet.followers["alone"]
        for _ in range(4):
            fleet.play(VALUES)  # enough to judge by, several times over
        assert {info.version for info in follower.infos} == {1}
        assert channel(server, "canary") == channel(server, "stable") == 1
        server.puppet().publish()
        follower.wait_version(3)  # a new one is tried
        fleet.play(VALUES)
        wait_for(lambda: channel(server, "stable") == 3)
        assert {info.version for info in follower.infos} == {1, 3}
        fleet.stop()


def test_a_server_that_ends_between_the_verdict_and_the_move(tmp_path: Path) -> None:
    fail_second(tmp_path)
    with running(tmp_path, **CANARY) as server:
        # As it was a moment before the channel was moved back.
        registry = server.store.registry
        registry.move("queue", "canary", 2)
    with running(tmp_path, **CANARY) as server:
        assert channel(server, "canary") == 2
        fleet = Fleet(server, ["alone"])
        fleet.play(VALUES)
        wait_for(lambda: channel(server, "canary") == 1)
        fleet.play(VALUES)
        assert {info.version for info in fleet.followers["alone"].infos} == {1}
        fleet.stop()


def test_a_failed_version_is_told_to_nobody_while_the_guard_rests(tmp_path: Path) -> None:
    fail_second(tmp_path)
    with running(tmp_path, **CANARY) as server:
        registry = server.store.registry
        registry.move("queue", "canary", 2)
        registry.pin("queue", "stable", 1)  # an operator's pin stops the guard
    with running(tmp_path, **CANARY) as server:
        fleet = Fleet(server, ["alone"])
        fleet.play(VALUES)
        fleet.play(VALUES)
        assert {info.version for info in fleet.followers["alone"].infos} == {1}
        assert server.gateway.hub.policies["queue"].channel_of("alone") == "stable"
        fleet.stop()


def test_metrics_the_policy_and_the_command_say_why(tmp_path: Path) -> None:
    fail_second(tmp_path)
    with running(tmp_path, **CANARY) as server:
        ada = server.client()
        details = ada.call(ada.admin.GetPolicy, pb.PolicyRequest(policy="queue"))
        (note,) = details.info.notes
        assert note.startswith("Version 2 was rolled back (")
        assert "mean return was 5.05 over 4 episodes, against 10.05 of version 1 over 4" in note
        command = ["server", "policy", "queue", "--address", server.address]
        text = CliRunner().invoke(app, command).stdout
        assert "note:" in text and "Version 2 was rolled back" in " ".join(text.split())
        facts = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
        assert facts["notes"] == [note]
        # What the decision was made by is a metric as well, from when it was made.
        fleet = Fleet(server, ["alone"])
        fleet.play(VALUES)
        server.puppet().publish()
        fleet.followers["alone"].wait_version(3)
        fleet.play({**VALUES, 3: 1.0})
        fleet.followers["alone"].wait_version(1)
        found = parse_text(server.gateway.hub.meters.text())
        assert found['assay_canary_failed_version{policy="queue"}'] == 3
        assert found['assay_canary_return{policy="queue",version="tried"}'] == pytest.approx(1.05)
        assert found['assay_canary_return{policy="queue",version="stable"}'] > 10
        assert found['assay_canary_decisions_total{policy="queue",decision="rollback"}'] == 1
        notes = ada.call(ada.admin.GetPolicy, pb.PolicyRequest(policy="queue")).info.notes
        assert [one.split(" was")[0] for one in notes] == ["Version 3", "Version 2"]
        fleet.stop()


def failed(version: int) -> Failed:
    return Failed(
        version=version, mean=1.0, episodes=4, stable=1, stable_mean=2.0, stable_episodes=5,
        tolerance=0.05, time=0.0,
    )  # fmt: skip


def test_verdicts_are_kept_bounded_and_survive_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = Verdicts(tmp_path / "policy")
    for version in range(1, 101):
        own.add(failed(version))
    again = Verdicts(tmp_path / "policy")
    assert again.failed == own.failed and len(again.failed) == 64
    assert 100 in again and 36 not in again
    assert [one.version for one in again.newest(2)] == [100, 99]
    path = tmp_path / "policy" / VERDICTS
    good = path.read_bytes()
    for bad in (b"", b"[]", b"{", b"\xff", good.replace(b"99", b'"x"'), good[:-20]):
        path.write_bytes(bad)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "assay.server"):
            assert Verdicts(tmp_path / "policy").failed == {}
        assert "may be tried again" in caplog.text, bad


@pytest.mark.skipif(sys.platform == "win32", reason="needs a directory that cannot be made")
def test_a_disk_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "policy").write_text("in the way")
    own = Verdicts(tmp_path / "policy")
    with caplog.at_level(logging.WARNING, "assay.server"):
        own.add(failed(7))
    assert 7 in own and "version 7 is lost" in caplog.text
