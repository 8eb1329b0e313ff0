"""Makes the samples beside it importable from below, and gives runs time to start."""

from __future__ import annotations

import forking
import pytest

from assay.study.run import recovery


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """Take no run for lost because the machine was busy when its supervisor was to start."""
    recovery.START_SECONDS = 300.0
    forking.start()
