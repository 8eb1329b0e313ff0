"""What a segment sends: the flags bit by bit, and Box actions as they were before clipping."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from assay.server.client.outbox import Segment, Step
from assay.server.client.shield import Flag
from assay.server.client.spaces import make_spec
from assay.server.tensors import Experience, Layout, decode, encode

SEEN = spaces.Box(-1, 1, (2,), np.float32)


def sent(action_space: Any, steps: list[Step]) -> dict[str, Any]:
    """Return the fields after a journey over the wire."""
    layout = Layout(make_spec("p", SEEN, action_space, "ppo"))
    segment = Segment(tuple(steps), 3, 4, bootstrap=np.zeros((1, 2), np.float32))
    return dict(decode(encode(Experience(1, 1, segment.fields()), layout), layout).fields)


def step(action: Any, raw: Any, flags: int, event: int) -> Step:
    return Step(np.zeros((1, 2), np.float32), action, raw, -0.5, 7, flags, event)


def test_a_box() -> None:
    def box(value: float) -> Any:
        return np.array([[value]], np.float32)

    fields = sent(
        spaces.Box(-1, 1, (1,), np.float32),
        [
            step(box(0.25), box(0.25), 0, 1),
            step(box(1.0), box(1.75), int(Flag.BOUNDS), 2),
            # A heuristic's number that float32 cannot hold must not cost the whole batch.
            step(box(0.0), box(np.inf), int(Flag.BOUNDS | Flag.HEURISTIC), 3),
            step(box(0.5), box(3e38), int(Flag.BOUNDS | Flag.HEURISTIC), 4),
        ],
    )
    assert fields["flags"].tolist() == [0, 1, 17, 17]
    assert fields["flags"].dtype == np.uint8
    assert fields["action"][:, 0].tolist() == [0.25, 1.0, 0.0, 0.5]
    assert fields["raw_action"][:, 0].tolist() == [0.25, 1.75, 0.0, 0.5]
    assert fields["event"].tolist() == [1, 2, 3, 4]


def test_choices_have_no_raw_action() -> None:
    fields = sent(spaces.Discrete(3), [step(np.array([2]), np.array([2]), int(Flag.MASK), 9)])
    assert fields["flags"].tolist() == [2]
    assert "raw_action" not in fields
