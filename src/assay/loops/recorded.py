"""Recorded data for an algorithm in an environment."""

from __future__ import annotations

from assay.algorithms.base import Algorithm, DatasetNeeds
from assay.buffers.dataset import DatasetBuffer
from assay.core import seeding
from assay.data.dataset import Dataset
from assay.data.findings import require_valid
from assay.envs.vector import Vector


def recorded_buffer(
    recorded: Dataset, algorithm: Algorithm, env: Vector, seed: int, stream: str = "dataset"
) -> DatasetBuffer:
    """Return recorded data as a buffer to draw from, for a run with this seed.

    Raises:
        DataError: It does not fit the environment.
    """
    needs = algorithm.needs
    require_valid(recorded, env.observations, env.actions)
    return DatasetBuffer(
        recorded,
        env.observations,
        env.actions,
        gamma=algorithm.hp.gamma,
        next_action=isinstance(needs, DatasetNeeds) and needs.next_action,
        device=algorithm.device,
        rng=seeding.derive_rng(seed, stream),
    )
