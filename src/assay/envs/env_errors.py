"""Errors for environments whose own code fails."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

from assay.core.errors import AssayError, EnvError
from assay.envs.screen import is_headless, opengl_fix, was_drawing

_HERE = str(Path(__file__).parent)
SEED_BITS = 0x3FFFFFFF  # seeds fit 32 bits, with room for `seed + i`: some environments need that


def env_failure(error: BaseException, doing: str) -> AssayError:
    """Return an error that carries the environment's own traceback as text.

    Args:
        error: What the environment raised. Assay's own errors are returned as they are.
        doing: What was being done, for instance "Environment 3 of 'Maze-v0' failed in step()".
    """
    if isinstance(error, AssayError):
        return error
    own = error.with_traceback(_outside(error.__traceback__))
    text = "".join(traceback.format_exception(own)).rstrip()
    message = f"{doing}: {type(error).__name__}: {error}\n{text}"
    if is_headless() and was_drawing(error):
        return EnvError(message, f"It was drawing, and there is no screen here. {opengl_fix()}")
    return EnvError(message)


def raised_here(error: BaseException) -> bool:
    """Return whether this package raised the error, rather than the environment's own code."""
    return _outside(error.__traceback__) is None


def _outside(frames: TracebackType | None) -> TracebackType | None:
    """Drop the leading frames that belong to this package."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_HERE):
        frames = frames.tb_next
    return frames
