"""TD-MPC2: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

from typing import Any

from assay.testing.algorithms import AlgorithmContract

SMALL: dict[str, Any] = {
    "buffer_size": 150, "learning_starts": 12, "batch_size": 8, "train_every": 2, "latent": 16,
    "width": 16, "encoder_width": 16, "critics": 3, "bins": 11, "samples": 12, "policy_samples": 3,
    "elites": 4, "iterations": 2, "horizon": 2,
}  # fmt: skip


class TestContract(AlgorithmContract):
    algorithm = "tdmpc2"
    settings = SMALL
