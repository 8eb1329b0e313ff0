"""How a policy decides by the parameters that its network gives: in NumPy, in torch, and as data.

A head turns parameters [N, P] into actions in the environment's units. With a random generator it
explores as in training; without one it takes the best action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from assay.functional.distributions import TanhGaussian, policy_distribution
from assay.functional.layout import box_scale
from assay.policies import description, distributions
from assay.policies.exploration import GreedyActions
from assay.policies.numpy_network import Described, GaussianParams, SquashedParams
from assay.policies.parts import Array

Extras = dict[str, Array]
Params = Callable[[], Array]


class Head(Protocol):
    """What a `Policy` asks of its head."""

    def choose(
        self, params: Params, n: int, mask: Array | None, rng: np.random.Generator | None
    ) -> tuple[Array, Extras]:
        """Return actions [n, ...] and what the update will need again.

        Args:
            params: Gives the parameters [n, P]; not called where none are needed.
            n: Number of rows.
            mask: Valid actions, or None.
            rng: Explore with it; None takes the best action.
        """

    def best(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the best actions in torch."""

    def describe(self, network: Described) -> description.Head:
        """Return the head, behind a folded network, as data, with exploration as it is now."""


class StochasticHead:
    """Sample from a distribution over any action space, or take its mode.

    Box actions are clipped to their bounds. Log-probabilities are those from before clipping, and
    so is the extra `raw_action`.

    `log_prob` says whether the update needs log-probabilities.
    """

    def __init__(self, space: gym.Space[Any], *, log_prob: bool = True) -> None:
        self.space = space
        self.log_prob = log_prob
        self.distribution = distributions.policy_distribution(space)
        self._torch = policy_distribution(space)
        self.bounds = (space.low, space.high) if isinstance(space, gym.spaces.Box) else None

    def choose(
        self, params: Params, n: int, mask: Array | None, rng: np.random.Generator | None
    ) -> tuple[Array, Extras]:
        """Sample with `rng`, or take the mode without one."""
        numbers, distribution = params(), self.distribution
        extras: Extras = {}
        if rng is None:
            action = distribution.mode(numbers, mask)
        else:
            noise = distribution.draw_noise(rng, (len(numbers),))
            if self.log_prob:
                action, extras["log_prob"] = distribution.sample_log_prob(numbers, noise, mask)
            else:
                action = distribution.sample(numbers, noise, mask)
        if self.bounds is None:
            return action, extras
        if extras:
            extras["raw_action"] = action
        return np.clip(action, *self.bounds), extras

    def best(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mode."""
        action = self._torch.mode(params, mask)
        if self.bounds is None:
            return action
        low, high = (torch.as_tensor(bound, device=params.device) for bound in self.bounds)
        return torch.clamp(action, low, high)

    def log_density(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Return log p(action) [N] of what it samples; of Box actions, before clipping."""
        return self._torch.log_prob(params, action, mask)

    def describe(self, network: Described) -> description.Head:
        """Return the distribution as data."""
        space = self.space
        if isinstance(space, gym.spaces.Box):
            assert isinstance(network.params, GaussianParams)
            return description.Gaussian(log_std=network.params.log_std, **_bounds(space))
        if isinstance(space, gym.spaces.Discrete):
            return description.Categorical(n=int(space.n))
        if isinstance(space, gym.spaces.MultiDiscrete):
            sizes = tuple(int(n) for n in space.nvec.reshape(-1))
            return description.MultiCategorical(sizes=sizes, starts=(0,) * len(sizes))
        assert isinstance(space, gym.spaces.MultiBinary)
        return description.Bernoulli(n=int(np.prod(space.shape)))


class SquashedHead:
    """tanh of a Gaussian, scaled to the finite bounds of a Box."""

    def __init__(self, space: gym.spaces.Box) -> None:
        self.space = space
        self._distribution = distributions.TanhGaussian.of_box(space)
        self._torch = TanhGaussian.of_box(space)
        self._scale = distributions.ActionScale(space)

    def choose(
        self, params: Params, n: int, mask: Array | None, rng: np.random.Generator | None
    ) -> tuple[Array, Extras]:
        """Sample with `rng`, or take the mode without one."""
        numbers, distribution = params(), self._distribution
        if rng is None:
            return self._scale.to_env(distribution.mode(numbers)), {}
        noise = distribution.draw_noise(rng, (len(numbers),))
        return self._scale.to_env(distribution.sample(numbers, noise)), {}

    def best(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mode."""
        return to_box(self._torch.mode(params), self.space)

    def log_density(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Return log p(action) [N] of what it samples, in the environment's units."""
        center, half_width = (torch.from_numpy(x).to(params.device) for x in box_scale(self.space))
        unit = (action - center) / half_width
        # The Jacobian of the scaling to the bounds.
        return self._torch.log_prob(params, unit) - half_width.log().sum()

    def describe(self, network: Described) -> description.Head:
        """Return the distribution as data."""
        assert isinstance(network.params, SquashedParams)
        low, high = network.params.bounds
        return description.SquashedGaussian(
            log_std_low=low, log_std_high=high, **_bounds(self.space)
        )


class DeterministicHead:
    """An action in the unit box, scaled to the bounds of a Box; exploring adds Gaussian noise.

    Args:
        space: A Box with finite bounds.
        noise: Gives the standard deviation of the noise, in units of the action scale.
    """

    def __init__(self, space: gym.spaces.Box, noise: Callable[[], float]) -> None:
        self.space = space
        self.noise = noise
        self._scale = distributions.ActionScale(space)

    def choose(
        self, params: Params, n: int, mask: Array | None, rng: np.random.Generator | None
    ) -> tuple[Array, Extras]:
        """Return the policy's action, with noise where `rng` is given."""
        unit = params()
        if rng is not None:
            noise = np.float32(self.noise()) * rng.standard_normal(unit.shape, dtype=np.float32)
            unit = np.clip(unit + noise, -1.0, 1.0)
        return self._scale.to_env(unit), {}

    def best(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the policy's action."""
        return to_box(params.reshape(-1, *self.space.shape), self.space)

    def describe(self, network: Described) -> description.Head:
        """Return the head as data."""
        return description.Deterministic(noise=float(self.noise()), **_bounds(self.space))


class GreedyHead:
    """The action of the highest value, or with probability epsilon any valid one.

    Args:
        space: The action space.
        epsilon: Gives the probability of a random action in each of n rows: one number, or [n].
            None leaves exploration to the network's own noise.
    """

    def __init__(
        self, space: gym.spaces.Discrete, epsilon: Callable[[int], float | Array] | None
    ) -> None:
        self.actions = GreedyActions(space)
        self.epsilon = epsilon

    def choose(
        self, params: Params, n: int, mask: Array | None, rng: np.random.Generator | None
    ) -> tuple[Array, Extras]:
        """Be greedy, or explore by epsilon where `rng` is given."""
        if rng is None or self.epsilon is None:
            return self.actions.best(params(), mask), {}
        return self.actions.explore(rng, self.epsilon(n), n, params, mask), {}

    def best(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the best valid action."""
        return self.actions.decide(params, mask)

    def describe(self, network: Described) -> description.Head:
        """Return the head as data: a client is one row."""
        epsilon = 0.0 if self.epsilon is None else float(np.max(self.epsilon(1)))
        return description.ActionValues(n=self.actions.count, epsilon=epsilon)


def _bounds(space: gym.spaces.Box) -> dict[str, Any]:
    finite = description.finite_or_none
    return {"low": finite(space.low), "high": finite(space.high)}


def to_box(unit: Tensor, space: gym.spaces.Box) -> Tensor:
    """Return unit actions in the units of their Box, in torch."""
    constants = (*box_scale(space), space.low, space.high)
    center, half_width, low, high = (torch.as_tensor(x, device=unit.device) for x in constants)
    # Clipped, since an edge may be missed by what float32 rounds off.
    return torch.clamp(unit * half_width + center, low, high)
