"""Actions to files, a batch at a time: NPY, CSV, JSON lines and Parquet.

One row for each observation, in their order, in the environment's own units. The file is whole or
not there: it is written beside its place and moved there at the end.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.data.formats import parquet as parquet_format
from assay.runs.files import replacing

Array = NDArray[Any]
Write = Callable[[Array], None]

ACTION = "action"
TEXTS = (".csv", ".jsonl")
ENDINGS = (".npy", *TEXTS, ".parquet")


def check_target(path: Path) -> None:
    """Refuse a place for actions before anything is computed.

    Raises:
        ConfigError: No format ends like it, or it is a directory.
        MissingExtraError: The format needs a package that is not installed.
    """
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(
            f"Actions cannot be written to '{path}'.",
            f"Give a file that ends in {', '.join(ENDINGS)}.",
        )
    if path.is_dir():
        raise ConfigError(f"'{path}' is a directory; expected a file.", "Choose another path.")
    if path.suffix.lower() == ".parquet":
        parquet_format.require()


@contextmanager
def writing(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Write]:
    """Yield what appends actions [N, *shape] to a file, which replaces one of the same name.

    Raises:
        RunError: The file cannot be written.
    """
    kinds = {".npy": _npy, ".csv": _text, ".jsonl": _text, ".parquet": _parquet}
    with replacing(path) as draft, kinds[path.suffix.lower()](draft, shape, dtype) as write:
        yield write


@contextmanager
def printing(kind: str, shape: tuple[int, ...]) -> Iterator[Write]:
    """Yield what prints actions, as CSV or as JSON lines."""
    yield _lines(sys.stdout, kind, shape)
    sys.stdout.flush()


@contextmanager
def _npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Write]:
    def head(rows: int) -> None:
        described = {
            "descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, *shape),
        }  # fmt: skip
        npy.write_array_header_1_0(file, described)

    rows = 0
    with open(path, "wb") as file:
        head(0)  # which leaves room for the number of rows
        begin = file.tell()

        def write(actions: Array) -> None:
            nonlocal rows
            rows += len(actions)
            file.write(np.ascontiguousarray(actions, dtype).tobytes())

        yield write
        file.seek(0)
        head(rows)
        assert file.tell() == begin


@contextmanager
def _text(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Write]:
    with open(path, "w", encoding="utf-8", newline="") as file:
        yield _lines(file, path.suffix.lower(), shape)


def _lines(file: TextIO, kind: str, shape: tuple[int, ...]) -> Write:
    if kind == ".jsonl":

        def write_json(actions: Array) -> None:
            for action in actions:
                file.write(json.dumps({ACTION: _plain(action)}) + "\n")

        return write_json
    table = csv.writer(file, lineterminator="\n")
    size = math.prod(shape)
    table.writerow([f"{ACTION}.{i}" for i in range(size)] if shape else [ACTION])

    def write_csv(actions: Array) -> None:
        # NumPy's texts are the shortest that read as the same float32.
        table.writerows([str(v) for v in row] for row in actions.reshape(len(actions), size))

    return write_csv


def _plain(action: Any) -> Any:
    """Return an action in JSON types, floats with no more digits than float32 has."""
    if isinstance(action, np.ndarray):
        return [_plain(part) for part in action]
    return float(str(action)) if isinstance(action, np.floating) else action.item()


@contextmanager
def _parquet(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Write]:
    arrow, parquet = parquet_format.require()
    kind = arrow.from_numpy_dtype(dtype)
    for size in reversed(shape):
        kind = arrow.list_(kind, size)
    schema = arrow.schema([(ACTION, kind)])
    with parquet.ParquetWriter(path, schema) as file:

        def write(actions: Array) -> None:
            column = arrow.array(actions.astype(dtype).tolist(), kind)
            file.write_table(arrow.table([column], schema=schema))

        yield write
