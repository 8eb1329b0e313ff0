"""An algorithm of another package, and data for it."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from offline_data import record

from assay.data.files import save

THIRD_PARTY = Path(__file__).parent / "third_party"


@pytest.fixture
def bc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install the algorithm `bc`, for this process and for those that it starts."""
    facts = tmp_path / "site" / "their_package-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their_package\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[assay.algorithms]\nbc = bc\n")
    for place in (facts.parent, THIRD_PARTY):
        monkeypatch.syspath_prepend(place)
        monkeypatch.setenv("PYTHONPATH", str(place), prepend=":")
    return "bc"


@pytest.fixture
def balance(tmp_path: Path) -> Path:
    """Return a file in which somebody balances the pole of CartPole-v1."""
    path = tmp_path / "balance.npz"
    rng = np.random.default_rng(0)

    def push(obs: np.ndarray) -> int:
        right = int(obs[2] + obs[3] > 0)  # angle and its speed
        return right if rng.random() < 0.9 else 1 - right

    return save(record(gym.make("CartPole-v1"), push, 1000), path)
