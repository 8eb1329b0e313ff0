"""Several networks that say what a step is worth, and how far they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from assay.core.types import Spaces, Tree
from assay.networks.discriminator import Discriminator

Bound = Literal["tanh", "clip", "running", "none"]


class RewardEnsemble(nn.Module):
    """The mean of several rewards r(s, a), kept within bounds.

    Comparisons fix a reward up to its scale and an offset, and a network may answer with anything
    where it has seen nothing. So what a policy is to learn from has a bound:

    - tanh: every member ends in a tanh, in the fit as well.
    - clip: every member is standardised by what it says of the data, and clipped.
    - running: standardised likewise; whoever uses it goes on with running statistics.
    - none: as the members say it.

    Args:
        spaces: What is seen and done, canonical.
        members: How many networks.
        hidden: Widths of the hidden layers of each.
        bound: How rewards are bounded.
        limit: Where `clip` cuts, in standard deviations.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        spaces: Spaces,
        members: int,
        *,
        hidden: Sequence[int],
        bound: Bound,
        limit: float,
    ) -> None:
        super().__init__()
        nets = [Discriminator(spaces, hidden=hidden, activation="relu") for _ in range(members)]
        self.members = nn.ModuleList(nets)
        self.bound, self.limit = bound, limit
        # Of what each member says of the data that it was fitted to.
        self.register_buffer("mean", torch.zeros(members, 1))
        self.register_buffer("scale", torch.ones(members, 1))

    def member(self, number: int, obs: Tree, action: Tensor) -> Tensor:
        """Return what one member is fitted with [B]."""
        said: Tensor = self.members[number](obs, action)
        return said.tanh() if self.bound == "tanh" else said

    def every(self, obs: Tree, action: Tensor) -> Tensor:
        """Return what the members are fitted with [M, B]."""
        return torch.stack([self.member(n, obs, action) for n in range(len(self.members))])

    def forward(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the reward [B]."""
        said = self.every(obs, action)
        if self.bound in ("clip", "running"):
            said = (said - self.mean) / self.scale
        if self.bound == "clip":
            said = said.clamp(-self.limit, self.limit)
        return said.mean(0)
