from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ArrayBytes = Callable[[Callable[[], Any]], int]


@pytest.fixture
def array_bytes() -> ArrayBytes:
    """Return a function that tells how many bytes of arrays a call leaves allocated."""

    def measure(make: Callable[[], Any]) -> int:
        tracemalloc.start()
        try:
            kept = make()
            arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
            traces = tracemalloc.take_snapshot().filter_traces([arrays]).traces
            del kept
            return sum(trace.size for trace in traces)
        finally:
            tracemalloc.stop()

    return measure
