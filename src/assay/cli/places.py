"""Where runs are, as the user names them."""

from __future__ import annotations

import os
from pathlib import Path


def runs_root(given: Path | None = None) -> Path:
    """Return where runs are kept: `--root`, `$ASSAY_RUNS`, or `runs` in the current directory."""
    return given if given is not None else Path(os.environ.get("ASSAY_RUNS", "runs"))


def locate(text: str, root: Path | None = None) -> Path:
    """Return the path of a run or group that is given by its path or by its name.

    What does not exist is returned as well, at the place where it was most likely meant to be, so
    that the error can name its neighbours.
    """
    path, named = Path(text), runs_root(root) / text
    if path.exists() or named.exists():
        return path if path.exists() else named
    is_a_path = path.is_absolute() or (path.parent != Path() and path.parent.is_dir())
    return path if is_a_path else named
