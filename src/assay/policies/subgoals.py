"""A policy of two levels: it carries a subgoal for some steps and acts to reach it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from assay.core.errors import ConfigError
from assay.core.types import Action, Spaces, Tree, tree_map
from assay.networks.subgoals import TwoLevels
from assay.policies.forward import Forward
from assay.policies.heads import Head
from assay.policies.parts import Array
from assay.policies.policy import Policy

GOAL = "goal"  # the extra with the relative subgoal that was acted on, [N, G]


class SubgoalPolicy(Policy):
    """Act on two levels; both explore, the higher one by noise and by uniform subgoals.

    Args:
        spaces: What it sees and does.
        network: Both levels.
        head: Turns unit actions into the environment's, with the lower level's noise.
        goal_noise: Gives the standard deviation of the higher level's noise, in units of the scale.
        goal_epsilon: Gives the share of subgoals that are drawn uniformly.
        device: Where the networks live.
        rng: Explores.
    """

    network: TwoLevels

    def __init__(
        self,
        spaces: Spaces,
        network: TwoLevels,
        head: Head,
        *,
        goal_noise: Callable[[], float],
        goal_epsilon: Callable[[], float],
        device: torch.device,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(spaces, network, head, device=device, rng=rng)
        self.goal_noise, self.goal_epsilon = goal_noise, goal_epsilon
        self._high, self._low = Forward(network.high, device), Forward(network.low, device)
        self._scale = network.scale.cpu().numpy()

    def act(self, obs: Tree, carry: Tree = None, explore: bool = False) -> Action:
        """Choose actions for N canonical observations, as `Policy.act` does."""
        network, rng = self.network, self.rng if explore else None
        here, step = network.view(obs), carry["step"]
        target, begins = carry["target"].copy(), np.flatnonzero(step == 0)
        if len(begins):
            unit = self._subgoals(tree_map(lambda x: x[begins], obs), len(begins), rng)
            target[begins] = here[begins] + unit * self._scale
        goal = target - here
        seen = network.view.with_goal(obs, goal / self._scale)
        action, _ = self.head.choose(lambda: self._low.call(seen), len(goal), None, rng)
        after = np.where(step + 1 == network.interval, np.float32(0), step + 1)
        return Action(action, {"step": after, "target": target}, {GOAL: goal})

    def _subgoals(self, obs: Tree, n: int, rng: np.random.Generator | None) -> Array:
        """Return what the higher level sets, in the unit box: [n, G]."""
        unit = np.array(self._high.call(obs))
        if rng is None:
            return unit
        noise = rng.standard_normal(unit.shape, dtype=np.float32)
        unit = np.clip(unit + np.float32(self.goal_noise()) * noise, -1.0, 1.0)
        anywhere = rng.uniform(-1.0, 1.0, unit.shape).astype(np.float32)
        return np.where(rng.random((n, 1)) < self.goal_epsilon(), anywhere, unit)

    def meter(self, n: int) -> SubgoalMeter:
        """Return what measures the levels over one episode in each of n rows."""
        return SubgoalMeter(self.network, n)

    def snapshot(self, algorithm: str, **options: Any) -> Any:
        """Refuse: what clients run without torch has one level.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"A policy of {algorithm} has two levels, which clients without torch cannot run.",
            "Export it as ONNX or TorchScript: assay export RUN.",
        )


class SubgoalMeter:
    """How well the lower level does what the higher one asks, by episode.

    A subgoal is judged where its interval ends, or the episode; it is reached within a tenth of
    the longest one.
    """

    def __init__(self, network: TwoLevels, n: int) -> None:
        self.view, self.interval = network.view, network.interval
        self.near = 0.1 * float(network.scale.norm())
        self.length = np.zeros(n, np.int64)
        self.sums = {name: np.zeros(n) for name in ("intrinsic", "distance", "reached", "count")}

    def add(self, step: Any) -> None:
        """See one step of all rows, a `PlayedStep`."""
        playing, over = step.playing, step.over
        after = self.view(step.after)
        if step.final is not None:
            after = np.where(over[:, None], self.view(step.final), after)
        # r = -||s + g - s'||
        left = np.linalg.norm(self.view(step.obs) + step.extras[GOAL] - after, axis=1)
        self.length += playing
        judged = playing & (over | (self.length % self.interval == 0))
        sums = self.sums
        sums["intrinsic"] -= np.where(playing, left, 0.0)
        sums["distance"] += np.where(judged, left, 0.0)
        sums["reached"] += judged & (left <= self.near)
        sums["count"] += judged

    def columns(self) -> dict[str, Array]:
        """Return the measures of each row, [n]."""
        count = np.maximum(self.sums["count"], 1)
        return {
            "intrinsic_return": self.sums["intrinsic"],
            "subgoal_distance": self.sums["distance"] / count,
            "subgoals_reached": self.sums["reached"] / count,
        }
