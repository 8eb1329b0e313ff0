"""The directories of runs and of the cache."""

from __future__ import annotations

import os
from pathlib import Path

# What other programs call the folder that a run writes to; here it is ROOT/NAME.
OTHER_NAMES_OF_RUN_FOLDER = (
    "out", "out_dir", "output", "output_dir", "log_dir", "logdir", "save_dir", "run_dir",
    "tensorboard_log",
)  # fmt: skip


def runs_root(given: Path | None = None) -> Path:
    """Return the directory of runs: `given`, `$ASSAY_RUNS`, or `runs` in the working directory."""
    return given if given is not None else Path(os.environ.get("ASSAY_RUNS", "runs"))


def cache_root() -> Path:
    """Return the cache directory: `$ASSAY_CACHE`, or `assay` in the user's cache."""
    chosen = os.environ.get("ASSAY_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "assay"
