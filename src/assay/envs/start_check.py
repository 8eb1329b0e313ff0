"""A few random steps before a run begins, so that a broken environment is known at once.

`Vector` itself refuses rewards that are not finite numbers and observations of another shape or
dtype than their space. What it does not look at in every step is checked here: whether the
observations lie in their space.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import AssayError, ConfigError, EnvError
from assay.core.types import Tree, action_mask
from assay.envs.spaces import Leaf
from assay.envs.variation.base import Fixed, VariedLayer
from assay.envs.variation.ranges import Ranges
from assay.envs.vector import Vector

_STEPS = 8


def check_start(vector: Vector) -> None:
    """Reset environments and take a few random actions.

    Native environments are known to be right, and are left alone.

    Raises:
        EnvError: They fail, or violate Gymnasium's API.
    """
    if not vector.backend.always_finite:
        _walk(vector)


def check_ends(vector: Vector) -> None:
    """Take random actions with each parameter at both ends of its range, and at every choice.

    The first copy has it there; all others are as usual. They must be reset afterwards. A range
    below 0 of what is usually above it gets a warning: most physical quantities cannot be there,
    and simulators compute something all the same.

    Raises:
        ConfigError: They fail at an end.
    """
    layer: Any = vector.backend
    while not isinstance(layer, VariedLayer):
        if not hasattr(layer, "inner"):
            return
        layer = layer.inner
    sampler, ranges = layer.curriculum, layer.curriculum.ranges
    _warn_of_signs(ranges)
    try:
        for name, point in ranges.tried():
            value = float(ranges.values(point[None])[name][0])
            layer.curriculum = Fixed(ranges, point)
            try:
                with np.errstate(all="ignore"):
                    _walk(vector, look=False)
            except AssayError as error:
                raise ConfigError(
                    f"randomize draws {name}={value:g}, and the environment cannot have it: "
                    f"{error.message}",
                    f"Give {name} another range.",
                ) from error
    finally:
        layer.curriculum = sampler
    vector.take_terms()  # these steps are not the run's


def _warn_of_signs(ranges: Ranges) -> None:
    for name, one in zip(ranges.names, ranges.ranges, strict=True):
        low, high = one.values(np.array(one.ends()))
        if one.count is None and low < 0 < ranges.own[name]:
            warnings.warn(
                f"randomize draws {name} from {low:g} to {high:g}, and it is usually "
                f"{ranges.own[name]:g}. If it cannot be negative (a mass, a length), give a range "
                "above 0.",
                stacklevel=3,
            )


def _walk(vector: Vector, look: bool = True) -> None:
    space = copy.deepcopy(vector.spaces.action)  # its random numbers may be the environment's
    space.seed(0)
    obs = vector.reset(0)
    warned = not look or _look(vector, obs)
    for _ in range(_STEPS):
        result = vector.step(_sample(space, vector.num_envs, action_mask(obs)))
        obs, _, terminated, truncated, _, final = result
        warned = warned or _look(vector, obs)
        if final is not None and final is not obs:
            warned = warned or _look(vector, final, terminated | truncated)


def _sample(space: gym.Space[Any], rows: int, mask: NDArray[Any] | None) -> NDArray[Any]:
    if mask is None:
        return np.stack([space.sample() for _ in range(rows)])
    return np.stack([space.sample(mask=mask_for_space(space, row)) for row in mask])


def mask_for_space(space: gym.Space[Any], row: NDArray[Any]) -> Any:
    """Return an action mask in the form that a space's `sample` takes."""
    if isinstance(space, gym.spaces.MultiDiscrete):
        return tuple(np.split(row.astype(np.int8), np.cumsum(space.nvec)[:-1]))
    if isinstance(space, gym.spaces.MultiBinary):
        return np.where(row, 2, 0).astype(np.int8)  # 2: either value
    return row.astype(np.int8)


def _look(vector: Vector, obs: Tree, rows: NDArray[Any] | None = None) -> bool:
    """Warn of the first number outside of its Box, and return whether there is one.

    Args:
        vector: The environments.
        obs: What they returned.
        rows: Which environments to look at, as bools; None: all.

    Raises:
        EnvError: An integer is outside of its space: a network has no input for it.
    """
    for leaf in vector.observations.leaves:
        array = obs if vector.observations.bare else obs[leaf.key]
        array = array if rows is None else array[rows]
        low, high = _bounds(leaf)
        outside = np.argwhere((array < low) | (array > high))
        if len(outside):
            value = array[tuple(outside[0])]
            entry = f"entry '{leaf.key}' of an observation" if leaf.path else "an observation"
            found = f"'{vector.name}' returned {value} in {entry}, outside of {leaf.source}."
            fix = "Widen the space, or clip what you return."
            if leaf.dtype.kind != "f":
                raise EnvError(found, fix)
            warnings.warn(f"{found} {fix}", stacklevel=3)
            return True
    return False


def _bounds(leaf: Leaf) -> tuple[Any, Any]:
    space = leaf.space
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    if isinstance(space, gym.spaces.Discrete):
        return 0, space.n - 1
    if isinstance(space, gym.spaces.MultiDiscrete):
        return 0, space.nvec - 1
    return 0, 1
