"""What Git does not hold and runs need (`baseline.untracked`): the same in all runs that decide.

Its content is hashed when it is first used. Later it is enough that no file of it has another size,
modification time, inode or change time: the change time is set by the system at every edit and
cannot be set back, so that only who turns back the machine's clock could hide one. Both are in the
ledger, not in a file beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.study.agree.protocol import fingerprint
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, digest

Facts = dict[str, dict[str, str]]  # the hash and the looks of every path


def examine(root: Path, agreed: Contract, known: Mapping[str, Mapping[str, str]]) -> Facts:
    """Return what every path of `baseline.untracked` holds; what looks as known is not read.

    Raises:
        StudyError: There is no such path.
    """
    found: Facts = {}
    for path in agreed.baseline.untracked:
        if not (root / path).exists():
            raise StudyError(
                f"'{path}' of baseline.untracked is not in '{root}'.",
                "Name files or directories relative to the repository's top.",
            )
        looks = _looks(root / path)
        before = known.get(path, {})
        same = before.get("looks") == looks
        found[path] = {"hash": before["hash"] if same else _hash(root / path), "looks": looks}
    return found


def changed(root: Path, now: Facts, before: Mapping[str, Mapping[str, str]]) -> str:
    """Return which path does not hold what it did, with the file that was edited last, or ""."""
    for path, facts in now.items():
        if path in before and before[path]["hash"] != facts["hash"]:
            last = max(_files(root / path), key=lambda file: file.lstat().st_ctime_ns, default=None)
            newest = f" (last edited: '{last.relative_to(root)}')" if last else ""
            return f"'{path}' of baseline.untracked{newest}"
    return ""


def _files(path: Path) -> Iterator[Path]:
    """Return every file below a path, also behind links to directories, in order."""
    if not path.is_dir():
        yield path
        return
    seen: set[str] = set()
    for directory, names, files in os.walk(path, followlinks=True):
        real = os.path.realpath(directory)
        names[:] = [] if real in seen else sorted(n for n in names if n != "__pycache__")
        if real not in seen:
            yield from (Path(directory) / name for name in sorted(files))
        seen.add(real)


def _looks(path: Path) -> str:
    facts: list[Any] = []
    for file in _files(path):
        at = file.stat() if file.exists() else file.lstat()
        facts.append([str(file), at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino])
    return digest(facts)


def _hash(path: Path) -> str:
    files = [file for file in _files(path) if file.is_symlink() or file.is_file()]
    return digest([[file.relative_to(path.parent).as_posix(), fingerprint(file)] for file in files])
