"""Attacks on when a run is disturbed, and on what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from assay.core.types import Action, Tree, action_mask, tree_leaves, tree_map
from assay.evaluation.evaluate import Agent, Around
from assay.functional.layout import box_scale
from assay.loops.collect import random_actions
from assay.policies.heads import StochasticHead
from assay.robustness.disturbed import Sight
from assay.robustness.gradients import GradientPath, ranges, stacked

Rows = NDArray[np.bool_]
When = Callable[[Tree, Tree], Rows]  # observations and the carry -> which rows are attacked
Other = Callable[[Tree, Tree, NDArray[Any]], NDArray[Any]]  # with the run's own actions


def timed(attack: Sight, when: When, obs: Tree, carry: Tree) -> Tree:
    """Return what is seen of an attack that is made in some moments only."""
    rows = when(obs, carry)
    if not rows.any():
        return obs

    def choose(new: NDArray[Any], old: NDArray[Any]) -> NDArray[Any]:
        return np.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    return tree_map(choose, attack(obs, carry), obs)


class Urgent:
    """The moments in which most is at stake (arXiv:1703.06748), a given share of them.

    That is max_a pi(a|s) - min_a pi(a|s) of choices, or the same of values where the run has
    values; the paper turns those into probabilities, which needs a temperature. The paper has
    choices alone. Of Box actions it is how decided they are, the mean of |a_i - c_i| in units of
    half the range, and of several choices at once the sum of their leads. The threshold is a
    quantile over undisturbed episodes.
    """

    def __init__(self, path: GradientPath, states: list[tuple[Tree, Tree]], share: float) -> None:
        self.path = path
        self.threshold = float(np.quantile(self.stake(*stacked(states)), 1 - share))

    def __call__(self, obs: Tree, carry: Tree) -> Rows:
        """Return which rows are attacked."""
        return self.stake(obs, carry) >= self.threshold

    def stake(self, obs: Tree, carry: Tree) -> NDArray[np.float64]:
        """Return what is at stake in each row."""
        path = self.path
        fixed = path.tensors(obs)
        space, mask = path.policy.spaces.action, action_mask(fixed)
        with torch.no_grad():
            numbers = path.numbers(fixed, path.tensors(carry))
            best = path.best(numbers, fixed)
            if isinstance(space, gym.spaces.Box):
                centre, half_width = ranges(space)
                stake = ((best.flatten(1) - centre) / half_width).abs().mean(1)
            elif isinstance(space, gym.spaces.Discrete):
                allowed = torch.ones_like(numbers, dtype=torch.bool) if mask is None else mask != 0
                if isinstance(path.policy.head, StochasticHead):
                    numbers = torch.where(allowed, numbers, -torch.inf).softmax(1)
                most = torch.where(allowed, numbers, -torch.inf).amax(1)
                stake = most - torch.where(allowed, numbers, torch.inf).amin(1)
            else:
                stake = -path.against(numbers, fixed, best)
        return stake.numpy().astype(np.float64)


def by_chance(share: float, rng: np.random.Generator, obs: Tree, carry: Tree) -> Rows:
    """Return which rows are attacked: a share of all moments."""
    return rng.random(len(tree_leaves(obs)[0])) < share


class Overruled(Around):
    """An agent whose actions are not its own alone (arXiv:1901.09184).

    Of Box actions a share is the other's, (1 - share) a + share a'; of choices the other decides
    with this probability.
    """

    def __init__(
        self, agent: Agent, space: gym.Space[Any], other: Other, share: float,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        super().__init__(agent)
        self.space, self.other, self.share, self.rng = space, other, share, rng

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Let both act."""
        choice = self.agent.act(obs, carry, explore)
        own = np.asarray(choice.action)
        others = self.other(obs, carry, own)
        if isinstance(self.space, gym.spaces.Box):
            action = ((1 - self.share) * own + self.share * others).astype(own.dtype)
        else:
            taken = self.rng.random(len(own)) < self.share
            action = np.where(taken.reshape(-1, *[1] * (own.ndim - 1)), others, own)
        return Action(action, choice.carry, choice.extras)


def worst(
    space: gym.Space[Any], path: GradientPath | None, obs: Tree, carry: Tree, own: NDArray[Any]
) -> NDArray[Any]:
    """Return the opposite of what a run does: the far bound, the choice it prefers least.

    Args:
        space: The canonical action space.
        path: The policy; only needed for choices.
        obs: What the run sees.
        carry: What it carries.
        own: Its actions [N, ...].
    """
    if isinstance(space, gym.spaces.Box):
        centre = box_scale(space)[0].reshape(space.shape)
        return np.where(own >= centre, space.low, space.high).astype(own.dtype)
    if isinstance(space, gym.spaces.MultiBinary):
        return (1 - own).astype(own.dtype)
    assert path is not None
    fixed = path.tensors(obs)
    with torch.no_grad():
        numbers = path.numbers(fixed, path.tensors(carry)).numpy()
    mask = action_mask(obs)
    if mask is not None:
        allowed = (mask != 0) | ~(mask != 0).any(1, keepdims=True)
        numbers = np.where(allowed, numbers, np.inf)
    if isinstance(space, gym.spaces.Discrete):
        return numbers[:, : int(space.n)].argmin(1)
    assert isinstance(space, gym.spaces.MultiDiscrete)
    ends = np.cumsum(space.nvec.ravel())[:-1]
    least = [part.argmin(1) for part in np.split(numbers, ends, 1)]
    return np.stack(least, 1).reshape(own.shape)


def anything(
    space: gym.Space[Any], rng: np.random.Generator, obs: Tree, carry: Tree, own: NDArray[Any]
) -> NDArray[Any]:
    """Return uniform actions [N, ...]: the control of `worst`."""
    return random_actions(rng, space, len(own), action_mask(obs))
