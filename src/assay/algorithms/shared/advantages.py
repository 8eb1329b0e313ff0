"""What the on-policy algorithms compute of a rollout before they learn from it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from assay.buffers.rollout import Rollout
from assay.core.types import Tree, tree_map
from assay.networks.actor_critic import ActorCritic


@torch.no_grad()
def rollout_values(
    net: ActorCritic, data: Rollout, inputs: Callable[[Tree], Tree]
) -> tuple[Tree, np.ndarray, np.ndarray]:
    """Return observations [T * N] as tensors, and V of every state and of its true successor.

    The successor of a truncated transition is its final observation, not the reset one.
    """
    length, envs, finals = data.length, data.num_envs, data.finals
    obs = tree_map(lambda x: x.reshape(length * envs, *x.shape[2:]), data.obs)
    parts = [obs, data.last_obs] + ([] if finals is None else [finals.obs])
    tensors = [inputs(part) for part in parts]
    values = [net.value(part).cpu().numpy() for part in tensors]
    value = values[0].reshape(length, envs, *values[0].shape[1:])
    next_value = np.concatenate([value[1:], values[1][None]])
    if finals is not None:
        next_value[finals.step, finals.env] = values[2]
    return tensors[0], value, next_value
