"""What a critic sees that knows more than any agent: the whole."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
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
    return F.one_hot(torch.arange(crew.size, device=device), crew.size).float().repeat(rows, 1)
