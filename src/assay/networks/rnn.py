"""Memory for policies that do not see everything: LSTM, GRU and a gated transformer.

All are unrolled alike, over sequences [T, B, F] with a carry and with the places where episodes
begin, and all are stepped alike while acting. What lies before an episode's beginning is neither
seen nor reached by gradients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.core.errors import ConfigError, nearest
from assay.core.types import Tree
from assay.functional.recurrent import gru_unroll, lstm_unroll
from assay.networks.mlp import initialise

Carry = dict[str, Tensor]
Kind = Literal["lstm", "gru", "transformer"]
KINDS = ("lstm", "gru", "transformer")

# Large enough that its exponential is exactly 0, and finite, so that no gradient is NaN.
_UNSEEN = -1e9


class Memory(nn.Module, ABC):
    """What a policy remembers, as a module from sequences to sequences.

    Attributes:
        in_features: Width of the inputs.
        out_features: Width of the outputs.
    """

    in_features: int
    out_features: int
    wants_rewards: ClassVar[bool] = False  # whether acting needs to be told what it got

    def rewarded(self, carry: Tree, reward: np.ndarray) -> Tree:
        """Return the carry after rewards [N] were given."""
        return carry

    @abstractmethod
    def initial(self, n: int) -> dict[str, np.ndarray]:
        """Return the carry at an episode's start: float32 arrays with a leading axis n."""

    @abstractmethod
    def forward(self, x: Tensor, carry: Carry, is_first: Tensor) -> tuple[Tensor, Carry]:
        """Unroll over T steps.

        Args:
            x: [T, B, F].
            carry: Arrays [B, ...] from before step 0.
            is_first: [T, B], 1 where an episode begins: the carry restarts before that step.

        Returns:
            Outputs [T, B, H], and the carry after the last step.
        """


class _Gated(Memory):
    """Layers of gates over their input and their own last output.

    The second gate starts open (bias 1), so that what is remembered is not lost at once: it is the
    forget gate of an LSTM, and the gate of a GRU that keeps the state.
    """

    gates: ClassVar[int]

    def __init__(self, features: int, size: int, layers: int = 1) -> None:
        super().__init__()
        self.in_features, self.out_features, self.layers = features, size, layers
        widths = [features] + [size] * (layers - 1)
        self.inputs = nn.ModuleList(_gate_inputs(width, size, self.gates) for width in widths)
        # weights: [gates * size, size], the gates in the order of `inputs`
        self.weights = nn.ParameterList(_gate_weights(size, self.gates) for _ in widths)
        with torch.no_grad():
            for layer in self.inputs:
                layer.get_parameter("bias")[size : 2 * size] = 1.0


class LSTM(_Gated):
    """Long short-term memory, one or more layers."""

    gates = 4

    def initial(self, n: int) -> dict[str, np.ndarray]:
        """Return zeros."""
        shape = (n, self.layers, self.out_features)
        return {"c": np.zeros(shape, np.float32), "h": np.zeros(shape, np.float32)}

    def forward(self, x: Tensor, carry: Carry, is_first: Tensor) -> tuple[Tensor, Carry]:
        """Unroll over T steps."""
        keep = (1.0 - is_first.to(x.dtype)).unsqueeze(-1)
        last_h, last_c = [], []
        for i, (project, weight) in enumerate(zip(self.inputs, self.weights, strict=True)):
            # The inputs of all steps in one product; only the recurrent part waits for its turn.
            x, c = lstm_unroll(project(x), carry["h"][:, i], carry["c"][:, i], keep, weight)
            last_h.append(x[-1])
            last_c.append(c)
        return x, {"c": torch.stack(last_c, dim=1), "h": torch.stack(last_h, dim=1)}


class GRU(_Gated):
    """Gated recurrent unit (in the form of cuDNN, with one bias), one or more layers."""

    gates = 3

    def initial(self, n: int) -> dict[str, np.ndarray]:
        """Return zeros."""
        return {"h": np.zeros((n, self.layers, self.out_features), np.float32)}

    def forward(self, x: Tensor, carry: Carry, is_first: Tensor) -> tuple[Tensor, Carry]:
        """Unroll over T steps."""
        keep = (1.0 - is_first.to(x.dtype)).unsqueeze(-1)
        last_h = []
        for i, (project, weight) in enumerate(zip(self.inputs, self.weights, strict=True)):
            x = gru_unroll(project(x), carry["h"][:, i], keep, weight)
            last_h.append(x[-1])
        return x, {"h": torch.stack(last_h, dim=1)}


class Transformer(Memory):
    """Gated Transformer-XL (Parisotto et al. 2019, arXiv:1910.06764).

    Layer normalisation comes before each part, a GRU-type gate joins each part to the stream, and
    positions are relative to the query (Transformer-XL). Every step attends to itself and to the
    last `context` steps of its episode; the inputs of all layers at these steps are the carry, into
    which no gradient flows.

    `heads` divides `size`; `context` steps are remembered.
    """

    def __init__(
        self, features: int, size: int, layers: int = 1, heads: int = 4, context: int = 32
    ) -> None:
        super().__init__()
        if size % heads:
            raise ConfigError(
                f"heads={heads} does not divide the memory's size {size}.",
                "Choose a number of heads that divides it.",
            )
        self.in_features, self.out_features, self.context = features, size, context
        self.project = initialise(nn.Linear(features, size), 1.0)
        self.blocks = nn.ModuleList(Block(size, heads, context) for _ in range(layers))

    def initial(self, n: int) -> dict[str, np.ndarray]:
        """Return an empty memory."""
        shape = (n, len(self.blocks), self.context, self.out_features)
        return {"filled": np.zeros(n, np.float32), "inputs": np.zeros(shape, np.float32)}

    def forward(self, x: Tensor, carry: Carry, is_first: Tensor) -> tuple[Tensor, Carry]:
        """Unroll over T steps."""
        steps, context = len(x), self.context
        remembered = carry["inputs"].detach()
        # episode: [T, B], which episode of this sequence a step is of; 0 goes on from the carry.
        episode = is_first.to(x.dtype).cumsum(0)
        unseen = self._unseen(episode.t(), carry["filled"])
        x = self.project(x).transpose(0, 1)  # [B, T, H]
        kept = []
        for i, block in enumerate(self.blocks):
            seen = torch.cat([remembered[:, i], x], dim=1)  # [B, context + T, H]
            kept.append(seen[:, steps:])
            x = block(seen, unseen)
        current = episode == episode[-1]
        filled = current.to(x.dtype).sum(0) + carry["filled"] * (episode[-1] == 0)
        after = {
            "filled": filled.clamp(max=float(context)),
            "inputs": torch.stack(kept, dim=1).detach(),
        }
        return x.transpose(0, 1), after

    def _unseen(self, episode: Tensor, filled: Tensor) -> Tensor:
        """Return [B, 1, T, context + T], true where a query must not see a key."""
        steps, context = episode.shape[1], self.context
        query = torch.arange(context, context + steps, device=episode.device).unsqueeze(1)
        key = torch.arange(context + steps, device=episode.device)
        # Keys after the query, or too long before it.
        outside = (key > query) | (query - key > context)
        empty = key[:context] < context - filled.unsqueeze(1)  # the memory fills from its end
        of_key = torch.cat([torch.where(empty, -1.0, 0.0), episode], dim=1)
        other = of_key.unsqueeze(1) != episode.unsqueeze(2)
        return (outside | other).unsqueeze(1)


class Block(nn.Module):
    """One layer of the transformer: attention and an MLP, each normalised before, gated after."""

    def __init__(self, size: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads, self.context = heads, context
        self.norm, self.mlp_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query = initialise(nn.Linear(size, size), 1.0)
        self.keys_values = initialise(nn.Linear(size, 2 * size), 1.0)
        self.position = nn.Parameter(torch.randn(heads, context + 1, size // heads) * 0.02)
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, size // heads))
        self.position_bias = nn.Parameter(torch.zeros(heads, 1, size // heads))
        self.out = initialise(nn.Linear(size, size), 1.0)
        self.mlp_in = initialise(nn.Linear(size, 2 * size), math.sqrt(2.0))
        self.mlp_out = initialise(nn.Linear(2 * size, size), 1.0)
        self.gate, self.mlp_gate = _Gate(size), _Gate(size)

    def forward(self, seen: Tensor, unseen: Tensor) -> Tensor:
        """Return outputs [B, T, H] of the last T of `seen` [B, context + T, H]."""
        x = seen[:, self.context :]
        x = self.gate(x, F.relu(self._attend(self.norm(seen), unseen)))
        hidden = F.relu(self.mlp_in(self.mlp_norm(x)))
        return self.mlp_gate(x, F.relu(self.mlp_out(hidden)))

    def attention(self, seen: Tensor, unseen: Tensor) -> tuple[Tensor, Tensor]:
        """Return how much each query looks at each key, and what the keys hold.

        [B, heads, T, context + T] and [B, heads, context + T, width]; `seen` is normalised.
        """
        batch, keys, size = seen.shape
        steps, width = keys - self.context, size // self.heads
        q = self.query(seen[:, self.context :]).view(batch, steps, self.heads, width)
        q = q.transpose(1, 2)  # [B, heads, T, width]
        k, v = self.keys_values(seen).view(batch, keys, 2, self.heads, width).unbind(2)
        # score = (q + u) k + (q + w) p[distance]
        score = (q + self.content_bias) @ k.permute(0, 2, 3, 1)
        score = score + self._shift((q + self.position_bias) @ self.position.transpose(1, 2))
        score = (score / math.sqrt(width)).masked_fill(unseen, _UNSEEN)
        return score.softmax(-1), v.transpose(1, 2)

    def _attend(self, seen: Tensor, unseen: Tensor) -> Tensor:
        weights, values = self.attention(seen, unseen)
        batch, keys, size = seen.shape  # not by `len`, which tracing would freeze
        mixed = (weights @ values).transpose(1, 2)
        return self.out(mixed.reshape(batch, keys - self.context, size))

    def _shift(self, by_place: Tensor) -> Tensor:
        """Move query t's scores by t: [B, heads, T, context + 1] -> [B, heads, T, context + T].

        Place `context` of a query is itself, place 0 the oldest key of its window. Written one
        after another in rows one longer than the result's, they fall where they belong.
        """
        batch, heads, steps, _ = by_place.shape
        rows = F.pad(by_place, (0, steps)).reshape(batch, heads, -1)
        keys = self.context + steps
        return rows[..., : steps * keys].view(batch, heads, steps, keys)


class _Gate(nn.Module):
    """GRU-type gating: g(x, y) = (1 - z) x + z h, nearly x at first (bias 2)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.from_y = initialise(nn.Linear(size, 3 * size), 1.0)
        self.from_x = nn.Linear(size, 2 * size, bias=False)
        self.from_rx = nn.Linear(size, size, bias=False)
        nn.init.orthogonal_(self.from_x.weight)
        nn.init.orthogonal_(self.from_rx.weight)
        with torch.no_grad():
            self.from_y.bias[size : 2 * size] = -2.0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gated sum of the stream x and what a part computed from it."""
        size = x.shape[-1]
        from_y = self.from_y(y)
        # r = s(W y + U x),  z = s(W y + U x - b),  h = tanh(W y + U (r x))
        r, z = torch.sigmoid(from_y[..., : 2 * size] + self.from_x(x)).chunk(2, dim=-1)
        h = torch.tanh(from_y[..., 2 * size :] + self.from_rx(r * x))
        return x + z * (h - x)


def make_memory(
    kind: Kind, features: int, size: int, *, layers: int = 1, heads: int = 4, context: int = 32
) -> Memory:
    """Build a memory; `heads` and `context` (steps that are remembered) are a transformer's.

    Raises:
        ConfigError: The kind is unknown, or the heads do not divide the size.
    """
    if kind not in KINDS:
        raise ConfigError(f"Unknown memory '{kind}'. {nearest(str(kind), KINDS)}")
    if kind == "transformer":
        return Transformer(features, size, layers, heads, context)
    return (LSTM if kind == "lstm" else GRU)(features, size, layers)


def _gate_inputs(features: int, size: int, gates: int) -> nn.Linear:
    layer = nn.Linear(features, gates * size)
    with torch.no_grad():
        for block in layer.weight.split(size):
            nn.init.orthogonal_(block)
        layer.bias.zero_()
    return layer


def _gate_weights(size: int, gates: int) -> nn.Parameter:
    blocks = [nn.init.orthogonal_(torch.empty(size, size)) for _ in range(gates)]
    return nn.Parameter(torch.cat(blocks))


class Remembering(nn.Module):
    """A network with a memory between its encoder and its head: what it needs to act.

    Attributes:
        encoder: Observations to features.
        memory: Features to what the head reads.
        head: To the parameters of a policy, or the values of actions.
    """

    encoder: Any
    memory: Memory
    head: nn.Module

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        """Return encoder, memory and head."""
        return self.encoder, self.memory, self.head

    def remember(self, obs: Tree, carry: Carry, is_first: Tensor) -> tuple[Tensor, Carry]:
        """Return what the head reads, [T, B, H], and the carry after the last step.

        Args:
            obs: Observations [T * B, ...], step by step.
            carry: The carry before the first step, leading axis B.
            is_first: [T, B], 1 where an episode begins.
        """
        features = self.encoder(obs)
        return self.memory(features.view(*is_first.shape, -1), carry, is_first)

    def step(self, obs: Tree, carry: Carry) -> tuple[Tensor, Carry]:
        """Return the head's output [B, P] for one step of running episodes, and the carry."""
        first = next(iter(carry.values()))
        y, after = self.remember(obs, carry, first.new_zeros(1, first.shape[0]))
        return self.head(y[0]), after
