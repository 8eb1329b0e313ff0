"""What the buffers share: checkpoint sections, and host arrays that batches are gathered into."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from assay.buffers.allocation import allocate
from assay.core.errors import CheckpointError
from assay.core.types import Array, State, Tree, tree_leaves, tree_map

CHUNK_ITEMS = 16_384
HEAD = "head"
Sections = dict[str, tuple[State, str | None]]  # without a version: always changed


def digest(*trees: Tree) -> str:
    """Return a short content hash of trees of arrays and JSON-able values."""
    sha = hashlib.blake2b(digest_size=12)
    for tree in trees:
        if isinstance(tree, Mapping):
            for key in sorted(tree):
                sha.update(f"{key}:{digest(tree[key])};".encode())
        elif isinstance(tree, np.ndarray):
            sha.update(f"{tree.dtype.str}{tree.shape}".encode())
            sha.update(np.ascontiguousarray(tree).data)
        else:
            sha.update(json.dumps(tree, sort_keys=True).encode())
    return sha.hexdigest()


class Sectioned(ABC):
    """What replays save: their sections by name, or all of them as one state."""

    @abstractmethod
    def _sections(self) -> Sections:
        """Return the state in sections; arrays may be views of the storage."""

    @abstractmethod
    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""

    def sections(self, prefix: str = "replay") -> Sections:
        """Return the state cut into sections `{<prefix>-<name>: (state, version)}` for checkpoints.

        A section whose version is unchanged has not been written to, so that a checkpointer can
        link the file of the checkpoint before. Arrays are views of the storage: save them before
        the next `add`.
        """
        return {f"{prefix}-{name}": value for name, value in self._sections().items()}

    def load_sections(self, sections: Mapping[str, State], prefix: str = "replay") -> None:
        """Restore the states of `sections`; sampling then goes on as if nothing had happened.

        Raises:
            CheckpointError: A section is missing, or they belong to another kind of replay.
        """
        start = f"{prefix}-"
        self.load_state(
            {k.removeprefix(start): v for k, v in sections.items() if k.startswith(start)}
        )

    def state(self) -> State:
        """Return everything as one state that shares no memory with the buffer."""
        return {name: copy_state(part) for name, (part, _) in self._sections().items()}


class Ring(NamedTuple):
    """Arrays written round and round, one column per environment, as checkpoints see them.

    Attributes:
        name: Beginning of its sections' names.
        arrays: Tree of [rows, ...] arrays.
        rows: Rows of all arrays.
        heads: [N] rows ever written by each environment.
        width: Items in a row.
    """

    name: str
    arrays: Tree
    rows: int
    heads: np.ndarray
    width: int

    def sections(self, fingerprint: Callable[[State], Tree]) -> Sections:
        """Return what was written, in chunks of about `CHUNK_ITEMS` items.

        Args:
            fingerprint: Picks the part of a chunk that goes into its version. Its count of writes
                says whether it changed within a run; the hash tells apart runs that diverged.
        """
        found: Sections = {}
        for name, low, high in self._chunks():
            part = tree_map(lambda array, a=low, b=high: array[a:b], self.arrays)
            laps, rest = np.divmod(self.heads, self.rows)
            writes = (laps * (high - low) + np.clip(rest - low, 0, high - low)).sum()
            found[name] = (part, f"{writes}-{digest(fingerprint(part))}")
        return found

    def load(self, sections: Mapping[str, State]) -> None:
        """Put back what `sections` returned."""
        for name, low, high in self._chunks():
            put_rows(self.arrays, low, high, section(sections, name), name)

    def _chunks(self) -> Iterator[tuple[str, int, int]]:
        used, step = min(int(self.heads.max()), self.rows), max(1, CHUNK_ITEMS // self.width)
        for number, low in enumerate(range(0, used, step)):
            yield f"{self.name}{number:05d}", low, min(low + step, used)


def put_rows(arrays: Tree, low: int, high: int, values: Tree, name: str) -> None:
    """Write saved values to rows [low, high) of a tree of arrays.

    Raises:
        CheckpointError: The section `name` does not fit these arrays.
    """
    if isinstance(arrays, Mapping):
        for key, array in arrays.items():
            if not tree_leaves(array):
                continue  # an empty tree may be lost in saving
            if not isinstance(values, Mapping) or key not in values:
                raise CheckpointError(f"Section '{name}' of the buffer lacks '{key}'.")
            put_rows(array, low, high, values[key], name)
        return
    target, found = arrays[low:high], np.asarray(values)
    if target.shape != found.shape or target.dtype != found.dtype:
        raise CheckpointError(
            f"Section '{name}' of the buffer holds {found.dtype}{list(found.shape)}; "
            f"expected {target.dtype}{list(target.shape)}.",
            "Resume with the capacity, environments and spaces that it was saved with.",
        )
    target[:] = found


def section(sections: Mapping[str, State], name: str) -> State:
    """Return one section, or say which one is missing."""
    if name not in sections:
        raise CheckpointError(f"Section '{name}' of the buffer is missing.")
    return sections[name]


def copy_state(value: Any) -> Any:
    """Return a state whose arrays no longer share memory with the buffer."""
    if isinstance(value, Mapping):
        return {key: copy_state(item) for key, item in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def write_back(
    columns: Mapping[str, Tree], rows: np.ndarray, held: np.ndarray, values: Mapping[str, Tree]
) -> None:
    """Write values of a sampled batch back to the columns that they came from.

    Args:
        columns: By name, with a leading axis of rows.
        rows: [K] where what is still held of the batch lies.
        held: [B] what that is.
        values: [B, ...] by name.

    Raises:
        ValueError: There is no such column.
    """
    for name, tree in values.items():
        if name not in columns:
            raise ValueError(f"'{name}' cannot be updated; expected one of {sorted(columns)}")

        def put(column: np.ndarray, value: Array) -> None:
            column[rows] = as_array(value)[held]

        tree_map(put, columns[name], tree)


def as_array(values: Any) -> np.ndarray:
    """Return a tensor of any device, or an array, as an array."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def same_settings(
    found: Mapping[str, Any], expected: Mapping[str, Any], what: str, *, written: int | None = None
) -> None:
    """Refuse the state of a buffer of another shape.

    Args:
        found: The settings that it was saved with.
        expected: Those of the buffer.
        what: What it is called.
        written: Rows that were ever written to it. As long as neither buffer has so few `slots`
            that one was overwritten, they lie at the same places.

    Raises:
        CheckpointError: Names the first setting that differs.
    """
    for key, value in expected.items():
        if key == "slots" and written is not None and written <= min(found.get(key, 0), value):
            continue
        if found.get(key) != value:
            raise CheckpointError(
                f"The saved {what} has {key}={found.get(key)}; this one has {key}={value}.",
                "Resume with the settings that the run was started with.",
            )


class Staging:
    """Preallocated arrays that batches are gathered into, and tensors that share their memory."""

    def __init__(self, specs: Tree) -> None:
        self.arrays = allocate(specs)
        self.tensors = tree_map(torch.from_numpy, self.arrays)

    def wait(self) -> None:
        """Wait until the arrays may be overwritten."""

    def deliver(self) -> Tree:
        """Return the tensors on the device that they are for."""
        return self.tensors


class DeviceStaging(Staging):
    """Arrays whose tensors are copied to another device.

    For a GPU they are pinned and copied without blocking; `wait` keeps the next gather from
    overwriting a copy under way.
    """

    def __init__(self, specs: Tree, device: torch.device) -> None:
        super().__init__(specs)
        self.device = device
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        if self._copied is not None:
            self.tensors = tree_map(lambda tensor: tensor.pin_memory(), self.tensors)
            self.arrays = tree_map(lambda tensor: tensor.numpy(), self.tensors)

    def wait(self) -> None:
        """Wait until the arrays may be overwritten."""
        if self._copied is not None:
            self._copied.synchronize()

    def deliver(self) -> Tree:
        """Return the tensors on the device."""
        cuda = self._copied is not None
        moved = tree_map(lambda tensor: tensor.to(self.device, non_blocking=cuda), self.tensors)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.device))
        return moved


def make_staging(specs: Tree, device: torch.device) -> Staging:
    """Return arrays to gather into, whose tensors are for a device."""
    return Staging(specs) if device.type == "cpu" else DeviceStaging(specs, device)
