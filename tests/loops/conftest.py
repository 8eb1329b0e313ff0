"""Data for the offline loop."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from offline_data import record

from assay.data.files import save


@pytest.fixture
def balance(tmp_path: Path) -> Path:
    """Return a file in which somebody balances the pole of CartPole-v1."""
    path = tmp_path / "balance.npz"
    rng = np.random.default_rng(0)

    def push(obs: np.ndarray) -> int:
        right = int(obs[2] + obs[3] > 0)  # angle and its speed
        return right if rng.random() < 0.9 else 1 - right

    return save(record(gym.make("CartPole-v1"), push, 1000), path)
