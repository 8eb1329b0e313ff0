"""The spaces of recorded data in place of an environment, for runs that have none."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium as gym
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.types import State, Tree
from assay.envs.spaces import ActionMap, ObservationMap
from assay.envs.vector import Vector

NO_ENV = "none"  # the environment of a run that has none


def recorded_vector(observation: gym.Space[Any], action: gym.Space[Any]) -> Vector:
    """Return a vector that says what observations and actions are, and cannot be stepped."""
    return Vector(_SpacesOnly(observation, action), NO_ENV)


class _SpacesOnly:
    """A backend with spaces and nothing behind them."""

    num_envs = 1
    always_finite = False
    success = None

    def __init__(self, observation: gym.Space[Any], action: gym.Space[Any]) -> None:
        self.observations, self.actions = ObservationMap(observation), ActionMap(action)

    def reset(self, seed: int) -> Tree:
        self._refuse()

    def step(self, actions: NDArray[Any]) -> NoReturn:
        self._refuse()

    def render(self) -> Any:
        self._refuse()

    def get_state(self) -> State | None:
        return None

    def set_state(self, state: State) -> None:
        """Do nothing: there is no state."""

    def first_env(self) -> Any:
        return None

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            "The run has no environment to play in.", "Train it with one: assay train ALGO ENV."
        )
