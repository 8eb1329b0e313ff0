"""Makes the samples beside it importable from below, gives runs time to start, and asks often."""

from __future__ import annotations

import forking
import pytest

from assay.study.run import recovery
from assay.study.steps import loop


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """Take no run for lost because the machine was busy when its supervisor was to start.

    Runs of tests are over in tenths of a second, so that what waits for them looks more often.
    """
    recovery.START_SECONDS = 300.0
    recovery.POLL_SECONDS, loop.BUSY_SECONDS = 0.02, 0.2
    forking.start()
