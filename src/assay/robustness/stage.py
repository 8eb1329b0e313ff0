"""A run and its environment, ready to be disturbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from assay.agents import (
    Agent,
    evaluation_vector,
    load,
    require_one_agent,
    require_spaces,
    required_vector,
)
from assay.core.errors import ConfigError
from assay.core.seeding import derive_rng
from assay.envs.vector import Vector
from assay.evaluation.evaluate import Agent as Acting
from assay.evaluation.evaluate import EvaluationResult, evaluate
from assay.evaluation.play import Uniform
from assay.loops.config import RunConfig
from assay.robustness.disturbed import Watched
from assay.robustness.measure import Floats, Played, check_worth
from assay.runs.directory import RunDirectory

Progress = Callable[[int, int], None]  # cells that are done, and all of them


class Stage:
    """A run and its environment: where it is played, undisturbed and disturbed.

    Args:
        path: The run.
        episodes: How many are played each time.
        seed: Fixes the episodes, and what is drawn.
        floor: The return that counts as nothing; by default that of random actions.

    Attributes:
        nominal: The undisturbed episodes.
        watched: The agent that played them, with what it saw.

    Raises:
        AssayError: The run cannot be played, or is worth nothing.
    """

    def __init__(self, path: Path, *, episodes: int, seed: int, floor: float | None) -> None:
        if episodes < 2:
            raise ConfigError(f"episodes={episodes}: an interval needs at least 2.")
        if floor is not None and not np.isfinite(floor):
            raise ConfigError(f"floor={floor}: expected a finite number.")
        self.path, self.episodes, self.seed = path, episodes, seed
        self.agent: Agent = load(path)
        require_one_agent(self.agent, "assay test")
        if self.agent.algorithm.spec.loop == "game":
            raise ConfigError(
                f"The run '{path}' has solved a game; nothing of it is played.",
                "Measure it: assay evaluate equilibria GAME RUN.",
            )
        self.policy, self.spaces = self.agent.policy, self.agent.algorithm.spaces
        self.config = RunConfig.from_dict(RunDirectory.open(path).config)
        self.watched = Watched(self.policy, self.spaces.observation, self.rng("watch"))
        fix = "Only runs that were given an environment's id can be tested."
        with required_vector(self.config, None, episodes, fix) as vector:
            require_spaces(self.spaces, vector)
            self.limit = vector.limit
            self.nominal = self.play(self.watched, vector)
            self.floor = floor if floor is not None else self._random(vector)
        check_worth(str(path), self.nominal.returns, self.floor)

    def rng(self, *names: str) -> np.random.Generator:
        """Return a generator of draws, by what they are for."""
        return derive_rng(self.seed, "robustness", *names)

    def play(self, agent: Acting, vector: Vector) -> EvaluationResult:
        """Play the episodes."""
        # Losses are paired by episode, so none may be left out.
        return evaluate(agent, vector, episodes=self.episodes, seed=self.seed, every_episode=True)

    def undisturbed(self) -> Vector:
        """Return the environment of the run."""
        vector = evaluation_vector(self.config, None, self.episodes)
        assert vector is not None  # it was made before
        return vector

    def played(self, cells: Sequence[Floats]) -> Played:
        """Return the returns of the run, with those of cells."""
        return Played(str(self.path), self.nominal.returns, self.floor, tuple(cells))

    def _random(self, vector: Vector) -> float:
        agent = Uniform(self.spaces.action, self.rng("random"))
        return self.play(agent, vector).mean
