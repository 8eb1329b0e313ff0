"""The Decision Transformer (Chen et al. 2021, arXiv:2106.01345): actions by the return to reach.

A causal transformer over the tokens (return to go, observation, action) of the last K steps. An
action is predicted from the token of its observation, so it sees the return that is still to be
reached, and neither itself nor what follows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.core.types import State, Tree, action_mask
from assay.functional.targets import mask_values
from assay.networks.encoders import make_encoder
from assay.networks.rnn import Carry, Remembering

if TYPE_CHECKING:
    import gymnasium as gym

_UNSEEN = -1e9  # its exponential is 0, and it is finite, so that no gradient is NaN
_TOKENS = 3  # of a step


class ReturnRange:
    """What the returns of the data are: the best one, and the size that they are divided by.

    Attributes:
        best: The largest return of an episode.
        scale: The largest size of a return to go.
        target: The return that is asked for; None is the best one.
    """

    def __init__(self, target: float | None = None) -> None:
        self.best, self.scale, self.target = 0.0, 0.0, target

    @property
    def known(self) -> bool:
        """Return whether data has been seen."""
        return self.scale > 0.0

    def see(self, to_go: np.ndarray, returns: np.ndarray) -> None:
        """Look at the returns to go of all steps, and the returns of all episodes."""
        self.best, self.scale = float(returns.max()), float(np.abs(to_go).max()) or 1.0

    def first(self) -> float:
        """Return the scaled return to go at an episode's start."""
        asked = self.best if self.target is None else self.target
        return asked / (self.scale or 1.0)

    def state(self) -> State:
        """Return what was found in the data."""
        return {"best": self.best, "scale": self.scale}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        self.best, self.scale = float(state["best"]), float(state["scale"])


class Block(nn.Module):
    """One layer: attention and an MLP, each normalised before and added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, unseen: Tensor) -> Tensor:
        """Return the stream [B, T, H]; `unseen` [B, 1, T, T] is true where a key is hidden."""
        weights, values = self.attention(self.norm(x), unseen)
        x = x + self.out((weights @ values).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))

    def attention(self, x: Tensor, unseen: Tensor) -> tuple[Tensor, Tensor]:
        """Return how much each token looks at each, [B, heads, T, T], and what these hold.

        `x` [B, T, H] is normalised.
        """
        batch, tokens, _ = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # [B, heads, T, H / heads]
        score = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).masked_fill(unseen, _UNSEEN)
        return score.softmax(-1), v


class ContextWindow(nn.Module):
    """The last K steps of an episode, as a transformer sees them and as a policy carries them.

    Args:
        actions: Numbers of an action.
        width: Width of the tokens.
        layers: Blocks.
        heads: Attention heads, which divide the width.
        context: K, the steps that are seen.
        max_timestep: Steps of an episode that are told apart; later ones look like the last.
        returns: The range of returns, and the target.
    """

    wants_rewards: ClassVar[bool] = True

    def __init__(
        self,
        actions: int,
        *,
        width: int,
        layers: int,
        heads: int,
        context: int,
        max_timestep: int,
        returns: ReturnRange,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(
                f"heads={heads} does not divide width={width}.",
                "Choose a number of heads that divides it.",
            )
        self.actions, self.width, self.context = actions, width, context
        self.returns = returns
        self.time = nn.Embedding(max_timestep, width)
        self.of_return, self.of_action = nn.Linear(1, width), nn.Linear(actions, width)
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def initial(self, n: int) -> dict[str, np.ndarray]:
        """Return an empty window, with all of the target to go."""
        k = self.context
        shapes: dict[str, tuple[int, ...]] = {
            "states": (k, self.width), "actions": (k, self.actions), "returns": (k,), "t": (),
            "to_go": (),
        }  # fmt: skip
        carry = {name: np.zeros((n, *shape), np.float32) for name, shape in shapes.items()}
        carry["to_go"][:] = self.returns.first()
        return carry

    def rewarded(self, carry: Tree, reward: np.ndarray) -> Tree:
        """Return the carry with less to go, after rewards [N] were given."""
        gained = np.asarray(reward, np.float32) / np.float32(self.returns.scale or 1.0)
        return {**carry, "to_go": carry["to_go"] - gained}

    def forward(
        self, states: Tensor, actions: Tensor, returns: Tensor, timestep: Tensor, valid: Tensor
    ) -> Tensor:
        """Return what each step's action is predicted from, [B, K, H].

        Args:
            states: [B, K, H] of the observations.
            actions: [B, K, A].
            returns: [B, K] scaled returns to go.
            timestep: [B, K] numbers of the steps in their episode.
            valid: [B, K], 0 for padding, which stands at the beginning.
        """
        batch, steps, _ = states.shape
        time = self.time(timestep.long().clamp(max=self.time.num_embeddings - 1))
        kinds = self.of_return(returns.unsqueeze(-1)), states, self.of_action(actions)
        tokens = torch.stack([kind + time for kind in kinds], dim=2)  # [B, K, 3, H]
        x = self.norm(tokens.view(batch, _TOKENS * steps, -1))
        place = torch.arange(_TOKENS * steps, device=x.device)
        later = place > place.unsqueeze(1)  # [T, T], keys after their query
        padding = (valid == 0).repeat_interleave(_TOKENS, dim=1)  # [B, T]
        unseen = (later | padding.unsqueeze(1)).unsqueeze(1)
        for block in self.blocks:
            x = block(x, unseen)
        return self.last_norm(x).view(batch, steps, _TOKENS, -1)[:, :, 1]


class DecisionNetwork(Remembering):
    """Observations of any kind, a window of steps, and a head for Box or Discrete actions.

    The head gives actions in the unit box, or logits. Arguments are those of `ContextWindow`.
    """

    memory: Any

    def __init__(self, observation: gym.Space[Any], action: gym.Space[Any], **options: Any) -> None:
        super().__init__()
        self.continuous = isinstance(action, spaces.Box)
        size = int(np.prod(action.shape or ())) if self.continuous else int(action.n)  # type: ignore[attr-defined]
        self.memory = ContextWindow(size, **options)
        seen, width = make_encoder(observation, hidden=(), init="torch"), self.memory.width
        self.encoder = nn.Sequential(seen, nn.Linear(seen.out_features, width))
        layers: list[nn.Module] = [nn.Linear(width, size)]
        self.head = nn.Sequential(*layers, *([nn.Tanh()] if self.continuous else []))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def as_input(self, action: Tensor) -> Tensor:
        """Return actions as the window has them: numbers of the unit box, or one-hot choices."""
        if self.continuous:
            return action.flatten(2)
        return F.one_hot(action.long(), self.memory.actions).to(torch.float32)

    def forward(
        self, obs: Tree, action: Tensor, returns: Tensor, timestep: Tensor, valid: Tensor
    ) -> Tensor:
        """Return the head's output [B * K, P] for sequences, whose observations are [B * K, ...].

        `action` [B, K, ...] is in the unit box, or a choice. The others are those of the window.
        """
        states = self.encoder(obs).view(*valid.shape, -1)
        y = self.memory(states, self.as_input(action), returns, timestep, valid)
        return self.head(y.flatten(0, 1))

    def step(self, obs: Tree, carry: Carry) -> tuple[Tensor, Carry]:
        """Return the head's output [N, P] for the next step of episodes, and the carry after it."""
        k = self.memory.context
        states = torch.cat([carry["states"][:, 1:], self.encoder(obs).unsqueeze(1)], dim=1)
        returns = torch.cat([carry["returns"][:, 1:], carry["to_go"].unsqueeze(1)], dim=1)
        earlier = carry["actions"][:, 1:]
        now = earlier.new_zeros(len(earlier), 1, self.memory.actions)  # nothing sees it
        time = carry["t"].unsqueeze(1) + torch.arange(1 - k, 1, device=states.device)
        y = self.memory(
            states, torch.cat([earlier, now], dim=1), returns, time.clamp(min=0), time >= 0
        )
        params = self.head(y[:, -1])
        chosen = params if self.continuous else self._best(params, action_mask(obs))
        after = {
            "states": states,
            "actions": torch.cat([earlier, chosen.unsqueeze(1)], dim=1),
            "returns": returns,
            "t": carry["t"] + 1,
            "to_go": carry["to_go"],
        }
        return params, after

    def _best(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        best = mask_values(logits, mask).argmax(1)
        return F.one_hot(best, self.memory.actions).to(logits.dtype)
