"""Find the runs that users name on the command line."""

from __future__ import annotations

from pathlib import Path

from assay.core.paths import runs_root


def locate(text: str, root: Path | None = None) -> Path:
    """Return the path of a run or group that is given by its path or by its name.

    A path that does not exist is returned too, where it was most likely meant to be, so that the
    error can suggest its neighbours.
    """
    path, named = Path(text), runs_root(root) / text
    if path.exists() or named.exists():
        return path if path.exists() else named
    is_a_path = path.is_absolute() or (path.parent != Path() and path.parent.is_dir())
    return path if is_a_path else named
