"""Text in observations: recognised, and turned into numbers of a fixed width."""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

TEXT = spaces.Text(2**16)  # stands for every text space


def is_text(space: gym.Space[Any]) -> bool:
    """Return whether the values of a space are strings.

    Packages have such spaces of their own, MiniGrid's missions for example.
    """
    return space.dtype is not None and np.dtype(space.dtype).kind == "U"


def plain_text(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return a space whose text entries are `TEXT`, which can be compared, sent and saved.

    A space without text stays the same object.
    """
    if is_text(space):
        return TEXT
    if isinstance(space, spaces.Dict):
        parts = {key: plain_text(part) for key, part in space.spaces.items()}
        same = all(parts[key] is part for key, part in space.spaces.items())
        return space if same else spaces.Dict(parts)
    if isinstance(space, spaces.Tuple):
        items = [plain_text(part) for part in space.spaces]
        same = all(new is old for new, old in zip(items, space.spaces, strict=True))
        return space if same else spaces.Tuple(items)
    return space


@lru_cache(maxsize=4096)
def embed(text: str, width: int) -> NDArray[np.float32]:
    """Return a vector of length 1 that stands for the words of a text and their neighbours.

    Each word and each pair of words adds 1 or -1 at a place that its checksum names (feature
    hashing, arXiv:0902.2206), so there is no vocabulary. Case and punctuation do not count.

    Example:
        >>> red, blue = (embed(f"go to the {colour} door", 32) for colour in ("red", "blue"))
        >>> float(red @ red), bool(red @ blue < 1)
        (1.0, True)
    """
    words = re.findall(r"\w+", text.lower())
    pairs = [" ".join(pair) for pair in pairwise(words)]
    vector = np.zeros(width, np.float32)
    for feature in (*words, *pairs):
        checksum = zlib.crc32(feature.encode())
        vector[(checksum >> 1) % width] += 1.0 if checksum & 1 else -1.0
    vector /= max(float(np.linalg.norm(vector)), 1e-6)
    vector.setflags(write=False)
    return vector
