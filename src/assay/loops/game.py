"""Learn from the rules of a game, written out as a tree."""

from __future__ import annotations

from time import perf_counter

from assay.algorithms.base import Algorithm, GameNeeds
from assay.core.types import Metrics, State
from assay.envs.vector import Vector
from assay.loops.offline import take_update
from assay.loops.run_settings import GameSettings, RunSettings
from assay.runs.checkpoint import Section


class GameLoop:
    """One iteration is an update, which sees the whole game.

    The environment says which game it is; nobody steps it.
    """

    def __init__(self, algorithm: Algorithm, env: Vector, run: RunSettings) -> None:
        assert isinstance(algorithm.needs, GameNeeds) and isinstance(run, GameSettings)
        self.algorithm = algorithm
        self.clock = algorithm.clock
        self.tree = env.game_tree()
        self.update_seconds = 0.0

    def start(self) -> None:
        """Do nothing: the first update begins."""

    def iterate(self) -> None:
        """Update once."""
        began = perf_counter()
        take_update(self.algorithm, self.tree)
        self.update_seconds += perf_counter() - began
        self.clock.updates = self.algorithm.updates

    def metrics(self) -> Metrics:
        """Return nothing: no episodes are played."""
        return {}

    def barrier(self) -> None:
        """Do nothing: a checkpoint can hold all there is."""

    def sections(self) -> dict[str, Section]:
        """Return nothing: all there is to know belongs to the algorithm, and to the rules."""
        return {}

    def load_sections(self, sections: dict[str, State]) -> None:
        """Do nothing."""
