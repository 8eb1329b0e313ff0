"""Between a system's Gymnasium spaces and what is registered: canonical spaces as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.config import parse
from assay.core.errors import ConfigError, SpaceError
from assay.envs.spaces import ActionMap, ObservationMap
from assay.server import spec as specs
from assay.server.spec import PolicySpec, gym_space, space_of


def make_spec(
    name: str,
    observation: gym.Space[Any],
    action: gym.Space[Any],
    algorithm: str,
    settings: Mapping[str, Any] | None = None,
    *,
    masks: bool = False,
    group: str | None = None,
    bounds: Any = None,
) -> PolicySpec:
    """Return what a client of such a system registers, with the settings of `ClientConfig`.

    Raises:
        ConfigError: A name, setting or bound is not allowed.
        SpaceError: A space is not supported.

    Example:
        >>> from gymnasium import spaces
        >>> arm = spaces.Dict({"arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2,))})})
        >>> make_spec("p", arm, spaces.Discrete(3, start=5), "ppo").action
        Discrete(kind='discrete', n=3, start=0)
    """
    actions = ActionMap(action)
    observations = ObservationMap(observation, actions.mask_size if masks else None)
    values = {
        "name": name,
        "observation": _describe(observations.space),
        "action": space_of(actions.space),
        "bounds": bounds,
        "algorithm": algorithm,
        "settings": dict(settings or {}),
        "group": group,
    }
    return parse(PolicySpec, values, what=f"the policy '{name}'")


def _describe(space: gym.Space[Any]) -> Any:
    """Describe a canonical observation space; entries such as `arm/joints` are nested again."""
    if not isinstance(space, gym.spaces.Dict):
        return space_of(space)
    tree: dict[str, Any] = {}
    for key, part in space.spaces.items():
        *path, last = key.split("/")
        place = tree
        for step in path:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise _clash(key)
        if last in place:
            raise _clash(key)
        place[last] = space_of(part)
    return _as_dict(tree)


def _clash(key: str) -> SpaceError:
    return SpaceError(
        f"The entry '{key}' of the observation has the name of another entry as a part of its own.",
        "Rename one of them; nested entries are joined with '/'.",
    )


def _as_dict(tree: dict[str, Any]) -> dict[str, Any]:
    spaces = {key: _as_dict(one) if isinstance(one, dict) else one for key, one in tree.items()}
    return {"kind": "dict", "spaces": spaces}


def read_space(value: Any, name: str) -> Any:
    """Return the space that a setting gives: a Gymnasium space, or one as a spec writes it.

    Raises:
        ConfigError: It is neither.

    Example:
        >>> read_space({"kind": "discrete", "n": 4}, "action")
        Discrete(4)
    """
    if isinstance(value, gym.Space):
        return value
    if isinstance(value, Mapping):
        # Through a spec, which says what is wrong with a space in its own words.
        filler = {"name": "x", "algorithm": "x", "observation": specs.Box(shape=(1,))}
        given = filler | {"action": specs.Discrete(n=1), "observation": value}
        return gym_space(parse(PolicySpec, given, what=f"{name}").observation)
    if isinstance(value, specs.Leaf | specs.Dict | specs.Tuple):
        return gym_space(value)
    raise ConfigError(
        f"{name}={value!r} is not a space.",
        "Give a Gymnasium space, or in a file something like {kind: box, shape: [3]}.",
    )


def nearest_to_zero(space: gym.Space[Any], limits: tuple[Any, Any] | None = None) -> Any:
    """Return the action of a space that does least, as far as one can tell.

    Args:
        space: Of the actions.
        limits: Lowest and highest numbers of a Box, flat; None for those of the space.

    Example:
        >>> nearest_to_zero(gym.spaces.Discrete(3, start=5))
        5
        >>> nearest_to_zero(gym.spaces.Discrete(11, start=-5))
        0
    """
    if isinstance(space, gym.spaces.Discrete):
        return int(np.clip(0, space.start, space.start + space.n - 1))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return np.clip(0, space.start, space.start + space.nvec - 1)
    zero = np.zeros(space.shape or (), space.dtype)
    if not isinstance(space, gym.spaces.Box):
        return zero
    low, high = limits or (space.low, space.high)
    return np.clip(zero, low.reshape(zero.shape), high.reshape(zero.shape)).astype(space.dtype)
