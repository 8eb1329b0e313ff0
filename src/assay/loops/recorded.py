"""Recorded data for an algorithm in an environment, or in place of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from assay.algorithms.base import Algorithm, DatasetNeeds
from assay.buffers.dataset import DatasetBuffer
from assay.core import seeding
from assay.core.errors import EnvError, MissingExtraError
from assay.data.dataset import Dataset
from assay.data.files import load
from assay.data.findings import require_valid
from assay.envs.make import BackendName, make_vector
from assay.envs.recorded import NO_ENV, recorded_vector
from assay.envs.vector import Vector
from assay.loops.config import RunConfig


def recorded_buffer(
    recorded: Dataset, algorithm: Algorithm, env: Vector, seed: int, stream: str = "dataset"
) -> DatasetBuffer:
    """Return recorded data as a buffer to draw from, for a run with this seed.

    Raises:
        DataError: It does not fit the environment, or is not of the kind that is needed.
    """
    needs = algorithm.needs
    require_valid(recorded, env.observations, env.actions)
    return DatasetBuffer(
        recorded,
        env.observations,
        env.actions,
        gamma=algorithm.hp.gamma,
        next_action=isinstance(needs, DatasetNeeds) and needs.next_action,
        pairs=isinstance(needs, DatasetNeeds) and needs.pairs,
        device=algorithm.device,
        rng=seeding.derive_rng(seed, stream),
    )


def run_vector(
    config: RunConfig,
    env: Any = None,
    num_envs: int | None = None,
    backend: BackendName | None = None,
) -> Vector:
    """Return the environments of a run; where it has none, the spaces of its data.

    Args:
        config: Its configuration.
        env: An environment object or factory to use in place of the id in `config`.
        num_envs: How many there are to be.
        backend: How they are stepped; as the run says by default.
    """
    run = config.run
    if env is None and config.env == NO_ENV:
        schema = load(run.data).schema  # type: ignore[union-attr]
        return recorded_vector(schema.observation, schema.action)
    return make_vector(
        config.env if env is None else env,
        num_envs,
        backend=run.backend if backend is None else backend,
        **run.env_settings(),
        **run.variation(),
    )


def env_of(*layers: Mapping[str, Any]) -> str | None:
    """Return what the data of a run was recorded in, "none" if it does not say; None without data.

    `layers` are its settings, as of `assay.loops.config.resolve`.
    """
    data = _data_of(*layers)
    return None if data is None else str(load(data).metadata.get("env", NO_ENV))


@contextmanager
def telling_of_data(env: Any, *layers: Mapping[str, Any]) -> Iterator[None]:
    """Where an environment cannot be made that the data of a run names, say so.

    Args:
        env: The environment of the run.
        layers: As of `env_of`.

    Raises:
        EnvError: What was raised inside, with the data, and how to do without this environment.
    """
    try:
        yield
    except (EnvError, MissingExtraError) as error:
        if not isinstance(env, str) or env_of(*layers) != env:
            raise
        other = (
            "Or give another environment in its place, or 'none' where the algorithm learns from "
            "data alone."
        )
        raise EnvError(
            f"The data {load(_data_of(*layers)).name} names the environment '{env}'. "
            f"{error.message}",
            other if error.fix is None else f"{error.fix}\n{other}",
        ) from error


def _data_of(*layers: Mapping[str, Any]) -> Any:
    """Return the data of a run, or None; the last layer that has it counts."""
    named = [part.get("data") for layer in layers for part in (layer.get("run") or {}, layer)]
    return next((one for one in reversed(named) if one is not None), None)
