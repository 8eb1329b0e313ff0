"""Networks that tell an expert's steps from a policy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay.core.types import Spaces, Tree
from assay.functional.layout import gaussian_scale
from assay.networks.custom import DEFAULT
from assay.networks.encoders import make_encoder
from assay.networks.mlp import mlp

if TYPE_CHECKING:
    import gymnasium as gym


class ActionFeatures(nn.Module):
    """An action as numbers: one-hot for choices, a Box from its finite bounds to [-1, 1].

    Attributes:
        out_features: How many numbers.
    """

    center: Tensor
    half_width: Tensor

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        from gymnasium.spaces import Box

        self.encoder = make_encoder(space, hidden=())
        self.out_features = self.encoder.out_features
        scale = gaussian_scale(space) if isinstance(space, Box) else None
        self.scaled = scale is not None
        if scale is not None:
            # Constants of the environment: not part of a checkpoint.
            for name, numbers in zip(("center", "half_width"), scale, strict=True):
                self.register_buffer(name, torch.from_numpy(numbers), persistent=False)

    def forward(self, action: Tensor) -> Tensor:
        """Return [B, out_features]."""
        flat: Tensor = self.encoder(action)
        return (flat - self.center) / self.half_width if self.scaled else flat


class Discriminator(nn.Module):
    """Logits of "the expert did this" for pairs of states and actions.

    Observations and actions are canonical (`assay.envs.spaces`), as buffers give them. An image
    goes through a CNN; all else is flattened and joined with the action.

    Args:
        spaces: What is seen and done.
        hidden: Widths of the hidden layers.
        activation: Their nonlinearity.
        cnn: The network of images.
        network: Of the user's own, in place of the encoder.
        state_only: Leave the action out.

    Attributes:
        width: How many features the layers that decide are given.

    Example:
        >>> from gymnasium.spaces import Box, Discrete
        >>> net = Discriminator(Spaces(Box(-1, 1, (3,)), Discrete(2)))
        >>> net(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (100, 100),
        activation: str = "tanh",
        cnn: str = "nature",
        network: str = DEFAULT,
        state_only: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(spaces.observation, hidden=(), cnn=cnn, network=network)
        self.actions = None if state_only else ActionFeatures(spaces.action)
        self.width = self.encoder.out_features
        self.width += 0 if self.actions is None else self.actions.out_features
        self.trunk = mlp((self.width, *hidden, 1), activation)

    def forward(self, obs: Tree, action: Tensor) -> Tensor:
        """Return logits [B]."""
        return self.score(self.features(obs, action))

    def features(self, obs: Tree, action: Tensor) -> Tensor:
        """Return what the layers that decide are given: [B, F]."""
        seen: Tensor = self.encoder(obs)
        return seen if self.actions is None else torch.cat([seen, self.actions(action)], dim=1)

    def score(self, features: Tensor) -> Tensor:
        """Return logits [B] of features."""
        return self.trunk(features).squeeze(-1)


class ShapedReward(nn.Module):
    """A reward and a potential (arXiv:1710.11248): f = g(s, a) + gamma h(s') - h(s).

    Args:
        spaces: What is seen and done.
        gamma: Discount.
        state_only: Whether g sees the state alone.
        **layers: As of `Discriminator`.

    Attributes:
        g: The reward, which can be used without the potential.
        h: The potential.
    """

    def __init__(self, spaces: Spaces, *, gamma: float, state_only: bool, **layers: Any) -> None:
        super().__init__()
        self.gamma = gamma
        self.g = Discriminator(spaces, state_only=state_only, **layers)
        self.h = Discriminator(spaces, state_only=True, **layers)

    def forward(self, obs: Tree, action: Tensor, next_obs: Tree, terminated: Tensor) -> Tensor:
        """Return f [B]; nothing follows a terminated step, which has no h(s')."""
        return self.score(self.features(obs, action, next_obs), terminated)

    def features(self, obs: Tree, action: Tensor, next_obs: Tree) -> Tensor:
        """Return what the layers that decide are given, of g, of h and of h(s'): [B, F]."""
        now, ahead = (self.h.features(part, action) for part in (obs, next_obs))
        return torch.cat([self.g.features(obs, action), now, ahead], dim=1)

    def score(self, features: Tensor, terminated: Tensor) -> Tensor:
        """Return f [B] of features."""
        width = self.h.width
        own, now, ahead = features.split([features.shape[1] - 2 * width, width, width], dim=1)
        later = self.gamma * (1.0 - terminated) * self.h.score(ahead)
        return self.g.score(own) + later - self.h.score(now)


def gradient_penalty(
    score: Callable[[Tensor], Tensor], expert: Tensor, policy: Tensor, mix: Tensor
) -> Tensor:
    """Return E[(|grad logit(x)| - 1)^2] between the expert's and the policy's features.

    Keeps a discriminator smooth (arXiv:1704.00028; in imitation arXiv:1809.02925).

    Args:
        score: Returns logits [B] of features [B, F].
        expert: [B, F] features.
        policy: [B, F] features.
        mix: [B] in [0, 1]: where between the two of a row.
    """
    share = mix.unsqueeze(1)
    between = (share * expert + (1.0 - share) * policy).detach().requires_grad_()
    [slope] = torch.autograd.grad(score(between).sum(), [between], create_graph=True)
    # The small number keeps the root differentiable at 0.
    norm = (slope.square().sum(1) + 1e-12).sqrt()
    return (norm - 1.0).square().mean()
