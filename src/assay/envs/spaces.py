"""Canonical spaces: what an algorithm sees, whatever an environment declares.

An observation becomes one array [N, ...] or a flat `dict[str, array]`: nested Dict and Tuple spaces
are flattened with keys such as "arm/joints" or "0". Within a leaf:

| declared                       | canonical                                             |
|--------------------------------|-------------------------------------------------------|
| Box of uint8                   | unchanged (images)                                    |
| Box of bool, 3 or 4 axes       | Box of uint8, 0 and 1 (images of flags)               |
| Box of any other dtype         | Box of float32; a shape of () becomes (1,)            |
| Discrete                       | Discrete that starts at 0                             |
| MultiDiscrete, MultiBinary     | one-dimensional, starting at 0                        |
| an entry called "action_mask"  | MultiBinary (int8)                                    |
| Text                           | left out, or a Box of float32, or refused             |

An action is one of Box (float32), Discrete, MultiDiscrete or MultiBinary, one-dimensional and
starting at 0. A space that is canonical already stays the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from assay.core.errors import SpaceError
from assay.core.types import ACTION_MASK, Tree
from assay.envs.text import embed, is_text, plain_text

Path = tuple[str | int, ...]  # keys and indices that lead to an entry of an observation

OBS = "obs"  # the entry of a bare observation that comes with an action mask
_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of those"


class BadObservationError(ValueError):
    """An observation that does not fit the space its environment declares."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an observation.

    Attributes:
        key: Its name in the canonical observation; "" where that is a bare array.
        path: The keys and indices that lead to it in the raw observation.
        source: The space that the environment declares.
        space: The canonical space.
        shape: Canonical shape, without the batch axis.
        dtype: Canonical dtype.
        start: What is subtracted from raw values (Discrete spaces may start anywhere), or None.
    """

    key: str
    path: Path
    source: gym.Space[Any]
    space: gym.Space[Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: NDArray[np.int64] | None

    def read(self, raw: Any) -> Any:
        """Return this leaf's part of a raw observation."""
        for step in self.path:
            raw = raw[step]
        return raw

    def batch(self, raw: Any) -> NDArray[Any]:
        """Convert this leaf of a batched raw observation, without a copy where none is needed."""
        array = np.asarray(raw)
        if self.start is not None:
            array = array - self.start
        if array.dtype != self.dtype:
            whole = self.dtype.kind != "f"
            if array.dtype.kind not in ("biu" if whole else "biuf"):
                raise BadObservationError(self._mismatch(array.shape[1:], array.dtype))
            array = array.astype(self.dtype)
        if array.shape[1:] != self.shape:
            declared = self.source.shape or ()
            if array.shape[1:] != declared:
                raise BadObservationError(self._mismatch(array.shape[1:], array.dtype))
            array = array.reshape(array.shape[0], *self.shape)
        return array

    def restore(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return canonical observations [N, ...] as the environment gave them.

        What it gave as float64 has been rounded.
        """
        raw = rows.reshape(len(rows), *(self.source.shape or ()))
        return (raw if self.start is None else raw + self.start).astype(self.source.dtype)

    def row(self, raw: Any) -> NDArray[Any]:
        """Convert this leaf of one environment's raw observation."""
        array = np.asarray(raw)
        declared = self.source.shape
        if array.shape != declared:
            raise BadObservationError(self._mismatch(array.shape, array.dtype))
        if array.dtype != self.source.dtype and not np.can_cast(
            array.dtype, self.dtype, "same_kind"
        ):
            raise BadObservationError(self._mismatch(array.shape, array.dtype))
        if self.start is not None:
            array = array - self.start
        if array.shape != self.shape:
            array = array.reshape(self.shape)
        return array

    def _mismatch(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        entry = f"entry '{self.key}' of the observation" if self.path else "the observation"
        return (
            f"{entry} has shape {tuple(shape)} and dtype {dtype}, "
            f"but its space declares shape {self.source.shape} and dtype {self.source.dtype}"
        )


class TextLeaf(Leaf):
    """A text of an observation, as an array."""

    __slots__ = ()

    def restore(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the arrays: what was written cannot be told from them."""
        return rows

    def batch(self, raw: Any) -> NDArray[Any]:
        """Convert the texts of several environments."""
        return np.stack([self.row(text) for text in raw])

    def row(self, raw: Any) -> NDArray[Any]:
        """Convert one environment's text."""
        if not isinstance(raw, str):
            entry = f"entry '{self.key}' of the observation" if self.path else "the observation"
            raise BadObservationError(f"{entry} is a {type(raw).__name__}, not a string")
        return embed(raw, self.shape[0])


class ObservationMap:
    """Turn raw observations of a space into canonical ones.

    Args:
        space: The observation space of a single environment, as it declares it.
        mask_size: The length of an action mask that arrives next to the observation, or None.
        text: The width of the array that a text becomes; 0 leaves texts out, None refuses them.

    Attributes:
        source: The space as it was declared, with every kind of text as `assay.envs.text.TEXT`.
        left_out: The names of texts that are left out.

    Raises:
        SpaceError: A part of the space is not supported.

    Example:
        >>> nested = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(3, start=1)})})
        >>> ObservationMap(nested).space
        Dict('a/b': Discrete(3))
    """

    def __init__(
        self, space: gym.Space[Any], mask_size: int | None = None, text: int | None = None
    ) -> None:
        self.source = space = plain_text(space)
        self.mask_size = mask_size
        bare = not isinstance(space, (spaces.Dict, spaces.Tuple))
        alone = bare and mask_size is not None
        declared = [(OBS, (), space)] if alone else list(_walk(space, ()))
        skip = [key for key, _, part in declared if is_text(part)] if text == 0 else []
        self.left_out = tuple(skip)
        kept = [entry for entry in declared if entry[0] not in skip]
        self.leaves = tuple(_leaf(part, key, path, text) for key, path, part in kept)
        _refuse_clashes(self.leaves, mask_size, self.left_out)
        if text and not any(isinstance(leaf, TextLeaf) for leaf in self.leaves):
            raise SpaceError(f"embed_text={text}, but {space} has no text.", "Leave it out.")
        self.bare = bare and mask_size is None
        if self.bare:
            self.space: gym.Space[Any] = self.leaves[0].space
        else:
            parts = {leaf.key: leaf.space for leaf in self.leaves}
            if mask_size is not None:
                parts[ACTION_MASK] = spaces.MultiBinary(mask_size)
            self.space = spaces.Dict(parts)
        self.float_keys = tuple(leaf.key for leaf in self.leaves if leaf.dtype.kind == "f")
        self.write: Callable[[Tree, int, Any], None] = self._writer()

    def fields(self, prefix: str) -> dict[str, Leaf]:
        """Return the leaves by the names that flat files give them.

        That is the prefix for a bare observation, else the prefix and the key: `obs/arm/joints`.
        """
        if self.bare:
            return {prefix: self.leaves[0]}
        leaves = list(self.leaves)
        if self.mask_size is not None:
            mask = spaces.MultiBinary(self.mask_size)
            leaves.append(_leaf(mask, ACTION_MASK, (ACTION_MASK,), None))
        return {f"{prefix}/{leaf.key}": leaf for leaf in leaves}

    def batch(self, raw: Any, mask: NDArray[Any] | None = None) -> Tree:
        """Convert a batched raw observation ([N, ...] in every leaf)."""
        if self.bare:
            return self.leaves[0].batch(raw)
        try:
            tree = {leaf.key: leaf.batch(leaf.read(raw)) for leaf in self.leaves}
        except (KeyError, IndexError, TypeError) as error:
            raise self._missing(error) from None
        if mask is not None:
            tree[ACTION_MASK] = mask
        return tree

    def one(self, raw: Any, mask: NDArray[Any] | None = None) -> Tree:
        """Convert the raw observation of one environment to a batch of one.

        If the space has a mask and the caller has none, it is all ones.
        """
        tree = self.empty(1)
        self.write(tree, 0, raw)
        if self.mask_size is not None:
            tree[ACTION_MASK][0] = 1 if mask is None else mask
        return tree

    def empty(self, num_envs: int) -> Tree:
        """Return uninitialised arrays for `num_envs` canonical observations."""
        return self.build(lambda shape, dtype: np.empty((num_envs, *shape), dtype))

    def zeros(self, num_envs: int) -> Tree:
        """Return zeros for `num_envs` canonical observations."""
        return self.build(lambda shape, dtype: np.zeros((num_envs, *shape), dtype))

    def build(self, make: Callable[[tuple[int, ...], np.dtype[Any]], Any]) -> Tree:
        """Return a canonical observation whose arrays are `make(shape, dtype)`."""
        if self.bare:
            return make(self.leaves[0].shape, self.leaves[0].dtype)
        tree = {leaf.key: make(leaf.shape, leaf.dtype) for leaf in self.leaves}
        if self.mask_size is not None:
            tree[ACTION_MASK] = make((self.mask_size,), np.dtype(np.int8))
        return tree

    def _writer(self) -> Callable[[Tree, int, Any], None]:
        """Return `write(tree, row, raw)`, which converts one environment's observation in place."""
        if self.bare:
            row_of = self.leaves[0].row

            def write_bare(tree: Tree, row: int, raw: Any) -> None:
                tree[row] = row_of(raw)

            return write_bare
        leaves = self.leaves

        def write_parts(tree: Tree, row: int, raw: Any) -> None:
            try:
                parts = [leaf.read(raw) for leaf in leaves]
            except (KeyError, IndexError, TypeError) as error:
                raise self._missing(error) from None
            for leaf, part in zip(leaves, parts, strict=True):
                tree[leaf.key][row] = leaf.row(part)

        return write_parts

    def _missing(self, error: Exception) -> BadObservationError:
        return BadObservationError(
            f"the observation lacks an entry that its space declares ({type(error).__name__}: "
            f"{error}); declared: {', '.join(leaf.key for leaf in self.leaves)}"
        )


class ActionMap:
    """Turn canonical actions into the environment's own.

    Args:
        space: The action space of a single environment, as it declares it.

    Attributes:
        space: The canonical action space.
        to_env: Maps canonical actions [N, ...] to the environment's; None where they are the same.
        mask_size: How long an action mask is (one entry per choice, or per bit of a MultiBinary),
            or None for a Box.

    Raises:
        SpaceError: The space is not supported.

    Example:
        >>> ActionMap(spaces.Discrete(3, start=5)).to_env(np.array([0, 2]))
        array([5, 7])
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.source = space
        self.space: gym.Space[Any] = space
        self.to_env: Callable[[NDArray[Any]], NDArray[Any]] | None = None
        self.mask_size: int | None = None
        if isinstance(space, spaces.Discrete):
            self.mask_size = int(space.n)
            start = int(space.start)
            if start:
                self.space = spaces.Discrete(int(space.n))
                self.to_env = lambda actions: actions + start
        elif isinstance(space, spaces.MultiDiscrete):
            self.mask_size = int(space.nvec.sum())
            start_array, shape = space.start, space.nvec.shape
            if len(shape) != 1 or start_array.any():
                self.space = spaces.MultiDiscrete(space.nvec.reshape(-1))
                self.to_env = lambda actions: actions.reshape(-1, *shape) + start_array
        elif isinstance(space, spaces.MultiBinary):
            shape = space.shape
            self.mask_size = int(np.prod(shape))  # a bit that is masked stays 0
            if len(shape) != 1:
                self.space = spaces.MultiBinary(int(np.prod(shape)))
                self.to_env = lambda actions: actions.reshape(-1, *shape)
        elif isinstance(space, spaces.Box):
            self._box(space)
        else:
            raise SpaceError(
                f"The action space {_name(space)} is not supported: {space}.",
                "Give the environment one Box, Discrete, MultiDiscrete or MultiBinary action space"
                " (a wrapper can split one array into parts).",
            )

    def from_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return the environment's own actions [N, ...] as canonical ones."""
        start = getattr(self.source, "start", None)
        if start is not None:
            actions = actions - start
        dtype: Any = np.float32 if isinstance(self.space, spaces.Box) else np.int64
        if isinstance(self.space, spaces.MultiBinary):
            dtype = np.int8
        return actions.reshape(len(actions), *(self.space.shape or ())).astype(dtype, copy=False)

    def _box(self, space: spaces.Box) -> None:
        if space.dtype is None or space.dtype.kind != "f":
            raise SpaceError(
                f"A Box action space of dtype {space.dtype} is not supported: {space}.",
                "Use MultiDiscrete for whole numbers, or a Box of float32.",
            )
        shape, dtype = space.shape, space.dtype
        if dtype == np.float32 and len(shape) == 1:
            return
        self.space = _inner_box(space, (int(np.prod(shape)),))
        self.to_env = lambda actions: actions.astype(dtype).reshape(-1, *shape)


def _walk(space: gym.Space[Any], path: Path) -> Iterator[tuple[str, Path, gym.Space[Any]]]:
    """Yield name, path and space of every entry of an observation."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _walk(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _walk(part, (*path, index))
    else:
        yield "/".join(map(str, path)), path, space


def _leaf(space: gym.Space[Any], key: str, path: Path, text: int | None) -> Leaf:
    if text and is_text(space):
        box = spaces.Box(-1.0, 1.0, (text,), np.float32)
        return TextLeaf(key, path, space, box, box.shape, np.dtype(np.float32), None)
    if not isinstance(space, _LEAVES):
        where = f"Entry '{key}' of the observation space" if path else "The observation space"
        raise SpaceError(
            f"{where} is a {_name(space)}, which is not supported: {space}.",
            f"Supported are {_SUPPORTED}; turn it into one of those with a wrapper.",
        )
    start: NDArray[np.int64] | None = None
    canonical: gym.Space[Any] = space
    if key == ACTION_MASK:
        size = int(np.prod(space.shape or ()))
        if not isinstance(space, spaces.MultiBinary) or space.shape != (size,):
            canonical = spaces.MultiBinary(size)
    elif isinstance(space, spaces.Discrete):
        if space.start:
            start = np.asarray(space.start, np.int64)
            canonical = spaces.Discrete(int(space.n))
    elif isinstance(space, spaces.MultiDiscrete):
        if space.start.any():
            start = space.start.astype(np.int64)
        if start is not None or len(space.shape) != 1:
            canonical = spaces.MultiDiscrete(space.nvec.reshape(-1))
    elif isinstance(space, spaces.MultiBinary):
        if len(space.shape) != 1:
            canonical = spaces.MultiBinary(int(np.prod(space.shape)))
    elif space.dtype not in (np.float32, np.uint8) or space.shape == ():
        flags = space.dtype == np.bool_ and len(space.shape) in (3, 4)
        dtype = np.uint8 if space.dtype == np.uint8 or flags else np.float32
        canonical = _float_box(space, space.shape or (1,), dtype)
    shape, dtype_ = canonical.shape, canonical.dtype
    assert shape is not None and dtype_ is not None
    if isinstance(canonical, (spaces.Discrete, spaces.MultiDiscrete)):
        dtype_ = np.dtype(np.int64)
    return Leaf(key, path, space, canonical, shape, np.dtype(dtype_), start)


def _refuse_clashes(
    leaves: tuple[Leaf, ...], mask_size: int | None, left_out: tuple[str, ...]
) -> None:
    keys = [leaf.key for leaf in leaves]
    if not keys and left_out:
        raise SpaceError(
            "The observation is text alone, and texts are left out.",
            "Set embed_text, the width of the array that a text becomes: embed_text=64.",
        )
    if not keys:
        raise SpaceError(
            "The observation space has no entries.", f"Supported are {_SUPPORTED}, not empty."
        )
    if mask_size is not None:
        keys.append(ACTION_MASK)
    double = sorted({key for key in keys if keys.count(key) > 1})
    if double:
        raise SpaceError(
            f"Two entries of the observation space have the flat name '{double[0]}'.",
            "Rename one of them; nested entries are joined with '/'.",
        )


def _float_box(space: spaces.Box, shape: tuple[int, ...], dtype: Any = np.float32) -> spaces.Box:
    with np.errstate(over="ignore"):  # a float64 bound beyond float32's range becomes infinite
        low, high = space.low.astype(dtype), space.high.astype(dtype)
    return spaces.Box(low.reshape(shape), high.reshape(shape), dtype=dtype)


def _inner_box(space: spaces.Box, shape: tuple[int, ...]) -> spaces.Box:
    """Return a Box of float32 whose bounds lie in `space`, as float32 seldom has its very bounds.

    Where no float32 lies in between, the bounds are the nearest ones.
    """
    near = _float_box(space, shape)
    low, high = (bound.reshape(shape) for bound in (space.low, space.high))
    up, down = np.float32(np.inf), np.float32(-np.inf)
    lower = np.where(np.isfinite(near.low) & (near.low < low), np.nextafter(near.low, up), near.low)
    upper = np.where(
        np.isfinite(near.high) & (near.high > high), np.nextafter(near.high, down), near.high
    )
    if (lower > upper).any():
        return near
    return spaces.Box(lower, upper, dtype=np.float32)


def _name(space: Any) -> str:
    return type(space).__name__


def has_mask(space: gym.Space[Any]) -> bool:
    """Return whether a raw observation space brings its own action mask."""
    return isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces
