"""Random network distillation: a reward for what is new (Burda et al. 2018, arXiv:1810.12894).

A predictor learns the output of a fixed random network. Where it has seldom been, it errs: the
error is the intrinsic reward. `assay.algorithms.shared.novelty` makes rewards of it.

Deviation: a stack of frames is looked at as a whole, not its last frame alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor, nn

from assay.core.images import is_image
from assay.core.types import Tree, unpack
from assay.functional.losses import weighted_mean
from assay.networks.encoders import make_encoder
from assay.networks.mlp import mlp

CLIP = 5.0  # of standardised observations
FEATURES = 64  # width of the output


class Distillation(nn.Module):
    """A fixed random network and a predictor of its output, deeper by one layer."""

    def __init__(self, space: gym.Space[Any], *, hidden: Sequence[int], cnn: str) -> None:
        super().__init__()

        def network(*sizes: int) -> nn.Sequential:
            encoder = make_encoder(_standardised(space), hidden=hidden, activation="relu", cnn=cnn)
            head = mlp((encoder.out_features, *sizes), "relu", output_gain=math.sqrt(2))
            return nn.Sequential(encoder, head)

        self.target = network(FEATURES).requires_grad_(False)
        self.predictor = network(FEATURES, FEATURES)

    def error(self, novel: Tree) -> Tensor:
        """Return the mean squared error [B] of the prediction for standardised observations."""
        return (self.predictor(novel) - self.target(novel)).square().mean(-1)

    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what the predictor minimises; `novel_weight` [B] may leave rows out."""
        return weighted_mean(self.error(unpack("novel", batch)), batch.get("novel_weight")), {}


def _standardised(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of what the normaliser makes of observations: images become floats."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({k: _standardised(part) for k, part in space.spaces.items()})
    if is_image(space):
        return gym.spaces.Box(-CLIP, CLIP, space.shape, np.float32)
    return space
