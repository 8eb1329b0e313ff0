"""Rewards and terminations of a goal environment for goals other than its own.

The interface is that of gymnasium-robotics: `compute_reward(achieved_goal, desired_goal, info)` and
`compute_terminated(achieved_goal, desired_goal, info)`. `info` is an empty dict here, because no
replay stores the infos of the past: both must depend on the two goals alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.envs.env_errors import env_failure
from assay.envs.spaces import ObservationMap

_ACHIEVED, _DESIRED = "achieved_goal", "desired_goal"
_PROBES = 8


class GoalFunctions:
    """Rewards and terminations for batches of canonical goals.

    Each function is called with a whole batch if, on goals drawn from its space, the result equals
    one call per row; otherwise row by row.

    Args:
        env: An environment with the two methods, or None if there is none.
        observations: How its observations become canonical.
        name: Its name in messages.

    Raises:
        EnvError: A method is missing or fails.
    """

    def __init__(self, env: Any, observations: ObservationMap, name: str) -> None:
        self.name = name
        leaves = {leaf.key: leaf for leaf in observations.leaves}
        for key in (_ACHIEVED, _DESIRED):
            if key not in leaves:
                raise EnvError(
                    f"The observations of '{name}' have no entry '{key}', which her needs.",
                    "Use a goal environment: a Dict of observation, achieved_goal, desired_goal.",
                )
        if env is None:
            raise EnvError(
                f"'{name}' is a vector environment that gives no access to its environments, so "
                "her cannot compute rewards for other goals.",
                "Give the environment's id or a function that makes one environment, or give the "
                "vector environment the methods compute_reward and compute_terminated.",
            )
        self._achieved, self._desired = leaves[_ACHIEVED], leaves[_DESIRED]
        self._reward = self._require(env, "compute_reward", "in the environment.")
        self._terminated = self._require(
            env,
            "compute_terminated",
            "in the environment; it returns False if goals do not end episodes.",
        )
        achieved, desired = self._probes()
        self._whole = tuple(
            self._takes_batches(function, achieved, desired)
            for function in (self._reward, self._terminated)
        )

    def __call__(
        self, achieved: NDArray[Any], desired: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return reward [B] and terminated [B] for achieved and desired goals."""
        raw = self._achieved.restore(achieved), self._desired.restore(desired)
        reward = self._call(self._reward, self._whole[0], *raw)
        terminated = self._call(self._terminated, self._whole[1], *raw)
        return reward, terminated.astype(np.bool_)

    def _require(self, env: Any, name: str, fix: str) -> Callable[..., Any]:
        if hasattr(env, "has_wrapper_attr"):  # a wrapper may override it
            function = env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
        else:
            function = getattr(env, name, None)
        if not callable(function):
            raise EnvError(
                f"'{self.name}' has no {name}(achieved_goal, desired_goal, info), which her needs "
                "to relabel a transition with another goal.",
                f"Define {name} {fix} Or train without it: her=null.",
            )
        return function

    def _call(
        self, function: Callable[..., Any], whole: bool, achieved: Any, desired: Any
    ) -> NDArray[np.float64]:
        try:
            if whole:
                reported = np.asarray(function(achieved, desired, {}), np.float64)
                return np.broadcast_to(reported, (len(achieved),))
            rows = [function(a, d, {}) for a, d in zip(achieved, desired, strict=True)]
            return np.array([float(np.asarray(row).item()) for row in rows], np.float64)
        except Exception as error:
            doing = f"'{self.name}' failed in {function.__name__}() for goals of the replay"
            raise env_failure(error, doing) from error

    def _probes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return pairs of goals of the space, of which every second pair is equal."""
        space = copy.deepcopy(self._desired.source)
        space.seed(0)
        desired = np.stack([np.asarray(space.sample()) for _ in range(_PROBES)])
        achieved = np.roll(desired, 1, axis=0)
        achieved[::2] = desired[::2]
        return achieved, desired

    def _takes_batches(self, function: Callable[..., Any], achieved: Any, desired: Any) -> bool:
        single = self._call(function, False, achieved, desired)
        try:
            batch = np.asarray(function(achieved, desired, {}), np.float64)
        except Exception:  # it was not written for batches
            return False
        # One answer for all of them (an environment that never terminates) counts as a batch.
        return batch.shape in ((), single.shape) and bool((batch == single).all())
