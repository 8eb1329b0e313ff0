"""A learned reward in place of the environment's, wherever a run learns.

Rewards are computed when something is learned from them, of a whole rollout or of a batch that was
drawn. So buffers keep what the environment gave, and another reward counts from the next update on,
for old experience as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.buffers.replay_protocol import Replay
from assay.buffers.rollout import Rollout
from assay.buffers.storage import Sections
from assay.core.types import Array, Batch, Metrics, Spaces, State, Transition, Tree, tree_map
from assay.loops.collect import EpisodeStatistics
from assay.networks.normalize import RunningMoments
from assay.networks.tensors import to_device

LEARNED = "learned_reward"  # the section of a checkpoint
_CLIP = 10.0  # of rewards that running statistics standardise


class RewardFunction(Protocol):
    """What a loop knows of a learned reward.

    Attributes:
        identity: The same for the same reward.
        running: 0, or the steps that it was standardised by and from which running statistics go
            on.
    """

    identity: str
    running: int

    def require(self, spaces: Spaces) -> None:
        """Refuse other spaces than those that it was learned with."""

    def rewards(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the reward [B] of canonical observations and actions, on their device."""


class LearnedRewards:
    """What steps are worth by a learned reward, and what episodes got of it.

    Args:
        source: The reward.
        spaces: Of the environments.
        num_envs: How many there are.
        device: Where a batch is.

    Raises:
        SpaceError: The reward was learned with other spaces.
    """

    def __init__(
        self, source: RewardFunction, spaces: Spaces, num_envs: int, device: torch.device
    ) -> None:
        source.require(spaces)
        self.source, self.device = source, device
        self.episodes = EpisodeStatistics(num_envs)
        self.moments = RunningMoments(())
        self.moments.count = source.running  # which were standardised: mean 0, variance 1
        self.last: NDArray[np.float32] = np.zeros(num_envs, np.float32)

    def of(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the reward [B] of tensors on the run's device."""
        return self._bounded(self.source.rewards(obs, action))

    def see(self, step: Transition) -> None:
        """Take in one step of every environment; `last` is then what it is worth, [N]."""
        raw = self._raw(step.obs, step.action)
        valid = np.ones(len(raw), bool) if step.valid is None else step.valid
        self._count(raw[valid])
        self.last = np.where(valid, self._bounded(raw), 0.0).astype(np.float32)
        done = np.asarray(step.terminated, bool) | np.asarray(step.truncated, bool)
        self.episodes.step(self.last, done & valid, step.valid)

    def relabel(self, data: Rollout) -> None:
        """Put the rewards of a rollout in the place of those that the environment gave."""
        flat = tree_map(lambda x: x.reshape(-1, *x.shape[2:]), data.obs)
        raw = self._raw(flat, data.action.reshape(-1, *data.action.shape[2:]))
        raw = raw.reshape(data.reward.shape)
        self._count(raw[data.valid])
        data.reward[:] = np.where(data.valid, self._bounded(raw), 0.0)
        done = data.terminated | data.truncated
        for t in range(data.length):
            self.episodes.step(data.reward[t], done[t], data.valid[t])

    def restart(self) -> None:
        """Forget the episodes in flight, because their environments are reset."""
        self.episodes.restart()

    def metrics(self) -> Metrics:
        """Return the mean of what recent episodes got, beside what the environment gave."""
        known = [value for value, _ in self.episodes.recent if np.isfinite(value)]
        return {"rollout/learned_return_mean": float(np.mean(known))} if known else {}

    def state(self) -> State:
        """Return what a checkpoint needs."""
        return {
            "identity": self.source.identity,
            "episodes": self.episodes.state(),
            "moments": self.moments.state(),
        }

    def resume(self, sections: Mapping[str, State], *, reset: bool) -> None:
        """Go on from a checkpoint; of another reward nothing is kept.

        Args:
            sections: Of the checkpoint.
            reset: Whether the environments were reset.
        """
        state = sections.get(LEARNED, {})
        if state.get("identity") == self.source.identity:
            self.episodes.load_state(state["episodes"])
            self.moments.load_state(state["moments"])
        else:  # what the running episodes got so far, nobody knows
            self.episodes.returns[:] = np.nan
        if reset:
            self.restart()

    def _raw(self, obs: Tree, action: Any) -> NDArray[np.float32]:
        tensors = to_device(obs, self.device), to_device(action, self.device)
        found: NDArray[np.float32] = self.source.rewards(*tensors).cpu().numpy()
        return found

    def _count(self, raw: NDArray[np.float32]) -> None:
        if self.source.running:
            self.moments.update(raw)

    def _bounded(self, raw: Any) -> Any:
        if not self.source.running:
            return raw
        return ((raw - float(self.moments.mean)) / float(self.moments.scale)).clip(-_CLIP, _CLIP)


class RewardedReplay:
    """A replay whose batches have learned rewards; it keeps those of the environment."""

    def __init__(self, replay: Replay[Batch], rewards: LearnedRewards) -> None:
        self.replay, self.rewards = replay, rewards

    def __len__(self) -> int:
        """Return how many transitions can be drawn."""
        return len(self.replay)

    def add(self, step: Transition) -> None:
        """Record one step of every environment."""
        self.rewards.see(step)
        self.replay.add(step)

    def sample(self, batch_size: int, beta: float = 1.0) -> Batch:
        """Draw transitions, and say what they are worth by now."""
        batch = self.replay.sample(batch_size, beta)
        return replace(batch, reward=self.rewards.of(batch.obs, batch.action))

    def update(self, index: Array, **columns: Tree) -> None:
        """Write to what was sampled."""
        self.replay.update(index, **columns)

    def cut_episodes(self) -> None:
        """End the episodes under way as truncated."""
        self.replay.cut_episodes()

    def sections(self, prefix: str = "replay") -> Sections:
        """Return the replay in sections."""
        return self.replay.sections(prefix)

    def load_sections(self, sections: Mapping[str, State], prefix: str = "replay") -> None:
        """Restore what `sections` returned."""
        self.replay.load_sections(sections, prefix)
