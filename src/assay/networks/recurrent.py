"""An actor-critic with memory."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor, nn

from assay.core.types import Tree
from assay.functional.distributions import Distribution
from assay.networks.custom import DEFAULT
from assay.networks.encoders import make_encoder
from assay.networks.heads import policy_head
from assay.networks.mlp import mlp
from assay.networks.rnn import Kind, Remembering, make_memory


class RecurrentActorCritic(Remembering):
    """Encoder, memory, and heads for policy and value; all but the heads is shared.

    For the arguments see `make_encoder`, `make_memory` and `GaussianHead`.
    """

    def __init__(
        self,
        space: gym.Space[Any],
        distribution: Distribution,
        *,
        hidden: tuple[int, ...],
        activation: str,
        cnn: str,
        network: str = DEFAULT,
        memory: Kind,
        memory_size: int,
        memory_layers: int,
        heads: int,
        context: int,
        head_hidden: tuple[int, ...],
        log_std_init: float,
        scale: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(
            space, hidden=hidden, activation=activation, cnn=cnn, network=network
        )
        self.memory = make_memory(
            memory, self.encoder.out_features, memory_size,
            layers=memory_layers, heads=heads, context=context,
        )  # fmt: skip
        sizes = (memory_size, *head_hidden)
        self.head = nn.Sequential(
            mlp(sizes, activation, activate_output=True),
            policy_head(distribution, sizes[-1], log_std_init=log_std_init, scale=scale),
        )
        self.value_head = nn.Sequential(
            mlp(sizes, activation, activate_output=True), mlp((sizes[-1], 1), output_gain=1.0)
        )

    def forward(
        self, obs: Tree, carry: dict[str, Tensor], is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return policy parameters [T * B, P] and values [T * B]."""
        y, _ = self.remember(obs, carry, is_first)
        y = y.reshape(-1, y.shape[-1])
        return self.head(y), self.value_head(y).squeeze(-1)
