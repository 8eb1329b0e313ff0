"""Open and write datasets, by path or by name, in every format."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError, DataError, nearest
from assay.data.dataset import Dataset
from assay.runs.files import replacing

# What a file's name ends with, and the module that reads and writes it.
FORMATS = {
    ".npz": "npz",
    ".hdf5": "hdf5",
    ".h5": "hdf5",
}
_DAMAGED = "Write it again; it may have been cut off when it was copied."


def data_root() -> Path:
    """Return the directory of named datasets: `$ASSAY_DATA`, or `data`."""
    return Path(os.environ.get("ASSAY_DATA", "data"))


def load(source: str | Path | Dataset) -> Dataset:
    """Open a dataset.

    Args:
        source: A path, or a name: that of a file in `data_root`, with or without its ending. A
            dataset is returned as it is.

    Raises:
        DataError: It does not exist, is damaged, or holds something else; the file, the episode
            and the field are named.
        MissingExtraError: The format needs a package that is not installed.
    """
    if isinstance(source, Dataset):
        return source
    path = locate(source)
    with _readable(path):
        opened: Dataset = _format(path).read(path)
        return opened


def save(dataset: Dataset, path: str | Path) -> Path:
    """Write a dataset, in the format that the path ends with.

    The file appears when it is whole: nothing half-written remains of one that fails.

    Raises:
        DataError: There is no such format, or `path` is a directory.
        RunError: It cannot be written.
    """
    path = Path(path)
    writer = _format(path)
    with replacing(path) as temporary:
        writer.write(dataset, temporary)
    return path


def convert(source: str | Path | Dataset, path: str | Path) -> Path:
    """Write a dataset in another format, a few episodes at a time.

    Raises:
        DataError: It cannot be read, or there is no such format.
        RunError: It cannot be written.
    """
    return save(load(source), path)


def find(root: str | Path | None = None) -> list[Path]:
    """Return the datasets in a directory and those below it, in the order of their names."""
    place = data_root() if root is None else Path(root)
    return sorted(
        path
        for path in place.rglob("*")
        if path.suffix in FORMATS and path.is_file() and not path.name.startswith(".")
    )


def locate(source: str | Path) -> Path:
    """Return the path of a dataset that is given by its path or name.

    Raises:
        DataError: There is none.
    """
    path = Path(source).expanduser()
    named = data_root() / path
    candidates = [path, named, *(named.with_name(named.name + end) for end in FORMATS)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if path.is_dir():
        raise DataError(f"Cannot read '{path}': it is a directory.", "Name a file of data.")
    known = [str(one.relative_to(data_root()).with_suffix("")) for one in find()]
    hint = nearest(str(source), known) if known else "`assay data list` shows those that exist."
    raise DataError(f"There is no file '{path}', nor a dataset of this name.", hint)


def _format(path: Path) -> Any:
    if path.suffix.lower() not in FORMATS:
        raise DataError(
            f"'{path}' has no ending that names a format.",
            f"End it with one of {', '.join(FORMATS)}.",
        )
    return importlib.import_module(f"assay.data.formats.{FORMATS[path.suffix.lower()]}")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes a reader raise into one error that names it."""
    try:
        if path.is_file() and not path.stat().st_size:
            raise DataError(f"'{path}' is empty: it has 0 bytes.", _DAMAGED)
        yield
    except AssayError:
        raise
    except PermissionError as error:
        raise DataError(f"Cannot read '{path}': {error.strerror}.", "Check who may.") from None
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        kind = path.suffix.removeprefix(".").upper()
        raise DataError(
            f"'{path}' is not a whole {kind} file of plain arrays: {reason}.", _DAMAGED
        ) from None
