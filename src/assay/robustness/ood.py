"""Runs in worlds that differ from the one of their training: the grid of `assay test ood`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from assay.agents import require_spaces, required_vector
from assay.core.errors import AssayError, ConfigError
from assay.core.types import tree_leaves
from assay.envs.parameters import parameters, set_parameters
from assay.envs.vector import Vector
from assay.evaluation.evaluate import Agent as Acting
from assay.evaluation.evaluate import EvaluationResult
from assay.evaluation.play import Mixed
from assay.loops.config import RunConfig
from assay.robustness.disturbed import LateStart, Misled, NoisyActions, gaussian_noise
from assay.robustness.measure import TOLERANCE, Verdict, check_tolerance, judge
from assay.robustness.shifts import Change, Shift
from assay.robustness.stage import Progress, Stage
from assay.runs.directory import RunDirectory

OTHER_WORLDS = "Choose worlds with the same spaces."

_MOST_PARAMETERS = 16


def measure_shifts(
    paths: Sequence[Path],
    shifts: Sequence[Shift],
    *,
    episodes: int = 50,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    floor: float | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Play runs under every shift, in the same episodes as without one.

    Args:
        paths: Runs that differ in their seed, or one.
        shifts: What is changed, as `read_shifts` returns it.
        episodes: Of each run under each shift.
        seed: Fixes the episodes.
        tolerance: The largest loss that is accepted, as a share of what a run is worth.
        floor: The return that counts as nothing; by default that of random actions.
        progress: Told how many cells are done.

    Raises:
        AssayError: A run cannot be tested, or a shift leaves nothing to play.
    """
    check_tolerance(tolerance)
    played = []
    for number, path in enumerate(paths):
        stage = Stage(path, episodes=episodes, seed=seed, floor=floor)
        for shift in shifts:  # a mistake in the last one is known before the first is played
            with _entered(stage, shift, 1) as vector:
                vector.reset(seed)
        cells = []
        for index, shift in enumerate(shifts):
            cells.append(_play(stage, shift).returns)
            if progress is not None:
                progress(number * len(shifts) + index + 1, len(paths) * len(shifts))
        played.append(stage.played(cells))
    return judge([shift.point for shift in shifts], played, tolerance)


@contextmanager
def _entered(stage: Stage, shift: Shift, episodes: int) -> Iterator[Vector]:
    """Yield the world of a shift, if there is one for the run."""
    blind = shift.change.blind
    if stage.limit is not None and blind >= stage.limit:
        raise ConfigError(
            f"The shift {shift.point} makes the environment unsolvable: episodes end after "
            f"{stage.limit} steps, before an action of the run has an effect.",
            "Give a smaller value.",
        )
    try:
        with np.errstate(all="ignore"), _world(stage, shift.change, episodes) as vector:
            require_spaces(stage.spaces, vector, OTHER_WORLDS)
            yield vector
    except AssayError as error:
        raise ConfigError(
            f"The run cannot be played with the shift {shift.point}: {error.message}", error.fix
        ) from error


def _play(stage: Stage, shift: Shift) -> EvaluationResult:
    change = shift.change
    with _entered(stage, shift, stage.episodes) as vector:
        result = stage.play(_actor(stage, change, str(shift.point)), vector)
    if result.terminated.all() and result.lengths.max() <= max(1, change.blind):
        raise ConfigError(
            f"The shift {shift.point} makes the environment unsolvable: every episode is over "
            f"after {int(result.lengths.max())} steps, before an action of the run has an effect.",
            "Give a smaller value.",
        )
    return result


def _actor(stage: Stage, change: Change, name: str) -> Acting:
    """Return the run's agent, as far as the shift is one of what it sees and does."""
    agent: Acting = stage.policy
    space = stage.spaces.action
    if change.obs_noise:
        room, rng = stage.watched.room(), stage.rng(name, "sight")
        agent = Misled(agent, partial(gaussian_noise, room, change.obs_noise, rng))
    if change.action_noise:
        rng = stage.rng(name, "actions")
        if isinstance(space, gym.spaces.Box):
            agent = NoisyActions(agent, space, change.action_noise, rng)
        else:
            agent = Mixed(agent, space, change.action_noise, rng)
    if change.random_start:
        agent = LateStart(agent, space, change.random_start, stage.rng(name, "start"))
    return agent


def _world(stage: Stage, change: Change, episodes: int) -> Vector:
    """Return the run's environment, as far as the shift is one of it."""
    if change.start:
        _require_effect(stage, change.start)
    vector = world(stage.config, change, episodes)
    try:
        if change.factors or change.parameters:
            values: dict[str, Any] = dict(change.parameters)
            for name, now in parameters(vector, change.factors).items():
                values[name] = now * change.factors[name]
            set_parameters(vector, values)
    except BaseException:
        vector.close()
        raise
    return vector


def _require_effect(stage: Stage, start: dict[str, Any]) -> None:
    """Refuse options that a reset ignores, as Gymnasium lets it."""
    with world(stage.config, Change(start=start), 1) as other, stage.undisturbed() as usual:
        for seed in range(3):
            pairs = zip(tree_leaves(other.reset(seed)), tree_leaves(usual.reset(seed)), strict=True)
            if not all(np.array_equal(one[0], two[0]) for one, two in pairs):
                return
    raise ConfigError(
        f"episodes start as they do without the options {start}.",
        "Give options that its reset reads; its documentation names them.",
    )


def world(config: RunConfig, change: Change, episodes: int) -> Vector:
    """Return the environment of a run with other arguments, start or wrappers, or another one."""
    run = config.run
    kwargs = {**run.env_kwargs, **change.env_kwargs}
    # Those of the run come last: a delay of the sensors is below a stack of frames.
    wrappers = (*change.wrappers, *run.wrappers)
    env = config.env if change.env is None else change.env
    changed: dict[str, Any] = {"env_kwargs": kwargs, "wrappers": wrappers}
    if change.start:
        changed |= {"reset_options": {**run.reset_options, **change.start}, "backend": "auto"}
    update = {"run": run.model_copy(update=changed), "env": env}
    fix = "Only runs that were given an environment's id can be played in other ones."
    return required_vector(config.model_copy(update=update), None, episodes, fix)


def parameter_names(path: Path) -> list[str]:
    """Return all parameters of the environment of a run.

    Raises:
        AssayError: It has none, or more than can be tried.
    """
    config = RunConfig.from_dict(RunDirectory.open(path).config)
    fix = "Only runs that were given an environment's id can be tested."
    with required_vector(config, None, 1, fix) as vector:
        names = list(parameters(vector))
    if len(names) > _MOST_PARAMETERS:
        raise ConfigError(
            f"'{config.env}' has {len(names)} parameters; at most {_MOST_PARAMETERS} are tried.",
            f"Name some: dynamics.{names[0]}=[0.5,2] (`assay envs parameters {config.env}`).",
        )
    return names
