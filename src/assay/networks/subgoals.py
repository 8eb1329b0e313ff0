"""Two levels as one network: the higher one sets subgoals, the lower one acts to reach them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from assay.core.errors import ConfigError, SpaceError
from assay.core.images import is_image
from assay.core.types import Tree
from assay.networks.rnn import Carry, Remembering

ACHIEVED, DESIRED, SUBGOAL = "achieved_goal", "desired_goal", "subgoal"
_BARE = "observation"  # the entry of an observation that is one array
_SHARE = 0.25  # of a bounded range: the largest subgoal by default


class GoalView:
    """The part of an observation that subgoals speak of, and what the lower level sees.

    That part is `achieved_goal` where there is such an entry, else all vectors of floats, in the
    order of their names; `dims` chooses among its numbers. The lower level sees the observation
    with the subgoal, without `desired_goal`, which is the higher level's.

    Args:
        space: The observation space.
        dims: Indices of numbers; None takes all.

    Attributes:
        size: G, the number of dimensions of a subgoal.
        low_space: What the lower level sees.

    Raises:
        SpaceError: No part of the observation is a vector of floats.
        ConfigError: An index is out of range, or there twice.
    """

    def __init__(self, space: gym.Space[Any], dims: Sequence[int] | None = None) -> None:
        parts = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {_BARE: space}
        self.bare = not isinstance(space, gym.spaces.Dict)
        if SUBGOAL in parts:
            raise SpaceError(f"The observation has an entry '{SUBGOAL}', which hiro adds itself.")
        vectors: dict[str, Any] = {k: v for k, v in sorted(parts.items()) if _is_vector(v)}
        if ACHIEVED in vectors:
            vectors = {ACHIEVED: vectors[ACHIEVED]}
        if not vectors:
            raise SpaceError(
                f"Subgoals are differences of states; {space} has no vector of floats.",
                "Add one to the observation, such as a position.",
            )
        self.keys = tuple(vectors)
        self.low = np.concatenate([part.low.ravel() for part in vectors.values()])
        self.high = np.concatenate([part.high.ravel() for part in vectors.values()])
        count = len(self.low)
        self.dims = list(range(count)) if dims is None else list(dims)
        wrong = [i for i in self.dims if not 0 <= i < count]
        if wrong or not self.dims or len(set(self.dims)) < len(self.dims):
            raise ConfigError(
                f"goal_dims={tuple(self.dims)}: expected different indices from 0 to {count - 1}, "
                f"of the numbers in {', '.join(self.keys)}.",
            )
        self.size = len(self.dims)
        self._whole = self.dims == list(range(count))
        seen = {name: part for name, part in parts.items() if name != DESIRED}
        goal = gym.spaces.Box(-np.inf, np.inf, (self.size,), np.float32)
        self.low_space = gym.spaces.Dict(seen | {SUBGOAL: goal})

    def default_scale(self) -> np.ndarray:
        """Return a quarter of the range where it is bounded, else 1: [G]."""
        width = (self.high.astype(np.float64) - self.low)[self.dims]
        return np.where(np.isfinite(width), _SHARE * width, 1.0).astype(np.float32)

    def __call__(self, obs: Tree) -> Any:
        """Return what subgoals speak of, [N, G], of arrays or tensors."""
        parts = [obs] if self.bare else [obs[key] for key in self.keys]
        flat = [part.reshape(part.shape[0], -1) for part in parts]
        if len(flat) > 1:
            flat = [(torch.cat if isinstance(flat[0], Tensor) else np.concatenate)(flat, 1)]
        return flat[0] if self._whole else flat[0][:, self.dims]

    def with_goal(self, obs: Tree, goal: Any) -> dict[str, Any]:
        """Return what the lower level sees, given the subgoal [N, G] in units of its scale."""
        seen = {_BARE: obs} if self.bare else {k: v for k, v in obs.items() if k != DESIRED}
        return seen | {SUBGOAL: goal}


def _is_vector(part: gym.Space[Any]) -> bool:
    return isinstance(part, gym.spaces.Box) and part.dtype.kind == "f" and not is_image(part)


class CarriedGoal(nn.Module):
    """What acting remembers: where the subgoal is, and the steps since it was set."""

    wants_rewards = False

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def initial(self, n: int) -> dict[str, np.ndarray]:
        """Return zeros: a step of 0 asks for a new subgoal."""
        return {"step": np.zeros(n, np.float32), "target": np.zeros((n, self.size), np.float32)}

    def rewarded(self, carry: Tree, reward: np.ndarray) -> Tree:
        """Return the carry as it is."""
        return carry


class TwoLevels(Remembering):
    """Act on two levels, without exploring: (observation, carry) -> (unit action, carry).

    The carry is the place s + g in place of the relative goal g: h(s, g, s') = s + g - s' is the
    transition that leaves it where it is.

    Args:
        high: Observations to subgoals in the unit box.
        low: What the lower level sees to unit actions.
        view: What subgoals speak of.
        scale: [G], the largest subgoal.
        interval: Steps between two subgoals.
    """

    memory: Any
    scale: Tensor

    def __init__(
        self, high: nn.Module, low: nn.Module, view: GoalView, scale: np.ndarray, interval: int
    ) -> None:
        super().__init__()
        self.high, self.low, self.view, self.interval = high, low, view, interval
        self.memory = CarriedGoal(view.size)
        # A constant of the settings, and so no part of a checkpoint.
        self.register_buffer("scale", torch.from_numpy(scale), persistent=False)

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        """Return what would have to be described to act without torch."""
        return self.high, self.memory, self.low

    def step(self, obs: Tree, carry: Carry) -> tuple[Tensor, Carry]:
        """Return unit actions [N, A] for the next step of episodes, and the carry after it."""
        here, step = self.view(obs), carry["step"]
        begins = (step == 0).unsqueeze(1)
        target = torch.where(begins, here + self.high(obs) * self.scale, carry["target"])
        unit = self.low(self.view.with_goal(obs, (target - here) / self.scale))
        after = torch.where(step + 1 == self.interval, torch.zeros_like(step), step + 1)
        return unit, {"step": after, "target": target}
