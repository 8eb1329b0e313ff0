"""How much a run may write."""

from __future__ import annotations

import os
from pathlib import Path

from assay.study.files.contract import StopRules

GIGABYTE = 1e9


def exceeded(rules: StopRules, place: Path) -> str:
    """Return that a run has written more than it may, or ""."""
    written = _size(place) / GIGABYTE
    if written <= rules.output_gb:
        return ""
    return (
        f"it wrote {written:.3g} GB; the contract allows {rules.output_gb:g} "
        "(experiment.stop.output_gb)"
    )


def _size(place: Path) -> int:
    """Return the bytes of all files below a directory, without following links."""
    total = 0
    for directory, _, names in os.walk(place):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except OSError:  # it was removed in the meantime
                continue
    return total
