"""How optimizer steps are executed: eagerly, compiled on a CPU, or as CUDA graphs."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Literal

import torch

from assay.core.errors import ConfigError

# "auto" is compiled if that lies in the cache when the run begins, and eager otherwise, until there
# is a compiled step.
Mode = Literal["eager", "compiled", "cuda_graph", "auto"]

# Compiling in the background takes 10 to 30 s of a core that is otherwise idle. A run of fewer
# updates of a small network is over in two seconds; most such runs are never repeated.
UPDATES_THAT_PAY = 2_000
VARIABLE = "ASSAY_COMPILE"


def choose_mode(compile: Literal["auto"] | bool, device: torch.device) -> Mode:
    """Decide how a run's steps are executed.

    A GPU always uses CUDA graphs unless compilation is off. `$ASSAY_COMPILE=false` makes "auto"
    eager, for those whose numbers must not depend on what is in the cache. A ConfigError refuses
    what is not possible here.
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
    if device.type != "cpu":
        return "eager"
    if compile is True:
        return "compiled"
    return "auto" if _auto_is_on() else "eager"


def _auto_is_on() -> bool:
    given = os.environ.get(VARIABLE, "auto").lower()
    if given not in ("auto", "false"):
        raise ConfigError(
            f"{VARIABLE}={given} in the environment.",
            "Use auto or false: it says what compile=auto means here.",
        )
    return given == "auto"


def can_fuse() -> bool:
    """Return whether kernels for a GPU can be compiled here."""
    return importlib.util.find_spec("triton") is not None and has_compiler()


def has_compiler() -> bool:
    """Return whether a C++ compiler is on the path."""
    return any(shutil.which(os.environ.get("CXX", c)) for c in ("g++", "clang++"))
