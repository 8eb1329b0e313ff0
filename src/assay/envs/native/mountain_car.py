"""MountainCar: drive an underpowered car out of a valley, by three actions or a continuous force.

Moore, "Efficient memory-based learning for robot control" (1990); constants and order of operations
as in Gymnasium's MountainCar and Continuous_MountainCarEnv. The latter is in mixed precision: the
start is float64, and every state that a step leads to is float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

from assay.envs.native.base import NativeVectorEnv

MIN_POSITION = -1.2
MAX_POSITION = 0.6
MAX_SPEED = 0.07
GOAL_POSITION = 0.5
FORCE = 0.001
GRAVITY = 0.0025
POWER = 0.0015  # and what else only the continuous one has
CONTINUOUS_GOAL = 0.45
ACTION_COST = 0.1
GOAL_REWARD = 100.0

# Arrays without dimensions: a ufunc takes them twice as fast as Python floats.
_THREE, _GRAVITY, _MIN_POSITION, _MAX_POSITION, _MAX_SPEED, _MIN_SPEED, _GOAL, _ZERO = map(
    np.array, (3.0, -GRAVITY, MIN_POSITION, MAX_POSITION, MAX_SPEED, -MAX_SPEED, GOAL_POSITION, 0.0)
)
_FORCE, _SIGNS = np.array(FORCE), np.array([-1.0, 0.0, 1.0])


class _Valley(NativeVectorEnv):
    """What both have in common: the state is position and velocity, and so is the observation."""

    state_size = 2
    start_low = -0.6
    start_high = -0.4
    start_draws = 1

    def __init__(self, num_envs: int, max_episode_steps: int, actions: Discrete | Box) -> None:
        low = np.array([MIN_POSITION, -MAX_SPEED], np.float32)
        high = np.array([MAX_POSITION, MAX_SPEED], np.float32)
        super().__init__(num_envs, max_episode_steps, Box(low, high), actions)

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        states = np.hstack([draws, np.zeros_like(draws)])
        return states, states.astype(np.float32)


class MountainCar(_Valley):
    """MountainCar-v0.

    State and observation: position and velocity. Reward -1 for every step. Terminates at
    position 0.5 or beyond, unless the car is moving back.
    """

    physical: ClassVar = {"force": FORCE, "gravity": GRAVITY, "goal_position": GOAL_POSITION}

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 200) -> None:
        super().__init__(num_envs, max_episode_steps, Discrete(3))
        self._slope = np.empty(num_envs)
        self._minus_ones = np.full(num_envs, -1.0)
        self._force, self._gravity, self._goal = _FORCE, _GRAVITY, _GOAL

    def _use(self, **physical: np.ndarray) -> None:
        self._force, gravity, self._goal = physical.values()
        self._gravity = -gravity

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


class _Constants:
    """The constants in one precision, as arrays without dimensions (fastest in ufuncs)."""

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        self.three, self.min_position, self.max_position, self.max_speed, self.goal, self.zero = (
            np.array(x, dtype)
            for x in (3.0, MIN_POSITION, MAX_POSITION, MAX_SPEED, CONTINUOUS_GOAL, 0.0)
        )
        self.min_speed = np.array(-MAX_SPEED, dtype)


_SINGLE = _Constants(np.float32)
_DOUBLE = _Constants(np.float64)
_ONE = np.array(1.0, np.float32)
_POWER = np.array(POWER)
_SLOPE, _ACTION_COST, _GOAL_REWARD = map(np.array, (GRAVITY, ACTION_COST, GOAL_REWARD))


def _drive(
    state: np.ndarray, action: np.ndarray, constants: _Constants, power: np.ndarray
) -> np.ndarray:
    """Move cars in place, in the precision of their state, and return which reached the goal."""
    position, velocity = state
    slope = np.cos((position * constants.three).astype(np.float64, copy=False))
    slope *= _SLOPE
    push = action * power.astype(np.float32)
    push -= slope.astype(np.float32)
    clipped = np.abs(action) > _ONE
    if np.count_nonzero(clipped):
        # The bound that replaces the action is a Python float, so the push stays float64 ...
        push = np.where(clipped, np.copysign(power, action) - slope, push)
    # ... until it meets the velocity.
    velocity += push.astype(velocity.dtype, copy=False)
    np.maximum(velocity, constants.min_speed, out=velocity)
    np.minimum(velocity, constants.max_speed, out=velocity)
    position += velocity
    np.minimum(position, constants.max_position, out=position)
    np.maximum(position, constants.min_position, out=position)
    at_wall = position == constants.min_position
    if np.count_nonzero(at_wall):
        velocity[at_wall & (velocity < constants.zero)] = 0.0
    arrived = position >= constants.goal
    if np.count_nonzero(arrived):
        arrived &= velocity >= constants.zero
    return arrived


class MountainCarContinuous(_Valley):
    """MountainCarContinuous-v0.

    State and observation: position and velocity. Reward -0.1 action^2, and 100 on arrival.
    Terminates at position 0.45 or beyond, unless the car is moving back.
    """

    physical: ClassVar = {"power": POWER}

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 999) -> None:
        super().__init__(num_envs, max_episode_steps, Box(-1.0, 1.0, (1,), np.float32))
        self._power = _POWER
        self._fresh = np.arange(0)  # rows that are at their start, and so in float64

    def _use(self, **physical: np.ndarray) -> None:
        self._power = physical["power"]

    def _enter(self, states: np.ndarray, elapsed: np.ndarray) -> None:
        super()._enter(states, elapsed)
        self._fresh = np.flatnonzero(elapsed == 0)

    def _restart(self, rows: np.ndarray, observations: np.ndarray) -> None:
        super()._restart(rows, observations)
        self._fresh = rows

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        action = self._continuous(actions)[:, 0]
        state = self._state.astype(np.float32)
        terminated = _drive(state, action, _SINGLE, self._power)
        fresh = self._fresh
        if fresh.size:
            exact = self._state[:, fresh]
            power = np.broadcast_to(self._power, self.num_envs)[fresh]
            terminated[fresh] = _drive(exact, action[fresh], _DOUBLE, power)
            state[:, fresh] = exact
            self._fresh = fresh[:0]
        self._state[:] = state

        cost = action.astype(np.float64)
        cost *= cost
        cost *= _ACTION_COST
        rewards = terminated * _GOAL_REWARD
        rewards -= cost
        return np.ascontiguousarray(state.T), rewards, terminated

    def _advance_scalar(self, actions: np.ndarray) -> tuple[Sequence[float], float, bool]:
        action = self._continuous_scalar(actions)
        # NumPy scalars round like Gymnasium's: a Python float takes the precision of the other
        # operand.
        precision = np.float64 if self._fresh.size else np.float32
        self._fresh = self._fresh[:0]
        position: Any = precision(self._point[0])
        velocity: Any = precision(self._point[1])
        slope = GRAVITY * math.cos(3 * position)
        if abs(action) > 1.0:
            velocity += math.copysign(POWER, action) - slope
        else:
            velocity += action * POWER - slope
        velocity = min(max(velocity, -MAX_SPEED), MAX_SPEED)
        position = min(max(position + velocity, MIN_POSITION), MAX_POSITION)
        if position == MIN_POSITION and velocity < 0.0:
            velocity = 0.0
        terminated = bool(position >= CONTINUOUS_GOAL and velocity >= 0.0)
        self._point = [float(np.float32(position)), float(np.float32(velocity))]
        reward = (GOAL_REWARD if terminated else 0.0) - float(action) ** 2 * ACTION_COST
        return self._point, reward, terminated
