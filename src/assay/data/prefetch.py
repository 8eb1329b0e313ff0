"""Ask the system for rows of mapped files before they are drawn.

A row that lies on the disk stops whoever draws it until it is read. Asked for earlier, all rows of
a batch are read at once and while something else is computed. Where the system cannot be asked,
rows are read when they are drawn.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from assay.data.schema import Array

_PROCESS_MADVISE = 440  # the system call, by its number on every architecture of Linux
_MOST = 1024  # ranges in one call: the least IOV_MAX
Ranges = NDArray[np.uint64]


def ranges(rows: Array, first: NDArray[np.int64], last: NDArray[np.int64]) -> Ranges:
    """Return the address and the bytes [B, 2] of the pages with rows `first` to `last`."""
    stride, page = rows.strides[0], mmap.PAGESIZE
    start = (rows.ctypes.data + first * stride) // page * page
    end = rows.ctypes.data + (last + 1) * stride
    return np.stack([start, end - start], axis=1).astype(np.uint64)


def will_need(wanted: Ranges) -> None:
    """Let the system read mapped ranges, without waiting for it."""
    call = _system_call()
    if call is None or not len(wanted):
        return
    wanted = np.ascontiguousarray(wanted)
    # Opened for each call: after a fork it would stand for the parent.
    process = os.pidfd_open(os.getpid())
    try:
        for at in range(0, len(wanted), _MOST):
            part = wanted[at : at + _MOST]
            call(_PROCESS_MADVISE, process, part.ctypes.data, len(part), mmap.MADV_WILLNEED, 0)
    finally:
        os.close(process)


@functools.cache
def _system_call() -> Callable[..., int] | None:
    """Return how a system call is made, or None where there is no such call."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return None
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    call.argtypes = [
        ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint,
    ]  # fmt: skip
    return call
