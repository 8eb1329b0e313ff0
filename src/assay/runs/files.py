"""Write files so that a crash or a full disk never leaves half of one."""

from __future__ import annotations

import errno
import functools
import importlib.metadata
import json
import math
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from assay.core.errors import RunError

_REASONS = {
    errno.ENOSPC: ("the disk is full", "Free some space and try again."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space and try again."),
    errno.EACCES: ("permission denied", "Choose a directory you may write to."),
    errno.EPERM: ("permission denied", "Choose a directory you may write to."),
    errno.EROFS: ("the file system is read-only", "Choose a directory you may write to."),
    errno.ENOTDIR: ("part of the path is a file, not a directory", "Choose another path."),
    errno.ENAMETOOLONG: ("the name is too long", "Choose a shorter name."),
}
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunWarning(UserWarning):
    """Something about a run is damaged or switched off, and is left out."""


def run_error(error: OSError, doing: str) -> RunError:
    """Return an operating-system error as a `RunError` with a clear message.

    Args:
        error: What the system reported.
        doing: What was attempted, naming the path ("create the run directory 'x'").
    """
    reason, fix = _REASONS.get(error.errno or 0, (error.strerror or str(error), None))
    return RunError(f"Cannot {doing}: {reason}.", fix)


@functools.cache  # every checkpoint holds it, and to find it parses the package's metadata
def assay_version() -> str:
    """Return the version of the installed package, or "unknown" in a bare source tree."""
    try:
        return importlib.metadata.version("assay")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def fsync_directory(path: Path) -> None:
    """Make the names inside `path` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems cannot sync a directory; nothing better exists there.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Write `data` to a new file at `path` and wait until it is on the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a reader sees the old content or the new, never a mixture."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}")
    try:
        write_synced(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def unfinished(path: Path) -> list[Path]:
    """Return what killed calls of `write_atomic` left beside `path`."""
    name = re.compile(rf"\.{re.escape(path.name)}\.\d+-[0-9a-f]{{6}}")
    found = path.parent.iterdir() if path.parent.is_dir() else ()
    return sorted(one for one in found if name.fullmatch(one.name))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and move it to `path` on success.

    It ends like `path`, and the directory is made if it is missing.

    Raises:
        RunError: The file cannot be written.
    """
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        yield temporary
        os.replace(temporary, path)
    except FileExistsError:
        raise RunError(
            f"Cannot write '{path}': '{path.parent}' is a file.", "Choose another path."
        ) from None
    except OSError as error:
        raise run_error(error, f"write '{path}'") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def dump_json(value: Any, *, indent: int | None = None) -> bytes:
    r"""Render `value` as standard JSON: NumPy becomes plain, NaN and infinities become strings.

    Example:
        >>> import numpy as np
        >>> dump_json({"returns": np.array([1.0, np.nan])})
        b'{"returns": [1.0, "NaN"]}\n'
    """
    return (json.dumps(_plain(value), allow_nan=False, indent=indent) + "\n").encode()


def _plain(value: Any) -> Any:
    numpy = sys.modules.get("numpy")  # if it was never imported, no value is NumPy's
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def restore_floats(value: Any) -> Any:
    """Turn the strings that `dump_json` wrote for NaN and infinities back into floats."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: restore_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restore_floats(item) for item in value]
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        RunError: The file is missing, unreadable, or holds something else; it is named.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise run_error(error, f"read '{path}'") from None
    except ValueError as error:
        raise RunError(f"'{path}' is not readable JSON: {error}.") from None
    if not isinstance(value, dict):
        raise RunError(f"'{path}' holds a JSON {type(value).__name__}; expected an object.")
    return value
