from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

Check = Callable[[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]], None]


@pytest.fixture
def assert_traces() -> Check:
    """Trace on some inputs and compare on others, so that a value baked into the graph shows."""

    def check(fn: Callable[..., Any], seen: tuple[Any, ...], unseen: tuple[Any, ...]) -> None:
        graph = make_fx(lambda *args: fn(*args))(*seen)
        torch.testing.assert_close(graph(*unseen), fn(*unseen))

    return check
