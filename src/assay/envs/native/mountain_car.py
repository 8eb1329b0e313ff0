"""MountainCar: drive an underpowered car out of a valley.

Moore, "Efficient memory-based learning for robot control" (1990); constants and order of operations
as in Gymnasium's MountainCar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

from assay.envs.native.base import NativeVectorEnv

MIN_POSITION = -1.2
MAX_POSITION = 0.6
MAX_SPEED = 0.07
GOAL_POSITION = 0.5
FORCE = 0.001
GRAVITY = 0.0025

# Arrays without dimensions: a ufunc takes them twice as fast as Python floats.
_THREE, _GRAVITY, _MIN_POSITION, _MAX_POSITION, _MAX_SPEED, _MIN_SPEED, _GOAL, _ZERO = map(
    np.array, (3.0, -GRAVITY, MIN_POSITION, MAX_POSITION, MAX_SPEED, -MAX_SPEED, GOAL_POSITION, 0.0)
)
_FORCE, _SIGNS = np.array(FORCE), np.array([-1.0, 0.0, 1.0])


class MountainCar(NativeVectorEnv):
    """MountainCar-v0.

    State and observation: position and velocity. Reward -1 for every step. Terminates at
    position 0.5 or beyond, unless the car is moving back.
    """

    state_size = 2
    start_low = -0.6
    start_high = -0.4
    start_draws = 1
    physical: ClassVar = {"force": FORCE, "gravity": GRAVITY, "goal_position": GOAL_POSITION}

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 200) -> None:
        low = np.array([MIN_POSITION, -MAX_SPEED], np.float32)
        high = np.array([MAX_POSITION, MAX_SPEED], np.float32)
        super().__init__(num_envs, max_episode_steps, Box(low, high), Discrete(3))
        self._slope = np.empty(num_envs)
        self._minus_ones = np.full(num_envs, -1.0)
        self._force, self._gravity, self._goal = _FORCE, _GRAVITY, _GOAL

    def _use(self, **physical: np.ndarray) -> None:
        self._force, gravity, self._goal = physical.values()
        self._gravity = -gravity

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        states = np.hstack([draws, np.zeros_like(draws)])
        return states, states.astype(np.float32)

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        push = _SIGNS[self._discrete(actions)]
        push *= self._force
        position, velocity = self._state
        slope = np.multiply(position, _THREE, self._slope)
        np.cos(slope, slope)
        slope *= self._gravity
        push += slope
        velocity += push
        np.maximum(velocity, _MIN_SPEED, out=velocity)
        np.minimum(velocity, _MAX_SPEED, out=velocity)
        position += velocity
        np.maximum(position, _MIN_POSITION, out=position)
        np.minimum(position, _MAX_POSITION, out=position)
        at_wall = position == _MIN_POSITION
        if np.count_nonzero(at_wall):
            velocity[at_wall & (velocity < _ZERO)] = 0.0
        terminated = position >= self._goal
        if np.count_nonzero(terminated):
            terminated &= velocity >= _ZERO
        observations = self._state.T.astype(np.float32, order="C")
        return observations, self._minus_ones.copy(), terminated

    def _advance_scalar(self, actions: np.ndarray) -> tuple[Sequence[float], float, bool]:
        action = self._discrete_scalar(actions)
        position, velocity = self._point
        velocity += (action - 1) * FORCE + math.cos(3.0 * position) * -GRAVITY
        velocity = min(max(velocity, -MAX_SPEED), MAX_SPEED)
        position = min(max(position + velocity, MIN_POSITION), MAX_POSITION)
        if position == MIN_POSITION and velocity < 0.0:
            velocity = 0.0
        self._point = [position, velocity]
        return self._point, -1.0, position >= GOAL_POSITION and velocity >= 0.0
