"""Where learners run: in a thread, in a process each, or as actors of a Ray cluster."""

from __future__ import annotations

import importlib
from typing import Any

from assay.server.executor.base import Executor

_CLASSES = {"inproc": "InprocExecutor", "process": "ProcessExecutor", "ray": "RayExecutor"}


def make_executor(name: str, **options: Any) -> Executor:
    """Make an executor by its name: "inproc", "process" or "ray".

    Args:
        name: As `ServerConfig` has it.
        options: For its class: see `RayExecutor`.

    Raises:
        MissingExtraError: Ray is not installed.
        ExecutorError: The Ray cluster cannot be reached.
    """
    module = importlib.import_module(f"assay.server.executor.{name}")
    made: Executor = getattr(module, _CLASSES[name])(**options)
    return made
