"""Threads of arithmetic: torch's, and those of the library behind NumPy's products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from threadpoolctl import threadpool_limits


def use_threads(count: int) -> Callable[[], None]:
    """Let torch and NumPy use so many threads in this process; return what undoes it.

    NumPy acts for the collector. Its products use every core from about a hundred rows on, which
    costs more than it gives: a second thread is waited for at every layer.
    """
    before = torch.get_num_threads()
    limits = threadpool_limits(count, user_api="blas")
    torch.set_num_threads(count)

    def restore() -> None:
        limits.restore_original_limits()  # it sets OpenMP's number as well, so torch's comes last
        torch.set_num_threads(before)

    return restore
