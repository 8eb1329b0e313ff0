"""Replace a whole folder in one step, so that whoever looks sees the old one or the new one."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from assay.runs.files import write_synced

NEW, OLD = ".assay-new-", ".assay-old-"
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_HERE = -100  # AT_FDCWD


def folder_files(folder: Path) -> dict[str, bytes | Path]:
    """Return what is in a folder, by short path: where it is, to be copied as it is."""
    if not folder.is_dir():
        return {}
    found = (p for p in sorted(folder.rglob("*")) if p.is_symlink() or p.is_file())
    return {path.relative_to(folder).as_posix(): path for path in found}


def replace_folder(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Put a folder with these files in place of another, or of none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = folder.with_name(NEW + folder.name)
    shutil.rmtree(staged, ignore_errors=True)
    for name, content in files.items():
        target = staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copy2(content, target, follow_symlinks=False)
        else:
            write_synced(target, content)
    if not folder.exists():
        os.rename(staged, folder)
    elif exchange(staged, folder):
        shutil.rmtree(staged)
    else:
        remove_folder(folder, staged)


def remove_folder(folder: Path, successor: Path | None = None) -> None:
    """Take a folder away in one step, and put another in its place if there is one."""
    old = folder.with_name(OLD + folder.name)
    shutil.rmtree(old, ignore_errors=True)
    os.rename(folder, old)
    if successor is not None:
        os.rename(successor, folder)
    shutil.rmtree(old)


def exchange(first: Path, second: Path) -> bool:
    """Let two paths change their places in one step, where the system can do that."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    paths = (os.fsencode(first), os.fsencode(second))
    return bool(rename(_HERE, paths[0], _HERE, paths[1], _EXCHANGE) == 0)


def hidden_folders(parent: Path) -> list[Path]:
    """Return the hidden folders that a kill left in a folder."""
    return sorted(path for prefix in (OLD, NEW) for path in parent.glob(f"{prefix}*"))


def recover(parent: Path) -> None:
    """Remove what a kill left behind; an old folder whose successor never came is put back."""
    for path in sorted(parent.glob(f"{OLD}*")):
        home = path.with_name(path.name.removeprefix(OLD))
        staged = path.with_name(NEW + home.name)
        if not home.exists() and staged.is_dir():
            os.rename(path, home)
    for path in hidden_folders(parent):
        shutil.rmtree(path)
