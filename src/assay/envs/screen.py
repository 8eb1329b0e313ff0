"""Drawing where there may be no screen: what to set, what to refuse, what to say."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.core.errors import EnvError

# Parts of the file names of code that draws, and of the modules of its errors.
_DRAWING = ("OpenGL", "glfw", "mujoco_rendering", "pygame", "pyglet", "render", "viewer")


def is_headless() -> bool:
    """Return whether nothing can be shown here."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform.startswith("linux") and not any(map(os.environ.get, screens))


@contextmanager
def offscreen() -> Iterator[None]:
    """Let SDL and MuJoCo render without a screen if there is none and nothing else is set."""
    wanted = {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"} if is_headless() else {}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def refuse_human(env: Any, name: str) -> None:
    """Refuse an environment that would open a window where there is no screen.

    Some libraries end the whole process when they try.

    Raises:
        EnvError: There is no screen, and its `render_mode` is "human".
    """
    if getattr(env, "render_mode", None) == "human" and is_headless():
        raise EnvError(
            f"'{name}' has render_mode='human', which needs a screen, and there is none here "
            "(neither DISPLAY nor WAYLAND_DISPLAY is set).",
            "Leave render_mode out; `assay evaluate RUN --video` records a trained agent.",
        )


def was_drawing(error: BaseException) -> bool:
    """Return whether an error came from code that draws."""
    places = [type(error).__module__]
    places += [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(word in place for word in _DRAWING for place in places)


def lacks_opengl(error: BaseException) -> bool:
    """Return whether an error came from PyOpenGL, which found no library to load."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "OpenGL" in Path(frames[-1].filename).parts


def opengl_fix() -> str:
    """Return what to do where OpenGL does not work."""
    return (
        "MuJoCo renders with OpenGL. Without a screen set MUJOCO_GL=egl (with a GPU's "
        "driver, or on Debian: apt install libegl1 libgl1-mesa-dri) or MUJOCO_GL=osmesa "
        f"(apt install libosmesa6); it is {os.environ.get('MUJOCO_GL')!r} now."
    )
