"""Learn from recorded data, then go on with an environment, from both."""

from __future__ import annotations

from time import perf_counter

from assay.algorithms.base import Algorithm, DatasetNeeds, ReplayNeeds
from assay.buffers.mixed import MixedReplay
from assay.core import seeding
from assay.core.errors import ConfigError
from assay.core.types import Metrics, State
from assay.envs.vector import Vector
from assay.loops.collect import Collector
from assay.loops.off_policy import make_replay
from assay.loops.offline import OfflineLoop, take_update
from assay.loops.run_settings import FineTuneSettings, RunSettings
from assay.runs.checkpoint import Section


class FineTuneLoop:
    """First `updates` on the data; then one iteration is a step of the environment and its updates.

    The clock counts updates in both phases, so that schedules, intervals and the names of
    checkpoints go on. Statistics of observations and rewards stay those of the data. All that is
    collected is kept.
    """

    def __init__(self, algorithm: Algorithm, env: Vector, run: RunSettings) -> None:
        needs = algorithm.needs
        assert isinstance(needs, DatasetNeeds) and isinstance(run, FineTuneSettings)
        if needs.pairs:
            raise ConfigError(
                f"env_steps={run.env_steps}: compared pairs are learned from offline, without "
                "steps in an environment.",
                "Leave env_steps out.",
            )
        self.algorithm, self.clock, self.run = algorithm, algorithm.clock, run
        self.offline = OfflineLoop(algorithm, env, run)
        self.collector = Collector(env, algorithm, self.clock, run.seed)
        self.collecting, self._update_seconds = False, 0.0
        kept = ReplayNeeds(max(run.env_steps, env.num_envs), 0, gamma=needs.gamma)
        rng = seeding.derive_rng(run.seed, "replay")
        replay = make_replay(kept, env, algorithm.device, rng, run.env_steps)
        self.replay = MixedReplay(self.offline.dataset, replay, run.data_share)

    def start(self) -> None:
        """Show all data to the normalisers."""
        self.offline.start()

    def iterate(self) -> None:
        """Update once on the data, or take a step and learn from the data and all steps."""
        if self.clock.updates < self.run.updates:
            self.offline.iterate()
            return
        if not self.collecting:
            self.collector.start()
            self.collecting = True
        seen = self.collector.collect_step(self.replay, random=False)
        reached = self.clock.env_steps + seen.env_steps
        due = self.run.updates + reached * self.run.updates_per_step
        began = perf_counter()
        while self.algorithm.updates < due:
            take_update(self.algorithm, self.replay)
        self._update_seconds += perf_counter() - began
        self.clock.env_steps, self.clock.updates = reached, self.algorithm.updates

    @property
    def update_seconds(self) -> float:
        """Return what the updates of both phases took."""
        return self.offline.update_seconds + self._update_seconds

    def metrics(self) -> Metrics:
        """Return what the recent episodes were like, once there are any."""
        return self.collector.metrics()

    def barrier(self) -> None:
        """End the trajectories of environments that cannot be saved, and reset them."""
        if self.collecting and not self.collector.can_save:
            self.replay.cut_episodes()
            self.collector.start()

    def sections(self) -> dict[str, Section]:
        """Return where the draws are; while collecting, also the replay and the environments."""
        if not self.collecting:
            return self.offline.sections()
        parts = {name: Section(*part) for name, part in self.replay.sections().items()}
        return parts | {"collector": Section(self.collector.state())}

    def load_sections(self, sections: dict[str, State]) -> None:
        """Restore what `sections` returned."""
        self.collecting = "collector" in sections
        if not self.collecting:
            self.offline.load_sections(sections)
            return
        self.replay.load_sections(sections)
        self.collector.load_state(sections["collector"])
