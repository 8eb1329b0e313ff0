"""Fixtures of the attacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from arena import Runner, begin, propose, repository

from assay.study.record.study import Study


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Runner:
    return Runner(monkeypatch)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Return an approved study with a candidate c1 that only changes the learning rate."""
    made = begin(repository(tmp_path / "repository"))
    propose(made, lr=0.002)
    return made
