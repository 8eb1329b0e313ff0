from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from assay.core.images import has_images, has_large_images, is_image
from assay.core.types import Spaces
from assay.networks.encoders import make_encoder
from assay.networks.normalize import normalizable
from assay.testing.algorithms import make_algorithm


def box(*shape: int, dtype: Any = np.uint8, low: Any = 0, high: Any = 255) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


AGENTS = box(3, 8, 8, dtype=np.float32, low=-np.inf, high=np.inf)


@pytest.mark.parametrize(
    "space",
    [
        box(84, 84, 3),
        box(4, 84, 84),
        box(84, 84),
        box(4, 84, 84, 3),
        box(3, 8, 8, dtype=np.float32, high=1),
        box(3, 8, 8, dtype=np.float32, low=-1, high=1),
        box(10, 10, 4, dtype=np.bool_, high=1),
        box(7, 7, 3, dtype=np.int64, high=10),
    ],
    ids=str,
)
def test_images(space: spaces.Box) -> None:
    assert is_image(space) and has_images(space)
    assert has_images(spaces.Dict({"camera": space, "speed": box(1, dtype=np.float32)}))


@pytest.mark.parametrize(
    "space",
    [
        box(128),
        box(8, 8, dtype=np.float32),
        box(2, 2, 2, 2, 2),
        AGENTS,
        box(2, 4, 3, dtype=np.float32, low=-np.inf, high=1),
        # Every column of a table has bounds of its own.
        spaces.Box(*(np.full((2, 4, 3), [b, 2 * b, 3 * b], np.float32) for b in (-1, 1))),
        spaces.Discrete(3),
        spaces.MultiBinary([2, 3, 4]),
    ],
    ids=str,
)
def test_what_is_not_an_image(space: spaces.Space[Any]) -> None:
    assert not is_image(space) and not has_images(spaces.Dict({"seen": space}))


def test_tables_of_several_agents_are_numbers_to_all() -> None:
    encoder = make_encoder(AGENTS, hidden=(8,), activation="tanh", cnn="nature")
    assert sum(entry.width for entry in encoder.entries) == 3 * 8 * 8
    assert normalizable(AGENTS)
    ppo = make_algorithm("ppo", AGENTS, spaces.Discrete(2), horizon=8, minibatch_size=8)
    assert ppo.spaces == Spaces(AGENTS, spaces.Discrete(2)) and not ppo.net.shared


def test_small_images_are_not_worth_several_threads() -> None:
    grid, flags = box(7, 7, 3), box(10, 10, 10)
    assert not has_large_images(spaces.Dict({"image": grid, "direction": spaces.Discrete(4)}))
    assert not has_large_images(flags)
    assert not has_large_images(box(2000, dtype=np.float32))
    assert has_large_images(box(36, 36)) and has_large_images(box(4, 84, 84))
