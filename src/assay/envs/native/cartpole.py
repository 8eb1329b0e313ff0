"""CartPole: keep a pole upright on a cart that is pushed left or right.

Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control
problems" (1983); constants, Euler integration and order of operations as in Gymnasium's CartPole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

from assay.envs.native.base import NativeVectorEnv

GRAVITY = 9.8
MASS_POLE = 0.1
MASS_CART = 1.0
MASS_TOTAL = MASS_POLE + MASS_CART
HALF_LENGTH = 0.5
POLE_MOMENT = MASS_POLE * HALF_LENGTH
FORCE = 10.0
TAU = 0.02
X_LIMIT = 2.4
THETA_LIMIT = 12 * 2 * math.pi / 360

# The same as arrays without dimensions: a ufunc takes them twice as fast as Python floats.
_GRAVITY, _MASS_TOTAL, _HALF_LENGTH, _POLE_MOMENT, _TAU, _FORCE, _FOUR_THIRDS = map(
    np.array, (GRAVITY, MASS_TOTAL, HALF_LENGTH, POLE_MOMENT, TAU, FORCE, 4.0 / 3.0)
)
_SIGNS = np.array([-1.0, 1.0])


class CartPole(NativeVectorEnv):
    """CartPole-v1, or v0 with `max_episode_steps=200`.

    State: cart position x, pole angle theta, and the velocities of both. Observation: x and its
    velocity, theta and its velocity. Reward 1 for every step. Terminates when |x| > 2.4 or
    |theta| > 12 degrees.
    """

    state_size = 4
    start_low = -0.05
    start_high = 0.05
    start_draws = 4
    physical: ClassVar = {
        "gravity": GRAVITY,
        "masscart": MASS_CART,
        "masspole": MASS_POLE,
        "length": HALF_LENGTH,
        "force_mag": FORCE,
        "tau": TAU,
    }

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 500) -> None:
        high = np.array([X_LIMIT * 2, np.inf, THETA_LIMIT * 2, np.inf], np.float32)
        super().__init__(num_envs, max_episode_steps, Box(-high, high), Discrete(2))
        self._limits = np.array([[X_LIMIT], [THETA_LIMIT]]).repeat(num_envs, axis=1)
        self._weights = np.array([[POLE_MOMENT], [MASS_POLE]]).repeat(num_envs, axis=1)
        self._ones = np.ones(num_envs)
        self._gravity, self._total, self._length = _GRAVITY, _MASS_TOTAL, _HALF_LENGTH
        self._moment, self._force, self._tau = _POLE_MOMENT, _FORCE, _TAU
        # Work space, and views of it, made once because each costs a tenth of a microsecond.
        self._pair = np.empty((2, num_envs))
        self._trig = np.empty((2, num_envs))
        self._rates = np.empty((4, num_envs))  # d state / dt
        self._beyond = np.empty((2, num_envs), np.bool_)
        self._views = (
            (self._state[:2], self._state[2:], self._state[1], self._state[3]),
            (self._rates[:2], self._rates[2], self._rates[3]),
            (*self._pair, *self._trig, *self._beyond),
            # [n, cart or pole, position or velocity]: the order of the observation
            self._state.reshape(2, 2, num_envs).transpose(2, 1, 0),
        )

    def _use(self, **physical: np.ndarray) -> None:
        self._gravity, cart, pole, self._length, self._force, self._tau = physical.values()
        self._total, self._moment = pole + cart, pole * self._length
        self._weights = np.array([self._moment, pole])

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return draws[:, [0, 2, 1, 3]], draws.astype(np.float32)

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        force = _SIGNS[self._discrete(actions)]
        force *= self._force
        state, rates, pair = self._state, self._rates, self._pair
        (
            (positions, velocities, theta, theta_dot),
            (rates_of_positions, x_acc, theta_acc),
            (temp, inertia, cos, sin, x_beyond, theta_beyond),
            observed,
        ) = self._views
        np.cos(theta, cos)
        np.sin(theta, sin)

        # temp = (force + m l theta_dot^2 sin) / M, and inertia = m cos^2 / M in the same operation
        np.square(theta_dot, temp)
        np.square(cos, inertia)
        np.multiply(pair, self._weights, pair)
        np.multiply(temp, sin, temp)
        np.add(temp, force, temp)
        np.divide(pair, self._total, pair)
        # theta_acc = (g sin - cos temp) / (l (4/3 - inertia))
        np.subtract(_FOUR_THIRDS, inertia, inertia)
        np.multiply(inertia, self._length, inertia)
        np.multiply(sin, self._gravity, sin)
        np.multiply(cos, temp, theta_acc)
        np.subtract(sin, theta_acc, theta_acc)
        np.divide(theta_acc, inertia, theta_acc)
        # x_acc = temp - m l theta_acc cos / M
        np.multiply(theta_acc, self._moment, x_acc)
        np.multiply(x_acc, cos, x_acc)
        np.divide(x_acc, self._total, x_acc)
        np.subtract(temp, x_acc, x_acc)

        rates_of_positions[:] = velocities
        np.multiply(rates, self._tau, rates)
        np.add(state, rates, state)

        np.abs(positions, pair)
        np.greater(pair, self._limits, self._beyond)
        terminated = np.logical_or(x_beyond, theta_beyond)
        observations = observed.astype(np.float32, order="C").reshape(self.num_envs, 4)
        return observations, self._ones.copy(), terminated

    def _advance_scalar(self, actions: np.ndarray) -> tuple[Sequence[float], float, bool]:
        force = FORCE if self._discrete_scalar(actions) else -FORCE
        x, theta, x_dot, theta_dot = self._point
        cos = math.cos(theta)
        sin = math.sin(theta)
        temp = (force + POLE_MOMENT * (theta_dot * theta_dot) * sin) / MASS_TOTAL
        theta_acc = (GRAVITY * sin - cos * temp) / (
            HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * (cos * cos) / MASS_TOTAL)
        )
        x_acc = temp - POLE_MOMENT * theta_acc * cos / MASS_TOTAL
        x += TAU * x_dot
        theta += TAU * theta_dot
        x_dot += TAU * x_acc
        theta_dot += TAU * theta_acc
        self._point = [x, theta, x_dot, theta_dot]
        terminated = abs(x) > X_LIMIT or abs(theta) > THETA_LIMIT
        return (x, x_dot, theta, theta_dot), 1.0, terminated
