"""Pendulum: swing a pendulum up and hold it there with a limited torque.

Constants, integration and order of operations as in Gymnasium's Pendulum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box

from assay.core.errors import EnvError
from assay.envs.native.base import Bound, NativeVectorEnv, libm_squares

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
DT = 0.05
GRAVITY_GAIN = 15.0  # 3 g / (2 l)
TORQUE_GAIN = 3.0  # 3 / (m l^2)
SPEED_COST = 0.1
TORQUE_COST = 0.001
MAX_START = np.array([np.pi, 1.0])

# Arrays without dimensions: a ufunc takes them twice as fast as Python floats. Gymnasium's torque
# is a float32 scalar, and its products with Python floats are float32 as well.
_DT, _GRAVITY_GAIN, _MAX_SPEED, _MIN_SPEED, _PI, _TWO_PI, _SPEED_COST = map(
    np.array, (DT, GRAVITY_GAIN, MAX_SPEED, -MAX_SPEED, np.pi, 2 * np.pi, SPEED_COST)
)
_TORQUE_GAIN, _MAX_TORQUE, _MIN_TORQUE, _TORQUE_COST = (
    np.array(x, np.float32) for x in (TORQUE_GAIN, MAX_TORQUE, -MAX_TORQUE, TORQUE_COST)
)


class Pendulum(NativeVectorEnv):
    """Pendulum-v1.

    State: angle theta (0 is upright) and its velocity. Observation: cos theta, sin theta, velocity.
    Reward -(theta^2 + 0.1 velocity^2 + 0.001 torque^2). Never terminates.
    """

    state_size = 2
    start_low = -MAX_START
    start_high = MAX_START
    start_draws = 2
    physical: ClassVar = {"g": 10.0, "m": 1.0, "l": 1.0, "dt": DT, "max_torque": MAX_TORQUE}

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 200) -> None:
        high = np.array([1.0, 1.0, MAX_SPEED], np.float32)
        action_space = Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)
        super().__init__(num_envs, max_episode_steps, Box(-high, high), action_space)
        self._work = np.empty((2, num_envs))
        self._rate = np.empty(num_envs)
        self._dt, self._gravity_gain, self._torque_gain = _DT, _GRAVITY_GAIN, _TORQUE_GAIN
        self._max_torque, self._min_torque = _MAX_TORQUE, _MIN_TORQUE

    def _use(self, **physical: np.ndarray) -> None:
        g, m, l, self._dt, limit = physical.values()  # noqa: E741 (Gymnasium's names)
        self._gravity_gain = 3 * g / (2 * l)
        libm_squares(l, squares := np.empty_like(l))
        self._torque_gain = (3.0 / (m * squares)).astype(np.float32)
        self._max_torque = limit.astype(np.float32)
        self._min_torque = -self._max_torque

    def _start_bounds(self, options: dict[str, Any]) -> tuple[Bound, Bound]:
        x, y = self._numbers(options, x_init=MAX_START[0], y_init=MAX_START[1])
        if min(x, y) < 0.0:
            raise EnvError(f"The reset options x_init={x} and y_init={y} must not be negative.")
        high = np.array([x, y])
        return -high, high

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return draws, self._observe(*draws.T)

    @staticmethod
    def _observe(theta: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        observations = np.empty((len(theta), 3), np.float32)
        observations[:, 0] = np.cos(theta)
        observations[:, 1] = np.sin(theta)
        observations[:, 2] = velocity
        return observations

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        torque = np.maximum(self._continuous(actions)[:, 0], self._min_torque)
        np.minimum(torque, self._max_torque, out=torque)
        theta, velocity = self._state

        # The angle is normalised to [-pi, pi).
        angle = np.add(theta, _PI, self._work[0])
        np.remainder(angle, _TWO_PI, angle)
        angle -= _PI
        self._work[1] = velocity
        rewards, speed_cost = squares = np.empty((2, self.num_envs))
        libm_squares(self._work, squares)
        speed_cost *= _SPEED_COST
        rewards += speed_cost
        torque_cost = np.fromiter([u**2 for u in torque], np.float32, self.num_envs)
        torque_cost *= _TORQUE_COST
        rewards += torque_cost
        np.negative(rewards, rewards)

        # velocity += (3 g / 2l sin theta + 3 / ml^2 torque) dt;  theta += velocity dt
        rate = np.sin(theta, self._rate)
        rate *= self._gravity_gain
        torque *= self._torque_gain
        rate += torque
        rate *= self._dt
        velocity += rate
        np.maximum(velocity, _MIN_SPEED, out=velocity)
        np.minimum(velocity, _MAX_SPEED, out=velocity)
        np.multiply(velocity, self._dt, rate)
        theta += rate
        return self._observe(theta, velocity), rewards, self._nowhere.copy()

    def _advance_scalar(self, actions: np.ndarray) -> tuple[Sequence[float], float, bool]:
        torque = self._continuous_scalar(actions)
        if torque > MAX_TORQUE:
            torque = np.float32(MAX_TORQUE)
        elif torque < -MAX_TORQUE:
            torque = np.float32(-MAX_TORQUE)
        theta, velocity = self._point
        angle = (theta + math.pi) % (2 * math.pi) - math.pi
        cost = angle**2 + SPEED_COST * velocity**2 + float(TORQUE_COST * torque**2)
        velocity += (GRAVITY_GAIN * math.sin(theta) + float(TORQUE_GAIN * torque)) * DT
        velocity = min(max(velocity, -MAX_SPEED), MAX_SPEED)
        theta += velocity * DT
        self._point = [theta, velocity]
        return (math.cos(theta), math.sin(theta), velocity), -cost, False
