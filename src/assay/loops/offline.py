"""Learn from recorded data alone."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from assay.algorithms.base import Algorithm, DatasetNeeds
from assay.core.errors import AssayError
from assay.core.types import Metrics, State
from assay.data.files import load
from assay.envs.vector import Vector
from assay.loops.recorded import recorded_buffer
from assay.loops.run_settings import OfflineSettings, RunSettings
from assay.runs.checkpoint import Section

_AT_ONCE = 1 << 16  # transitions that normalisers see at once


class OfflineLoop:
    """One iteration is an update.

    There is no collector. The environment says what observations and actions are; nobody steps it.
    """

    def __init__(self, algorithm: Algorithm, env: Vector, run: RunSettings) -> None:
        needs = algorithm.needs
        assert isinstance(needs, DatasetNeeds) and isinstance(run, OfflineSettings)
        self.algorithm = algorithm
        self.clock = algorithm.clock
        self.dataset = recorded_buffer(load(run.data), algorithm, env, run.seed)
        self.update_seconds = 0.0

    def start(self) -> None:
        """Show all data to the normalisers, in the order of the file; they do not move again."""
        if not self.algorithm.has_running_stats:
            return
        for first in range(0, len(self.dataset), _AT_ONCE):
            index = np.arange(first, min(first + _AT_ONCE, len(self.dataset)))
            rows = self.dataset.dataset.transitions(index)
            done = rows["terminated"] | rows["truncated"]
            self.algorithm.update_reward_stats(rows["reward"][:, None], done[:, None])
            self.algorithm.update_obs_stats(self.dataset.canonical(rows["obs"]))

    def iterate(self) -> None:
        """Update once."""
        began = perf_counter()
        take_update(self.algorithm, self.dataset)
        self.update_seconds += perf_counter() - began
        self.clock.updates = self.algorithm.updates

    def metrics(self) -> Metrics:
        """Return nothing: no episodes are played."""
        return {}

    def barrier(self) -> None:
        """Do nothing: a checkpoint can hold all there is."""

    def sections(self) -> dict[str, Section]:
        """Return where the draws are; the data stays in its file."""
        return {"dataset": Section(self.dataset.state())}

    def load_sections(self, sections: dict[str, State]) -> None:
        """Restore what `sections` returned."""
        self.dataset.load_state(sections["dataset"])


def take_update(algorithm: Algorithm, data: Any) -> None:
    """Update once, and require that it counts.

    Raises:
        AssayError: It took no optimizer step.
    """
    before = algorithm.updates
    algorithm.update(data)
    if algorithm.updates == before:
        raise AssayError(
            f"{algorithm.spec.name}.update took no optimizer step, so that the run would never "
            "end.",
            "Let `update` call an optimizer step that is an attribute of the algorithm.",
        )
