"""Acrobot: swing a two-link chain up by a torque on the joint between the links.

Sutton, "Generalization in reinforcement learning" (1996), with the equations of Sutton and Barto's
book; constants, fourth-order Runge-Kutta and order of operations as in Gymnasium's Acrobot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

from assay.envs.native.base import NativeVectorEnv, libm_squares

DT = 0.2
MAX_SPEEDS = (4 * math.pi, 9 * math.pi)
TORQUES = (-1.0, 0.0, 1.0)
# With links of length and mass 1, centres of mass at 0.5 and moments of inertia 1.
GRAVITY_1 = 1.5 * 9.8  # (m1 lc1 + m2 l1) g
GRAVITY_2 = 0.5 * 9.8  # m2 lc2 g

# Arrays without dimensions: a ufunc takes them twice as fast as Python floats.
_HALF, _MINUS_HALF, _QUARTER, _ONE, _FIVE_QUARTERS, _TWO = map(
    np.array, (0.5, -0.5, 0.25, 1.0, 1.25, 2.0)
)
_PI, _MINUS_PI, _TWO_PI = map(np.array, (math.pi, -math.pi, 2 * math.pi))
_HALF_STEP, _STEP, _SIXTH_STEP = map(np.array, (DT / 2.0, DT, DT / 6.0))
_TORQUES = np.array(TORQUES)


def _rates_scalar(state: Sequence[float], torque: float) -> tuple[float, float, float, float]:
    """Return the time derivative of one state. `**` and not a product: see `base`."""
    theta1, theta2, speed1, speed2 = state
    cos2 = math.cos(theta2)
    sin2 = math.sin(theta2)
    d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0
    d2 = 0.25 + 0.5 * cos2 + 1.0
    phi2 = GRAVITY_2 * math.cos(theta1 + theta2 - math.pi / 2.0)
    phi1 = (
        -0.5 * speed2**2 * sin2
        - speed2 * speed1 * sin2
        + GRAVITY_1 * math.cos(theta1 - math.pi / 2.0)
        + phi2
    )
    acc2 = (torque + d2 / d1 * phi1 - 0.5 * speed1**2 * sin2 - phi2) / (1.25 - d2**2 / d1)
    return speed1, speed2, -(d2 * acc2 + phi1) / d1, acc2


def _square(x: np.ndarray) -> np.ndarray:
    """Return squares as of Python floats."""
    x = np.ascontiguousarray(x)
    libm_squares(x, squares := np.empty_like(x))
    return squares


def _wrap_scalar(angle: float) -> float:
    """Wrap an angle to [-pi, pi]."""
    while angle > math.pi:
        angle -= 2 * math.pi
    while angle < -math.pi:
        angle += 2 * math.pi
    return angle


class Acrobot(NativeVectorEnv):
    """Acrobot-v1.

    State: angles theta1 (0 hangs down) and theta2 (relative to the first link), and their speeds.
    Observation: cos and sin of theta1, cos and sin of theta2, and the speeds. Reward -1 for every
    step but the last. Terminates when the free end is one link above the fixed one.
    """

    state_size = 4
    start_low = -0.1
    start_high = 0.1
    start_draws = 4
    physical: ClassVar = {
        "LINK_LENGTH_1": 1.0,
        "LINK_MASS_1": 1.0,
        "LINK_MASS_2": 1.0,
        "LINK_COM_POS_1": 0.5,
        "LINK_COM_POS_2": 0.5,
        "LINK_MOI": 1.0,
        "dt": DT,
    }

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 500) -> None:
        high = np.array([1.0, 1.0, 1.0, 1.0, *MAX_SPEEDS], np.float32)
        super().__init__(num_envs, max_episode_steps, Box(-high, high), Discrete(3))

        def column(*values: float) -> np.ndarray:
            return np.array(values)[:, None].repeat(num_envs, axis=1)

        self._max_speeds = column(*MAX_SPEEDS)
        self._min_speeds = -self._max_speeds
        self._offsets = column(math.pi / 2, math.pi / 2, 0.0)
        self._gravity = column(GRAVITY_2, GRAVITY_1)
        self._stages = stages = np.empty((4, 4, num_envs))  # Runge-Kutta's k1 to k4
        self._midpoint = np.empty((4, num_envs))
        self._angles = angles = np.empty((3, num_envs))
        self._d = d = np.empty((2, num_envs))
        self._bases = bases = np.empty((3, num_envs))
        self._squares = squares = np.empty((3, num_envs))
        # Views, made once because each costs a tenth of a microsecond: of the state that each
        # Runge-Kutta stage reads and the rates it writes, and of the work space.
        looked_at = (self._state, self._midpoint, self._midpoint, self._midpoint)
        self._stage_views = [
            (*y, y[:2], y[2:], k[:2], k[2], k[3]) for y, k in zip(looked_at, stages, strict=True)
        ]
        self._views = (*angles, angles[1:], angles[:2], *d, bases[:2], bases[2], *squares)
        self._sin2 = np.empty(num_envs)
        self._product = np.empty(num_envs)
        self._half_step, self._step, self._sixth_step = _HALF_STEP, _STEP, _SIXTH_STEP
        self._links: tuple[np.ndarray, ...] = ()  # if they are not the usual ones

    def _use(self, **physical: np.ndarray) -> None:
        *links, dt = physical.values()
        self._links = tuple(links)
        self._half_step, self._step, self._sixth_step = dt / 2.0, dt, dt / 6.0

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Gymnasium's start is float32, and so are the sines and cosines of its observation.
        states = draws.astype(np.float32)
        return states.astype(np.float64), self._observe(states.T, np.cos(states.T[:2]))

    @staticmethod
    def _observe(state: np.ndarray, cosines: np.ndarray) -> np.ndarray:
        """Return observations of states [4, m], whose cosines of the angles are known."""
        observations = np.empty((state.shape[1], 6), np.float32)
        observations[:, 0:4:2] = cosines.T
        observations[:, 1:4:2] = np.sin(state[:2]).T
        observations[:, 4:] = state[2:].T
        return observations

    def _rates(self, stage: int, torque: np.ndarray) -> None:
        """Write the rates of a Runge-Kutta stage; the formulas are those of `_rates_scalar`."""
        if self._links:
            self._rates_of_links(stage, torque)
            return
        theta1, theta2, speed1, speed2, theta, speeds, rates, acc1, acc2 = self._stage_views[stage]
        phi2, phi1, cos2, both, phis, d1, d2, speed_bases, d2_base, term1, term2, d2_squared = (
            self._views
        )
        angles, d, sin2, product = self._angles, self._d, self._sin2, self._product
        # phi2 and phi1 are first the cosines alone. Subtracting zero leaves theta2 as it is.
        np.add(theta1, theta2, phi2)
        both[:] = theta
        np.subtract(angles, self._offsets, angles)
        np.cos(angles, angles)
        np.sin(theta2, sin2)

        np.add(cos2, _FIVE_QUARTERS, d1)
        np.multiply(cos2, _HALF, d2)
        np.add(d, _QUARTER, d)
        np.add(d, _ONE, d)
        np.add(d1, _ONE, d1)
        speed_bases[:] = speeds
        d2_base[:] = d2
        libm_squares(self._bases, self._squares)

        np.multiply(phis, self._gravity, phis)
        np.multiply(term2, _MINUS_HALF, term2)
        np.multiply(term2, sin2, term2)
        np.multiply(speed2, speed1, product)
        np.multiply(product, sin2, product)
        np.subtract(term2, product, term2)
        np.add(phi1, term2, phi1)
        np.add(phi1, phi2, phi1)

        np.multiply(term1, _HALF, term1)
        np.multiply(term1, sin2, term1)
        np.divide(d2, d1, acc2)
        np.multiply(acc2, phi1, acc2)
        np.add(acc2, torque, acc2)
        np.subtract(acc2, term1, acc2)
        np.subtract(acc2, phi2, acc2)
        np.divide(d2_squared, d1, d2_squared)
        np.subtract(_FIVE_QUARTERS, d2_squared, d2_squared)
        np.divide(acc2, d2_squared, acc2)

        np.multiply(d2, acc2, acc1)
        np.add(acc1, phi1, acc1)
        np.negative(acc1, acc1)
        np.divide(acc1, d1, acc1)
        rates[:] = speeds

    def _rates_of_links(self, stage: int, torque: np.ndarray) -> None:
        """Do what `_rates` does for links of any length and mass, in Gymnasium's order."""
        theta1, theta2, speed1, speed2, _, speeds, rates, acc1, acc2 = self._stage_views[stage]
        l1, m1, m2, lc1, lc2, moi = self._links
        cos2, sin2, g = np.cos(theta2), np.sin(theta2), 9.8
        d1 = m1 * _square(lc1) + m2 * (_square(l1) + _square(lc2) + 2 * l1 * lc2 * cos2) + moi + moi
        d2 = m2 * (_square(lc2) + l1 * lc2 * cos2) + moi
        phi2 = m2 * lc2 * g * np.cos(theta1 + theta2 - math.pi / 2.0)
        phi1 = (
            -m2 * l1 * lc2 * _square(speed2) * sin2
            - 2 * m2 * l1 * lc2 * speed2 * speed1 * sin2
            + (m1 * lc1 + m2 * l1) * g * np.cos(theta1 - math.pi / 2)
            + phi2
        )
        acc2[:] = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * _square(speed1) * sin2 - phi2) / (
            m2 * _square(lc2) + moi - _square(d2) / d1
        )
        acc1[:] = -(d2 * acc2 + phi1) / d1
        rates[:] = speeds

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        torque = _TORQUES[self._discrete(actions)]
        state, midpoint = self._state, self._midpoint
        k1, k2, k3, k4 = self._stages
        self._rates(0, torque)
        for stage, rates, step in (
            (1, k1, self._half_step),
            (2, k2, self._half_step),
            (3, k3, self._step),
        ):
            np.multiply(rates, step, midpoint)
            midpoint += state
            self._rates(stage, torque)
        # state += dt/6 (k1 + 2 k2 + 2 k3 + k4)
        k2 *= _TWO
        k3 *= _TWO
        k1 += k2
        k1 += k3
        k1 += k4
        k1 *= self._sixth_step
        state += k1

        theta, speeds = state[:2], state[2:]
        while np.count_nonzero(beyond := theta > _PI):
            np.subtract(theta, _TWO_PI, out=theta, where=beyond)
        while np.count_nonzero(beyond := theta < _MINUS_PI):
            np.add(theta, _TWO_PI, out=theta, where=beyond)
        np.maximum(speeds, self._min_speeds, out=speeds)
        np.minimum(speeds, self._max_speeds, out=speeds)

        # The free end's height, -cos theta1 - cos(theta1 + theta2), above 1 ends the episode.
        cosines = np.cos(theta)
        height = np.negative(cosines[0], self._product)
        height -= np.cos(theta[0] + theta[1])
        terminated = height > _ONE
        rewards = terminated - _ONE
        return self._observe(state, cosines), rewards, terminated

    def _advance_scalar(self, actions: np.ndarray) -> tuple[Sequence[float], float, bool]:
        torque = TORQUES[self._discrete_scalar(actions)]
        start = self._point
        half, sixth = DT / 2.0, DT / 6.0
        k1 = _rates_scalar(start, torque)
        k2 = _rates_scalar([y + half * k for y, k in zip(start, k1, strict=True)], torque)
        k3 = _rates_scalar([y + half * k for y, k in zip(start, k2, strict=True)], torque)
        k4 = _rates_scalar([y + DT * k for y, k in zip(start, k3, strict=True)], torque)
        theta1, theta2, speed1, speed2 = [
            y + sixth * (a + 2 * b + 2 * c + d)
            for y, a, b, c, d in zip(start, k1, k2, k3, k4, strict=True)
        ]
        theta1, theta2 = _wrap_scalar(theta1), _wrap_scalar(theta2)
        speed1 = min(max(speed1, -MAX_SPEEDS[0]), MAX_SPEEDS[0])
        speed2 = min(max(speed2, -MAX_SPEEDS[1]), MAX_SPEEDS[1])
        self._point = [theta1, theta2, speed1, speed2]

        cos1 = math.cos(theta1)
        terminated = -cos1 - math.cos(theta2 + theta1) > 1.0
        observation = cos1, math.sin(theta1), math.cos(theta2), math.sin(theta2), speed1, speed2
        return observation, 0.0 if terminated else -1.0, terminated
