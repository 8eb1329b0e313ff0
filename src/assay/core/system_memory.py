"""The memory of this machine, or of the container that the process runs in."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def total_bytes() -> int:
    """Return the memory of this machine or container."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int((_CGROUP / "memory.max").read_text()))
    except (OSError, ValueError):  # no cgroup v2 here, or "max": no limit
        return total


def available_bytes() -> int:
    """Return the memory that this process may still use."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return available
    # Page cache counts as used but is given back under pressure.
    return max(0, min(available, limit - used + int(stat.get("inactive_file", 0))))
