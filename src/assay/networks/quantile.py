"""Networks for implicit quantile functions: Z_tau(s, a) for any quantile level tau.

IQN (arXiv:1806.06923) draws the levels, FQF (arXiv:1911.02140) proposes them. Both multiply the
features of a state by an embedding of tau and read one value per action from the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.core.types import Tree
from assay.networks.custom import DEFAULT
from assay.networks.encoders import make_encoder
from assay.networks.heads import DuelingHead
from assay.networks.mlp import initialise, mlp

if TYPE_CHECKING:
    import gymnasium as gym


class CosineEmbedding(nn.Module):
    """phi(tau) = relu(W cos(pi i tau) + b), i = 0 .. cosines - 1: [..., K] -> [..., K, features].

    Args:
        features: Width of the embedding, that of the state's features.
        cosines: Number of cosines; the first is the constant 1.
    """

    frequency: Tensor

    def __init__(self, features: int, cosines: int = 64) -> None:
        super().__init__()
        frequency = math.pi * torch.arange(cosines, dtype=torch.float32)
        self.register_buffer("frequency", frequency, persistent=False)
        linear = nn.Linear(cosines, features)
        # About 1 at first, so that a product with it begins at the size of the state's features;
        # torch's own bias makes it a fifth of them, and learning as much slower.
        nn.init.ones_(linear.bias)
        self.net = nn.Sequential(linear, nn.ReLU())

    def forward(self, tau: Tensor) -> Tensor:
        """Return the embedding of each level."""
        return self.net(torch.cos(tau.unsqueeze(-1) * self.frequency))


class QuantileNetwork(nn.Module):
    """Z_tau(s, a) = head(features(s) * phi(tau)): observation and levels -> [B, actions, K].

    The layers of `hidden` stand before the product, those of `head_hidden` behind it; with `noisy`
    both are noisy. For the others see `make_encoder` and `CosineEmbedding`.
    """

    def __init__(
        self,
        space: gym.Space[Any],
        actions: int,
        *,
        hidden: Sequence[int] = (64, 64),
        head_hidden: Sequence[int] = (),
        activation: str = "relu",
        cnn: str = "nature",
        network: str = DEFAULT,
        cosines: int = 64,
        dueling: bool = False,
        noisy: bool = False,
    ) -> None:
        super().__init__()
        self.actions = actions
        self.encoder = make_encoder(
            space, hidden=hidden, activation=activation, cnn=cnn, network=network, init="torch",
            noisy=noisy,
        )  # fmt: skip
        width = self.encoder.out_features
        self.embedding = CosineEmbedding(width, cosines)
        # An affine head commutes with a mean over levels, which then costs one pass, not K.
        self.affine = not head_hidden
        self.head: nn.Module
        if dueling:
            self.head = DuelingHead(
                width, actions, hidden=head_hidden, activation=activation, noisy=noisy
            )
        else:
            self.head = mlp((width, *head_hidden, actions), activation, init="torch", noisy=noisy)

    def forward(self, obs: Tree, tau: Tensor) -> Tensor:
        """Return the quantile values [B, actions, K] at levels tau [B, K]."""
        return self.quantiles(self.encoder(obs), tau)

    def quantiles(self, features: Tensor, tau: Tensor) -> Tensor:
        """Return the quantile values [B, actions, K] of states whose features [B, D] are known."""
        product = features.unsqueeze(1) * self.embedding(tau)
        values = self.head(product.reshape(-1, features.shape[1]))
        return values.reshape(features.shape[0], -1, self.actions).transpose(1, 2)

    def expectation(self, features: Tensor, tau: Tensor, mass: Tensor) -> Tensor:
        """Return sum_k mass_k Z_tau_k [B, actions].

        Args:
            features: [B, D].
            tau: [B, K], or [1, K] when all states share the levels.
            mass: Of the same shape; each row adds up to 1.
        """
        if self.affine:
            mean = (mass.unsqueeze(-1) * self.embedding(tau)).sum(dim=1)
            return self.head(features * mean)
        return (mass.unsqueeze(1) * self.quantiles(features, tau)).sum(dim=2)


class Fractions(NamedTuple):
    """A partition of [0, 1] per state.

    Attributes:
        tau: [B, N + 1], from 0 to 1, with gradient.
        midpoints: [B, N], tau-hat, without gradient.
        mass: [B, N], tau_{i+1} - tau_i, without gradient.
        entropy: [B], of the mass, with gradient.
    """

    tau: Tensor
    midpoints: Tensor
    mass: Tensor
    entropy: Tensor


class FractionProposal(nn.Module):
    """Propose fractions for a state: the cumulative sum of a softmax over its features.

    It starts close to equal fractions, as QR-DQN has them.
    """

    def __init__(self, features: int, fractions: int) -> None:
        super().__init__()
        self.linear = initialise(nn.Linear(features, fractions), 0.01)

    def forward(self, features: Tensor) -> Fractions:
        """Return the fractions of states with features [B, D]."""
        log_mass = F.log_softmax(self.linear(features), dim=1)
        mass = log_mass.exp()
        tau = F.pad(mass.cumsum(dim=1), (1, 0))
        middle = (tau[:, 1:] + tau[:, :-1]).detach() / 2
        return Fractions(tau, middle, mass.detach(), -(mass * log_mass).sum(dim=1))


def fraction_gradient(at_fractions: Tensor, at_midpoints: Tensor) -> Tensor:
    """Return dW1/dtau_i [B, N - 1], i = 1 .. N - 1, without gradient.

    W1 is the distance between a quantile function Z and its approximation by steps:
    sum_i of the integral of |Z(w) - Z(tauhat_i)| from tau_i to tau_{i+1}.

    Where Z does not decrease, which the paper assumes, this is its 2 Z(tau_i) - Z(tauhat_i) -
    Z(tauhat_{i-1}). A network's Z does decrease in places, and there that formula has the wrong
    sign. The difference of the two distances has the right one in both cases, and is never larger
    than the step between the two midpoints.

    Args:
        at_fractions: [B, N - 1], Z at tau_1 .. tau_{N-1}.
        at_midpoints: [B, N], Z at tauhat_0 .. tauhat_{N-1}.
    """
    if at_fractions.shape[1] + 1 != at_midpoints.shape[1]:
        raise ValueError(
            f"at_fractions has shape {tuple(at_fractions.shape)} and at_midpoints "
            f"{tuple(at_midpoints.shape)}; expected one column less in the first."
        )
    left = (at_fractions - at_midpoints[:, :-1]).abs()
    right = (at_fractions - at_midpoints[:, 1:]).abs()
    return (left - right).detach()


def draw_levels(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """Return random levels [rows, count], one from each of `count` equal parts of [0, 1], float32.

    A sum over them has the expectation of one over independent levels, and far less variance.
    """
    offset = rng.random((rows, count), dtype=np.float32)
    return (np.arange(count, dtype=np.float32) + offset) / np.float32(count)


class ActionValues(nn.Module):
    """Q [B, actions] of an observation: the expectation over proposed or over given levels.

    Args:
        network: The quantile network.
        proposal: Proposes the levels and their mass; None where they are given.
        levels: [K], for a call without levels.
    """

    levels: Tensor | None

    def __init__(
        self,
        network: QuantileNetwork,
        proposal: FractionProposal | None = None,
        levels: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.proposal = proposal
        self.register_buffer("levels", None if levels is None else torch.from_numpy(levels))

    def forward(self, obs: Tree, levels: Tensor | None = None) -> Tensor:
        """Return the action values; `levels` [K] count for this call only."""
        return self.of_features(self.network.encoder(obs), levels)

    def of_features(self, features: Tensor, levels: Tensor | None = None) -> Tensor:
        """Return the action values of states whose features [B, D] are known."""
        if self.proposal is not None:
            fractions = self.proposal(features)
            return self.network.expectation(features, fractions.midpoints, fractions.mass)
        levels = self.levels if levels is None else levels
        if levels is None:
            raise ValueError("no levels were given, and there is no proposal network.")
        tau = levels.unsqueeze(0)
        return self.network.expectation(features, tau, torch.full_like(tau, 1 / len(levels)))
