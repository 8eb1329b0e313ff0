"""Runs in levels of their environment, each by itself: what `assay evaluate --levels` shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.agents import load, require_one_agent, require_spaces
from assay.core.errors import AssayError, ConfigError
from assay.envs.make import make_vector
from assay.evaluation.evaluate import EvaluationResult, evaluate, save_evaluation
from assay.loops.config import RunConfig
from assay.robustness.ood import OTHER_WORLDS, world
from assay.robustness.shifts import Change, level_change
from assay.runs.directory import RunDirectory

NAMED = "named"  # all levels that the environment has names for


def evaluate_levels(
    path: Path,
    levels: Any,
    *,
    episodes: int = 20,
    seed: int = 0,
    sampled: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, EvaluationResult]:
    """Play the same number of episodes in each of some levels, and store them in the run.

    Args:
        path: The run.
        levels: "named" for all that the environment has names for, or a list whose entries are
            arguments of the environment's constructor, or ids of other environments.
        episodes: Of each level.
        seed: Fixes the episodes.
        sampled: Whether actions are drawn as in training. A level that is always the same has only
            one episode otherwise.
        settings: Those of `load`.

    Returns:
        The episodes by the level's name.

    Raises:
        AssayError: The run cannot be played, or not in one of the levels.
    """
    directory = RunDirectory.open(path)
    config = RunConfig.from_dict(directory.config)
    changes = read_levels(levels, config)
    agent = load(path, settings=settings)
    require_one_agent(agent, "assay evaluate --levels")
    found = {}
    for name, change in changes.items():
        try:
            with world(config, change, episodes) as vector:
                require_spaces(agent.algorithm.spaces, vector, OTHER_WORLDS)
                found[name] = evaluate(
                    agent.policy, vector, episodes=episodes, seed=seed, explore=sampled
                )
        except AssayError as error:
            raise ConfigError(
                f"The run cannot be played in the level {name}: {error.message}", error.fix
            ) from error
    own = [*(f"{k}={v}" for k, v in (settings or {}).items()), *(["sampled"] if sampled else [])]
    for name, result in found.items():
        label = "-".join([f"seed{seed}", f"level={re.sub(r'[^A-Za-z0-9._=+-]+', '_', name)}", *own])
        clock = agent.clock
        save_evaluation(directory, clock.count, result, label=label, unit=clock.unit)
    return found


def read_levels(levels: Any, config: RunConfig) -> dict[str, Change]:
    """Return what each level changes in the environment of a run, by a name for it.

    Raises:
        ConfigError: There are none, or they are not in the form of `evaluate_levels`.
    """
    if levels == NAMED:
        levels = _named(config)
    elif not isinstance(levels, list):
        levels = [levels]
    if not levels:
        raise ConfigError("levels=[]: expected at least one.", "For example [{maze: labyrinth}].")
    found: dict[str, Change] = {}
    for level in levels:
        change = level_change(level)
        values = change.env_kwargs
        name = ", ".join(f"{k}={v}" for k, v in values.items()) if len(values) > 1 else None
        found[name or change.env or str(next(iter(values.values())))] = change
    if len(found) < len(levels):
        raise ConfigError(f"levels={levels}: two are called the same.", "Leave one of them out.")
    return found


def _named(config: RunConfig) -> list[dict[str, Any]]:
    with make_vector(config.env, 1, env_kwargs=dict(config.run.env_kwargs)) as vector:
        env = getattr(vector.backend, "env", None)
        names = getattr(getattr(env, "unwrapped", None), "named_levels", {})
    if not names:
        raise ConfigError(
            f"'{config.env}' has no levels with names.",
            'Give arguments of its constructor: --levels "[{NAME: VALUE}]".',
        )
    return [dict(kwargs) for kwargs in names.values()]


def summary(found: Mapping[str, EvaluationResult]) -> dict[str, Any]:
    """Return plain values: every level's episodes, and the means over levels."""
    rates = [result.success_rate for result in found.values()]
    means: dict[str, float] = {"mean": float(np.mean([r.mean for r in found.values()]))}
    known = [rate for rate in rates if rate is not None]
    if len(known) == len(rates):
        means["success_rate"] = float(np.mean(known))
    return {"by_level": {name: result.to_json() for name, result in found.items()}, **means}
