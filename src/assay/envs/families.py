"""Packages of environments that register their ids only when they are imported.

An id of such a family imports its package. If that is not installed, the error names the extra.
Gymnasium-Robotics is made to work with current MuJoCo, and MiniGrid to say what its images hold.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from assay.core.errors import EnvError, MissingExtraError
from assay.envs.dm_control import register_dm_control
from assay.envs.env_errors import env_failure
from assay.envs.games.open_spiel import PREFIX
from assay.envs.games.registry import game_entry
from assay.envs.petting_zoo import register_petting_zoo

ROBOTICS_PACKAGE = "gymnasium_robotics"
_MOST_SYMBOL = 10  # the highest number of an object of MiniGrid; colours and states have fewer


@dataclass(frozen=True, slots=True)
class Family:
    """Environments of one package.

    Attributes:
        name: What people call it.
        ids: Matches the ids.
        example: One of them.
        package: What has to be installed.
        extra: The extra that brings it.
        register: Registers the ids; raises ModuleNotFoundError if a package is missing.
    """

    name: str
    ids: re.Pattern[str]
    example: str
    package: str
    extra: str
    register: Callable[[], None]

    def load(self, env_id: str | None = None) -> None:
        """Register the ids.

        Raises:
            MissingExtraError: The package is not installed.
            EnvError: It fails when it is imported, for instance where it cannot draw.
        """
        what = f"The environment '{env_id}'" if env_id else self.name
        try:
            self.register()
        except (ModuleNotFoundError, gym.error.DependencyNotInstalled) as error:
            # It may be there, and lack a package of its own.
            missing = (getattr(error, "name", None) or "").partition(".")[0]
            own = self.package.partition("[")[0].replace("-", "_")
            package = self.package if missing in ("", own) else missing
            raise MissingExtraError(package, self.extra, what) from None
        except Exception as error:
            raise env_failure(error, f"{what} could not be made") from error


def _register_atari() -> None:
    ale = importlib.import_module("ale_py")
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # no banner
    gym.register_envs(ale)


def _register_minatar() -> None:
    package = importlib.import_module("minatar.gym")
    if "MinAtar/Breakout-v1" not in gym.registry:
        package.register_envs()


def _register_minigrid() -> None:
    gym.register_envs(importlib.import_module("minigrid"))


def _register_robotics() -> None:
    with contextlib.redirect_stderr(io.StringIO()):  # a notice on other environments' rewards
        gym.register_envs(importlib.import_module(ROBOTICS_PACKAGE))


def _register_foraging() -> None:
    gym.register_envs(importlib.import_module("lbforaging"))


def _register_warehouse() -> None:
    gym.register_envs(importlib.import_module("rware"))


def _register_openspiel() -> None:
    for name in importlib.import_module("pyspiel").registered_names():
        if PREFIX + name not in gym.registry:
            gym.register(PREFIX + name, **game_entry(PREFIX + name))


ATARI = Family(
    "Atari", re.compile(r"ALE/|\w+NoFrameskip-v\d+$"), "ALE/Pong-v5",
    "ale-py", "atari", _register_atari,
)  # fmt: skip
ROBOTICS = Family(
    "Gymnasium-Robotics",
    re.compile(r"Fetch|HandReach|HandManipulate|AdroitHand|FrankaKitchen|PointMaze|AntMaze"),
    "FetchReach-v4", "gymnasium-robotics", "robotics", _register_robotics,
)  # fmt: skip
MINIGRID = Family(
    "MiniGrid", re.compile(r"MiniGrid-|BabyAI-"), "MiniGrid-Empty-5x5-v0",
    "minigrid", "minigrid", _register_minigrid,
)  # fmt: skip
MINATAR = Family(
    "MinAtar", re.compile(r"MinAtar/"), "MinAtar/Breakout-v1",
    "minatar", "minatar", _register_minatar,
)  # fmt: skip
DM_CONTROL = Family(
    "dm_control", re.compile(r"dm_control/"), "dm_control/cartpole-swingup-v0",
    "shimmy[dm-control]", "dm-control", register_dm_control,
)  # fmt: skip
PETTING_ZOO = Family(
    "PettingZoo", re.compile(r"[a-z0-9_]+_v\d+$"), "simple_tag_v3",
    "pettingzoo", "pettingzoo", register_petting_zoo,
)  # fmt: skip
FORAGING = Family(
    "Level-based foraging", re.compile(r"Foraging-"), "Foraging-8x8-2p-3f-v3",
    "lbforaging", "foraging", _register_foraging,
)  # fmt: skip
WAREHOUSE = Family(
    "Robotic warehouse", re.compile(r"rware-"), "rware-tiny-2ag-v2",
    "rware", "warehouse", _register_warehouse,
)  # fmt: skip
OPENSPIEL = Family(
    "OpenSpiel", re.compile(PREFIX), "openspiel/kuhn_poker",
    "open_spiel", "openspiel", _register_openspiel,
)  # fmt: skip
FAMILIES = (
    ATARI, ROBOTICS, MINIGRID, MINATAR, DM_CONTROL, PETTING_ZOO, FORAGING, WAREHOUSE, OPENSPIEL,
)  # fmt: skip


def family_of(env_id: str) -> Family | None:
    """Return the family that an id belongs to by its form."""
    return next((family for family in FAMILIES if family.ids.match(env_id)), None)


def load_all() -> tuple[Family, ...]:
    """Register the ids of all families, and return those that are not installed.

    One that is installed and fails is left out, with a warning.
    """
    missing = []
    for family in FAMILIES:
        try:
            family.load()
        except MissingExtraError:
            missing.append(family)
        except EnvError as error:
            warnings.warn(f"{error.message.splitlines()[0]} {error.fix or ''}", stacklevel=2)
    return tuple(missing)


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
        utils: Any = importlib.import_module(f"{ROBOTICS_PACKAGE}.utils.mujoco_utils")
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


def is_minigrid(spec: EnvSpec) -> bool:
    """Return whether an id gives what MiniGrid itself gives; a wrapper may draw pixels."""
    return str(spec.entry_point).startswith("minigrid.") and not spec.additional_wrappers


class Symbols(gym.Wrapper[Any, Any, Any, Any]):
    """Declare the numbers that MiniGrid's images hold.

    A cell is an object, a colour and a state, numbers from 0 to 10. MiniGrid declares bytes up to
    255, and an encoder would take them for brightness and divide by 255.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Dict)
        shape = space["image"].shape
        image = spaces.Box(0, _MOST_SYMBOL, shape, np.uint8)
        self.observation_space = spaces.Dict({**space.spaces, "image": image})
