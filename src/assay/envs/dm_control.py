"""The DeepMind Control Suite through Shimmy: ids on demand, current MuJoCo, and pixels.

State is a Dict of float64 arrays. With `pixels`, the observation is the last images of a camera:
uint8 [frame_stack, pixels, pixels, 3].
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium import wrappers
from gymnasium.core import ObsType
from gymnasium.envs.registration import EnvSpec

from assay.core.errors import EnvError, nearest
from assay.envs.screen import is_headless

NAMESPACE = "dm_control"
# What Shimmy takes, of its own and for dm_control; Gymnasium; and what is added here.
_SETTINGS = (
    "task_kwargs", "environment_kwargs", "visualize_reward", "random_state", "render_mode",
    "render_kwargs", "max_episode_steps", "pixels", "frame_stack", "camera_id",
)  # fmt: skip
_STACK = 3  # images that are stacked if nothing else is said: one image shows no velocity


def is_dm_control(spec: EnvSpec) -> bool:
    """Return whether an id is one of the Control Suite's."""
    return spec.namespace == NAMESPACE


def register_dm_control() -> None:
    """Register the ids of Shimmy, and let dm_control work with the MuJoCo that is installed.

    Raises:
        ModuleNotFoundError: dm_control or Shimmy is not installed.
    """
    _import_dm_control()
    _drop_missing_fields()
    gym.register_envs(importlib.import_module("shimmy"))


def _import_dm_control() -> None:
    """Import dm_control, which chooses how to render for good when it is imported.

    Left to itself it chooses a window, also where there is no screen.
    """
    if not is_headless() or "MUJOCO_GL" in os.environ:
        importlib.import_module("dm_control.mujoco")
        return
    try:
        for choice in ("egl", "osmesa", "disable"):
            os.environ["MUJOCO_GL"] = choice
            try:
                importlib.import_module("dm_control.mujoco")
                return
            except ModuleNotFoundError:
                raise
            except Exception:  # a library of this choice is missing
                if choice == "disable":
                    raise
    finally:
        del os.environ["MUJOCO_GL"]


def _drop_missing_fields() -> None:
    """Forget fields of MuJoCo's structures that the installed version does not have.

    MuJoCo 4 dropped some of flexible bodies, which dm_control (1.0.50) reads for every model.
    """
    import mujoco

    sizes: Any = importlib.import_module("dm_control.mujoco.wrapper.mjbindings.sizes")
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    for name, struct in (("mjmodel", model), ("mjdata", mujoco.MjData(model))):
        fields = sizes.array_sizes[name]
        for field in [field for field in fields if not hasattr(struct, field)]:
            del fields[field]


def pixel_stack(env_kwargs: dict[str, Any]) -> int | None:
    """Return how many images an observation stacks, or None if it is not a stack of images."""
    stack = int(env_kwargs.get("frame_stack", _STACK))
    return stack if env_kwargs.get("pixels") and stack > 1 else None


def make_dm_control(spec: EnvSpec, env_kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    """Make one task.

    Args:
        spec: The task.
        env_kwargs: Shimmy's settings; `pixels`: observe images of so many pixels instead of the
            state; `frame_stack`: how many of them; `camera_id`: whose.

    Raises:
        EnvError: An unknown setting, or one of images without `pixels`.
    """
    register_dm_control()  # a worker process has not done so
    for name in env_kwargs:
        if name not in _SETTINGS:
            raise EnvError(f"'{spec.id}' has no setting '{name}'.", nearest(name, _SETTINGS))
    kwargs = dict(env_kwargs)
    size, stack = kwargs.pop("pixels", None), kwargs.pop("frame_stack", None)
    camera = kwargs.pop("camera_id", None)
    if not size:
        for name, value in (("frame_stack", stack), ("camera_id", camera)):
            if value is not None:
                raise EnvError(
                    f"{name}={value} has no effect on '{spec.id}' without pixels.",
                    "Set pixels as well, such as pixels=84, or leave it out.",
                )
        return UntilDivergence(gym.make(spec, disable_env_checker=True, **kwargs))
    view = {"camera_id": camera or 0, "width": size, "height": size}
    kwargs |= {"render_mode": "rgb_array", "render_kwargs": view}
    env: gym.Env[Any, Any] = UntilDivergence(gym.make(spec, disable_env_checker=True, **kwargs))
    env = wrappers.AddRenderObservation(env, render_only=True)
    count = _STACK if stack is None else stack
    return env if count == 1 else wrappers.FrameStackObservation(env, count)


class UntilDivergence(gym.Wrapper[ObsType, Any, ObsType, Any]):
    """Ends an episode whose physics diverge, as dm_control's composer can; else the run ends.

    The last observation before it stays, and nothing is gained.
    """

    _last: ObsType

    def reset(self, **kwargs: Any) -> tuple[ObsType, dict[str, Any]]:
        """Begin an episode."""
        self._last, info = self.env.reset(**kwargs)
        return self._last, info

    def step(self, action: Any) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step, which may be the last one that can be computed."""
        control: Any = importlib.import_module("dm_control.rl.control")
        try:
            found = self.env.step(action)
        except control.PhysicsError as error:
            name = self.spec.id if self.spec else "dm_control"
            warnings.warn(
                f"The physics of '{name}' diverged, which ends an episode: {error}", stacklevel=2
            )
            return self._last, 0.0, True, False, {"diverged": True}
        self._last = found[0]
        return found
