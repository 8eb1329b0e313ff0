"""The loss of a discriminator between an expert and a policy, and the rewards that it gives.

A logit above 0 says "the expert's" everywhere: D = sigmoid(logit) is the probability of that.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.functional.checks import check_rank

RewardForm = Literal["softplus", "logit", "log_d"]


def imitation_reward(logit: Tensor, form: RewardForm = "softplus") -> Tensor:
    """Return the reward for looking like the expert.

    Args:
        logit: Of any shape.
        form: "softplus": -log(1 - D), never negative, so that a longer episode is a better one.
            "log_d": log D, never positive, so that a shorter episode is a better one. "logit":
            log D - log(1 - D), of either sign.

    Example:
        >>> [round(imitation_reward(torch.zeros(()), f).item(), 4) for f in ("softplus", "log_d")]
        [0.6931, -0.6931]
    """
    if form == "softplus":
        return F.softplus(logit)
    return F.logsigmoid(logit) if form == "log_d" else logit


def discriminator_loss(
    expert: Tensor, policy: Tensor, entropy_coef: float = 0.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the binary cross-entropy with the label 1 for the expert, and its diagnostics.

    Args:
        expert: [B] logits of what the expert did.
        policy: [B] logits of what the policy did.
        entropy_coef: Weight of a bonus for the entropy of D, which keeps it from being sure.
    """
    check_rank(1, expert=expert, policy=policy)
    # L = -E_expert[log D] - E_policy[log(1 - D)]
    loss = F.softplus(-expert).mean() + F.softplus(policy).mean()
    if entropy_coef:
        # H(D) = softplus(x) - x D of a logit x
        both = torch.cat([expert, policy])
        loss = loss - entropy_coef * (F.softplus(both) - both * torch.sigmoid(both)).mean()
    return loss, {
        "expert_accuracy": (expert > 0).to(loss.dtype).mean(),
        "policy_accuracy": (policy < 0).to(loss.dtype).mean(),
    }
