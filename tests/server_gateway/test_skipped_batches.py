"""A batch that learners die of is passed over, and whoever asks is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateway_support import running, wait_for

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
