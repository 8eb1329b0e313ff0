"""Freed memory: a step on a CPU keeps it, and says so where the system cannot."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from assay.optim import memory

SCRIPT = """
import ctypes, sys
from torch import nn
from assay.optim.update import Objective, Step

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena a b c mapped d e f g h".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def held():
    info = libc.mallinfo2()
    return info.arena + info.mapped

net = nn.Linear(1, 1)
if sys.argv[1] == "step":
    Step([Objective("fit", net, lambda b: (net(b["x"]).sum(), {}))])
libc.free(libc.malloc(24 << 20))  # teaches glibc what it guesses by itself
before = held()
blocks = [libc.malloc(24 << 20) for _ in range(4)]
for block in blocks:
    libc.free(block)
print(held() - before)
"""


def kept(word: str) -> int:
    """Return how much of four freed blocks, 96 MiB, a process keeps."""
    command = [sys.executable, "-c", SCRIPT, word]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_a_step_keeps_the_memory_that_tensors_free() -> None:
    assert kept("none") < 64 << 20 <= kept("step")


def test_systems_without_mallopt_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert memory.keep_freed_memory.__wrapped__() is False
