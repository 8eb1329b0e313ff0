"""Errors for environments whose own code fails."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

import gymnasium

from assay.core.errors import AssayError, EnvError
from assay.envs.screen import is_headless, lacks_opengl, opengl_fix, was_drawing

_HERE = str(Path(__file__).parent)
_GYMNASIUM = Path(gymnasium.__file__).parent
_PASSED_ON = (_HERE, str(_GYMNASIUM / "core.py"), str(_GYMNASIUM / "wrappers"))
SEED_BITS = 0x3FFFFFFF  # seeds fit 32 bits, with room for `seed + i`: some environments need that


def env_failure(error: BaseException, doing: str) -> AssayError:
    """Return an error that carries the environment's own traceback as text.

    Args:
        error: What the environment raised. Assay's own errors are returned as they are.
        doing: What was being done, for instance "Environment 3 of 'Maze-v0' failed in step()".
    """
    if isinstance(error, AssayError):
        return error
    own = error.with_traceback(_outside(error.__traceback__, (_HERE,)))
    message = f"{doing}: {type(error).__name__}: {error}"
    if lacks_opengl(own):  # nothing of the environment's own code is at fault
        return EnvError(message, f"OpenGL, with which it draws, is not there. {opengl_fix()}")
    drew = is_headless() and was_drawing(own)
    own = own.with_traceback(_outside(own.__traceback__, _PASSED_ON))
    if own.__traceback__ is not None or own.__cause__ is not None:
        message += "\n" + "".join(traceback.format_exception(own)).rstrip()
    if drew:
        return EnvError(message, f"It was drawing, and there is no screen here. {opengl_fix()}")
    return EnvError(message, _fix(own, doing))


def _fix(error: BaseException, doing: str) -> str | None:
    """Return what to do about mistakes that are made with many environments, or None."""
    text = str(error)
    if doing.endswith("made") and isinstance(error, TypeError) and " required " in text:
        return "Give what its constructor needs with env_kwargs, as in env_kwargs='{size: 9}'."
    if not doing.endswith("reset()"):
        return None
    if isinstance(error, TypeError) and ("'seed'" in text or "'options'" in text):
        return "Declare it as Gymnasium calls it: def reset(self, *, seed=None, options=None)."
    frames = traceback.extract_tb(error.__traceback__)
    if frames and "options" in (frames[-1].line or ""):
        return (
            "reset() is called with options=None. Give what it needs with reset_options, as in "
            "reset_options='{low: -0.2}', or let it do without."
        )
    return None


def raised_here(error: BaseException) -> bool:
    """Return whether this package raised the error, rather than the environment's own code."""
    return _outside(error.__traceback__, (_HERE,)) is None


def _outside(frames: TracebackType | None, places: tuple[str, ...]) -> TracebackType | None:
    """Drop the leading frames of files in `places`."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(places):
        frames = frames.tb_next
    return frames
