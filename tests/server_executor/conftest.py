from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_world import World, world

from assay.server.executor import make_executor


@pytest.fixture(params=["inproc", "process"])
def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, make_executor(request.param)) as made:
        yield made


@pytest.fixture
def inproc(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, make_executor("inproc")) as made:
        yield made


@pytest.fixture
def process(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, make_executor("process")) as made:
        yield made
