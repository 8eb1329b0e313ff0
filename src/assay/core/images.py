"""Which observations are images: the one rule of encoders, normalisers, replays and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.types import ACTION_MASK

if TYPE_CHECKING:
    import gymnasium as gym


def is_image(space: gym.Space[Any]) -> bool:
    """Return whether a space holds images.

    An image is a Box of pixels with three axes (channels first or last) or four (a stack of such),
    or with two if the pixels are bytes (grey). Pixels are integers, or floats between two finite
    bounds that are the same for all of them. So a table of floats for each of several agents,
    [agents, rows, columns], is not an image unless it is bounded like one: leave its bounds
    infinite, or give every column its own.
    """
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return False
    if len(space.shape) == 2:
        return bool(space.dtype == np.uint8)
    if len(space.shape) not in (3, 4):
        return False
    return not np.issubdtype(space.dtype, np.floating) or _bounded_alike(space.low, space.high)


def has_images(space: gym.Space[Any]) -> bool:
    """Return whether a space, or an entry of a Dict, holds images."""
    return any(is_image(part) for part in _parts(space))


def has_large_images(space: gym.Space[Any]) -> bool:
    """Return whether some image is worth several threads: 36 by 36 numbers, or more."""
    return any(is_image(part) and np.prod(part.shape or ()) >= 36 * 36 for part in _parts(space))


def only_images(space: gym.Space[Any]) -> bool:
    """Return whether a space, or every entry of a Dict but action masks, holds images."""
    parts = _parts(space)
    return bool(parts) and all(is_image(part) for part in parts)


def channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether the channels of an image of three axes are its first axis, not its last.

    They are the odd one out beside two equal axes, else the shorter of first and last.
    """
    first, middle, last = shape
    if middle == last:
        return True
    return first != middle and first <= last


def _parts(space: gym.Space[Any]) -> list[gym.Space[Any]]:
    from gymnasium import spaces

    entries = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    return [part for key, part in entries.items() if key != ACTION_MASK]


def _bounded_alike(*bounds: np.ndarray[Any, Any]) -> bool:
    return all(bool(np.isfinite(b).all() and (b == b.flat[0]).all()) for b in bounds)
