"""Step, remember, and learn from memory."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from assay.algorithms.base import Algorithm, ReplayNeeds
from assay.buffers.hindsight import HindsightReplay, require_goals
from assay.buffers.mixed import MixedReplay
from assay.buffers.prioritized import PrioritizedOptions
from assay.buffers.replay import ReplayBuffer
from assay.buffers.replay_protocol import Replay
from assay.buffers.sequence import SequenceReplay
from assay.core import seeding
from assay.core.errors import ConfigError
from assay.core.types import Clock, Metrics, State
from assay.data.files import load
from assay.envs.vector import Vector
from assay.loops.collect import Collector, no_scores
from assay.loops.learned_rewards import LEARNED, LearnedRewards, RewardedReplay, RewardFunction
from assay.loops.recorded import recorded_buffer
from assay.loops.run_settings import MixedSettings, RunSettings
from assay.runs.checkpoint import Section


class OffPolicyLoop:
    """One iteration is a step of every environment and the updates that it owes.

    Updates are owed by environment steps since learning started, so that the ratio of the two is
    exact for any number of environments.
    """

    def __init__(self, algorithm: Algorithm, env: Vector, run: RunSettings) -> None:
        needs, clock = algorithm.needs, algorithm.clock
        assert isinstance(needs, ReplayNeeds)
        if needs.learning_starts >= clock.total:
            raise _nothing_to_learn(needs, clock)
        if env.curriculum is not None and env.curriculum.scores:
            raise no_scores(algorithm.spec.name)
        self.algorithm, self.env = algorithm, env
        self.needs, self.clock = needs, clock
        self.collector = Collector(env, algorithm, clock, run.seed)
        self.rounds, self.update_seconds = 0, 0.0
        rng = seeding.derive_rng(run.seed, "replay")
        if isinstance(run, MixedSettings) and run.data is not None:
            _require_uniform(needs)
        self.replay = make_replay(needs, env, algorithm.device, rng, clock.total)
        if isinstance(run, MixedSettings) and run.data is not None:
            dataset = recorded_buffer(load(run.data), algorithm, env, run.seed)
            self.replay = MixedReplay(dataset, self.replay, run.data_share)
        self.rewards: LearnedRewards | None = None

    def reward_by(self, source: RewardFunction) -> None:
        """Learn from this reward in place of the environment's, which the replay keeps.

        Raises:
            ConfigError: Rewards are not those of single steps.
            SpaceError: It was learned with other spaces.
        """
        if self.needs.n_step > 1 or self.needs.her is not None:
            setting = "her" if self.needs.her is not None else "n_step"
            raise ConfigError(
                f"reward_model does not work with {setting}: batches need the reward of each step.",
                f"Leave {setting} out, or leave reward_model out.",
            )
        env = self.env
        self.rewards = LearnedRewards(source, env.spaces, env.num_envs, self.algorithm.device)
        self.replay = RewardedReplay(self.replay, self.rewards)

    def imitate(self, find: Callable[[Vector], Any]) -> None:
        """Give the algorithm an expert to ask, which `find` makes for these environments."""
        self.algorithm.teacher = find(self.env)  # type: ignore[attr-defined]

    def start(self) -> None:
        """Reset the environments."""
        self.collector.start()

    def iterate(self) -> None:
        """Take one step of every environment, then update as often as is due."""
        needs, clock = self.needs, self.clock
        random = clock.env_steps < needs.learning_starts
        seen = self.collector.collect_step(self.replay, random)
        if self.rewards is not None:
            seen = seen._replace(reward=self.rewards.last)
        reached = clock.env_steps + seen.env_steps
        if self.algorithm.has_running_stats:
            self.algorithm.update_reward_stats(seen.reward, seen.done, seen.valid)
            self.algorithm.update_obs_stats(seen.obs, seen.valid)
        self._update(owed=(reached - needs.learning_starts) // needs.train_every)
        clock.env_steps, clock.updates = reached, self.algorithm.updates

    def _update(self, owed: int) -> None:
        """Update until `owed` rounds are done in all."""
        if not len(self.replay):  # no sequence is complete: there is nothing to catch up on later
            self.rounds = max(self.rounds, owed)
        began = perf_counter()
        while self.rounds < owed:
            self.rounds += 1
            for _ in range(self.needs.updates):
                self.algorithm.update(self.replay)
        self.update_seconds += perf_counter() - began

    def metrics(self) -> Metrics:
        """Return what the recent episodes were like."""
        found = self.collector.metrics()
        return found if self.rewards is None else found | self.rewards.metrics()

    def barrier(self) -> None:
        """End the trajectories of environments that cannot be saved, and reset them."""
        if not self.collector.can_save:
            self.replay.cut_episodes()
            self.collector.start()
            if self.rewards is not None:
                self.rewards.restart()

    def sections(self) -> dict[str, Section]:
        """Return where the environments are, and the replay in chunks.

        A chunk is written only when it changed.
        """
        parts = {name: Section(*part) for name, part in self.replay.sections().items()}
        own = {"collector": self.collector.state(), "loop": {"rounds": self.rounds}}
        if self.rewards is not None:
            own[LEARNED] = self.rewards.state()
        return {name: Section(state) for name, state in own.items()} | parts

    def load_sections(self, sections: dict[str, State]) -> None:
        """Restore what `sections` returned."""
        self.rounds = int(sections["loop"]["rounds"])
        self.replay.load_sections(sections)
        self.collector.load_state(sections["collector"])
        if self.rewards is not None:
            self.rewards.resume(sections, reset=not self.collector.can_save)


def _nothing_to_learn(needs: ReplayNeeds, clock: Clock) -> ConfigError:
    return ConfigError(
        f"learning_starts={needs.learning_starts:,} leaves nothing to learn from "
        f"env_steps={clock.total:,}.",
        "Lower learning_starts or raise env_steps.",
    )


def _require_uniform(needs: ReplayNeeds) -> None:
    """Refuse a replay whose batches cannot be joined with recorded transitions."""
    if needs.her is not None:
        raise ConfigError(
            f"her={needs.her.strategy} does not work with data: recorded transitions keep their "
            "goals.",
            "Leave her out, or leave data out.",
        )
    assert needs.prioritized is None and needs.sequence is None


def fillable(needs: ReplayNeeds, env: Any, num_envs: int, steps: int) -> int:
    """Return the capacity of a replay: what was asked for, or all that a run can fill.

    Args:
        needs: What the algorithm asked for.
        env: Of what kind the environments are: `frame_stack`, `resets_in_steps`.
        num_envs: How many there are.
        steps: Environment steps of the run.
    """
    rows = max(-(-steps // num_envs), needs.n_step)  # of each environment
    # Rows that are resets leave others more of the steps; episodes that begin add frames.
    rows *= 2 if env.resets_in_steps or env.frame_stack else 1
    most = rows * num_envs
    if needs.sequence is not None:
        # An episode of one step is a sequence. Where they run on, its end is a row as well.
        count = -(-2 * most // (needs.sequence - needs.overlap)) if needs.cross_episodes else most
        most = needs.sequence * count
    return min(needs.capacity, most)


def make_replay(
    needs: ReplayNeeds, env: Any, device: Any, rng: np.random.Generator, steps: int
) -> Replay[Any]:
    """Build the buffer that an algorithm asked for, for a run of so many environment steps."""
    shape = env.spaces, fillable(needs, env, env.num_envs, steps), env.num_envs
    shared: dict[str, Any] = {"rng": rng, "device": device}
    if needs.her is not None:
        require_goals(env.spaces.observation)
        goals = env.goal_functions()
        return HindsightReplay(*shape, options=needs.her, goals=goals, gamma=needs.gamma, **shared)
    if needs.prioritized is not None:
        shared["prioritized"] = PrioritizedOptions(alpha=needs.prioritized)
    if needs.sequence is None:
        shared |= {"n_step": needs.n_step, "gamma": needs.gamma, "frame_stack": env.frame_stack}
        return ReplayBuffer(*shape, **shared)
    shared |= {"overlap": needs.overlap, "cross_episodes": needs.cross_episodes}
    return SequenceReplay(*shape, length=needs.sequence, **shared)
