"""Keep the memory that tensors free, so that the next ones need not ask the system again.

glibc gives large blocks back to the system as soon as they are free. A training step on a CPU frees
hundreds of blocks of megabytes and takes them again at once, and the system fills every page of
them with zeros again: for a layer of 2,048 units and 1,024 rows that takes longer than the
arithmetic on it. Elsewhere (other libraries of C, other systems) nothing changes.
"""

from __future__ import annotations

import ctypes
import functools

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of mallopt
KEPT = 1 << 30  # bytes at the end of the heap that are kept
LARGEST = 32 << 20  # bytes of a block that is kept, the most that glibc takes


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to `KEPT`; return whether the system can do that."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no handle of its own
        return False
    # A value that was set ends glibc's own guesses: the largest block must be set as well.
    return bool(mallopt(_MMAP, LARGEST)) and bool(mallopt(_TRIM, KEPT))
