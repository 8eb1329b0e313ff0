"""How optimizer steps are executed: eagerly, compiled on a CPU, or as CUDA graphs."""

from __future__ import annotations

import os
import shutil
from typing import Literal

import torch

from assay.core.errors import ConfigError

Mode = Literal["eager", "compiled", "cuda_graph"]

# Below this many updates of a small network, compiling (10 to 30 s) costs more than it saves
# (about 1 ms an update). What is in the cache does not count: the numbers of a run must not depend
# on what was trained before it.
UPDATES_THAT_PAY = 30_000


def choose_mode(
    compile: Literal["auto"] | bool, device: torch.device, expected_updates: float
) -> Mode:
    """Decide how a run's steps are executed; a resumed run keeps what it began with.

    A GPU always uses CUDA graphs unless compilation is off. On a CPU, "auto" compiles when a C++
    compiler is there and the run is long enough to pay for it.
    """
    if compile is False:
        return "eager"
    if device.type == "cuda":
        return "cuda_graph"
    if compile is True and not has_compiler():
        raise ConfigError(
            "compile=true needs a C++ compiler, and none is on the path.",
            "Install one (on Debian: apt install g++), or use compile=auto.",
        )
    if device.type != "cpu" or not has_compiler():
        return "eager"
    if compile is True or expected_updates >= UPDATES_THAT_PAY:
        return "compiled"
    return "eager"


def has_compiler() -> bool:
    """Return whether a C++ compiler is on the path."""
    return any(shutil.which(os.environ.get("CXX", c)) for c in ("g++", "clang++"))
