"""A state as bytes: the same every time, complete or refused, never pickled."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from assay.core.errors import CheckpointError
from assay.runs.checkpoint import state_from_bytes, state_to_bytes

STATE = {
    "weights": {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b/c": np.float64(2.5)},
    "empty": {},
    "none": None,
    "list": [1, "two", (3.5, math.inf)],
    "$odd": {"nothing": np.zeros((0, 4))},
}


def test_it_comes_back_as_it_was() -> None:
    found = state_from_bytes(state_to_bytes(STATE))
    np.testing.assert_array_equal(found["weights"]["a"], STATE["weights"]["a"])
    assert found["weights"]["b/c"] == 2.5
    assert found["$odd"]["nothing"].shape == (0, 4)
    assert (found["empty"], found["none"], found["list"]) == ({}, None, STATE["list"])


def test_the_same_state_gives_the_same_bytes() -> None:
    assert len({state_to_bytes(STATE) for _ in range(20)}) == 1


def test_truncated_changed_or_other_bytes_are_refused() -> None:
    data = state_to_bytes(STATE)
    for end in range(0, len(data), 7):
        with pytest.raises(CheckpointError, match="incomplete, altered or not Assay"):
            state_from_bytes(data[:end])
    header = json.dumps({"__metadata__": {"assay": '{"format": "other"}'}}).encode()
    with pytest.raises(CheckpointError, match="not an Assay state"):
        state_from_bytes(len(header).to_bytes(8, "little") + header)
    newer = '{"format": "assay-checkpoint", "schema": 99}'
    header = json.dumps({"__metadata__": {"assay": newer}}).encode()
    with pytest.raises(CheckpointError, match="newer Assay"):
        state_from_bytes(len(header).to_bytes(8, "little") + header)


def test_what_a_checkpoint_cannot_hold_is_named() -> None:
    with pytest.raises(TypeError, match="a/b: a checkpoint holds"):
        state_to_bytes({"a": {"b": object()}})
