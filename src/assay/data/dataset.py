"""The dataset: episodes that do not change, in memory, mapped from a file, or read as needed."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.buffers.allocation import human_bytes, require_memory
from assay.core import system_memory
from assay.core.errors import AssayError, ConfigError, DataError, RunError
from assay.core.types import Tree, pack, unpack
from assay.core.wording import counted
from assay.data import prefetch
from assay.data.schema import EXTRA, OBS, Array, Columns, Schema, spaces_state

_DAMAGED = "Write it again; it may have been cut off when it was copied."
_BLOCK_ROWS = 1 << 16  # of a step field that are looked at together
_NARROW = 8  # bytes of a mapped row at most that is held in memory,
_HELD = 1 / 8  # and the share of the free memory that such rows may take


@dataclass(frozen=True, slots=True)
class Episode:
    """T steps of one episode, in the environment's own units.

    Attributes:
        obs: [T + 1, ...] or a flat dict of such: what was acted on, and the last observation.
        action: [T, ...].
        reward: [T].
        terminated: [T], true at a last step after which nothing follows.
        truncated: [T], true at a last step where the episode was cut although it could go on.
        extras: Further [T, ...] by name.
    """

    obs: Tree
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    extras: dict[str, Array] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Return T."""
        return len(self.reward)

    def columns(self) -> Columns:
        """Return the fields by their names in a dataset."""
        parts = {**pack(OBS, self.obs), "action": self.action, "reward": self.reward}
        parts |= {"terminated": self.terminated, "truncated": self.truncated}
        parts |= {f"{EXTRA}{name}": array for name, array in self.extras.items()}
        return {name: np.asarray(array) for name, array in parts.items()}


class Source(Protocol):
    """Where the rows of a dataset are.

    Arrays may be of any type that the schema's can be made of.
    """

    def block(self, first: int, last: int, names: Iterable[str]) -> Columns:
        """Return the rows of the episodes `first` to `last` (exclusive), of these fields."""

    def columns(self) -> Columns | None:
        """Return all rows as arrays in memory or mapped, or None if they would have to be read."""


class Block(NamedTuple):
    """Consecutive episodes."""

    first: int  # number of the first of them
    lengths: NDArray[np.int64]  # steps of each
    columns: Columns  # their rows

    def place(self, row: int, more: int) -> tuple[int, int]:
        """Return the episode, and the row within it, of a row of a field."""
        ends = np.cumsum(self.lengths + more)
        which = int(np.searchsorted(ends, row, side="right"))
        return self.first + which, row - int(ends[which] - self.lengths[which] - more)


class Dataset:
    """Episodes, with a view of transitions and one of sequences.

    Make one with `assay.data.load`, `from_episodes` or `from_transitions`.

    Attributes:
        schema: The spaces and fields.
        lengths: [E] the steps of each episode.
        metadata: What is known of where it came from; not part of the content.
        name: The file, as messages name it.
        path: The file, of one that was loaded.
    """

    def __init__(
        self,
        schema: Schema,
        lengths: NDArray[np.int64],
        source: Source,
        *,
        metadata: Mapping[str, Any] | None = None,
        name: str = "the dataset",
    ) -> None:
        self.schema, self.lengths, self._source = schema, lengths, source
        self.metadata, self.name = dict(metadata or {}), name
        self.path: Path | None = None
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._columns: Columns | None = None
        self._mapped: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Dataset({self.name}, episodes={self.num_episodes}, steps={len(self)})"

    def __len__(self) -> int:
        """Return the number of transitions."""
        return int(self._starts[-1])

    @property
    def num_episodes(self) -> int:
        """Return the number of episodes."""
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all rows."""
        return self.schema.total_bytes(len(self), self.num_episodes)

    # Episodes

    def block(self, first: int, last: int, names: Iterable[str] | None = None) -> Block:
        """Return consecutive episodes, of all fields or of some."""
        wanted = list(self.schema.fields if names is None else names)
        with nullcontext() if self.path is None else readable(self.path):
            rows, fields = self._source.block(first, last, wanted), self.schema.fields
        typed = {name: rows[name].astype(fields[name].dtype, copy=False) for name in rows}
        return Block(first, self.lengths[first:last], typed)

    def blocks(
        self, names: Iterable[str] | None = None, rows: int = _BLOCK_ROWS
    ) -> Iterator[Block]:
        """Yield all episodes, as many at once as have about so many steps."""
        first = 0
        while first < self.num_episodes:
            reach = int(np.searchsorted(self._starts, self._starts[first] + rows, side="right"))
            last = max(first + 1, reach - 1)
            yield self.block(first, last, names)
            first = last

    def episode(self, number: int) -> Episode:
        """Return an episode."""
        if not 0 <= number < self.num_episodes:
            raise IndexError(f"episode {number} of {self.num_episodes}")
        return _episode(self.block(number, number + 1).columns)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes in their order, holding a few of them in memory."""
        for block in self.blocks():
            rows = FlatSource(block.columns, block.lengths)
            for number in range(len(block.lengths)):
                yield _episode(rows.block(number, number + 1, block.columns))

    # Views

    def transitions(self, index: NDArray[np.int64]) -> dict[str, Any]:
        """Return transitions by their numbers, which run through all episodes.

        The keys are `obs` and `next_obs` (an array or a flat dict of such), `action`, `reward`,
        `terminated`, `truncated`, and `extras`.
        """
        columns = self._flat()
        # Each episode before this one has a row more of observations than of steps.
        at = index + self.episode_of(index)
        observations = [name for name, one in self.schema.fields.items() if one.more]
        obs, after = (
            unpack(OBS, {name: self._take(columns, name, rows) for name in observations})
            for rows in (at, at + 1)
        )
        steps = {
            name: self._take(columns, name, index)
            for name in self.schema.fields
            if name not in observations
        }
        extras = {n.removeprefix(EXTRA): steps.pop(n) for n in list(steps) if n.startswith(EXTRA)}
        return {"obs": obs, "next_obs": after, **steps, "extras": extras}

    def next_actions(self, index: NDArray[np.int64]) -> tuple[Array, NDArray[np.bool_]]:
        """Return what was done after transitions, and whether anything was.

        Nothing was after the last transition of an episode; its action stands there.
        """
        known = index + 1 < self._starts[self.episode_of(index) + 1]
        return self._take(self._flat(), "action", index + known), known

    @cached_property
    def returns_to_go(self) -> NDArray[np.float64]:
        """Return the undiscounted sum of rewards from each transition to its episode's end."""
        found: NDArray[np.float64] = np.empty(len(self))
        for block in self.blocks(["reward"]):
            at = self._starts[block.first]
            reward, ends = block.columns["reward"], np.cumsum(block.lengths)
            for start, end in zip(ends - block.lengths, ends, strict=True):
                found[at + start : at + end] = reward[start:end][::-1].cumsum()[::-1]
        return found

    @property
    def returns(self) -> NDArray[np.float64]:
        """Return the undiscounted return of each episode."""
        found: NDArray[np.float64] = self.returns_to_go[self._starts[:-1]]
        return found

    def sequences(self, index: NDArray[np.int64], length: int) -> dict[str, Any]:
        """Return the `length` steps that end with each of some transitions, within its episode.

        Where the episode is shorter, the beginning is padded with zeros, as a Decision Transformer
        has it. The keys are those of `transitions` with [B, length, ...], `obs` with
        [B, length + 1, ...] in place of `next_obs`, `valid` [B, length], which is False for
        padding, and `timestep` [B, length], the number of the step in its episode.
        """
        columns = self._flat()
        episode = self.episode_of(index)
        offsets = np.arange(length) - (length - 1)
        steps = index[:, None] + offsets  # [B, L]
        valid = steps >= self._starts[episode][:, None]
        steps = np.where(valid, steps, index[:, None])
        shift = episode[:, None]
        found: dict[str, Any] = {}
        for name, one in self.schema.fields.items():
            rows = self._take(columns, name, (steps + shift * one.more).reshape(-1))
            rows = rows.reshape(len(index), length, *one.shape)
            rows[~valid] = 0
            if one.more:
                last = self._take(columns, name, index + episode + 1)
                rows = np.concatenate([rows, last[:, None]], axis=1)
            found[name] = rows
        extras = {n.removeprefix(EXTRA): found.pop(n) for n in self.schema.extras}
        parts = {name: found.pop(name) for name, one in self.schema.fields.items() if one.more}
        timestep = np.where(valid, steps - self._starts[episode][:, None], 0)
        return {
            "obs": unpack(OBS, parts),
            **found,
            "extras": extras,
            "valid": valid,
            "timestep": timestep,
        }

    def will_need(self, index: NDArray[np.int64], length: int = 1) -> None:
        """Say which transitions, and how many steps up to each, will be asked for soon.

        It lets the system read them from a mapped file meanwhile, and changes nothing else.
        """
        columns = self._flat()
        if not self._mapped:
            return
        episode = self.episode_of(index)
        first = np.maximum(index - (length - 1), self._starts[episode])
        wanted = []
        for name in self._mapped:
            more = self.schema.fields[name].more
            shift = episode * more  # as in `transitions`, with the observation after it
            wanted.append(prefetch.ranges(columns[name], first + shift, index + shift + more))
        prefetch.will_need(np.concatenate(wanted))

    def episode_of(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the episodes that transitions belong to."""
        return np.searchsorted(self._starts, index, side="right") - 1

    def _take(self, columns: Columns, name: str, rows: NDArray[np.int64]) -> Array:
        return columns[name][rows].astype(self.schema.fields[name].dtype, copy=False)

    def _flat(self) -> Columns:
        """Return all rows, reading them now if they are not in memory or mapped yet."""
        if self._columns is None:
            found = dict(self._source.columns() or self._read())
            for name in self._narrow(found):
                found[name] = np.array(found[name])
            for name, rows in found.items():
                if isinstance(rows.base, mmap.mmap):  # read no pages around those that are drawn
                    rows.base.madvise(mmap.MADV_RANDOM)
                    self._mapped += (name,)
            # Plain arrays: rows of a `memmap` are drawn more slowly.
            self._columns = {name: np.asarray(rows) for name, rows in found.items()}
        return self._columns

    def _narrow(self, columns: Columns) -> Iterator[str]:
        """Yield the mapped fields that are read into memory.

        A row of one number costs a page of the file as a long row does, and takes little memory.
        """
        room = int(system_memory.available_bytes() * _HELD)
        for name, rows in columns.items():
            mapped = isinstance(rows.base, mmap.mmap)
            if mapped and rows.nbytes <= min(room, len(rows) * _NARROW):
                room -= rows.nbytes
                yield name

    def _read(self) -> Columns:
        try:
            require_memory(self.nbytes, f"The data in {self.name}")
        except ConfigError as error:
            raise DataError(
                error.message,
                "Convert it to HDF5, from which rows are mapped: assay data convert SET SET.hdf5",
            ) from None
        fields = self.schema.fields
        shapes = self.schema.shapes(len(self), self.num_episodes)
        made = {name: np.empty(shape, fields[name].dtype) for name, shape in shapes.items()}
        self.copy_into(made)
        return made

    def copy_into(self, targets: Mapping[str, Any]) -> None:
        """Write all rows of the fields into arrays that have room for them, in their order."""
        at = dict.fromkeys(targets, 0)
        for block in self.blocks():
            for name, rows in block.columns.items():
                targets[name][at[name] : at[name] + len(rows)] = rows
                at[name] += len(rows)

    # Provenance

    @cached_property
    def content_hash(self) -> str:
        """Return the SHA-256 of spaces, lengths and rows: the same in every format.

        A few episodes at a time are read for it.
        """
        hashes = {name: hashlib.sha256() for name in self.schema.fields}
        for block in self.blocks():
            for name, rows in block.columns.items():
                hashes[name].update(bytes_of(rows))
        content = {
            "spaces": spaces_state(self.schema),
            "lengths": hashlib.sha256(bytes_of(self.lengths)).hexdigest(),
            "fields": {
                name: [str(one.dtype), list(one.shape), hashes[name].hexdigest()]
                for name, one in self.schema.fields.items()
            },
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        """Return what provenance keeps of a dataset."""
        return {
            "sha256": self.content_hash,
            "episodes": self.num_episodes,
            "steps": len(self),
        }

    def describe(self) -> str:
        """Return its size in words."""
        return (
            f"{counted(self.num_episodes, 'episode')} with {counted(len(self), 'step')} "
            f"({human_bytes(self.nbytes)})"
        )


class FlatSource:
    """Arrays with the rows of all episodes one after the other, in memory or mapped."""

    def __init__(self, columns: Columns, lengths: NDArray[np.int64]) -> None:
        self._columns = columns
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        steps, episodes = self._starts[-1], len(lengths)
        self._more = {name: (len(c) - steps) // episodes for name, c in columns.items()}

    def block(self, first: int, last: int, names: Iterable[str]) -> Columns:
        """Return views of the arrays."""
        low, high = self._starts[first], self._starts[last]
        found = {}
        for name in names:
            more = self._more[name]
            found[name] = self._columns[name][low + first * more : high + last * more]
        return found

    def columns(self) -> Columns:
        """Return the arrays."""
        return self._columns


def _episode(columns: Columns) -> Episode:
    return Episode(
        obs=unpack(OBS, {n: a for n, a in columns.items() if n.split("/")[0] == OBS}),
        action=columns["action"],
        reward=columns["reward"],
        terminated=columns["terminated"],
        truncated=columns["truncated"],
        extras={n.removeprefix(EXTRA): a for n, a in columns.items() if n.startswith(EXTRA)},
    )


def bytes_of(rows: Array) -> memoryview:
    """Return the bytes of an array, the same on every machine."""
    little = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes a reader raise into one error that names it."""
    try:
        if path.is_file() and not path.stat().st_size:
            raise DataError(f"'{path}' is empty: it has 0 bytes.", _DAMAGED)
        yield
    except RunError as error:
        raise DataError(error.message, error.fix) from None
    except AssayError:
        raise
    except PermissionError as error:
        raise DataError(
            f"Cannot read '{path}': {error.strerror}.", "Check its permissions."
        ) from None
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        kind = path.suffix.removeprefix(".").upper() if path.is_file() else "Minari"
        raise DataError(
            f"'{path}' is not a whole {kind} file of plain arrays: {reason}.", _DAMAGED
        ) from None
