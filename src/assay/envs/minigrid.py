"""MiniGrid: images of objects, not of pixels."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

_ENTRY_POINT = "minigrid."
_MOST = 10  # the highest number of an object; colours and states have fewer


def is_minigrid(spec: EnvSpec) -> bool:
    """Return whether an id gives what MiniGrid itself gives; a wrapper may draw pixels."""
    return str(spec.entry_point).startswith(_ENTRY_POINT) and not spec.additional_wrappers


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
        image = spaces.Box(0, _MOST, shape, np.uint8)
        self.observation_space = spaces.Dict({**space.spaces, "image": image})
