"""Which numbers of an observation can be moved, and how far a budget of 1 moves each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.types import ACTION_MASK, Tree

BARE = ""  # the key of an observation that is one array
Parts = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The arrays of an observation that can be moved: numbers, not choices and masks.

    Attributes:
        boxes: Their spaces, by key; `BARE` where the observation is one array.
        scales: The standard deviation of each number over undisturbed episodes; of an image, one
            for all its pixels.
    """

    boxes: dict[str, gym.spaces.Box]
    scales: dict[str, NDArray[np.float32]]

    def parts(self, obs: Tree) -> Parts:
        """Return the arrays that can be moved, as floats."""
        given = obs if isinstance(obs, Mapping) else {BARE: obs}
        return {key: given[key].astype(np.float32) for key in self.boxes}

    def put(self, obs: Tree, parts: Mapping[str, Any]) -> Tree:
        """Return an observation with other arrays, within the bounds of their spaces."""
        if not isinstance(obs, Mapping):
            return self._fitted(BARE, parts[BARE])
        return {**obs, **{key: self._fitted(key, part) for key, part in parts.items()}}

    def radius(self, key: str, budget: float) -> NDArray[np.float32]:
        """Return how far a budget moves each number of an array."""
        return np.float32(budget) * self.scales[key]

    def _fitted(self, key: str, part: NDArray[Any]) -> NDArray[Any]:
        box = self.boxes[key]
        whole = box.dtype.kind in "ui"
        return np.clip(np.rint(part) if whole else part, box.low, box.high).astype(box.dtype)


def movable(space: gym.Space[Any]) -> dict[str, gym.spaces.Box]:
    """Return the arrays of numbers of a canonical space by key."""
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {BARE: space}
    return {
        key: part
        for key, part in parts.items()
        if key != ACTION_MASK and isinstance(part, gym.spaces.Box)
    }
