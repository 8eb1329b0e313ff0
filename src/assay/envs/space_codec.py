"""Spaces as states, so that a checkpoint holds the spaces of its agent."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.errors import CheckpointError
from assay.core.types import State
from assay.envs.text import TEXT, is_text


def space_to_state(space: gym.Space[Any]) -> State:
    """Return the state of a space that Assay supports."""
    if isinstance(space, gym.spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_state(s) for s in space.spaces]}
    if isinstance(space, gym.spaces.Dict):
        return {"kind": "Dict", "spaces": {k: space_to_state(s) for k, s in space.items()}}
    if isinstance(space, gym.spaces.Box):
        return {"kind": "Box", "low": space.low, "high": space.high}
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec, "start": space.start}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    if is_text(space):
        return {"kind": "Text"}
    raise TypeError(f"{space} is not supported")


def space_from_state(state: State) -> gym.Space[Any]:
    """Read what `space_to_state` returned.

    Raises:
        CheckpointError: The kind of space is unknown.
    """
    kind = state["kind"]
    if kind == "Tuple":
        return gym.spaces.Tuple([space_from_state(s) for s in state["spaces"]])
    if kind == "Dict":
        return gym.spaces.Dict({k: space_from_state(s) for k, s in state["spaces"].items()})
    if kind == "Box":
        low, high = np.asarray(state["low"]), np.asarray(state["high"])
        return gym.spaces.Box(low, high, dtype=low.dtype.type)
    if kind == "Discrete":
        return gym.spaces.Discrete(state["n"], start=state["start"])
    if kind == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(np.asarray(state["nvec"]), start=np.asarray(state["start"]))
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(state["shape"])
    if kind == "Text":
        return TEXT
    raise CheckpointError(f"The checkpoint holds a space of unknown kind '{kind}'.")
