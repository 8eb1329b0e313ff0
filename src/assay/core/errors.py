"""Errors that are the user's to fix.

Every error raised on purpose says what was found, what was expected and how to fix it. The
command line prints the message without a traceback and exits with `EXIT_USER_ERROR`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_USER_ERROR = 2
EXIT_PERSON_NEEDED = 3  # a loop stopped before all was done, and goes on after a person's decision


class AssayError(Exception):
    """A mistake or condition the user can fix.

    Args:
        message: What was found and what was expected, naming the value.
        fix: What to do about it, as one imperative sentence.
    """

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message if fix is None else f"{message}\n{fix}")
        self.message = message
        self.fix = fix


class ConfigError(AssayError):
    """An unknown key, a value out of range, or settings that do not go together."""


class SpaceError(AssayError):
    """An algorithm was given a space that it cannot handle."""


class EnvError(AssayError):
    """An environment is unknown, broken, or raised while it was being stepped."""


class DataError(AssayError):
    """Recorded data cannot be read, or does not fit the environment."""


class RunError(AssayError):
    """A run directory cannot be created, read or written."""


class CheckpointError(RunError):
    """A checkpoint is incomplete, altered, not written by Assay, or of another schema."""


class MissingExtraError(AssayError):
    """A package is needed and not installed: that of an extra, or (None) one that Assay needs."""

    def __init__(self, package: str, extra: str | None, purpose: str, otherwise: str = "") -> None:
        wanted = package if extra is None else f"'assay[{extra}]'"
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed.",
            f"Install it with: pip install {wanted}{otherwise}",
        )


def require_counts(**counts: int | None) -> None:
    """Refuse numbers below 1; None is not given.

    Raises:
        ConfigError: One is.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"{name}={count}: expected at least 1.")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as `Did you mean 'ppo'?`, or the list of known names.

    Example:
        >>> nearest("pppo", ["ppo", "dqn"])
        "Did you mean 'ppo'?"
    """
    options = sorted(known)
    close = difflib.get_close_matches(name.lower(), [o.lower() for o in options], n=1, cutoff=0.6)
    if close:
        original = next(o for o in options if o.lower() == close[0])
        return f"Did you mean '{original}'?"
    return f"Known: {', '.join(options)}."
