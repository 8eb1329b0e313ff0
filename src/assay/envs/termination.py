"""Which states end an episode, for environments whose rule is known.

A model of an environment predicts observations; with the rule it need not learn how episodes end.
An environment may bring its own rule: the method `terminates(obs)`, observations [B, ...] -> bools
[B]. The rules below are those of Gymnasium's environments with their default settings. A rule is
about the observations of the environment that has it: where a wrapper changes these, only a rule
that the wrapper brings itself is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.core.types import Termination
from assay.envs.env_errors import env_failure

METHOD = "terminates"
Rule = Callable[[NDArray[Any]], NDArray[np.bool_]]


def _never(obs: NDArray[Any]) -> NDArray[np.bool_]:
    return np.zeros(len(obs), np.bool_)


def _hopper(obs: NDArray[Any]) -> NDArray[np.bool_]:
    fine = (obs[:, 0] > 0.7) & (np.abs(obs[:, 1]) < 0.2)  # height and angle of the torso
    return ~(fine & (np.abs(obs[:, 1:]) < 100.0).all(1))


def _walker(obs: NDArray[Any]) -> NDArray[np.bool_]:
    return ~((obs[:, 0] > 0.8) & (obs[:, 0] < 2.0) & (np.abs(obs[:, 1]) < 1.0))


def _ant(obs: NDArray[Any]) -> NDArray[np.bool_]:
    return ~((obs[:, 0] >= 0.2) & (obs[:, 0] <= 1.0) & np.isfinite(obs).all(1))


def _humanoid(obs: NDArray[Any]) -> NDArray[np.bool_]:
    return ~((obs[:, 0] > 1.0) & (obs[:, 0] < 2.0))


def _inverted_pendulum(obs: NDArray[Any]) -> NDArray[np.bool_]:
    return ~((np.abs(obs[:, 1]) <= 0.2) & np.isfinite(obs).all(1))


def _inverted_double_pendulum(obs: NDArray[Any]) -> NDArray[np.bool_]:
    # The height of the tip above two poles of 0.6, from sines and cosines of both angles.
    (sin1, sin2), (cos1, cos2) = obs[:, 1:3].T, obs[:, 3:5].T
    return ~(0.6 * (cos1 + cos1 * cos2 - sin1 * sin2) > 1.0)


def _cart_pole(obs: NDArray[Any]) -> NDArray[np.bool_]:
    return ~((np.abs(obs[:, 0]) <= 2.4) & (np.abs(obs[:, 2]) <= np.radians(12.0)))


def _mountain_car(obs: NDArray[Any]) -> NDArray[np.bool_]:
    return (obs[:, 0] >= 0.45) & (obs[:, 1] >= 0.0)


# By the id without its version.
_RULES: dict[str, Rule] = {
    "Pendulum": _never,
    "HalfCheetah": _never,
    "Reacher": _never,
    "Pusher": _never,
    "Swimmer": _never,
    "HumanoidStandup": _never,
    "Hopper": _hopper,
    "Walker2d": _walker,
    "Ant": _ant,
    "Humanoid": _humanoid,
    "InvertedPendulum": _inverted_pendulum,
    "InvertedDoublePendulum": _inverted_double_pendulum,
    "CartPole": _cart_pole,
    "MountainCarContinuous": _mountain_car,
}


def named_rule(env_id: str) -> Termination | None:
    """Return the rule of one of Gymnasium's ids, or None."""
    return _RULES.get(env_id.rpartition("-v")[0])


def own_rule(env: Any) -> Termination | None:
    """Return the rule that an environment brings, or None if it has none or is None.

    A rule inside of a wrapper that changes observations is not used, with a warning.

    Raises:
        EnvError: It fails, or gives another answer than a bool for each observation.
    """
    if hasattr(env, "has_wrapper_attr"):  # a wrapper may have it
        own = env.get_wrapper_attr(METHOD) if env.has_wrapper_attr(METHOD) else None
    else:
        own = getattr(env, METHOD, None)
    if not callable(own):
        return None
    changed = _changed_outside(env)
    if changed is not None:
        warnings.warn(
            f"{METHOD}(obs) of the environment is not used: the wrapper {type(changed).__name__} "
            f"changes the observations that it is about. Give {type(changed).__name__} a method "
            f"{METHOD}(obs) for the observations that it returns.",
            stacklevel=2,
        )
        return None
    rule = partial(_asked, own)
    space = env.observation_space
    if isinstance(space, gym.spaces.Box):  # once now, rather than in the middle of a run
        rule(np.zeros((space.shape[0] + 1 if space.shape else 2, *space.shape), np.float32))
    return rule


def _changed_outside(env: Any) -> gym.Wrapper[Any, Any, Any, Any] | None:
    """Return a wrapper that changes observations around what has the rule, or None."""
    while isinstance(env, gym.Wrapper) and not hasattr(env, METHOD):
        shown = isinstance(env, gym.ObservationWrapper)
        if shown and not isinstance(env, gym.wrappers.DtypeObservation):
            return env
        if not shown and env.observation_space != env.env.observation_space:
            return env
        env = env.env
    return None


def _asked(own: Rule, obs: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the answer of an environment's own rule."""
    try:
        answer = np.asarray(own(obs), np.bool_)
    except Exception as error:
        raise env_failure(error, f"The environment failed in {METHOD}()") from error
    if answer.shape != (len(obs),):
        raise EnvError(
            f"{METHOD}(obs) of the environment returned the shape {answer.shape} for {len(obs)} "
            f"observations [{', '.join(map(str, obs.shape))}]; expected ({len(obs)},).",
            "Return a bool for each row of obs.",
        )
    return answer
