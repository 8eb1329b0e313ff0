"""Freed memory: a step on a CPU keeps it, and says so where the system cannot."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from assay.optim import memory

SCRIPT = """
import resource, sys
import torch
from torch import nn
from assay.optim.update import Objective, Step

net = nn.Linear(1, 1)
if sys.argv[1] == "step":
    Step([Objective("fit", net, lambda b: (net(b["x"]).sum(), {}))])
x = torch.ones(512, 1024)
for _ in range(3):
    y = x * 2 + x * 3
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    y = x * 2 + x * 3
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(word: str) -> int:
    command = [sys.executable, "-c", SCRIPT, word]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not memory.keep_freed_memory(), reason="this system has no mallopt")
def test_a_step_keeps_the_memory_that_tensors_free() -> None:
    # 50 rounds of blocks of two megabytes: thousands of pages, if they are fetched every time
    assert faults("step") < faults("none") / 3


def test_systems_without_mallopt_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert memory.keep_freed_memory.__wrapped__() is False
