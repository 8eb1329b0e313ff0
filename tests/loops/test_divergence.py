"""What is advised where training diverged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Space

from assay.loops.divergence import divergence_fix
from assay.testing.algorithms import make_algorithm

NUMBERS, IMAGE = Box(-1.0, 1.0, (3,), np.float32), Box(0, 255, (36, 36, 1), np.uint8)
FORCE, CHOICE = Box(-1.0, 1.0, (1,), np.float32), Discrete(2)
SCALE = "or set normalize_obs=true or normalize_reward=true."


@pytest.mark.parametrize(
    ("algorithm", "spaces", "settings", "fix"),
    [
        ("ppo", (NUMBERS, CHOICE), {}, f"Lower lr or max_grad_norm, {SCALE}"),
        ("ppo", (IMAGE, CHOICE), {}, "Lower lr or max_grad_norm, or set normalize_reward=true."),
        ("ppo", (NUMBERS, FORCE), {"normalize_obs": True, "normalize_reward": True},
         "Lower lr or max_grad_norm."),
        ("mbpo", (NUMBERS, FORCE), {}, f"Lower lr or model_lr, {SCALE}"),
        ("sac", (NUMBERS, FORCE), {"critic_lr": 1e-3, "max_grad_norm": 5.0},
         f"Lower lr, critic_lr or max_grad_norm, {SCALE}"),
        ("fqf", (NUMBERS, CHOICE), {}, f"Lower lr, fraction_lr or max_grad_norm, {SCALE}"),
    ],
)  # fmt: skip
def test_it_names_settings_that_the_algorithm_has(
    algorithm: str, spaces: tuple[Space[Any], Space[Any]], settings: dict[str, Any], fix: str
) -> None:
    assert divergence_fix(make_algorithm(algorithm, *spaces, **settings)) == fix
