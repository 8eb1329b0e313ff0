"""Mixing networks: from the values of single agents to the value of all together."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.networks.mlp import mlp


class SumMixer(nn.Module):
    """Q_tot = sum_a Q_a (value decomposition networks, arXiv:1706.05296)."""

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Return Q_tot [B] of agents' values [B, A]; the state does not count."""
        return values.sum(1)


class MonotonicMixer(nn.Module):
    """Q_tot that rises with the value of every agent, in a way that depends on the state.

    QMIX, arXiv:1803.11485: a network of two layers whose weights and biases are made from the state
    by other networks. Absolute values keep its weights from being negative, so that
    dQ_tot / dQ_a >= 0; its biases may be anything, and the last one is a network V(s). Hidden
    layers of these networks are normalised, so that weights do not grow with the state: where
    agents can run away, values would grow with them, and each other's targets.

    Args:
        agents: A.
        state: Width of the state.
        embed: Width of the hidden layer.
        hidden: Width of the hidden layer of the networks that make weights and biases; 0 is none.

    Example:
        >>> mixer = MonotonicMixer(agents=2, state=3)
        >>> values = torch.zeros(4, 2, requires_grad=True)
        >>> mixer(values, torch.randn(4, 3)).sum().backward()
        >>> bool((values.grad >= 0).all())
        True
    """

    def __init__(self, agents: int, state: int, embed: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.agents, self.embed = agents, embed
        self.weights_1 = _maker(state, hidden, agents * embed)
        self.bias_1 = _maker(state, hidden, embed)
        self.weights_2 = _maker(state, hidden, embed)
        self.value = _maker(state, embed, 1)

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Return Q_tot [B] of agents' values [B, A] in states [B, S]."""
        first = self.weights_1(state).abs().reshape(-1, self.agents, self.embed)
        # h = ELU(Q |W1(s)| + b1(s))
        hidden = F.elu(torch.einsum("ba,bae->be", values, first) + self.bias_1(state))
        # Q_tot = h |w2(s)| + V(s)
        total = (hidden * self.weights_2(state).abs()).sum(1)
        return total + self.value(state).squeeze(1)


def _maker(state: int, hidden: int, out: int) -> nn.Sequential:
    """Return a network from states to weights; `hidden` is the width of its layer, 0 is none."""
    if not hidden:
        return mlp((state, out), init="torch")
    first, *rest = mlp((state, hidden, out), "relu", init="torch")
    return nn.Sequential(first, nn.LayerNorm(hidden), *rest)
