"""From what a policy sees to what it prefers, with gradients: the attacks that use them.

An attack looks for an observation in the ball |s' - s| <= budget * scale, number by number, at
which the policy prefers its own choice least. What it maximises is

* of choices: max_{a != a*} z_a - z_{a*}, with a* the choice without the attack and z the logits or
  values. Above 0 the choice has changed.
* of Box actions: -sum_i sign(a*_i - c_i) u_i, with u what the network gives before any squashing
  or clipping and c the centre of the range: every action is pushed towards the other side.

FGSM (arXiv:1412.6572; of policies, arXiv:1702.02284) is one step from s to a corner of the ball.
PGD (arXiv:1706.06083) takes several from a random start and keeps the best, the corner among them,
since a random start may climb a lower hill. The distance from a*
(maximal action difference, arXiv:2003.08938) is not used: its gradient is 0 at s, and it is as
happy with too much of the right action as with the wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from assay.core.errors import ConfigError
from assay.core.types import Tree, action_mask, tree_map
from assay.functional.layout import gaussian_scale
from assay.policies.heads import StochasticHead
from assay.policies.planning import PlanningPolicy
from assay.policies.policy import Policy, PolicyModule
from assay.policies.search import SearchPolicy
from assay.robustness.disturbed import BARE, Room

_NO_PATH = {
    SearchPolicy: "searches the tree of a game",
    PlanningPolicy: "plans by drawing plans in its model",
}


class GradientPath:
    """A policy as a differentiable function of what it sees.

    Args:
        policy: What acts.
        room: What of its observations can be moved.
        states: Observations and carries, each a batch of one, to try it with.

    Raises:
        ConfigError: No gradient reaches the observations; the reason is named.
    """

    def __init__(self, policy: Policy, room: Room, states: list[tuple[Tree, Tree]]) -> None:
        for kind, what in _NO_PATH.items():
            if isinstance(policy, kind):
                raise _no_gradients(f"it {what}")
        module = policy.module()
        assert isinstance(module, PolicyModule)
        self.module = module.cpu().eval().requires_grad_(False)
        self.policy, self.room = policy, room
        self._check(states)

    def _check(self, states: list[tuple[Tree, Tree]]) -> None:
        obs, carry = stacked(states[:64])
        grads = self.gradient(obs, self.tensors(obs), self.tensors(carry))
        if not any(bool((grad != 0).any()) for grad in grads.values()):
            raise _no_gradients("they are 0 in all states that were tried")

    def gradient(self, obs: Tree, fixed: Any, carry: Any) -> dict[str, Tensor]:
        """Return the gradient of `against` at observations, by what can be moved.

        Args:
            obs: The observations.
            fixed: The same as tensors.
            carry: What the policy carries, as tensors.

        Raises:
            ConfigError: There is none.
        """
        parts = self.tensors(self.room.parts(obs))
        for part in parts.values():
            part.requires_grad_()
        numbers = self.numbers(_with(fixed, parts), carry)
        if not numbers.requires_grad:
            raise _no_gradients("its actions are detached from what it sees")
        value = self.against(numbers, fixed, self.best(numbers, fixed))
        return self.slopes(value, parts)

    @staticmethod
    def slopes(value: Tensor, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradient of values [N] by arrays; 0 where they do not depend on one."""
        grads = torch.autograd.grad(value.sum(), list(parts.values()), allow_unused=True)
        return {
            key: torch.zeros_like(part) if grad is None else grad
            for (key, part), grad in zip(parts.items(), grads, strict=True)
        }

    @staticmethod
    def tensors(tree: Tree) -> Any:
        """Return arrays as tensors of their own."""
        return tree_map(lambda x: torch.from_numpy(np.array(x)), tree)

    def numbers(self, obs: Any, carry: Any) -> Tensor:
        """Return what the head decides by, [N, P]."""
        module = self.module
        seen = obs if module.normalizer is None else module.normalizer.normalize_torch(obs)
        network: Any = module.network
        numbers: Tensor = network.step(seen, carry)[0] if module.remembers else network(seen)
        return numbers

    def best(self, numbers: Tensor, obs: Any) -> Tensor:
        """Return what the head decides."""
        return self.policy.head.best(numbers, action_mask(obs)).detach()

    def against(self, numbers: Tensor, obs: Any, best: Tensor) -> Tensor:
        """Return [N]: how little the policy prefers what it would do without an attack."""
        space, mask = self.policy.spaces.action, action_mask(obs)
        if isinstance(space, gym.spaces.Discrete):
            return margin(numbers[:, : int(space.n)], best, mask)
        if isinstance(space, gym.spaces.MultiDiscrete):
            sizes = [int(n) for n in space.nvec.ravel()]
            masks = [None] * len(sizes) if mask is None else mask.split(sizes, 1)
            chosen = best.reshape(len(best), -1).unbind(1)
            parts = zip(numbers.split(sizes, 1), chosen, masks, strict=True)
            return torch.stack([margin(*part) for part in parts]).sum(0)
        flat = best.reshape(len(best), -1)
        if isinstance(space, gym.spaces.MultiBinary):
            return ((1 - 2 * flat.float()) * numbers).sum(1)
        assert isinstance(space, gym.spaces.Box)
        center, half_width = ranges(space)
        side = torch.where(flat >= center, 1.0, -1.0)
        given = numbers[:, : flat.shape[1]]
        if isinstance(self.policy.head, StochasticHead):  # in the units of the environment
            given = given / half_width
        return -(side * given).sum(1)


class GradientAttack:
    """Show a policy the worst observations that are found within a budget.

    Args:
        path: The policy.
        budget: The largest move of a number, in units of its standard deviation.
        steps: 1 is FGSM, more are PGD.
        rng: Where PGD starts; and which way numbers go where there is no gradient.
    """

    def __init__(
        self, path: GradientPath, budget: float, steps: int, rng: np.random.Generator
    ) -> None:
        self.path, self.budget, self.steps, self.rng = path, budget, steps, rng

    def __call__(self, obs: Tree, carry: Tree) -> Tree:
        """Return what is seen in place of `obs`."""
        path, room = self.path, self.path.room
        fixed, state = path.tensors(obs), path.tensors(carry)
        base = path.tensors(room.parts(obs))
        radius = {key: torch.from_numpy(room.radius(key, self.budget)) for key in base}
        with torch.no_grad():
            best = path.best(path.numbers(fixed, state), fixed)
        parts = {key: x.clone() for key, x in base.items()}
        kept, most = parts, torch.full((len(best),), -math.inf)
        # s, the corner that FGSM finds, then the steps of PGD from anywhere in the ball.
        last = 1 if self.steps == 1 else self.steps + 2
        for step in range(last + 1):
            for part in parts.values():
                part.requires_grad_()
            value = path.against(path.numbers(_with(fixed, parts), state), fixed, best)
            found = value.detach()
            # FGSM takes its step, better or not.
            rows = torch.ones_like(found, dtype=torch.bool) if last == 1 else found > most
            kept = {key: _rows(rows, parts[key].detach(), kept[key].detach()) for key in parts}
            most = torch.where(rows, found, most)
            if step == 1:
                parts = {
                    key: self._fitted(key, x + radius[key] * self._uniform(x))
                    for key, x in base.items()
                }
            elif step < last:
                # The steps together can cross the ball, and a quarter of it more.
                size = 1.0 if step == 0 else 2.5 / self.steps
                parts = self._moved(parts, value, base, radius, size)
        return room.put(obs, {key: part.numpy() for key, part in kept.items()})

    def _moved(
        self,
        parts: dict[str, Tensor],
        value: Tensor,
        base: dict[str, Tensor],
        radius: dict[str, Tensor],
        size: float,
    ) -> dict[str, Tensor]:
        """Return arrays after a step along the signs of the gradient, within the ball."""
        signs = {key: grad.sign() for key, grad in self.path.slopes(value, parts).items()}
        flat = torch.stack([sign.flatten(1).abs().sum(1) for sign in signs.values()]).sum(0) == 0
        moved = {}
        for key, part in parts.items():
            sign = signs[key]
            if flat.any():
                sign = _rows(flat, self._uniform(sign).sign(), sign)
            reached = part.detach() + size * radius[key] * sign
            low, high = base[key] - radius[key], base[key] + radius[key]
            moved[key] = self._fitted(key, torch.clamp(reached, low, high))
        return moved

    def _fitted(self, key: str, part: Tensor) -> Tensor:
        box = self.path.room.boxes[key]
        low, high = (torch.from_numpy(b.astype(np.float32)) for b in (box.low, box.high))
        return torch.clamp(part, low, high)

    def _uniform(self, like: Tensor) -> Tensor:
        return torch.from_numpy(self.rng.uniform(-1, 1, like.shape).astype(np.float32))


def margin(numbers: Tensor, best: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return max_{a != best} z_a - z_best [N], over valid actions; -inf where there is no other."""
    others = torch.zeros_like(numbers).scatter(1, best.long().unsqueeze(1), -math.inf)
    if mask is not None:
        allowed = (mask != 0) | ~(mask != 0).any(1, keepdim=True)
        others = torch.where(allowed, others, -math.inf)
    chosen = numbers.gather(1, best.long().unsqueeze(1)).squeeze(1)
    return (numbers + others).max(1).values - chosen


def stacked(states: list[tuple[Tree, Tree]]) -> tuple[Tree, Tree]:
    """Return observations and carries of single states as one batch."""

    def join(*parts: Any) -> Any:
        return np.concatenate(parts)

    obs, carries = zip(*states, strict=True)
    return tree_map(join, *obs), tree_map(join, *carries)


def ranges(space: gym.spaces.Box) -> tuple[Tensor, Tensor]:
    """Return centre and half-width of each action, 0 and 1 where it has no finite range."""
    scale = gaussian_scale(space)
    size = int(np.prod(space.shape))
    if scale is None:
        return torch.zeros(size), torch.ones(size)
    return torch.from_numpy(scale[0].reshape(-1)), torch.from_numpy(scale[1].reshape(-1))


def _with(fixed: Any, parts: Mapping[str, Tensor]) -> Any:
    return {**fixed, **parts} if isinstance(fixed, Mapping) else parts[BARE]


def _rows(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _no_gradients(why: str) -> ConfigError:
    return ConfigError(
        f"The run's policy has no gradients to attack it by: {why}.",
        "Choose attacks that need none: --attacks random,adversary.",
    )
