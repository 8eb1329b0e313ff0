"""The reward that is trained on. The evaluation does not use it."""

import numpy as np


def reward(observation: np.ndarray, action: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return what one step earns in every environment: one point while the pole stands."""
    return np.ones(len(after))
