"""Where things are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def runs_root(given: Path | None = None) -> Path:
    """Return where runs are kept: the place given, `$ASSAY_RUNS`, or `runs` where we are."""
    return given if given is not None else Path(os.environ.get("ASSAY_RUNS", "runs"))


def cache_root() -> Path:
    """Return where what can be made again is kept: `$ASSAY_CACHE`, or the user's cache."""
    chosen = os.environ.get("ASSAY_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "assay"
