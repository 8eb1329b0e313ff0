"""Wrappers by their names, and around environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.config import example, parse
from assay.core.errors import ConfigError, EnvError, nearest
from assay.envs.limits import Factory
from assay.envs.vector import Vector
from assay.envs.wrappers import observation, options, reward, timing
from assay.envs.wrappers.layers import Inside, Wrapper
from assay.envs.wrappers.timing import FrameStack, StackLayer

Given = Sequence[str | Mapping[str, Any]]  # as settings hold them


def snake(name: str) -> str:
    """Return the name of a class as settings write it."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


WRAPPERS: dict[str, type[Wrapper]] = {
    snake(kind.__name__): kind
    for kind in (
        *(observation.Resize, observation.Crop, observation.Grey, observation.Flatten),
        *(observation.Rescale, observation.ClipObs, observation.HideSensors),
        *(observation.Noise, observation.Dropout),
        *(timing.FrameStack, timing.ObsDelay, timing.ActionDelay, timing.StickyActions),
        *(timing.TimeInObs, timing.ActionRepeat, timing.FrameSkip, options.Options),
        *(reward.ClipReward, reward.ScaleReward, reward.SignReward, reward.FlipReward),
    )
}


def read_wrappers(given: Given) -> tuple[Wrapper, ...]:
    """Return wrappers as settings name them: `name`, `{name: value}` or `{name: {key: value}}`.

    Raises:
        ConfigError: A wrapper or one of its settings is unknown, or a value is out of range.

    Example:
        >>> read_wrappers(["sign_reward", {"frame_stack": 4}])
        (SignReward(), FrameStack(key=None, frames=4))
    """
    return tuple(_read(one) for one in given)


def _read(one: str | Mapping[str, Any]) -> Wrapper:
    if isinstance(one, str):
        name, values = one, None
    elif isinstance(one, Mapping) and len(one) == 1:
        ((name, values),) = one.items()
    else:
        raise ConfigError(
            f"'{one}' is not a wrapper.", "Write name, {name: value} or {name: {setting: value}}."
        )
    if name == "time_limit":
        raise ConfigError("There is no wrapper 'time_limit'.", "Set max_episode_steps.")
    if name not in WRAPPERS:
        raise ConfigError(
            f"There is no wrapper '{name}'.",
            f"{nearest(str(name), list(WRAPPERS))} `assay envs wrappers` lists all.",
        )
    kind = WRAPPERS[name]
    if values is not None and not isinstance(values, Mapping):
        own = [field for field in kind.model_fields if field != "key"]
        if not own:
            raise ConfigError(f"The wrapper {name} has no setting for {values}.", "Leave it out.")
        values = {own[0]: values}
    fix = f"For example wrappers=[{example(kind, name)}]; `assay envs wrappers` lists settings."
    return parse(kind, values or {}, what=f"the wrapper {name}", fix=fix)


def innermost(wrappers: Sequence[Wrapper]) -> Inside | None:
    """Return the wrapper that is inside of every copy, if there is one.

    Raises:
        ConfigError: There are two.
    """
    found = [one for one in wrappers if isinstance(one, Inside)]
    if len(found) > 1:
        raise ConfigError(
            f"Two wrappers {' and '.join(sorted({one.does for one in found}))}.",
            "Give one: of repeated actions, with the product of both.",
        )
    return found[0] if found else None


def make_inside(factory: Factory, wrapper: Inside, training: bool) -> gym.Env[Any, Any]:
    """Make an environment with a wrapper inside of it."""
    return wrapper.inside(factory(), training)


def wrap(vector: Vector, wrappers: Sequence[Wrapper], *, training: bool) -> Vector:
    """Return a vector of environments with wrappers around; rewards are changed for training only.

    Raises:
        ConfigError: A wrapper does not fit the observations, or they are those of several agents.
    """
    backend: Any = vector.backend
    for one in wrappers:
        if training or not one.of_rewards:
            backend = one.layer(backend)
    if backend is vector.backend:
        return vector
    changed = backend.observations is not vector.backend.observations
    if changed and vector.spaces.team is not None:
        raise ConfigError(
            f"'{vector.name}' has several agents, whose observations no wrapper changes.",
            "Leave out all but wrappers of rewards.",
        )
    last = wrappers[-1] if wrappers else None
    stack = vector.frame_stack
    if isinstance(backend, StackLayer) and isinstance(last, FrameStack):
        byte_image = backend.box.dtype == np.uint8 and len(backend.box.shape) in (2, 3)
        stack = last.frames if byte_image and backend.observations.bare else None
    elif backend.observations.space != vector.spaces.observation:
        stack = None
    return Vector(backend, vector.name, stack, vector.limit)


def refuse_inside(wrappers: Sequence[Wrapper], name: str) -> None:
    """Refuse a wrapper inside of every copy, for a vector environment given as an object.

    Raises:
        EnvError: There is one.
    """
    found = innermost(wrappers)
    if found is not None:
        raise EnvError(
            f"The vector environment '{name}' steps all copies at once, so that nothing can "
            f"{found.does} in each up to its own end.",
            "Give the environment's id, or a function that makes it.",
        )
