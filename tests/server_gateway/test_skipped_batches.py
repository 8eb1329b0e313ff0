"""What a learner had to leave out or could not go on from: whoever asks is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateway_support import running, wait_for
from typer.testing import CliRunner

from assay.cli.app import app
from assay.server.admin_client import AdminClient


def test_it_is_told_in_the_policy_the_metrics_and_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path) as server:
        server.client().register()
        puppet = server.puppet()
        meters = server.gateway.hub.meters
        with AdminClient.open({"address": server.address}) as admin:
            assert list(admin.policy("queue").info.notes) == []
            puppet.skipped = 2
            wait_for(lambda: meters.skipped.get("queue") == 2, "the metric")
            (note,) = admin.policy("queue").info.notes
        assert note.startswith("2 of the batches were passed over")
        assert meters.of_policy("queue")["server/skipped_batches"] == 2
        assert 'assay_learner_skipped_batches{policy="queue"} 2' in meters.text()
        wait_for(lambda: "queue: 2 of the batches were passed over" in caplog.text, "the log")


def test_a_checkpoint_that_was_lost_is_told_in_the_policy(tmp_path: Path) -> None:
    with running(tmp_path, metrics_port=0) as server:
        server.client().register()
        server.puppet().recovered = "The newest checkpoint cannot be read."
        hosted = server.gateway.hub.policies["queue"]
        wait_for(lambda: hosted.recovered, "it is seen")
        command = ["server", "policy", "queue", "--address", server.address]
        text = CliRunner().invoke(app, command).stdout
        assert "note: The newest checkpoint cannot be read." in " ".join(text.split())
        assert not hosted.troubles()  # it is over
