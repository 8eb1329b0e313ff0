"""Rows of a log, in CSV, JSON lines, Parquet or arrays, and the numbers in their cells.

CSV and JSON lines may be packed with gzip; they are unpacked as they are read.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from assay.core.errors import DataError, nearest
from assay.data.dataset import readable
from assay.data.formats import hdf5, npz
from assay.data.formats import parquet as parquet_format
from assay.runs.files import run_error

EMPTY = ("", None)  # what a cell without a value holds
_WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_ARRAYS = {".npz": npz, ".hdf5": hdf5, ".h5": hdf5}
_SEPARATORS = (",", ";", "\t")  # of a CSV file, by its first line
_PACKED = ".gz"
# What unpacks to more than it should is refused: a small file may hold terabytes of zeros.
_LONGEST_LINE = 1 << 26  # characters
_MOST_TIMES = 200  # of its size; tables of numbers have 3 to 30
_SMALL = 1 << 30  # characters that may be any number of times the size

Row = Mapping[str, Any]
Numbers = Mapping[str, Mapping[str, int]]  # of words, by column


def rows_of(path: Path, kind: str | None = None) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a log with their lines, or their numbers where there are no lines.

    What is inside of an object has a dotted name, such as `state.level`.
    `kind` is the format, as an ending; that of the path by default.

    Raises:
        DataError: The file is missing, cannot be read, or unpacks to far more than its size; the
            line is named.
    """
    texts = {".csv": _csv_rows, ".jsonl": _json_rows}
    readers = texts | {f"{ending}{_PACKED}": reader for ending, reader in texts.items()}
    readers |= {".parquet": _parquet_rows} | dict.fromkeys(_ARRAYS, _array_rows)
    kind = kind or _ending(path)
    if kind not in readers:
        raise DataError(
            f"'{path}' is not a log that can be read.", f"Give a file in {', '.join(readers)}."
        )
    try:
        for number, row in readers[kind](path):
            yield number, _flat(row)
    except OSError as error:
        failure = run_error(error, f"read '{path}'")
        raise DataError(failure.message, failure.fix) from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"'{path}' is not a text in UTF-8: {error.reason}.", "Save it again as UTF-8."
        ) from None


def _flat(row: Row) -> Row:
    """Return a row whose nested objects are columns of dotted names."""
    if not any(isinstance(value, dict) for value in row.values()):
        return row
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": part for inner, part in _flat(value).items()}
        else:
            flat[name] = value
    return flat


def _ending(path: Path) -> str:
    """Return what a name ends with: `.csv`, or `.csv.gz` of a packed file."""
    last = path.suffix.lower()
    return Path(path.stem).suffix.lower() + last if last == _PACKED else last


def _lines(path: Path, newline: str | None = None) -> Generator[str, None, None]:
    """Yield the lines of a text, unpacked if it is packed."""
    if path.suffix.lower() != _PACKED:
        with open(path, encoding="utf-8-sig", newline=newline) as file:
            yield from file
        return
    most = max(_SMALL, _MOST_TIMES * path.stat().st_size)
    number = total = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig", newline=newline) as file:
            while line := file.readline(_LONGEST_LINE):
                number, total = number + 1, total + len(line)
                if len(line) == _LONGEST_LINE:
                    raise DataError(
                        f"Line {number} of '{path}' is longer than {_LONGEST_LINE:,} characters.",
                        "Unpack the file, and look whether it is a log.",
                    )
                if total > most:
                    raise DataError(
                        f"'{path}' unpacks to more than {most:,} characters, far more times its "
                        f"size than a log does.",
                        "Unpack it with gunzip if it is one, and give the file that comes out.",
                    )
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"'{path}' is not a whole gzip file: {str(error).rstrip('.')}.",
            "Fetch it again: it was cut off or damaged, or is not packed with gzip.",
        ) from None


def _csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    with closing(_lines(path, newline="")) as lines:
        header = next(lines, "")
        separator = next((sign for sign in _SEPARATORS if sign in header), ",")
        reader = csv.DictReader(chain([header], lines), delimiter=separator)
        names = reader.fieldnames
        if not names:
            raise DataError(f"'{path}' is empty: it has no line with the columns' names.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(
                f"'{path}' has the column '{twice[0]}' more than once.", "Give each its own name."
            )
        try:
            for row in reader:
                missing = sum(row[name] is None for name in names)
                surplus = len(row.get(None, ()))
                if missing or surplus:
                    raise DataError(
                        f"Line {reader.line_num} of '{path}' has {len(names) - missing + surplus} "
                        f"cells; expected {len(names)}.",
                        "Complete the line, or leave it out; the file may have been cut off.",
                    )
                yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"Line {reader.line_num} of '{path}' is not CSV: {error}.") from None


def _json_rows(path: Path) -> Iterator[tuple[int, Row]]:
    with closing(_lines(path)) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"Line {number} of '{path}' is not JSON: {error}.") from None
            if not isinstance(row, dict):
                raise DataError(f"Line {number} of '{path}' is not a JSON object.")
            yield number, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, Row]]:
    arrow, parquet = parquet_format.require()
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(4096):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (arrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # of the system, not of the content
            raise
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"'{path}' is not a whole Parquet file: {reason}.") from None


def _array_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the rows of arrays that stand side by side, as D4RL has them."""
    with readable(path):
        held = _ARRAYS[path.suffix.lower()].arrays(path)
    count = max((len(rows) for rows in held.values() if rows.ndim), default=0)
    columns = {name: rows for name, rows in held.items() if rows.shape[:1] == (count,)}
    for first in range(0, count, 4096):
        block = {name: rows[first : first + 4096].tolist() for name, rows in columns.items()}
        for number, row in enumerate(zip(*block.values(), strict=True), start=first + 1):
            yield number, dict(zip(block, row, strict=True))


def place_of(path: Path, number: int) -> str:
    """Return the words for a row in messages, such as `line 3 of 'log.csv'`."""
    lined = _ending(path).removesuffix(_PACKED) in (".csv", ".jsonl")
    return f"{'line' if lined else 'row'} {number} of '{path}'"


def numbers_of(
    row: Row, names: Sequence[str], where: str, words: Numbers | None = None
) -> list[float]:
    """Return the numbers in some columns of a row, those of lists one after the other.

    `words` has the numbers of words, by column.

    Raises:
        DataError: A column is missing, or a cell is not a number; `where` names the row.
    """
    found: list[float] = []
    for name in names:
        _flatten(cell_of(row, name, where), name, where, words, found)
    return found


def cell_of(row: Row, name: str, where: str) -> Any:
    """Return what a column of a row holds.

    Raises:
        DataError: There is no such column; `where` names the row.
    """
    if name not in row:
        hint = nearest(name, [str(key) for key in row if key is not None])
        raise DataError(f"{where[0].upper()}{where[1:]} has no column '{name}'.", hint)
    return row[name]


def _flatten(cell: Any, name: str, where: str, words: Numbers | None, found: list[float]) -> None:
    if isinstance(cell, list | tuple):
        for part in cell:
            _flatten(part, name, where, words, found)
        return
    if words is not None and name in words:
        known = words[name]
        if str(cell) not in known:
            raise DataError(
                f"The column '{name}' in {where} has {str(cell)[:40]!r}; expected one of the words "
                f"{', '.join(list(known)[:12])}.",
                "Name all words of the column, or correct the cell.",
            )
        found.append(known[str(cell)])
        return
    try:
        if isinstance(cell, str) and cell.strip().lower() in _WORDS:
            found.append(_WORDS[cell.strip().lower()])
        else:
            found.append(float(cell))
    except (TypeError, ValueError, OverflowError):
        shown = "an empty cell" if cell in EMPTY else f"{str(cell)[:40]!r}"
        raise DataError(
            f"The column '{name}' in {where} has {shown}; expected a number.",
            "Correct the cell, or leave the row out."
            if words is None or cell in EMPTY
            else f"Correct the cell, or name the words of the column: --words {name}=WORD,WORD.",
        ) from None
