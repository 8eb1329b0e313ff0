"""The table of loops: what drives an algorithm, by the name that it is registered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from assay.algorithms.base import Algorithm
from assay.core import registry
from assay.core.errors import ConfigError
from assay.core.types import Metrics, State
from assay.envs.vector import Vector
from assay.loops.fine_tune import FineTuneLoop
from assay.loops.game import GameLoop
from assay.loops.learned_rewards import RewardFunction
from assay.loops.off_policy import OffPolicyLoop
from assay.loops.offline import OfflineLoop
from assay.loops.on_policy import OnPolicyLoop
from assay.loops.run_settings import FineTuneSettings, RunSettings
from assay.runs.checkpoint import Section


class Loop(Protocol):
    """What the loops have in common."""

    @property
    def update_seconds(self) -> float:
        """Return how long updates took, since this process began the run or went on with it."""

    def start(self) -> None:
        """Begin a run from nothing."""

    def iterate(self) -> None:
        """Get some data, learn from it, and advance the clock.

        The clock is advanced last: all of an iteration reads its schedules where it began, so that
        the last update of a run does not find them at their end.
        """

    def metrics(self) -> Metrics:
        """Return what there is to say about the data at a log line."""

    def barrier(self) -> None:
        """Bring about a state that a checkpoint can hold.

        Where something cannot be saved, this run and one that resumes from the checkpoint both go
        on from the same fresh start.
        """

    def sections(self) -> dict[str, Section]:
        """Return what a checkpoint needs of the loop and its buffer."""

    def load_sections(self, sections: dict[str, State]) -> None:
        """Restore what `sections` returned."""


def _offline(algorithm: Algorithm, env: Vector, run: RunSettings) -> Loop:
    goes_on = isinstance(run, FineTuneSettings) and run.env_steps
    return (FineTuneLoop if goes_on else OfflineLoop)(algorithm, env, run)


LOOPS: dict[registry.Loop, Callable[[Algorithm, Vector, RunSettings], Loop]] = {
    "on_policy": OnPolicyLoop,
    "off_policy": OffPolicyLoop,
    "offline": _offline,
    "game": GameLoop,
}


def make_loop(
    algorithm: Algorithm,
    env: Vector,
    run: RunSettings,
    expert: Any = None,
    reward: RewardFunction | None = None,
) -> Loop:
    """Return the loop that an algorithm is registered for.

    Args:
        algorithm: What learns.
        env: Where.
        run: The settings of the run.
        expert: Whom it imitates, if anybody.
        reward: What it learns from in place of the environment's reward, if anything.

    Raises:
        ConfigError: It is to know how episodes end, and nobody does; or it cannot play against
            itself, and that is what the environment is for.
    """
    if env.self_play and not algorithm.plays_itself:
        raise ConfigError(
            f"{algorithm.spec.name} learns as one player, and in '{env.name}' it would play both.",
            'Give it an opponent, as in env_kwargs="{opponent: random}", or train alphazero.',
        )
    algorithm.know_termination(env.termination_rule)
    loop = LOOPS[algorithm.spec.loop](algorithm, env, run)
    if algorithm.spec.expert is not None:
        assert isinstance(loop, OnPolicyLoop | OffPolicyLoop) and expert is not None
        loop.imitate(expert)
    if reward is not None:
        assert isinstance(loop, OnPolicyLoop | OffPolicyLoop)
        loop.reward_by(reward)
    return loop
