from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from assay.buffers.allocation import (
    Spec,
    human_bytes,
    require_memory,
    space_spec,
    tree_bytes,
)
from assay.core import system_memory
from assay.core.errors import ConfigError, SpaceError


def test_specs_keep_integers_and_narrow_floats() -> None:
    space = Dict(
        {
            "image": Box(0, 255, (3, 8, 8), np.uint8),
            "wide": Box(-1, 1, (2,), np.float64),
            "index": Discrete(5),
            "mask": MultiBinary(4),
        }
    )
    assert space_spec(space) == {
        "image": Spec((3, 8, 8), np.dtype(np.uint8)),
        "wide": Spec((2,), np.dtype(np.float32)),
        "index": Spec((), np.dtype(np.int64)),
        "mask": Spec((4,), np.dtype(np.int8)),
    }
    assert tree_bytes(space, count=10) == 10 * (192 + 8 + 8 + 4)


def test_nested_spaces_are_refused() -> None:
    with pytest.raises(SpaceError, match="flat Dict"):
        space_spec(Dict({"a": Dict({"b": Discrete(2)})}))


def test_human_bytes() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1536, 5 * 2**20, 3 * 2**30, 2**41)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "2.0 TiB",
    ]


def test_refusal_names_the_numbers_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_memory, "available_bytes", lambda: 2**30)
    require_memory(2**30, "A replay")
    with pytest.raises(ConfigError) as caught:
        require_memory(4 * 2**30, "A replay", capacity=1000, advice="store less")
    assert "A replay needs 4.0 GiB of memory; 1.0 GiB are available." in str(caught.value)
    assert caught.value.fix is not None
    assert "from 1,000 to at most 250, or store less" in caught.value.fix
