"""That `benchmarks/tensor_vector.py` measures, and steps the same physics on both sides."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import tensor_vector


def test_carts_in_tensors_move_as_those_of_gymnasium() -> None:
    ours, theirs = tensor_vector.CartPole(1, "cpu"), gym.make("CartPole-v1")
    for seed in range(3):
        first, _ = theirs.reset(seed=seed)
        ours.reset(seed)
        ours.state = torch.tensor(first)[None]
        for action in np.random.default_rng(seed).integers(2, size=500).tolist():
            obs, reward, *ends, _ = theirs.step(action)
            _, paid, fallen, late, info = ours.step(torch.tensor([action]))
            np.testing.assert_allclose(info["final_obs"][0], obs, atol=1e-4)
            assert [bool(fallen), bool(late)] == ends and float(paid) == reward
            if any(ends):
                break
        assert any(ends) and float(ours.steps) == 0


def test_a_tiny_measurement() -> None:
    (row,) = tensor_vector.result([4], "cpu", turns=1, steps=8)["rows"]
    assert row["copies"] == 4 and min(row.values()) > 0 and len(row) == 5
