"""Reading and setting parameters of a single environment by name; `parameters` says which."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.errors import EnvError, nearest
from assay.envs.env_snapshot import changing_attributes
from assay.envs.mujoco_parameters import fields_of
from assay.envs.remade import remade_of
from assay.envs.teams import JointEnv
from assay.envs.tuple_agents import TupleAgents

_PICTURE = ("screen", "width", "height", "render", "camera")  # what such names begin with
# Attributes of CartPole that are computed from others, once, when it is made.
_DERIVED = ("total_mass", "polemass_length")


def read_parameters(env: gym.Env[Any, Any], names: Iterable[str] | None = None) -> dict[str, float]:
    """Return parameters of an environment; by default all that are listed.

    Raises:
        EnvError: A name is unknown.
    """
    inner = _innermost(env)
    remade = remade_of(env)
    found = {} if remade is None else remade.arguments()
    if declares(inner):
        found |= {name: float(value) for name, value in inner.parameters().items()}
        return found if names is None else picked(found, names, label(env))
    found |= {name: float(value) for name, value in _attributes(inner).items()}
    fields = fields_of(inner)
    if names is None:
        return found if fields is None else found | fields.listed()
    wanted = list(names)
    if fields is not None:
        found |= {name: fields.get(name) for name in wanted if fields.has(name)}
        for name in wanted:
            if name not in found:
                hint = nearest(name, {*found, *fields.names()})
                raise EnvError(
                    f"'{label(env)}' has no attribute '{name}', nor its MuJoCo model such a field.",
                    hint
                    if hint.startswith("Did")
                    else f"`assay envs parameters {label(env)}` lists the usual ones.",
                )
    return picked(found, wanted, label(env))


def write_parameters(env: gym.Env[Any, Any], values: Mapping[str, Any]) -> None:
    """Set parameters of an environment.

    Raises:
        EnvError: A name is unknown, or a value is not a finite number.
    """
    numbers = {name: as_finite(name, value) for name, value in values.items()}
    read_parameters(env, numbers)  # refuses unknown ones
    remade = remade_of(env)
    if remade is not None:
        arguments = {name: numbers.pop(name) for name in remade.arguments() if name in numbers}
        remade.remake(arguments)
    inner = _innermost(env)
    if declares(inner):
        inner.set_parameters(numbers)
        return
    attributes, fields = _attributes(inner), fields_of(inner)
    for name in numbers.keys() & attributes.keys():
        is_int = isinstance(attributes[name], int) and numbers[name].is_integer()
        setattr(inner, name, int(numbers[name]) if is_int else numbers[name])
    if fields is not None:
        fields.set({name: x for name, x in numbers.items() if name not in attributes})
    if all(hasattr(inner, name) for name in _DERIVED):
        inner.total_mass = inner.masspole + inner.masscart
        inner.polemass_length = inner.masspole * inner.length


def declares(thing: Any) -> bool:
    """Return whether something has methods by which its parameters are read and set."""
    return callable(getattr(thing, "parameters", None)) and hasattr(thing, "set_parameters")


def picked(found: Mapping[str, Any], names: Iterable[str], label: str) -> dict[str, Any]:
    """Return some of the parameters that were found.

    Raises:
        EnvError: One was not.
    """
    for name in names:
        if name not in found:
            raise EnvError(f"'{label}' has no parameter '{name}'.", nearest(name, found))
    return {name: found[name] for name in names}


def label(env: Any) -> str:
    """Return what an environment is called in messages."""
    spec = getattr(env, "spec", None)
    return getattr(env, "name", None) or (type(env).__name__ if spec is None else spec.id)


def as_finite(name: str, value: Any) -> float:
    """Return a value of a parameter as a float.

    Raises:
        EnvError: It is not a finite number.
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise EnvError(f"The parameter {name} cannot be {value!r}.", "Give a finite number.")
    return float(value)


def _innermost(env: gym.Env[Any, Any]) -> Any:
    """Return the environment itself, also of one that was given an agent axis."""
    inner: Any = env.unwrapped
    while isinstance(inner, JointEnv | TupleAgents):
        own: Any = getattr(inner, "env", None)
        inner = getattr(own, "unwrapped", own)
    return inner


def _attributes(inner: Any) -> dict[str, Any]:
    """Return the numbers among an environment's attributes that stay the same in an episode."""
    found: dict[str, Any] = {}
    for base in reversed(type(inner).__mro__):
        if issubclass(base, gym.Env) and base is not gym.Env:
            found |= vars(base)
    found |= vars(inner)
    changing = (*changing_attributes(inner), *_DERIVED)
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, Real) and not isinstance(value, bool | np.bool_)
        if not name.startswith("_") and name not in changing
        if not name.lower().startswith(_PICTURE)
    }
