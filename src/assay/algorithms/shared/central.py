"""What a critic sees that knows more than any agent: the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from assay.core.types import AGENT_OBS, STATE, Spaces
from assay.policies.team import Crew


def central_state(obs: dict[str, Tensor]) -> Tensor:
    """Return the state of the whole [B, S]: the environment's, or what all agents see."""
    if STATE in obs:
        return obs[STATE].to(torch.float32)
    seen = obs[AGENT_OBS].flatten(1)
    return seen / 255.0 if seen.dtype == torch.uint8 else seen.to(torch.float32)


def central_width(spaces: Spaces) -> int:
    """Return S, the width of `central_state`."""
    parts = spaces.observation.spaces
    return math.prod(parts[STATE if STATE in parts else AGENT_OBS].shape)


def per_agent(crew: Crew, whole: Tensor) -> Tensor:
    """Return rows [B * k, S] of the whole [B, S], one for each of a crew."""
    return whole.repeat_interleave(crew.size, 0)


def member_codes(crew: Crew, rows: int, device: torch.device) -> Tensor:
    """Return [rows * k, k], which of its crew each row is of."""
    return torch.eye(crew.size, device=device).repeat(rows, 1)


def one_hot(choice: Tensor, count: int) -> Tensor:
    """Return choices [B] as rows [B, count] of 0 and 1, in operations that can be compiled."""
    return (choice.unsqueeze(1) == torch.arange(count, device=choice.device)).to(torch.float32)


def unfold(crews: Sequence[Crew], parts: Sequence[Tensor]) -> Tensor:
    """Return the rows [B * k, ...] of all crews as one tensor [B, A, ...]."""
    columns: dict[int, Tensor] = {}
    for crew, part in zip(crews, parts, strict=True):
        own = part.reshape(-1, crew.size, *part.shape[1:])
        columns |= {place: own[:, j] for j, place in enumerate(crew.members)}
    return torch.stack([columns[i] for i in range(len(columns))], 1)
