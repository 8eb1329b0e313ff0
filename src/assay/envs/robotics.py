"""Gymnasium-Robotics: register its ids on demand, and make it work with current MuJoCo.

Fetch, shadow hand, Adroit, Franka kitchen and mazes, most of them goal environments.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

PACKAGE = "gymnasium_robotics"


def register_robotics() -> None:
    """Register the ids of Gymnasium-Robotics.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    with contextlib.redirect_stderr(io.StringIO()):  # a notice on other environments' rewards
        gym.register_envs(importlib.import_module(PACKAGE))


def fix_joint_types() -> None:
    """Let Gymnasium-Robotics recognise hinge and slide joints.

    Since MuJoCo 3.12 an enum's member is no longer equal to a NumPy integer of its value (the other
    way round it is), and Gymnasium-Robotics (1.4.2) relies on it in `joint_type in (HINGE, SLIDE)`.
    Its utilities get the joints' types as plain integers, which compare either way.
    """
    import mujoco

    joints = mujoco.mjtJoint
    if joints.mjJNT_HINGE == np.int32(int(joints.mjJNT_HINGE)):
        return
    with contextlib.redirect_stderr(io.StringIO()):
        utils: Any = importlib.import_module(f"{PACKAGE}.utils.mujoco_utils")
    if not isinstance(utils.mujoco, _PlainJoints):
        utils.mujoco = _PlainJoints(mujoco)


class _PlainJoints:
    """MuJoCo's module, with the types of joints as integers."""

    def __init__(self, module: Any) -> None:
        self._module = module
        members = module.mjtJoint.__members__
        self.mjtJoint = SimpleNamespace(**{name: int(value) for name, value in members.items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
