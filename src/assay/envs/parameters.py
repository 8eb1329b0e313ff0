"""Parameters of environments by name: what they are, and setting them.

    parameters(env)                        # {"gravity": 9.8, "masspole": 0.1, ...}
    set_parameters(env, {"gravity": 12.0})

Which names there are: those that an environment declares itself (methods `parameters()` and
`set_parameters(values)`), else its numeric attributes, as Gymnasium's environments have them
(`gravity`, `masspole`), and of MuJoCo's also the fields of the model
(`assay.envs.mujoco_parameters`). The native versions have the names of Gymnasium's attributes, and
one value per copy. Environments that are made for it have arguments of their constructor as well
(`assay.envs.remade`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.envs.one_env_parameters import (
    as_finite,
    declares,
    label,
    picked,
    read_parameters,
    write_parameters,
)
from assay.envs.vector import Vector


def parameters(env: Any, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the parameters of an environment, or of a vector of them: there [num_envs] each.

    Args:
        env: A `Vector`, a `gymnasium.Env`, or a vector environment with `parameters()`.
        names: Which; by default all that have a name of their own.

    Raises:
        EnvError: A name is unknown, or the environment has no parameters.

    Example:
        >>> parameters(gym.make("Pendulum-v1"), ["g", "m"])
        {'g': 10.0, 'm': 1.0}
    """
    if isinstance(env, gym.Env):
        return read_parameters(env, names)
    holder = _holder(env)
    found: dict[str, Any] = holder.parameters()
    if not found:
        raise _without_parameters(env)
    if names is None:
        return found
    if hasattr(holder, "named_parameters"):  # more than are listed
        found = holder.named_parameters(list(names))
    return picked(found, names, label(env))


def set_parameters(env: Any, values: Mapping[str, Any]) -> None:
    """Set parameters of an environment, or of all copies of a vector.

    They hold from the next step on; what a reset computes from them, from the next reset on.

    Args:
        env: What `parameters` takes.
        values: A number for each name; for a vector also one per copy.

    Raises:
        EnvError: A name is unknown, or a value is not a finite number.

    Example:
        >>> env = gym.make("Pendulum-v1")
        >>> set_parameters(env, {"m": 1.2})
        >>> parameters(env, ["m"])
        {'m': 1.2}
    """
    if isinstance(env, gym.Env):
        write_parameters(env, values)
        return
    holder = _holder(env)
    parameters(env, values)  # refuses unknown ones
    holder.set_parameters({name: _column(name, x, env.num_envs) for name, x in values.items()})
    if isinstance(env, Vector):
        env.distrust()


def _holder(env: Any) -> Any:
    holder = env.backend if isinstance(env, Vector) else env
    if not declares(holder):
        raise _without_parameters(env)
    return holder


def _without_parameters(env: Any) -> EnvError:
    return EnvError(
        f"'{label(env)}' has no parameters that can be set by name.",
        "Name arguments of its constructor, as in randomize={env_kwargs.NAME: [low, high]}, or "
        "give the environment methods parameters() and set_parameters(values), or numbers as "
        "attributes; a vector environment may have them with backend=sync.",
    )


def _column(name: str, value: Any, count: int) -> NDArray[np.float64]:
    array = np.asarray(value)
    if array.ndim == 0:
        return np.full(count, as_finite(name, value))
    if array.shape != (count,) or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise EnvError(
            f"The parameter {name} was given {value!r}.",
            f"Give a finite number, or {count} of them, one per copy.",
        )
    return array.astype(np.float64)
