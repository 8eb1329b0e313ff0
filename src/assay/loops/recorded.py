"""Open recorded data for an algorithm in an environment."""

from __future__ import annotations

from pathlib import Path

from assay.algorithms.base import Algorithm, DatasetNeeds, ReplayNeeds
from assay.buffers.dataset import DatasetBuffer
from assay.core import seeding
from assay.data.files import load
from assay.data.findings import require_valid
from assay.envs.vector import Vector


def open_dataset(path: Path, algorithm: Algorithm, env: Vector, seed: int) -> DatasetBuffer:
    """Return the data in a file as a buffer to draw from, for a run with this seed.

    Raises:
        DataError: It cannot be read, or does not fit the environment.
    """
    needs = algorithm.needs
    assert isinstance(needs, DatasetNeeds | ReplayNeeds)
    recorded = load(path)
    require_valid(recorded, env.observations, env.actions)
    return DatasetBuffer(
        recorded,
        env.observations,
        env.actions,
        gamma=needs.gamma,
        next_action=isinstance(needs, DatasetNeeds) and needs.next_action,
        device=algorithm.device,
        rng=seeding.derive_rng(seed, "dataset"),
    )
