"""What is paid."""

import torch


def belly_height(env, target: float):
    """Pay for keeping the belly up."""
    return torch.exp(-torch.square(env.scene["robot"].data.root_pos_w[:, 2] - target))


def feet_slip(env, threshold: float):
    """Charge for feet that slide."""
    return (env.scene["robot"].data.body_lin_vel_w.norm(dim=-1) > threshold).sum(-1)
