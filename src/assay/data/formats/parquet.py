"""Parquet: a row for each observation, with the action that followed and what came of it.

An episode of T steps has T + 1 rows with its number in `episode`; in the last one, which has only
an observation, all other fields are null. Fields whose rows are arrays are lists of a fixed size.
Row groups hold whole episodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.buffers.allocation import require_memory
from assay.core.errors import DataError, MissingExtraError
from assay.data.dataset import Dataset
from assay.data.schema import (
    EXTRA,
    Array,
    Columns,
    Field,
    Schema,
    check_column,
    check_lengths,
    header_json,
    make_schema,
    read_header,
)

_KEY = b"assay"
_EPISODE = "episode"


def require() -> tuple[Any, Any]:
    """Return the packages pyarrow and pyarrow.parquet.

    Raises:
        MissingExtraError: They are not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "data", "Reading or writing Parquet") from None
    return pyarrow, pyarrow.parquet


def read(path: Path) -> Dataset:
    """Open a file; row groups are read as they are needed.

    Raises:
        DataError: It was not written by `assay.data.save`, or is damaged.
    """
    _, parquet = require()
    name = f"'{path}'"
    with parquet.ParquetFile(path) as file:
        text = (file.schema_arrow.metadata or {}).get(_KEY)
        if text is None:
            raise DataError(
                f"{name} is a Parquet file without the header of a dataset; its columns are "
                f"{', '.join(file.schema_arrow.names)}.",
                "Make a dataset of such a table: assay data build",
            )
        observation, action, metadata = read_header(text, name)
        require_memory(file.metadata.num_rows * 8, f"The episodes of {name}")
        groups = [_episodes(file, number) for number in range(file.num_row_groups)]
        schema = make_schema(observation, action, _extras(file.schema_arrow))
    numbers, rows = _counted(groups, name)
    lengths = check_lengths(rows - 1, name)
    # The first episode of each row group, and where they end.
    starts = np.searchsorted(numbers, [group[0] for group in groups])
    source = _RowGroups(path, schema, lengths, np.append(starts, len(lengths)), name)
    return Dataset(schema, lengths, source, metadata=metadata, name=name)


def write(dataset: Dataset, path: Path) -> None:
    """Write a file."""
    arrow, parquet = require()
    fields = [arrow.field(_EPISODE, arrow.int64())]
    for name, one in dataset.schema.fields.items():
        shape = {b"shape": " ".join(map(str, one.shape)).encode()}
        fields.append(arrow.field(name, _type(arrow, one), metadata=shape))
    header = {_KEY: header_json(dataset.schema, dataset.metadata)}
    schema = arrow.schema(fields, metadata=header)
    with parquet.ParquetWriter(path, schema) as writer:
        for block in dataset.blocks():
            last = np.zeros(int(block.lengths.sum()) + len(block.lengths), np.bool_)
            last[np.cumsum(block.lengths + 1) - 1] = True
            numbers = np.arange(len(block.lengths)) + block.first
            columns = [arrow.array(np.repeat(numbers, block.lengths + 1))]
            for name, one in dataset.schema.fields.items():
                columns.append(_column(arrow, block.columns[name], one, last))
            table = arrow.Table.from_arrays(columns, schema=schema)
            writer.write_table(table, row_group_size=len(table))


def _type(arrow: Any, field: Field) -> Any:
    plain = arrow.from_numpy_dtype(field.dtype)
    return arrow.list_(plain, int(np.prod(field.shape))) if field.shape else plain


def _column(arrow: Any, rows: Array, field: Field, last: NDArray[np.bool_]) -> Any:
    """Return rows as a column; a field of steps is null where an episode has its last row."""
    mask = None
    if not field.more:
        spread = np.zeros((len(last), *field.shape), field.dtype)
        spread[~last] = rows
        rows, mask = spread, last
    if not field.shape:
        return arrow.array(rows, mask=mask)
    values = arrow.array(rows.reshape(-1))
    nulls = None if mask is None else arrow.array(mask)
    return arrow.FixedSizeListArray.from_arrays(
        values, type=_type(arrow, field), **({} if nulls is None else {"mask": nulls})
    )


class _RowGroups:
    """The row groups of a file, read as they are needed."""

    def __init__(
        self,
        path: Path,
        schema: Schema,
        lengths: NDArray[np.int64],
        starts: NDArray[np.int64],
        name: str,
    ) -> None:
        self._path, self._schema, self._name = path, schema, name
        self._lengths, self._starts = lengths, starts

    def block(self, first: int, last: int, names: Iterable[str]) -> Columns:
        """Read the row groups that hold the episodes."""
        _, parquet = require()
        wanted = list(names)
        low = int(np.searchsorted(self._starts, first, side="right")) - 1
        high = int(np.searchsorted(self._starts, last, side="left"))
        lengths = self._lengths[self._starts[low] : self._starts[high]]
        skip = self._lengths[self._starts[low] : first] + 1
        begin, count = int(skip.sum()), int((self._lengths[first:last] + 1).sum())
        with parquet.ParquetFile(self._path) as file:
            table = file.read_row_groups(list(range(low, high)), columns=wanted)
        rows = np.ones(len(table), np.bool_)
        rows[np.cumsum(lengths + 1) - 1] = False
        table, rows = table.slice(begin, count), rows[begin : begin + count]
        return {name: self._rows(table, name, rows, first, last) for name in wanted}

    def _rows(
        self, table: Any, name: str, steps: NDArray[np.bool_], first: int, last: int
    ) -> Array:
        field = self._schema.fields[name]
        where = f"episodes {first} to {last - 1} of {self._name}"
        if name not in table.column_names:
            raise DataError(f"{self._name} lacks {name}.", "Write it again with assay.data.save.")
        column = table[name].combine_chunks()
        if not field.more:
            column = column.filter(steps)
        values = column.flatten() if field.shape else column
        if column.null_count or values.null_count:
            raise DataError(f"'{name}' of {where} has empty cells.", "Fill them in.")
        rows = values.to_numpy(zero_copy_only=False).reshape(-1, *field.shape)
        check_column(name, field, rows, self._lengths[first:last], where)
        return np.asarray(rows)

    def columns(self) -> None:
        """Return nothing: the rows lie apart."""
        return None


def _episodes(file: Any, group: int) -> NDArray[np.int64]:
    """Return the number of the episode of each row of a row group."""
    column = file.read_row_group(group, columns=[_EPISODE])[_EPISODE]
    return np.asarray(column.to_numpy())


def _counted(
    groups: list[NDArray[np.int64]], name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the episodes and how many rows each has."""
    rows = np.concatenate(groups) if groups else np.zeros(0, np.int64)
    numbers, counts = np.unique(rows, return_counts=True)
    within = sum(len(np.unique(group)) for group in groups)
    if (np.diff(rows) < 0).any() or within != len(numbers):
        raise DataError(
            f"The episodes of {name} are not in order, or lie in several row groups.",
            "Write it again with assay.data.save.",
        )
    return numbers, counts


def _extras(schema: Any) -> dict[str, Field]:
    found = {}
    for one in schema:
        if one.name.startswith(EXTRA):
            plain = one.type.value_type if hasattr(one.type, "list_size") else one.type
            text = (one.metadata or {}).get(b"shape", b"").decode()
            shape = tuple(int(size) for size in text.split())
            found[one.name] = Field(np.dtype(plain.to_pandas_dtype()), shape)
    return found
