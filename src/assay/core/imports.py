"""Code that a user names: `package.module:name`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def import_named(module: str) -> Any:
    """Import a module, also from the directory in which the command runs.

    A console script does not have that directory on its path, where `python -m` has it. It comes
    last, so that it hides nothing.

    Raises:
        Exception: Whatever importing it raises.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        if error.name != module.partition(".")[0] or here in sys.path or "" in sys.path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        return importlib.import_module(module)
