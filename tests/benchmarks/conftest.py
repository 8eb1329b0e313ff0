"""Starts the children of benchmarks quickly: what they measure is not looked at."""

from __future__ import annotations

import forking
import pytest


@pytest.fixture(autouse=True)
def quick_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the scripts that a benchmark starts forked."""
    monkeypatch.setenv(forking.SCRIPTS, "yes")
