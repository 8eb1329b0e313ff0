"""Subgoals of a hierarchy, relative to the state (Nachum et al. 2018, arXiv:1805.08296).

States here are the part of the state that subgoals speak of, s: [..., G].
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.functional.checks import check_rank, check_same_shape


def goal_transition(s: Tensor, goal: Tensor, next_s: Tensor) -> Tensor:
    """Return h(s, g, s') = s + g - s': the same place, as it is seen from the next state."""
    return s + goal - next_s


def intrinsic_reward(s: Tensor, goal: Tensor, next_s: Tensor) -> Tensor:
    """Return r(s, g, s') = -||s + g - s'||, what the lower level is paid."""
    return -torch.linalg.vector_norm(goal_transition(s, goal, next_s), dim=-1)


def goal_candidates(
    goal: Tensor, s: Tensor, last_s: Tensor, scale: Tensor, noise: Tensor
) -> Tensor:
    """Return the goals [B, 2 + K, G] that a correction chooses from.

    They are the stored one, what was achieved (s_{t+c} - s_t), and K around that with half the
    scale as standard deviation; all but the stored one are clipped to the scale.

    Args:
        goal: [B, G], as it was given.
        s: [B, G], where the interval began.
        last_s: [B, G], where it ended.
        scale: [G], the largest goal of each dimension.
        noise: [B, K, G], standard normal.
    """
    check_rank(2, goal=goal)
    check_same_shape(goal=goal, s=s, last_s=last_s)
    achieved = (last_s - s).unsqueeze(1)
    found = torch.cat([achieved, achieved + 0.5 * scale * noise], dim=1)
    return torch.cat([goal.unsqueeze(1), found.clamp(-scale, scale)], dim=1)


def action_likelihood(mean: Tensor, action: Tensor, valid: Tensor) -> Tensor:
    """Return the log-likelihood [B, K] of stored actions for each candidate, up to a constant.

    It is that of a Gaussian around the policy: -1/2 sum_i ||a_i - mu(s_i, g_i)||^2.

    Args:
        mean: [B, K, L, A], what the policy would do at each step.
        action: [B, L, A], what was done.
        valid: [B, L], 0 for steps that do not count.
    """
    check_rank(4, mean=mean)
    squares = (action.unsqueeze(1) - mean).square().sum(-1)  # [B, K, L]
    return -0.5 * (squares * valid.unsqueeze(1)).sum(-1)


def likeliest_goal(candidates: Tensor, likelihood: Tensor) -> Tensor:
    """Return the candidate [B, G] under which what was done is likeliest; the first of equals."""
    best = likelihood.argmax(1)
    return candidates[torch.arange(len(best), device=best.device), best]
