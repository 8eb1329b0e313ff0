"""Step, remember, and learn from memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.algorithms.base import Algorithm, ReplayNeeds
from assay.buffers.hindsight import HindsightReplay, require_goals
from assay.buffers.prioritized import PrioritizedOptions
from assay.buffers.replay import ReplayBuffer
from assay.buffers.replay_protocol import Replay
from assay.buffers.sequence import SequenceReplay
from assay.core import seeding
from assay.core.types import State
from assay.loops.collect import Collector
from assay.runs.checkpoint import Section


class OffPolicyLoop:
    """One iteration is a step of every environment and the updates that it owes.

    Updates are owed by environment steps since learning started, so that the ratio of the two is
    exact for any number of environments.
    """

    def __init__(self, algorithm: Algorithm, collector: Collector, seed: int) -> None:
        needs = algorithm.needs
        assert isinstance(needs, ReplayNeeds)
        self.algorithm = algorithm
        self.collector = collector
        self.needs = needs
        self.clock = collector.clock
        self.rounds = 0
        self.replay = make_replay(
            needs, collector.env, algorithm.device, seeding.derive_rng(seed, "replay")
        )

    def iterate(self) -> None:
        """Take one step of every environment, then update as often as is due."""
        needs, clock = self.needs, self.clock
        self.collector.collect_step(self.replay, random=clock.env_steps < needs.learning_starts)
        owed = (clock.env_steps - needs.learning_starts) // needs.train_every
        if not len(self.replay):  # no sequence is complete: there is nothing to catch up on later
            self.rounds = max(self.rounds, owed)
        while self.rounds < owed:
            self.rounds += 1
            for _ in range(needs.updates):
                self.algorithm.update(self.replay)

    def cut(self) -> None:
        """End the trajectories in flight, because their environments are about to be reset."""
        self.replay.cut_episodes()

    def sections(self) -> dict[str, Section]:
        """Return the replay in chunks that are written only when they changed."""
        parts = {name: Section(*part) for name, part in self.replay.sections().items()}
        return {"loop": Section({"rounds": self.rounds})} | parts

    def load_sections(self, sections: dict[str, State]) -> None:
        """Put back what `sections` returned."""
        self.rounds = int(sections["loop"]["rounds"])
        self.replay.load_sections(sections)


def make_replay(needs: ReplayNeeds, env: Any, device: Any, rng: np.random.Generator) -> Replay[Any]:
    """Build the buffer that an algorithm asked for."""
    options = None if needs.prioritized is None else PrioritizedOptions(alpha=needs.prioritized)
    if needs.sequence is not None:
        return SequenceReplay(
            env.spaces, needs.capacity, env.num_envs, length=needs.sequence, rng=rng,
            overlap=needs.overlap, cross_episodes=needs.cross_episodes, device=device,
            prioritized=options,
        )  # fmt: skip
    if needs.her is not None:
        require_goals(env.spaces.observation)
        return HindsightReplay(
            env.spaces, needs.capacity, env.num_envs, rng=rng, options=needs.her,
            goals=env.goal_functions(), gamma=needs.gamma, device=device,
        )  # fmt: skip
    return ReplayBuffer(
        env.spaces, needs.capacity, env.num_envs, rng=rng,
        n_step=needs.n_step, gamma=needs.gamma, device=device, prioritized=options,
        frame_stack=env.frame_stack,
    )  # fmt: skip
