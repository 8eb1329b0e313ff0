"""Open and write datasets, by path or by name, in every format."""

from __future__ import annotations

import importlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from assay.core.errors import DataError, nearest
from assay.data.dataset import Dataset, readable
from assay.data.formats import minari
from assay.runs.files import replacing, run_error

# What a file's name ends with, and the module that reads and writes it.
FORMATS = {
    ".npz": "npz",
    ".hdf5": "hdf5",
    ".h5": "hdf5",
    ".parquet": "parquet",
}
MINARI = "minari:"  # before the id of a dataset where Minari keeps them
_ID = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.-]*/){0,3}[A-Za-z0-9][A-Za-z0-9_.-]*-v[0-9]{1,9}")


def data_root() -> Path:
    """Return the directory of named datasets: `$ASSAY_DATA`, or `data`."""
    return Path(os.environ.get("ASSAY_DATA", "data"))


def minari_root() -> Path:
    """Return where Minari keeps datasets: `$MINARI_DATASETS_PATH`, or `~/.minari/datasets`."""
    chosen = os.environ.get("MINARI_DATASETS_PATH")
    return Path(chosen) if chosen else Path.home() / ".minari" / "datasets"


def load(source: str | Path | Dataset) -> Dataset:
    """Open a dataset.

    Args:
        source: A path, or a name: that of a file in `data_root`, with or without its ending, or
            the id of a Minari dataset on this machine. A dataset is returned as it is.

    Raises:
        DataError: It does not exist, is damaged, or holds something else; the file, the episode
            and the field are named.
        MissingExtraError: The format needs a package that is not installed.
    """
    if isinstance(source, Dataset):
        return source
    path = locate(source)
    with readable(path):
        opened: Dataset = _format(path).read(path)
        opened.path = path
        return opened


def save(dataset: Dataset, path: str | Path) -> Path:
    """Write a dataset, in the format that the path ends with, and return where it is.

    A path that ends like `-v0` becomes a Minari dataset; `minari:hopper/medium-v0` one where
    Minari keeps them. It appears when it is whole: nothing half-written remains of one that fails.

    Raises:
        DataError: There is no such format, or a Minari dataset of this name exists.
        MissingExtraError: The format needs a package that is not installed.
        RunError: It cannot be written.
    """
    check_target(path)
    place, identity = _target(str(path))
    writer = _format(place)
    if writer is not minari:
        with replacing(place) as temporary:
            writer.write(dataset, temporary)
        return place
    with _new_directory(place) as temporary:
        minari.write(dataset, temporary, identity)
    return place


def check_target(path: str | Path, keep: Iterable[str | Path] = ()) -> Path:
    """Return the directory in which `save` would write, before hours are spent on the data.

    Args:
        path: As of `save`.
        keep: Places that must not be written over.

    Raises:
        DataError: There is no such format, a Minari dataset of this name exists, or the path is
            one to keep.
        MissingExtraError: The format needs a package that is not installed.
    """
    place, _ = _target(str(path))
    if place.resolve() in [_target(str(other))[0].resolve() for other in keep]:
        raise DataError(
            f"'{path}' is given twice, and would be written over.", "Choose another path for it."
        )
    writer = _format(place)
    writer.require()
    if writer is minari and place.exists():
        raise DataError(f"There is a dataset '{place}' already.", "Choose a higher version.")
    return place.parent


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
    files = [
        path
        for path in place.rglob("*")
        if path.suffix in FORMATS and path.is_file() and _is_shown(path, place)
    ]
    inside = [one for one in minari.datasets_below(place) if _is_shown(one, place)]
    own = [one for one in files if not any(one.is_relative_to(other) for other in inside)]
    return sorted(own + inside)


def _is_shown(path: Path, place: Path) -> bool:
    """Return whether no part of its name begins with a dot, as what is being written does."""
    return not any(part.startswith(".") for part in path.relative_to(place).parts)


def locate(source: str | Path) -> Path:
    """Return the path of a dataset that is given by its path or name.

    Raises:
        DataError: There is none, or it is neither a path nor a name.
    """
    if not isinstance(source, str | os.PathLike):
        raise DataError(
            f"A dataset is given as {source!r:.80}, of type {type(source).__name__}.",
            "Give a path, the name of a dataset, or an assay.data.Dataset.",
        )
    text = str(source)
    if text.startswith(MINARI):
        candidates = [minari_root() / text.removeprefix(MINARI)]
    else:
        path = Path(source).expanduser()
        named = data_root() / path
        endings = [named.with_name(named.name + end) for end in FORMATS] if path.name else []
        candidates = [path, named, *endings, minari_root() / path]
    for candidate in candidates:
        if candidate.is_file() or minari.is_minari(candidate):
            return candidate
    if candidates[0].is_dir():
        raise DataError(
            f"Cannot read '{candidates[0]}': it is a directory without a Minari dataset.",
            "Name a file of data.",
        )
    known = [_name_of(one) for one in find()]
    hint = nearest(text, known) if known else "`assay data list` shows those that exist."
    raise DataError(f"There is no file '{candidates[0]}', nor a dataset of this name.", hint)


def _name_of(path: Path) -> str:
    inside = path.relative_to(data_root())
    return str(inside.with_suffix("") if path.suffix in FORMATS else inside)


def _target(text: str) -> tuple[Path, str | None]:
    """Return where to write, and the id if it is a Minari dataset."""
    if not text.startswith(MINARI):
        return Path(text).expanduser(), None
    identity = text.removeprefix(MINARI)
    if not _ID.fullmatch(identity) or ".." in identity:
        raise DataError(
            f"'{identity[:80]}' cannot be the id of a dataset.", "Write it like queue/served-v0."
        )
    return minari_root() / identity, identity


def _format(path: Path) -> ModuleType:
    if path.suffix.lower() in FORMATS:
        return importlib.import_module(f"assay.data.formats.{FORMATS[path.suffix.lower()]}")
    if path.is_dir() or _ID.fullmatch(path.name):
        return minari
    raise DataError(
        f"'{path}' has no ending that names a format.",
        f"End it with one of {', '.join(FORMATS)}, or like -v0 for a Minari dataset.",
    )


@contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """Yield a directory to write into, which becomes `path` on success."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as place:
            made = Path(place) / path.name
            yield made
            os.replace(made, path)
    except OSError as error:
        raise run_error(error, f"write '{path}'") from None
