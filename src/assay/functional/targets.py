"""Targets of temporal-difference learning."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.functional.checks import check_rank, check_same_shape
from assay.functional.distributions import mask_logits


def td_target(reward: Tensor, discount: Tensor, terminated: Tensor, next_value: Tensor) -> Tensor:
    """Return r + discount (1 - terminated) V(s'), without gradient; all are [B].

    The discount is gamma^k of the k steps really taken. A truncation keeps its bootstrap.
    """
    check_rank(1, reward=reward)
    check_same_shape(reward=reward, discount=discount, terminated=terminated, next_value=next_value)
    return (reward + discount * (1.0 - terminated.to(reward.dtype)) * next_value).detach()


def smoothed_action(action: Tensor, noise: Tensor, scale: float, bound: float) -> Tensor:
    """Return unit actions with noise that is scaled and clipped (arXiv:1802.09477).

    Args:
        action: In the unit box [-1, 1].
        noise: Standard normal, of the same shape.
        scale: Standard deviation of the noise.
        bound: Of the scaled noise.
    """
    return (action + (noise * scale).clamp(-bound, bound)).clamp(-1.0, 1.0)


def action_value(q: Tensor, action: Tensor) -> Tensor:
    """Return q [B] of the actions taken.

    Args:
        q: [B, A].
        action: [B].
    """
    check_rank(2, q=q)
    check_rank(1, action=action)
    return q.gather(1, action.long().unsqueeze(1)).squeeze(1)


def greedy_value(q: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return max_a q [B] over the valid actions of q [B, A]."""
    check_rank(2, q=q)
    return mask_values(q, mask).amax(dim=1)


def double_q_value(online_q: Tensor, target_q: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return target_q [B] at the action that online_q prefers (arXiv:1509.06461).

    Args:
        online_q: [B, A], which chooses.
        target_q: [B, A], which evaluates.
        mask: [B, A] of valid actions, or None.
    """
    check_rank(2, online_q=online_q)
    check_same_shape(online_q=online_q, target_q=target_q, mask=mask)
    return action_value(target_q, mask_values(online_q, mask).argmax(dim=1))


def mask_values(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return values for a maximum: those of masked actions are -inf; an all-masked row is left.

    A value may be below any finite number that stands for "masked", unlike the logits of a policy.
    """
    return mask_logits(values, mask, -torch.inf)
