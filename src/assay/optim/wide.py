"""Products of wide layers by the library of torch's that uses whole registers.

Torch multiplies matrices of float32 by MKL, which uses half of a wide register on processors of
AMD. Its other library (oneDNN) uses whole ones, but torch asks it only where bfloat16 may be used
inside of products. On processors that have no instructions for such products (AMX) it computes in
float32 all the same, and from Zen 5 on in half of MKL's time. That is tried before it is relied on.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from assay.optim.products import beats_the_library

_WIDE = 192  # of a layer, both ways; each product of a narrow one would take 10 us more
_TRIED = ((256, 256, 256), (16, 512, 512), (256, 17, 256), (300, 256, 70))
_lock = threading.Lock()
_before: list[str] = []  # the setting as it was, once for every block that is being run
_TOLERANCE = 2e-6  # of a sum of products, to the sum of their sizes; bfloat16 has 1e-3


def has_wide_layers(modules: Iterable[nn.Module]) -> bool:
    """Return whether products of these modules are faster so, on this processor."""
    parameters = [p for module in modules for p in module.parameters()]
    wide = any(p.ndim > 1 and min(p.shape[-2:]) >= _WIDE for p in parameters)
    on_host = all(p.device.type == "cpu" for p in parameters)
    return wide and on_host and beats_the_library() and _is_exact()


@contextlib.contextmanager
def wide_products(on: bool) -> Iterator[None]:
    """Let torch multiply by that library in this block; the setting is one for all threads."""
    if not on:
        yield
        return
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with _lock:
        _before.append(_before[0] if _before else setting.fp32_precision)
        setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:  # the last block that was being run
                setting.fp32_precision = before


@functools.cache
def _is_exact() -> bool:
    """Return whether these products are those of float32; early releases of torch lack them."""
    if not hasattr(torch.backends.mkldnn, "matmul"):
        return False
    generator = torch.Generator().manual_seed(0)
    for rows, inner, columns in _TRIED:
        a = torch.randn(rows, inner, generator=generator)
        b = torch.randn(inner, columns, generator=generator)
        with wide_products(True):
            found = a @ b
        error = (found.double() - a.double() @ b.double()).abs()
        if (error > _TOLERANCE * (a.double().abs() @ b.double().abs())).any():
            return False
    return True
