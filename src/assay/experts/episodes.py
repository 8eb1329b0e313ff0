"""Episodes of an expert: a dataset, what the agent of a run does, or random actions.

A run keeps a copy of them in its directory, `expert.npz`. So it goes on with the same episodes,
even if the place that they came from has changed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from assay.agents import Agent, load, required_vector
from assay.core.errors import ConfigError, DataError
from assay.core.seeding import derive_rng
from assay.data.collect import from_episodes
from assay.data.combine import first
from assay.data.dataset import Dataset
from assay.data.files import load as load_data
from assay.data.files import save
from assay.evaluation.play import Uniform, play, recorded_space
from assay.loops.config import RunConfig
from assay.loops.run_settings import OBJECT, RANDOM, EpisodeSettings, find_run
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory

_FILE = "expert.npz"
_SEED = 0  # of the episodes that are recorded


def keep(config: RunConfig, directory: Path, env: Any, given: Any) -> Dataset:
    """Copy the episodes of the expert into the directory of a run, and return them.

    Args:
        config: Of the run.
        directory: Of the run.
        env: The environment object of the run, if it was given one.
        given: The expert, if it was given as an object.

    Raises:
        ConfigError: The expert is one of another environment, or no dataset.
        DataError: There are no episodes, or they cannot be read.
    """
    run = config.run
    assert isinstance(run, EpisodeSettings)
    episodes = first(_source(config, run, env, given), run.expert_episodes)
    if not len(episodes):
        raise DataError(
            f"expert='{run.expert}' has no steps to imitate.", "Record episodes of an expert."
        )
    copy = load_data(save(episodes, directory / _FILE))
    copy.name = f"expert='{run.expert}'"  # a run that is refused leaves no copy to look at
    return copy


def kept(directory: Path) -> Dataset:
    """Return what `keep` copied.

    Raises:
        DataError: It is gone or damaged.
    """
    return load_data(directory / _FILE)


def _source(config: RunConfig, run: EpisodeSettings, env: Any, given: Any) -> Dataset:
    """Return episodes of the expert: a dataset as it is, of others as many as are needed."""
    if given is not None:
        return _require_dataset(given)
    if run.expert.startswith(OBJECT):
        raise ConfigError(
            f"expert='{run.expert}' was given as an object, which is not stored.",
            "Pass the dataset as expert= to assay.train.",
        )
    count = run.expert_episodes
    if run.expert == RANDOM:
        return _recorded(config, env, count, None)
    place = find_run(run.expert)
    if place is None:
        return load_data(run.expert)
    other = expert_config(config, place)
    return _recorded(other, env if other.env_is_object else None, count, place)


def expert_config(config: RunConfig, place: Path) -> RunConfig:
    """Return the configuration of a run that is the expert of another.

    Raises:
        ConfigError: It is one of another environment.
    """
    other = RunConfig.from_dict(RunDirectory.open(place).config)
    if other.env != config.env:
        raise ConfigError(
            f"expert='{place}' was trained in '{other.env}', and this run is in '{config.env}'.",
            "Give an expert of the same environment.",
        )
    return other


def load_known(place: Path) -> tuple[Agent, str]:
    """Return the agent of a run, and the SHA-256 of what its last checkpoint says of itself."""
    agent = load(place)
    latest = checkpoint.latest(RunDirectory.open(place).checkpoints_path)
    assert latest is not None  # the agent was loaded from it
    return agent, hashlib.sha256((latest / checkpoint.MANIFEST).read_bytes()).hexdigest()


def _recorded(config: RunConfig, env: Any, episodes: int, place: Path | None) -> Dataset:
    """Play an agent, or at random, in the environment of a configuration."""
    vector = required_vector(config, env, episodes, "Give a factory, or a dataset as the expert.")
    try:
        actor: Any = Uniform(vector.spaces.action, derive_rng(_SEED, "expert"))
        if place is not None:
            actor = load(place).policy
        played = play(actor, vector, episodes=episodes, seed=_SEED)
        return from_episodes(played, recorded_space(vector.observations), vector.actions.source)
    finally:
        vector.close()


def _require_dataset(given: Any) -> Dataset:
    if isinstance(given, Dataset):
        return given
    raise ConfigError(
        f"expert is a {type(given).__name__}; expected a dataset, its path, a run or 'random'.",
        "Record episodes of it with assay.data.from_episodes.",
    )
