"""Code that a user names: `package.module:name`."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import os
import re
import sys
from importlib import metadata
from typing import Any

from assay.core.errors import AssayError, ConfigError


def import_named(module: str) -> Any:
    """Import a module, also from the directory in which the command runs.

    A console script does not have that directory on its path, where `python -m` has it. It comes
    last, so that it hides nothing.

    Raises:
        Exception: Whatever importing it raises.
    """
    try:
        return _import(module)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        if error.name != module.partition(".")[0] or here in sys.path or "" in sys.path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        return _import(module)


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except SystemExit as error:
        raise ImportError(
            f"it ends the program (SystemExit: {error}); what a script does belongs below "
            '`if __name__ == "__main__":`'
        ) from None


def code_hash(named: Any) -> str | None:
    """Return the SHA-256 of the source of a class or function; None where there is no file."""
    try:
        return hashlib.sha256(inspect.getsource(inspect.unwrap(named)).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def dependents(package: str, like: str) -> list[str]:
    """Return the modules of installed packages that need another one, most like a name first.

    An extra of a package does not count: it need not be installed. This reads what is written
    about every installed package, and is for messages.
    """
    pattern = re.compile(rf"{re.escape(package)}\b(?!-)(?!.*\bextra\s*==)", re.IGNORECASE)
    modules: dict[str, float] = {}
    for module, owners in metadata.packages_distributions().items():
        if not module.isidentifier() or module.startswith("_"):
            continue
        needs = [line for name in set(owners) for line in metadata.requires(name) or ()]
        if any(pattern.match(line) for line in needs):
            modules[module] = difflib.SequenceMatcher(None, module.lower(), like.lower()).ratio()
    return sorted(modules, key=lambda module: (-modules[module], module))


def find_named(name: str, said: str) -> Any:
    """Return what `package.module:attribute` names, or None if the module has nothing of that name.

    Args:
        name: The name.
        said: How a message calls it, such as "The option 'a:b'".

    Raises:
        ConfigError: The module cannot be imported.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_named(module), attribute, None)
    except AssayError:
        raise
    except Exception as error:  # a user's module may fail in any way
        raise ConfigError(
            f"{said} cannot be imported: {type(error).__name__}: {error}.",
            "Run from the directory that holds the module, or install it.",
        ) from error
