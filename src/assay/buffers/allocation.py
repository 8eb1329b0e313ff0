"""What a buffer will need, known before any of it is allocated.

A buffer first lays out its arrays as `Spec`s, checks their bytes against the memory at hand, and
only then allocates them, zero-filled, so that the system commits pages as they are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from assay.core import system_memory
from assay.core.errors import ConfigError, SpaceError
from assay.core.types import Tree, tree_leaves, tree_map


class Spec(NamedTuple):
    """The shape and dtype of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Return the bytes of such an array."""
        return math.prod(self.shape) * self.dtype.itemsize


def space_spec(space: gym.Space[Any]) -> Tree:
    """Return how one element of a space is stored: a `Spec`, or a flat dict of them.

    Integers and uint8 images keep their dtype; every float becomes float32, which is what
    networks compute in.

    Raises:
        SpaceError: The space is neither an array space nor a flat Dict of array spaces.
    """
    if isinstance(space, gym.spaces.Dict):
        specs = {key: space_spec(part) for key, part in space.items()}
        if not any(isinstance(spec, dict) for spec in specs.values()):
            return specs
    elif space.shape is not None and space.dtype is not None:
        floating = np.issubdtype(space.dtype, np.floating)
        return Spec(tuple(space.shape), np.dtype(np.float32) if floating else space.dtype)
    raise SpaceError(
        f"Cannot store elements of {space}: expected an array space or a flat Dict of them.",
        "Make the environment through assay.envs, which flattens nested spaces.",
    )


def tree_bytes(tree: Tree, count: int = 1) -> int:
    """Return the bytes of `count` elements of a space, or of a tree of `Spec`s.

    Example:
        >>> tree_bytes(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), count=1_000_000)
        28224000000
    """
    specs = space_spec(tree) if isinstance(tree, gym.Space) else tree
    return count * sum(spec.nbytes for spec in tree_leaves(specs))


def stacked(specs: Tree, count: int) -> Tree:
    """Return the specs of `count` elements in one array each."""
    return tree_map(lambda spec: Spec((count, *spec.shape), spec.dtype), specs)


def allocate(specs: Tree) -> Tree:
    """Return zero-filled arrays for a tree of specs; pages are committed as they are written."""
    return tree_map(lambda spec: np.zeros(spec.shape, spec.dtype), specs)


def human_bytes(count: float) -> str:
    """Return a byte count for people.

    Example:
        >>> human_bytes(7_600_000_000)
        '7.1 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def require_memory(
    needed: int,
    what: str,
    *,
    capacity: int | None = None,
    advice: str | Callable[[], str] = "",
) -> None:
    """Refuse an allocation that does not fit, before it is made.

    Args:
        needed: Bytes about to be allocated.
        what: What they are for, as the subject of the message.
        capacity: Number of items that `needed` stands for; the largest that fits is offered.
        advice: A further way out, as a clause ("store ... once with frame_stack=4"), or what
            returns it.

    Raises:
        ConfigError: It does not fit.
    """
    room = system_memory.available_bytes()
    if needed > room:
        raise _too_large(needed, room, what, capacity, advice() if callable(advice) else advice)


def _too_large(needed: int, room: int, what: str, capacity: int | None, advice: str) -> ConfigError:
    fixes = []
    if capacity is not None and (fits := capacity * room // needed):
        fixes.append(f"lower its capacity (buffer_size) from {capacity:,} to at most {fits:,}")
    fix = ", or ".join([*fixes, *filter(None, [advice]), "run it where more memory is free"])
    return ConfigError(
        f"{what} needs {human_bytes(needed)} of memory; {human_bytes(room)} are available.",
        f"{fix[0].upper()}{fix[1:]}.",
    )
