"""The recurrent state-space model of DreamerV3 (Hafner et al. 2023, arXiv:2301.04104).

A state is (h, z): h is carried by a GRU whose recurrent layer is block-diagonal, z is S choices
among C classes. The posterior of z sees h and the observation, the prior h alone:

    h_t = f(h_{t-1}, z_{t-1}, a_{t-1}),   z_t ~ q(z | h_t, x_t),   z^_t ~ p(z | h_t)

As in the authors' code, layers are followed by RMS norm and SiLU, and weights are drawn from a
truncated normal distribution by fan-in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.core.types import Tree
from assay.functional.world_models import mix_uniform, sample_one_hot

Act = Callable[[Tensor, Tensor], Tensor]  # (features [N, F], noise of a step) -> action [N, A]
_NORM_EPS = 1e-4
_CUT = 1.1368  # what cutting a normal distribution at two deviations takes from its deviation


def draw_weights(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Draw initial weights in place; `scale` 0 makes them zeros."""
    std = scale * _CUT / math.sqrt(fan_in)
    if std == 0.0:
        nn.init.zeros_(weight)
    else:
        nn.init.trunc_normal_(weight, 0.0, std, -2.0 * std, 2.0 * std)


def linear(
    inputs: int, outputs: int, *, scale: float = 1.0, fan_in: int | None = None
) -> nn.Linear:
    """Return a linear layer with initial weights by fan-in, and without initial bias."""
    layer = nn.Linear(inputs, outputs)
    draw_weights(layer.weight, fan_in or inputs, scale)
    nn.init.zeros_(layer.bias)
    return layer


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * scale, over the channels, which are the axis `axis`."""

    def __init__(self, channels: int, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised tensor."""
        scale = self.scale if self.axis == -1 else self.scale.view(-1, *[1] * (-1 - self.axis))
        wide = x.float()  # a mean of squares needs more digits than bfloat16 has
        norm = (wide.square().mean(self.axis, keepdim=True) + _NORM_EPS).rsqrt()
        return (wide * norm * scale).to(x.dtype)


def dense(inputs: int, outputs: int) -> nn.Sequential:
    """Return a linear layer with RMS norm and SiLU."""
    return nn.Sequential(linear(inputs, outputs), RMSNorm(outputs), nn.SiLU())


def dense_layers(inputs: int, units: int, layers: int) -> nn.Sequential:
    """Return `layers` normalised layers of `units`."""
    pairs = pairwise([inputs] + [units] * layers)
    return nn.Sequential(*(dense(*pair) for pair in pairs))


def dense_mlp(
    inputs: int, units: int, layers: int, outputs: int, *, scale: float = 1.0
) -> nn.Sequential:
    """Return normalised layers and a linear one, whose initial weights have `scale`."""
    hidden = dense_layers(inputs, units, layers)
    return nn.Sequential(*hidden, linear(units, outputs, scale=scale))


class BlockLinear(nn.Module):
    """A linear layer with a block-diagonal weight: each of G blocks sees its part of the input."""

    def __init__(
        self, blocks: int, inputs: int, outputs: int, *, fan_in: int | None = None
    ) -> None:
        super().__init__()
        self.blocks = blocks
        self.weight = nn.Parameter(torch.empty(blocks, inputs // blocks, outputs // blocks))
        self.bias = nn.Parameter(torch.zeros(outputs))
        draw_weights(self.weight, fan_in or inputs)  # the fan-in of all blocks, as the authors do

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, outputs] of inputs [N, inputs]."""
        # No N is written down, since exported files take any.
        parts = x.unflatten(1, (self.blocks, -1)).transpose(0, 1)  # [G, N, inputs / G]
        return torch.bmm(parts, self.weight).transpose(0, 1).flatten(1) + self.bias


class Observed(NamedTuple):
    """States of sequences: h [T, B, D], z [T, B, S C], log-probabilities of q [T, B, S, C]."""

    deter: Tensor
    stoch: Tensor
    posterior: Tensor

    @property
    def features(self) -> Tensor:
        """Return what heads read: (h, z) [T, B, D + S C]."""
        return torch.cat([self.deter, self.stoch], dim=-1)


class RSSM(nn.Module):
    """The model of the dynamics, and what a policy carries.

    Args:
        tokens: Width of encoded observations.
        actions: Numbers of an action: one-hot, or of the unit box.
        deter: D, the width of h.
        hidden: Width of the layers.
        stoch: S.
        classes: C.
        blocks: Blocks of the recurrent layer, which divide `deter`.
        unimix: Share of the uniform distribution in p and q.

    Attributes:
        fused: Whether learning compiles a step of sequences and of imagination each, for a GPU:
            most of an update are small kernels, and fewer of them are faster.
    """

    wants_rewards: ClassVar[bool] = False

    def __init__(
        self,
        tokens: int,
        actions: int,
        *,
        deter: int,
        hidden: int,
        stoch: int,
        classes: int,
        blocks: int,
        unimix: float,
    ) -> None:
        super().__init__()
        if deter % blocks:
            raise ConfigError(
                f"blocks={blocks} does not divide deter={deter}.",
                "Choose a number of blocks that divides it.",
            )
        self.actions, self.deter, self.stoch, self.classes = actions, deter, stoch, classes
        self.unimix, self.blocks = unimix, blocks
        self.fused = False
        self.out_features = deter + stoch * classes
        self.from_deter = dense(deter, hidden)
        self.from_stoch = dense(stoch * classes, hidden)
        self.from_action = dense(actions, hidden)
        # Each block sees its part of h and all of the inputs, which are one product for all blocks.
        fan_in = deter + 3 * hidden * blocks
        self.mix_deter = BlockLinear(blocks, deter, deter, fan_in=fan_in)
        self.mix_inputs = linear(3 * hidden, deter, fan_in=fan_in)
        self.mix_norm = RMSNorm(deter)
        self.gates = BlockLinear(blocks, deter, 3 * deter)
        self.post_deter = linear(deter, hidden, fan_in=deter + tokens)
        self.post_tokens = linear(tokens, hidden, fan_in=deter + tokens)
        self.post_norm = RMSNorm(hidden)
        self.post_logits = linear(hidden, stoch * classes)
        self.prior_logits = dense_mlp(deter, hidden, 2, stoch * classes)

    # ------------------------------------------------------------------ what a policy carries

    def initial(self, n: int) -> dict[str, np.ndarray]:
        """Return the state and the last action at an episode's start: zeros."""
        widths = {
            "deter": self.deter, "stoch": self.stoch * self.classes, "action": self.actions,
        }  # fmt: skip
        return {name: np.zeros((n, width), np.float32) for name, width in widths.items()}

    def rewarded(self, carry: Tree, reward: Any) -> Tree:
        """Return the carry as it is: rewards are not observed."""
        return carry

    # ------------------------------------------------------------------ the model

    def prior(self, deter: Tensor) -> Tensor:
        """Return log p(z | h) [..., S, C]."""
        return self._log_probs(self.prior_logits(deter))

    def observe(
        self,
        tokens: Tensor,
        action: Tensor,
        is_first: Tensor,
        carry: dict[str, Tensor],
        gumbel: Tensor | None,
    ) -> Observed:
        """Return the states of sequences.

        Args:
            tokens: [T, B, F] of the observations.
            action: [T, B, A], what was done before each of them.
            is_first: [T, B], 1 where an episode begins: state and action before it count as zeros.
            carry: `deter` and `stoch` [B, ...] before the first one.
            gumbel: [T, B, S, C] noise; None takes the most likely z.
        """
        keep = (1.0 - is_first).unsqueeze(-1)
        moves = self.from_action(_bounded(action) * keep)  # all steps in one product
        seen = self.post_tokens(tokens)
        deter, stoch = carry["deter"], carry["stoch"]
        # Who acts has other shapes, and its own graph.
        step = _fused(RSSM._seen) if self.fused and torch.is_grad_enabled() else RSSM._seen
        states: list[tuple[Tensor, Tensor, Tensor]] = []
        for t in range(len(tokens)):
            noise = None if gumbel is None else gumbel[t]
            deter, stoch, posterior = step(
                self, deter * keep[t], stoch * keep[t], moves[t], seen[t], noise
            )
            states.append((deter, stoch, posterior))
        return Observed(*(torch.stack(part) for part in zip(*states, strict=True)))

    def imagine(
        self, deter: Tensor, stoch: Tensor, act: Act, noise: Tensor, gumbel: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the features [H + 1, N, F] of H steps, the first included, and actions [H, N, A].

        Args:
            deter: [N, D] to begin with.
            stoch: [N, S C] to begin with.
            act: Chooses the next action.
            noise: [H, N, ...] for `act`.
            gumbel: [H, N, S, C] for z.
        """
        features, actions = [torch.cat([deter, stoch], dim=-1)], []
        step = _fused(RSSM._imagined) if self.fused else RSSM._imagined
        for t in range(len(gumbel)):
            action = act(features[-1], noise[t])
            deter, stoch = step(self, deter, stoch, action, gumbel[t])
            features.append(torch.cat([deter, stoch], dim=-1))
            actions.append(action)
        return torch.stack(features), torch.stack(actions)

    def _seen(
        self, deter: Tensor, stoch: Tensor, moves: Tensor, seen: Tensor, gumbel: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next h, z and log q, of encoded actions and observations."""
        deter = self._advance(deter, stoch, moves)
        x = F.silu(self.post_norm(self.post_deter(deter) + seen))
        posterior = self._log_probs(self.post_logits(x))
        return deter, sample_one_hot(posterior, gumbel).flatten(1), posterior

    def _imagined(
        self, deter: Tensor, stoch: Tensor, action: Tensor, gumbel: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the next h and z after an action."""
        deter = self._advance(deter, stoch, self.from_action(_bounded(action)))
        return deter, sample_one_hot(self.prior(deter), gumbel).flatten(1)

    def _advance(self, deter: Tensor, stoch: Tensor, moves: Tensor) -> Tensor:
        """Return the next h [N, D]; `moves` are the encoded actions."""
        inputs = torch.cat([self.from_deter(deter), self.from_stoch(stoch), moves], dim=-1)
        x = F.silu(self.mix_norm(self.mix_deter(deter) + self.mix_inputs(inputs)))
        gates = self.gates(x).unflatten(1, (self.blocks, 3, -1)).transpose(1, 2)
        reset, new, update = gates.flatten(2).unbind(1)
        # h' = u tanh(r c) + (1 - u) h, with u = s(. - 1): at first most of h is kept
        new = torch.tanh(torch.sigmoid(reset) * new)
        return deter + torch.sigmoid(update - 1.0) * (new - deter)

    def _log_probs(self, logits: Tensor) -> Tensor:
        return mix_uniform(logits.unflatten(-1, (self.stoch, self.classes)), self.unimix)


@cache
def _fused(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step that is compiled when it is first called; all models share it."""
    return torch.compile(step, dynamic=False)


def _bounded(action: Tensor) -> Tensor:
    """Return actions within [-1, 1]: what lies beyond has no more effect in the environment."""
    return action.clamp(-1.0, 1.0)
