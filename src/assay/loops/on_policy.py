"""Collect a rollout, learn from it, throw it away."""

from __future__ import annotations

from assay.algorithms.base import Algorithm, RolloutNeeds
from assay.buffers.rollout import Rollout
from assay.core.types import State
from assay.loops.collect import Collector
from assay.runs.checkpoint import Section


class OnPolicyLoop:
    """One iteration is a rollout and an update."""

    def __init__(self, algorithm: Algorithm, collector: Collector) -> None:
        needs = algorithm.needs
        assert isinstance(needs, RolloutNeeds)
        self.algorithm = algorithm
        self.collector = collector
        self.rollout = Rollout(collector.env.spaces, needs.horizon, collector.env.num_envs)

    def iterate(self) -> None:
        """Collect one rollout and update on it."""
        rollout, algorithm = self.rollout, self.algorithm
        self.collector.collect_rollout(rollout)
        done = rollout.terminated | rollout.truncated
        algorithm.update_reward_stats(rollout.reward, done, rollout.valid)
        algorithm.update(rollout)
        algorithm.update_obs_stats(rollout.obs, rollout.valid)

    def cut(self) -> None:
        """End the trajectories in flight: nothing is kept from one rollout to the next."""

    def sections(self) -> dict[str, Section]:
        """Return what a checkpoint needs: between rollouts, nothing."""
        return {}

    def load_sections(self, sections: dict[str, State]) -> None:
        """Put back what `sections` returned."""
