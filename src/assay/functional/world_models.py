"""Maths of world models with categorical latents (DreamerV3, arXiv:2301.04104).

A latent state is S independent choices among C classes. Distributions are log-probabilities
[..., S, C]; samples are one-hot [..., S, C].
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.functional.checks import check_rank, check_same_shape
from assay.functional.returns import linear_recurrence


def mix_uniform(logits: Tensor, share: float) -> Tensor:
    """Return log((1 - share) softmax(logits) + share / C), along the last axis.

    No class has a probability of 0, so that no KL divergence is infinite.
    """
    if share == 0.0:
        return logits.log_softmax(dim=-1)
    return ((1.0 - share) * logits.softmax(dim=-1) + share / logits.shape[-1]).log()


def one_hot(index: Tensor, classes: int) -> Tensor:
    """Return float one-hot vectors [..., classes] of whole numbers [...]."""
    choices = torch.arange(classes, device=index.device)
    return (index.unsqueeze(-1) == choices).to(torch.float32)


def sample_one_hot(log_probs: Tensor, gumbel: Tensor | None) -> Tensor:
    """Return a one-hot sample, through which gradients reach the probabilities.

    The value is that of the sample, the gradient that of the probabilities (straight-through).
    Without `gumbel` noise (of the shape of `log_probs`) it is the most likely one.
    """
    scores = log_probs if gumbel is None else log_probs + gumbel
    chosen = one_hot(scores.detach().argmax(-1), log_probs.shape[-1])
    if not torch.is_grad_enabled():
        return chosen
    probs = log_probs.exp()
    return chosen + (probs - probs.detach())


def categorical_kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) [...] of log-probabilities [..., S, C], summed over the S choices."""
    check_same_shape(p=p, q=q)
    return (p.exp() * (p - q)).sum((-2, -1))


def balanced_kl(posterior: Tensor, prior: Tensor, free: float) -> tuple[Tensor, Tensor]:
    """Return the losses of the dynamics and of the representation [...], each at least `free`.

    Both are KL(posterior || prior). The first trains the prior towards the posterior, the second
    the posterior towards the prior; below `free` nats neither has a gradient.
    """
    dynamics = categorical_kl(posterior.detach(), prior).clamp(min=free)
    representation = categorical_kl(posterior, prior.detach()).clamp(min=free)
    return dynamics, representation


def lambda_returns(
    reward: Tensor, discount: Tensor, goes_on: Tensor, next_value: Tensor, lam: float
) -> Tensor:
    """Return R_t = r_t + discount_t ((1 - lam_t) V_t + lam_t R_{t+1}), lam_t = lam goes_on_t.

    The last step of a segment bootstraps in full.

    Args:
        reward: [T, N], given for step t.
        discount: [T, N], 0 where the state that step t leads to is terminal.
        goes_on: [T, N], 0 where step t + 1 is not of the same episode.
        next_value: [T, N], V of the state that step t leads to.
        lam: Weight of longer returns.
    """
    check_rank(2, reward=reward)
    check_same_shape(reward=reward, discount=discount, goes_on=goes_on, next_value=next_value)
    mixed = torch.cat([lam * goes_on[:-1], torch.zeros_like(goes_on[-1:])])
    return linear_recurrence(
        reward + discount * (1.0 - mixed) * next_value,
        discount * mixed,
    )
