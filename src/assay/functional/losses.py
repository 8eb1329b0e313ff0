"""Losses as plain functions of tensors, and the few statistics that are logged with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.functional.checks import check_rank, check_same_shape

# Of log pi_new - log pi_old. Log-probabilities recorded by clients may be wrong, and the
# exponential of a difference beyond 88 is infinite in float32; one beyond 20 is clipped by any
# sensible `clip`.
MOST_LOG_RATIO = 20.0


class PolicyLoss(NamedTuple):
    """A policy loss (scalar, with gradient) and its diagnostics (scalars, without)."""

    loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def weighted_mean(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return sum(weight * x) / sum(weight); an entry of weight 0 counts for nothing, even NaN.

    Args:
        x: Any shape.
        weight: Non-negative, of the same shape (bool or float); None is the plain mean.
    """
    if weight is None:
        return x.mean()
    check_same_shape(x=x, weight=weight)
    weight = weight.to(x.dtype)
    total = torch.where(weight > 0, x, 0.0).mul(weight).sum()
    # The floor only matters when all weights are 0: the mean of nothing is 0, not NaN.
    return total / weight.sum().clamp(min=torch.finfo(x.dtype).tiny)


def approx_kl(log_ratio: Tensor) -> Tensor:
    """Return the unbiased, non-negative estimate of KL(old || new) per sample.

    Args:
        log_ratio: log pi_new - log pi_old of actions drawn from the old policy.
    """
    # k3 = (ratio - 1) - log ratio
    return log_ratio.exp() - 1.0 - log_ratio


def ppo_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    clip: float | Tensor,
    weight: Tensor | None = None,
) -> PolicyLoss:
    """Return PPO's clipped surrogate, to be minimised (arXiv:1707.06347).

    Args:
        log_prob: [B], of the stored actions under the current policy.
        old_log_prob: [B], as recorded when the actions were taken.
        advantage: [B].
        clip: How far the probability ratio may move before its gradient is cut.
        weight: [B] or None.
    """
    check_same_shape(
        log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage, weight=weight
    )
    log_ratio = (log_prob - old_log_prob).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)
    ratio = log_ratio.exp()
    # L = -E[min(ratio A, clip(ratio, 1 - eps, 1 + eps) A)]. Only the bound in the direction that A
    # pushes the ratio can be the minimum, and it has no gradient.
    bound = advantage + clip * advantage.abs()
    surrogate = torch.minimum(ratio * advantage, bound)
    loss = -weighted_mean(surrogate, weight)
    kl = weighted_mean(approx_kl(log_ratio.detach()), weight)
    clipped = ((ratio.detach() - 1.0).abs() > clip).to(ratio.dtype)
    return PolicyLoss(loss, kl, weighted_mean(clipped, weight))


def value_loss(
    value: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    old_value: Tensor | None = None,
    clip: float | Tensor | None = None,
) -> Tensor:
    """Return half the mean squared error, clipped around `old_value` when `clip` is given.

    Args:
        value: [B], the current prediction.
        target: [B].
        weight: [B] or None.
        old_value: [B], as recorded in the rollout; needed when `clip` is given.
        clip: How far the prediction may move from `old_value` before its gradient is cut.
    """
    check_same_shape(value=value, target=target, weight=weight, old_value=old_value)
    error = F.mse_loss(value, target, reduction="none")
    if clip is not None:
        if old_value is None:
            raise ValueError("clip is given without old_value; expected both or neither.")
        # L = 1/2 E[max((V - R)^2, (V_old + clip(V - V_old, -eps, eps) - R)^2)]
        near = old_value + _limit(value - old_value, -clip, clip)
        error = torch.maximum(error, F.mse_loss(near, target, reduction="none"))
    return 0.5 * weighted_mean(error, weight)


def huber(x: Tensor, delta: float = 1.0) -> Tensor:
    """Return the Huber loss of each error: x^2 / 2 within `delta`, linear beyond."""
    # h(x) = m (|x| - m / 2) with m = min(|x|, delta)
    size = x.abs()
    inner = size.clamp(max=delta)
    return inner * (size - 0.5 * inner)


def expectile(error: Tensor, tau: float) -> Tensor:
    """Return the asymmetric squared error of each item (arXiv:2110.06169).

    Args:
        error: Target less prediction, of any shape.
        tau: The expectile: above 1/2, a target above the prediction counts more.
    """
    # L(u) = |tau - 1{u < 0}| u^2
    return (tau - (error.detach() < 0).to(error.dtype)).abs() * error.square()


def conservative_gap(values: Tensor, recorded: Tensor) -> Tensor:
    """Return by how much Q of any action exceeds Q of the recorded one (arXiv:2006.04779).

    Args:
        values: [..., N], Q of all actions; of sampled ones less the log-density that drew them.
        recorded: [...], Q of the recorded action.
    """
    return values.logsumexp(-1) - recorded


def quantile_huber(
    predicted: Tensor,
    target: Tensor,
    tau: Tensor,
    kappa: float = 1.0,
    mass: Tensor | None = None,
) -> Tensor:
    """Return the quantile Huber loss per item (arXiv:1710.10044).

    Args:
        predicted: [B, N] quantile values, with gradient.
        target: [B, M] samples of the target distribution.
        tau: [N] or [B, N], the quantile levels of `predicted`.
        kappa: Width of the quadratic zone.
        mass: [B, M], the probability of each target sample, where they are not equally likely.

    Returns:
        [B]: summed over predicted quantiles, averaged over target samples.
    """
    check_rank(2, predicted=predicted, target=target)
    check_same_shape(target=target, mass=mass)
    if tau.shape not in (predicted.shape, predicted.shape[1:]):
        raise ValueError(
            f"tau has shape {tuple(tau.shape)}; expected {tuple(predicted.shape[1:])} or "
            f"{tuple(predicted.shape)}."
        )
    error = target.unsqueeze(1) - predicted.unsqueeze(2)  # [B, N, M]
    # rho(u) = |tau - 1{u < 0}| huber(u) / kappa, the weight without gradient
    weight = (tau.unsqueeze(-1) - (error.detach() < 0).to(error.dtype)).abs()
    if mass is not None:
        return (mass.unsqueeze(1) * weight * huber(error, kappa) / kappa).sum(dim=(1, 2))
    return (weight * huber(error, kappa) / kappa).mean(dim=2).sum(dim=1)


def normalize_advantages(advantage: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return advantages with mean 0 and standard deviation 1.

    A single (valid) item has no spread: it is returned as it is, not turned into NaN or 0.

    Args:
        advantage: [B].
        weight: [B] of zeros and ones, or None; items of weight 0 become 0.
    """
    check_rank(1, advantage=advantage)
    check_same_shape(advantage=advantage, weight=weight)
    if weight is None:
        if advantage.numel() < 2:
            return advantage
        return (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    weight = weight.to(advantage.dtype)
    advantage = torch.where(weight > 0, advantage, 0.0)
    count = weight.sum()
    centred = (advantage - weighted_mean(advantage, weight)) * weight
    # s^2 = sum w (A - mean)^2 / (n - 1), as for the unweighted case
    variance = centred.square().sum() / (count - 1.0).clamp(min=1.0)
    return torch.where(count > 1, centred / (variance.sqrt() + 1e-8), advantage)


def policy_terms(
    advantage: Tensor,
    entropy: Tensor,
    weight: Tensor | None,
    policy_weight: Tensor | None,
    *,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Return the advantages [B] that a policy follows, and its mean entropy.

    Steps whose action something else chose add nothing to either, but count in the mean, so that
    the gradient shrinks with the policy's share of the steps.

    Args:
        advantage: [B].
        entropy: [B].
        weight: [B], 1 for transitions and 0 for rows that are none; None if both weights are 1
            everywhere.
        policy_weight: [B], 1 where the policy chose the action, else 0; or None.
        normalize: Standardise the advantages of the policy's own steps.
    """
    if weight is None or policy_weight is None:
        return normalize_advantages(advantage) if normalize else advantage, entropy.mean()
    if normalize:
        advantage = normalize_advantages(advantage, weight * policy_weight)
    return advantage * policy_weight, weighted_mean(entropy * policy_weight, weight)


def explained_variance(prediction: Any, target: Any, weight: Any = None) -> Tensor:
    """Return 1 - Var[target - prediction] / Var[target]; 0 where the target does not vary.

    Args:
        prediction: Tensor or array of any shape.
        target: Of the same shape.
        weight: Of the same shape or None.
    """
    prediction, target = torch.as_tensor(prediction), torch.as_tensor(target)
    weight = None if weight is None else torch.as_tensor(weight)
    check_same_shape(prediction=prediction, target=target, weight=weight)
    total = _variance(target, weight)
    residual = _variance(target - prediction, weight)
    varies = total > 0
    return torch.where(varies, 1.0 - residual / torch.where(varies, total, 1.0), 0.0)


def _variance(x: Tensor, weight: Tensor | None) -> Tensor:
    return weighted_mean((x - weighted_mean(x, weight)).square(), weight)


def _limit(x: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    # A bound may be a tensor, so that a schedule moves it without a new trace.
    return torch.clamp(x, low, high)  # type: ignore[arg-type]
