"""Observations from files, a batch at a time: NPY, NPZ, CSV, JSON lines and Parquet.

A row is an observation in the environment's own units. In a table the numbers of one array are in
the columns `obs.0`, `obs.1`, ..., or as a list in the column `obs`; those of a Dict have the names
of its entries, `arm.joints.0` or `arm.joints`. A vector may also come in columns of any other
names, which are then taken in their order. NPY holds one array [N, ...], NPZ one for each entry.

Rows are steps in the order of time. `episode` (a new value) or `first` (true) marks where an
episode begins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import DataError, nearest
from assay.core.types import Tree
from assay.core.wording import counted
from assay.data.findings import bounds_of
from assay.data.rows import Row, numbers_of, rows_of
from assay.envs.spaces import OBS, Leaf, ObservationMap, TextLeaf
from assay.runs.files import run_error

Array = NDArray[Any]
Where = Callable[[int, int], str]  # names a number by its row and its place in the row

FIRST, EPISODE = "first", "episode"
TABLES = (".csv", ".jsonl", ".parquet")
ARRAYS = (".npy", ".npz")


class Rows(NamedTuple):
    """Some rows of a file."""

    obs: Tree  # canonical observations [N, ...]
    first: Array  # [N] whether an episode begins with the row


def read(
    path: Path, observations: ObservationMap, batch: int, kind: str | None = None
) -> Iterator[Rows]:
    """Yield the observations of a file, at most `batch` at a time.

    Args:
        path: The file.
        observations: What they are to be.
        batch: Rows that are read and answered together.
        kind: The format, as an ending; that of the path by default.

    Raises:
        DataError: The file cannot be read or does not fit; the row and the column are named.
    """
    kind = kind or path.suffix.lower()
    if kind not in (*ARRAYS, *TABLES):
        raise DataError(
            f"Observations cannot be read from '{path}'.",
            f"Give a file that ends in {', '.join((*ARRAYS, *TABLES))}.",
        )
    if not path.exists():
        raise DataError(f"There is no file '{path}'.", "Check the path of the observations.")
    found = (_from_arrays if kind in ARRAYS else _from_table)(path, observations, batch, kind)
    some = next(found, None)
    if some is None:
        raise DataError(f"'{path}' holds no observations.", "Give at least one row.")
    yield some
    yield from found


def _leaves(observations: ObservationMap) -> dict[str, Leaf]:
    """Return the arrays of an observation by the names of their columns."""
    fields = observations.fields(OBS)
    return {(leaf.key or OBS).replace("/", "."): leaf for leaf in fields.values()}


def _source_shape(leaf: Leaf) -> tuple[int, ...]:
    return tuple(leaf.source.shape or ())


def _canonical(leaf: Leaf, values: Array, where: Where) -> Array:
    """Return the numbers of an entry [N, ...] as networks take them.

    Raises:
        DataError: One is not finite, too large, or not a value of a space of whole numbers.
    """
    flat = values.reshape(len(values), -1)
    _require(np.isfinite(flat), flat, where, "a finite number")
    if leaf.dtype.kind != "f":
        low, high = (np.broadcast_to(b, _source_shape(leaf)) for b in bounds_of(leaf.source))
        fits = (flat >= low.reshape(-1)) & (flat <= high.reshape(-1)) & (flat == np.floor(flat))
        _require(fits, flat, where, f"a value of {leaf.source}")
        values = values.astype(np.int64)
    else:
        fits = np.abs(flat) <= np.finfo(leaf.dtype).max
        _require(fits, flat, where, f"a number of {leaf.dtype}'s range")
    return leaf.batch(values)


def _require(fits: Array, flat: Array, where: Where, expected: str) -> None:
    if not fits.all():
        row, place = (int(index[0]) for index in np.nonzero(~fits))
        text = where(row, place)
        raise DataError(
            f"{text[0].upper()}{text[1:]} is {flat[row, place]:g}; expected {expected}.",
            "Correct it, or leave the row out.",
        )


def _tree(observations: ObservationMap, parts: Mapping[str, Array]) -> Tree:
    if observations.bare:
        return parts[OBS]
    return {leaf.key: parts[name] for name, leaf in _leaves(observations).items()}


def _starts(marks: Sequence[Any], before: Any) -> Array:
    """Return where the number of the episode is another one than in the row before."""
    return np.array(
        [mark != last for mark, last in zip(marks, [before, *marks[:-1]], strict=True)], bool
    )


# Arrays


def _from_arrays(path: Path, observations: ObservationMap, batch: int, kind: str) -> Iterator[Rows]:
    leaves = _leaves(observations)
    given = _load(path)
    if isinstance(given, np.ndarray):
        if not observations.bare:
            raise DataError(
                f"'{path}' holds one array; the observation has {', '.join(leaves)}.",
                "Give an .npz file with an array for each of them.",
            )
        found, names = {OBS: given}, {"": given}
    else:
        names = _with_starts({name.replace("/", "."): array for name, array in given.items()})
        found = {name: _entry(path, names, name) for name in leaves}
    for name, leaf in leaves.items():
        _check_array(path, name if observations.bare is False else "", leaf, found[name])
    marks = {name: names[name] for name in (FIRST, EPISODE) if name in names.keys() - leaves.keys()}
    for name, array in marks.items():
        if array.ndim != 1:
            raise DataError(
                f"The array '{name}' of '{path}' has the shape {array.shape}; expected (N,).",
                "Give one value for each row.",
            )
    lengths = {name: len(array) for name, array in {**found, **marks}.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"The arrays of '{path}' have different lengths: {shown}.")
    total = next(iter(lengths.values()))
    last: Any = None
    for begin in range(0, total, batch):
        part = slice(begin, min(begin + batch, total))
        # Copies, since torch warns of memory that it may not write to.
        parts = {
            name: _canonical(leaf, np.array(found[name][part]), _array_place(path, name, begin))
            for name, leaf in leaves.items()
        }
        first = np.zeros(part.stop - begin, bool)
        if FIRST in marks:
            first |= np.asarray(marks[FIRST][part], bool)
        if EPISODE in marks:
            numbers = marks[EPISODE][part].tolist()
            first |= _starts(numbers, last)
            last = numbers[-1]
        yield Rows(_tree(observations, parts), first)


def _with_starts(names: dict[str, Array]) -> dict[str, Array]:
    """Return arrays with `first`, where they are those of a dataset of `assay data`."""
    if not {"header", "lengths"} <= names.keys() or FIRST in names:
        return names
    # An episode of T steps has T + 1 rows of observations.
    ends = np.cumsum(names["lengths"] + 1)
    return names | {FIRST: np.isin(np.arange(ends[-1]), [0, *ends[:-1]])} if len(ends) else names


def _load(path: Path) -> Array | dict[str, Array]:
    try:
        given = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(given, np.ndarray):
            return given
        with given:
            return {name: given[name] for name in given.files}
    except OSError as error:
        if error.errno is None:  # what NumPy says of a file that is none of its own
            raise _no_array(path, error) from None
        raise DataError(run_error(error, f"read '{path}'").message) from None
    except (ValueError, EOFError, BadZipFile) as error:
        raise _no_array(path, error) from None


def _no_array(path: Path, error: Exception) -> DataError:
    reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
    if "pickle" in reason:  # what NumPy says of any bytes that it does not know
        reason = "it does not begin as one does"
    return DataError(
        f"'{path}' is not a whole {path.suffix[1:].upper()} file of numbers: {reason}.",
        "Write it with numpy.save or numpy.savez.",
    )


def _entry(path: Path, names: Mapping[str, Array], name: str) -> Array:
    for known in (name, f"{OBS}.{name}"):
        if known in names:
            return names[known]
    raise DataError(f"'{path}' has no array '{name}'.", nearest(name, names))


def _check_array(path: Path, name: str, leaf: Leaf, array: Array) -> None:
    entry = f"The array '{name}' of '{path}'" if name else f"'{path}'"
    shape = _source_shape(leaf)
    if isinstance(leaf, TextLeaf) or array.dtype.kind not in "biuf":
        raise DataError(
            f"{entry} holds {array.dtype}; expected {leaf.source}.",
            "Give texts in a .csv, .jsonl or .parquet file."
            if isinstance(leaf, TextLeaf)
            else "Give an array of numbers.",
        )
    if array.shape[1:] != shape or array.ndim != len(shape) + 1:
        expected = ", ".join(map(str, ("N", *shape)))
        raise DataError(
            f"{entry} has the shape {array.shape}; expected ({expected}): N rows of {leaf.source}.",
            "Put a row of the first axis for each observation: array[None] makes one of a single.",
        )


def _array_place(path: Path, name: str, begin: int) -> Where:
    def where(row: int, place: int) -> str:
        return f"number {place} of '{name}' in row {begin + row} of '{path}' (counted from 0)"

    return where


# Tables


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which columns hold what."""

    columns: dict[str, list[str]]  # of every array
    first: str | None  # the column that is true where an episode begins, or None
    episode: str | None  # the column whose value changes there, or None


def _from_table(path: Path, observations: ObservationMap, batch: int, kind: str) -> Iterator[Rows]:
    leaves = _leaves(observations)
    plan: _Plan | None = None
    last: Any = None
    block: list[tuple[str, Row]] = []
    word = "row" if kind == ".parquet" else "line"
    for number, row in rows_of(path, kind):
        place = f"{word} {number} of '{path}'"
        if None in row:
            raise DataError(
                f"{place[0].upper()}{place[1:]} has more cells than there are columns.",
                "Remove them, or name their columns in the first line.",
            )
        if plan is None:
            plan = _plan(path, leaves, observations.bare, [str(name) for name in row])
        block.append((place, row))
        if len(block) == batch:
            found, last = _block(observations, leaves, plan, block, last)
            yield found
            block = []
    if block:
        assert plan is not None
        yield _block(observations, leaves, plan, block, last)[0]


def _plan(path: Path, leaves: Mapping[str, Leaf], bare: bool, names: Sequence[str]) -> _Plan:
    dotted = {name.replace("/", "."): name for name in names}
    columns = {}
    for name, leaf in leaves.items():
        found = _columns_of(path, name, math.prod(_source_shape(leaf)), dotted)
        columns[name] = found or _unnamed(path, name, leaf, bare, names)
    marks = {
        mark: dotted[mark] if mark in dotted and mark not in leaves else None
        for mark in (FIRST, EPISODE)
    }
    return _Plan(columns, marks[FIRST], marks[EPISODE])


def _columns_of(path: Path, name: str, size: int, dotted: Mapping[str, str]) -> list[str]:
    """Return the columns of an array, none where there is no such name."""
    for stem in (name, f"{OBS}.{name}"):
        if stem in dotted:
            return [dotted[stem]]
        numbered = {one for one in dotted if re.fullmatch(rf"{re.escape(stem)}\.\d+", one)}
        wanted = [f"{stem}.{i}" for i in range(size)]
        if numbered and numbered != set(wanted):
            shown = ", ".join(sorted(numbered)[:8])
            raise DataError(
                f"'{path}' has {counted(len(numbered), 'number')} of '{stem}' ({shown}); "
                f"expected {size}, {wanted[0]} to {wanted[-1]}.",
                "Give a column for each number of an observation.",
            )
        if numbered:
            return [dotted[one] for one in wanted]
    return []


def _unnamed(path: Path, name: str, leaf: Leaf, bare: bool, names: Sequence[str]) -> list[str]:
    """Return columns of other names, in their order, which can only be those of one vector."""
    size = math.prod(_source_shape(leaf))
    others = [one for one in names if one not in (FIRST, EPISODE)]
    if not bare or len(_source_shape(leaf)) > 1 or isinstance(leaf, TextLeaf):
        wanted = name if size == 1 else f"{name}.0 to {name}.{size - 1}, or lists in {name}"
        raise DataError(
            f"'{path}' has no column '{name}': it has {', '.join(names)}.",
            f"Name the columns of this entry {wanted}.",
        )
    if all(_is_number(one) for one in others):
        raise DataError(
            f"The first line of '{path}' holds numbers; expected the names of columns.",
            f"Begin it with a line of names, such as {_example(size)}.",
        )
    if len(others) != size:
        raise DataError(
            f"'{path}' has {counted(len(others), 'column')} ({', '.join(others[:8])}); "
            f"expected {size}, one for each number of {leaf.source}.",
            f"Leave out the others, or name those of the observation: {_example(size)}.",
        )
    return others


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _example(size: int) -> str:
    return OBS if size == 1 else f"{OBS}.0{',...' if size > 2 else ''},{OBS}.{size - 1}"


def _block(
    observations: ObservationMap,
    leaves: Mapping[str, Leaf],
    plan: _Plan,
    block: Sequence[tuple[str, Row]],
    last: Any,
) -> tuple[Rows, Any]:
    """Return rows as a batch, and the episode of the last one."""
    parts: dict[str, Array] = {}
    for name, leaf in leaves.items():
        columns = plan.columns[name]
        if isinstance(leaf, TextLeaf):
            parts[name] = leaf.batch([_text(row, columns[0], place) for place, row in block])
            continue
        shape = _source_shape(leaf)
        table = [_numbers(row, columns, place, name, shape) for place, row in block]
        values = np.array(table, np.float64).reshape(len(block), *shape)
        parts[name] = _canonical(leaf, values, _table_place(columns, [place for place, _ in block]))
    first = np.zeros(len(block), bool)
    if plan.first is not None:
        first |= np.array([numbers_of(row, [plan.first], at)[0] for at, row in block]) != 0
    if plan.episode is not None:
        episodes = [row.get(plan.episode) for _, row in block]
        first |= _starts(episodes, last)
        last = episodes[-1]
    return Rows(_tree(observations, parts), first), last


def _numbers(
    row: Row, columns: Sequence[str], place: str, name: str, shape: tuple[int, ...]
) -> list[float]:
    found = numbers_of(row, columns, place)
    if len(found) != math.prod(shape):
        raise DataError(
            f"'{name}' in {place} has {counted(len(found), 'number')}; expected "
            f"{math.prod(shape)}.",
            "Give as many as the observation of the environment has.",
        )
    nested = _nesting(row[columns[0]])
    if len(nested) > 1 and nested != shape:
        raise DataError(
            f"'{name}' in {place} has the shape {nested}; expected {shape}.",
            "Give the axes in the order of the environment, or all numbers in one list.",
        )
    return found


def _nesting(cell: Any) -> tuple[int, ...]:
    """Return the shape of nested lists, by the first one at every level."""
    return (len(cell), *_nesting(cell[0])) if isinstance(cell, list | tuple) and cell else ()


def _text(row: Row, column: str, place: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise DataError(f"The column '{column}' in {place} is {value!r}; expected a text.")
    return value


def _table_place(columns: Sequence[str], places: Sequence[str]) -> Where:
    def where(row: int, place: int) -> str:
        if len(columns) == 1:
            return f"number {place} of the column '{columns[0]}' in {places[row]}"
        return f"the column '{columns[place]}' in {places[row]}"

    return where
