"""Collect a rollout, learn from it, throw it away."""

from __future__ import annotations

from time import perf_counter

from assay.algorithms.base import Algorithm, RolloutNeeds
from assay.buffers.rollout import Rollout
from assay.core.types import Metrics, State
from assay.data.dataset import Dataset
from assay.envs.vector import Vector
from assay.loops.collect import Collector, no_scores
from assay.loops.learned_rewards import LEARNED, LearnedRewards, RewardFunction
from assay.loops.recorded import recorded_buffer
from assay.loops.run_settings import RunSettings
from assay.runs.checkpoint import Section


class OnPolicyLoop:
    """One iteration is a rollout and an update."""

    def __init__(self, algorithm: Algorithm, env: Vector, run: RunSettings) -> None:
        needs = algorithm.needs
        assert isinstance(needs, RolloutNeeds)
        self.algorithm = algorithm
        self.clock = algorithm.clock
        self.collector = Collector(env, algorithm, self.clock, run.seed)
        self.rollout = Rollout(
            env.spaces, needs.horizon, env.num_envs, whole=not env.resets_in_steps
        )
        self.env, self.seed = env, run.seed
        self.update_seconds = 0.0
        self.rewards: LearnedRewards | None = None

    def reward_by(self, source: RewardFunction) -> None:
        """Learn from this reward in place of the environment's.

        Raises:
            SpaceError: It was learned with other spaces.
        """
        env = self.env
        self.rewards = LearnedRewards(source, env.spaces, env.num_envs, self.algorithm.device)

    def imitate(self, recorded: Dataset) -> None:
        """Let every rollout bring what an expert did, to draw from.

        Raises:
            DataError: It was recorded in another environment.
        """
        self.rollout.expert = recorded_buffer(
            recorded, self.algorithm, self.env, self.seed, "expert"
        )

    def start(self) -> None:
        """Reset the environments."""
        self.collector.start()

    def iterate(self) -> None:
        """Collect one rollout and update on it, unless the run is stopped in the middle of it."""
        seen = self.collector.collect_rollout(self.rollout)
        if seen is None:
            return
        began = perf_counter()
        if self.rewards is not None:
            self.rewards.relabel(self.rollout)  # whose rewards `seen` shows
        shown = self.algorithm.has_running_stats
        if shown:
            self.algorithm.update_reward_stats(seen.reward, seen.done, seen.valid)
        self.algorithm.update(self.rollout)
        if shown:  # only now, so that acting and learning from one rollout see the same
            self.algorithm.update_obs_stats(seen.obs, seen.valid)
        self.update_seconds += perf_counter() - began
        self._score()
        self.clock.collected = 0
        self.clock.env_steps += seen.env_steps
        self.clock.updates = self.algorithm.updates

    def _score(self) -> None:
        """Tell a curriculum that asks for it how wrong the values were."""
        if self.env.curriculum is None or not self.env.curriculum.scores:
            return
        if self.rollout.advantage is None:
            raise no_scores(self.algorithm.spec.name)
        self.env.score(self.rollout.advantage)

    def metrics(self) -> Metrics:
        """Return what the recent episodes were like."""
        found = self.collector.metrics()
        return found if self.rewards is None else found | self.rewards.metrics()

    def barrier(self) -> None:
        """Reset environments that cannot be saved; what they were at is truncated there."""
        collector = self.collector
        if not collector.can_save:
            if collector.filled:
                self.rollout.cut(collector.filled - 1, collector.obs, collector.carry)
            elif self.rewards is not None:
                self.rewards.restart()
            collector.start()

    def sections(self) -> dict[str, Section]:
        """Return where the environments are, a part of a rollout, and draws from an expert's."""
        parts = {"collector": Section(self.collector.state())}
        if self.collector.filled:
            parts["rollout"] = Section(self.rollout.state(self.collector.filled))
        if self.rollout.expert is not None:
            parts["expert"] = Section(self.rollout.expert.state())
        if self.rewards is not None:
            parts[LEARNED] = Section(self.rewards.state())
        return parts

    def load_sections(self, sections: dict[str, State]) -> None:
        """Restore what `sections` returned."""
        self.collector.load_state(sections["collector"])
        if self.collector.filled:
            self.rollout.load_state(sections["rollout"])
        if self.rollout.expert is not None:
            self.rollout.expert.load_state(sections["expert"])
        if self.rewards is not None:
            whole = not self.collector.filled
            self.rewards.resume(sections, reset=whole and not self.collector.can_save)
