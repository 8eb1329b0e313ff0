"""An actor-critic with memory, and acting with it fast."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from assay.core.types import Action, Tree, action_mask, tree_map
from assay.functional.distributions import Distribution
from assay.networks.acting import Forward
from assay.networks.actor_critic import Choice
from assay.networks.bridge import numpy_forward
from assay.networks.encoders import make_encoder
from assay.networks.heads import policy_head
from assay.networks.mlp import mlp
from assay.networks.rnn import Kind, make_memory


class RecurrentActorCritic(nn.Module):
    """Encoder, memory, and heads for policy and value; all but the heads is shared.

    Args:
        space: The observation space.
        distribution: What the policy head parameterises.
        hidden: Widths of the encoder's MLP.
        activation: Its activation, and that of the heads.
        cnn: "nature" or "impala", for images.
        memory: Kind of memory.
        memory_size: Width of the memory.
        memory_layers: Layers of the memory.
        heads: Attention heads (transformer).
        context: Steps that are remembered (transformer).
        head_hidden: Widths of the hidden layers of each head.
        log_std_init: Initial log-std of a Gaussian policy.
    """

    def __init__(
        self,
        space: gym.Space[Any],
        distribution: Distribution,
        *,
        hidden: tuple[int, ...],
        activation: str,
        cnn: str,
        memory: Kind,
        memory_size: int,
        memory_layers: int,
        heads: int,
        context: int,
        head_hidden: tuple[int, ...],
        log_std_init: float,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(space, hidden=hidden, activation=activation, cnn=cnn)
        self.memory = make_memory(
            memory, self.encoder.out_features, memory_size,
            layers=memory_layers, heads=heads, context=context,
        )  # fmt: skip
        sizes = (memory_size, *head_hidden)
        self.head = nn.Sequential(
            mlp(sizes, activation, activate_output=True),
            policy_head(distribution, sizes[-1], gain=0.01, log_std_init=log_std_init),
        )
        self.value_head = nn.Sequential(
            mlp(sizes, activation, activate_output=True), mlp((sizes[-1], 1), output_gain=1.0)
        )

    def remember(
        self, obs: Tree, carry: dict[str, Tensor], is_first: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what the heads read, [T, B, H], and the carry after the last step.

        Args:
            obs: Observations [T * B, ...], step by step.
            carry: The carry before the first step, leading axis B.
            is_first: [T, B], 1 where an episode begins.
        """
        features = self.encoder(obs)
        return self.memory(features.view(*is_first.shape, -1), carry, is_first)

    def forward(
        self, obs: Tree, carry: dict[str, Tensor], is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return policy parameters [T * B, P] and values [T * B]."""
        y, _ = self.remember(obs, carry, is_first)
        y = y.reshape(-1, y.shape[-1])
        return self.head(y), self.value_head(y).squeeze(-1)


class RecurrentPolicy:
    """Act with a `RecurrentActorCritic`: in NumPy on a CPU where it can, else in torch.

    Build it after the parameters have been flattened (by `Step`), because it holds views of them.
    """

    def __init__(
        self, net: RecurrentActorCritic, space: gym.Space[Any], device: torch.device
    ) -> None:
        self.net = net
        self.device = device
        self.choose = Choice(space)
        self._encode = Forward(net.encoder, device)
        self._step = net.memory.numpy_step()
        self._head = numpy_forward(net.head) if device.type == "cpu" else None

    def act(self, obs: Tree, carry: Tree, rng: np.random.Generator | None) -> Action:
        """Sample with `rng`, or take the mode without one."""
        params, carry = self.advance(obs, carry)
        return self.choose(params, action_mask(obs), rng, carry)

    def tensors(self, tree: Tree) -> Tree:
        """Move arrays to the network's device."""
        return self._encode.tensors(tree)

    def advance(self, obs: Tree, carry: Tree) -> tuple[np.ndarray, Tree]:
        """Return the policy's parameters [N, P] for one step, and the carry after it."""
        if self._step is not None and self._head is not None:
            y, after = self._step(self._encode.call(obs), carry)
            return self._head(y), after
        with torch.no_grad():
            n = len(next(iter(carry.values())))
            nowhere = torch.zeros(1, n, device=self.device)
            out, following = self.net.remember(self.tensors(obs), self.tensors(carry), nowhere)
            params = self.net.head(out[0]).cpu().numpy()
        return params, tree_map(lambda x: x.cpu().numpy(), following)
