"""Where learners run: in a thread, in a process each, or as actors of a Ray cluster."""

from __future__ import annotations

from typing import Any

from assay.core.errors import ConfigError, nearest
from assay.server.executor.base import Executor

EXECUTORS = ("inproc", "process", "ray")


def make_executor(name: str, **options: Any) -> Executor:
    """Make an executor by its name.

    Args:
        name: "inproc", "process" or "ray".
        options: For its class: see `RayExecutor`.

    Raises:
        ConfigError: There is none of that name.
        MissingExtraError: Ray is not installed.
        ExecutorError: The Ray cluster cannot be reached.
    """
    if name == "inproc":
        from assay.server.executor.inproc import InprocExecutor

        return InprocExecutor(**options)
    if name == "process":
        from assay.server.executor.process import ProcessExecutor

        return ProcessExecutor(**options)
    if name == "ray":
        from assay.server.executor.ray import RayExecutor

        return RayExecutor(**options)
    raise ConfigError(f"There is no executor '{name}'. {nearest(name, EXECUTORS)}")
