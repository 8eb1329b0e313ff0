"""Returns and advantages over time-major segments [T, N].

Everywhere `next_value[t]` is the value of the true successor of transition t: at a truncation the
caller gives V(s_final), not the value of the observation after the reset. A bootstrap is cut by
`terminated` alone; a recursion is cut by `terminated` or `truncated` of the same transition t, and
by the end of the segment.

All recursions are of the form x_t = d_t + c_t * x_{t+1}. They are solved by doubling, in log2(T)
vectorised passes instead of T small ones: faster for the usual few environments, and a graph of a
few nodes when it is traced.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.functional.checks import check_rank, check_same_shape

# Beyond this many columns, one pass per time step moves less memory than log2(T) whole passes.
_LOOP_COLUMNS = 512

FloatArray = np.ndarray[Any, np.dtype[np.floating[Any]]]


def linear_recurrence(d: Tensor, c: Tensor) -> Tensor:
    """Solve x_t = d_t + c_t * x_{t+1} with x_T = 0 along the first axis."""
    check_same_shape(d=d, c=c)
    stride, length = 1, d.shape[0]
    while stride < length:
        # After k passes d_t covers 2^k steps, and c_t is the product of their coefficients.
        d = torch.cat([d[:-stride] + c[: length - stride] * d[stride:], d[-stride:]])
        if 2 * stride < length:
            c = c[: c.shape[0] - stride] * c[stride:]
        stride *= 2
    return d


def linear_recurrence_numpy(d: FloatArray, c: FloatArray) -> FloatArray:
    """Solve x_t = d_t + c_t * x_{t+1} with x_T = 0, overwriting `d` (the result) and `c`."""
    check_same_shape(d=d, c=c)
    length = len(d)
    if d.ndim > 1 and d[0].size > _LOOP_COLUMNS:
        scratch = np.empty_like(d[0])
        for t in range(length - 2, -1, -1):
            np.multiply(c[t], d[t + 1], out=scratch)
            d[t] += scratch
        return d
    scratch = np.empty_like(d)
    stride = 1
    while stride < length:
        head = scratch[:-stride]
        np.multiply(c[:-stride], d[stride:], out=head)
        d[:-stride] += head
        np.multiply(c[:-stride], c[stride:], out=head)
        c[:-stride] = head
        stride *= 2
    return d


def gae_numpy(
    reward: FloatArray,
    value: FloatArray,
    next_value: FloatArray,
    terminated: np.ndarray[Any, Any],
    truncated: np.ndarray[Any, Any],
    gamma: float,
    lam: float,
    valid: np.ndarray[Any, Any] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return generalised advantages and targets `advantage + value`, [T, N] (arXiv:1506.02438).

    All arrays are [T, N]; `next_value` is V of the true successor of each transition. Rows that are
    not `valid` get 0 and are not propagated.
    """
    check_rank(2, reward=reward)
    _check_segment(reward, value, next_value, terminated, truncated, valid)
    alive = np.subtract(1.0, terminated, dtype=np.float32)
    # delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
    advantage = np.multiply(alive, next_value, dtype=np.float32)
    advantage *= np.float32(gamma)
    advantage += reward
    advantage -= value
    coefficient = np.subtract(1.0, truncated, dtype=np.float32)
    coefficient *= alive
    coefficient *= np.float32(gamma * lam)
    if valid is not None:
        invalid = np.logical_not(valid)
        advantage[invalid] = 0.0
        coefficient[invalid] = 0.0
    # A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}
    linear_recurrence_numpy(advantage, coefficient)
    target = np.add(advantage, value, dtype=np.float32)
    if valid is not None:
        target[invalid] = 0.0
    return advantage, target


def n_step_return(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    n: int,
) -> Tensor:
    """Return bootstrapped n-step returns [T, N].

    A return spans k = min(n, steps to the first done, steps to the segment's end) transitions and
    bootstraps with gamma^k, except after a termination.
    """
    check_rank(2, reward=reward)
    _check_segment(reward, next_value, terminated, truncated)
    if n < 1:
        raise ValueError(f"n={n}; expected at least 1.")
    alive = 1.0 - terminated.to(reward.dtype)
    going = alive * (1.0 - truncated.to(reward.dtype))
    # G^1_t = r_t + gamma (1 - terminated_t) V(s'_t)
    one_step = reward + gamma * alive * next_value
    result = one_step
    for _ in range(min(n, reward.shape[0]) - 1):
        # G^k_t = r_t + gamma G^{k-1}_{t+1} while the episode and the segment continue
        longer = reward[:-1] + gamma * result[1:]
        result = torch.cat(
            [torch.where(going[:-1] > 0, longer, one_step[:-1]), one_step[-1:]],
        )
    return result


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    log_ratio: Tensor,
    gamma: float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return V-trace value targets and policy-gradient advantages (arXiv:1802.01561).

    Args:
        reward: [T, N].
        value: [T, N], V(s_t).
        next_value: [T, N], V of the true successor of each transition.
        terminated: [T, N], bool or float.
        truncated: [T, N], bool or float.
        log_ratio: [T, N], log pi(a|s) - log mu(a|s).
        gamma: Discount.
        lam: Weight of longer returns.
        rho_bar: Bound of the importance weight of the temporal difference.
        c_bar: Bound of the importance weight of the trace.

    Returns:
        The targets v_s and the advantages, both [T, N] and without gradient.
    """
    check_rank(2, reward=reward)
    _check_segment(reward, value, next_value, terminated, truncated, log_ratio)
    value, next_value, log_ratio = value.detach(), next_value.detach(), log_ratio.detach()
    alive = 1.0 - terminated.to(reward.dtype)
    going = alive * (1.0 - truncated.to(reward.dtype))
    going = torch.cat([going[:-1], torch.zeros_like(going[-1:])])
    ratio = log_ratio.exp()
    # rho = min(rho_bar, pi / mu), c = lambda min(c_bar, pi / mu)
    rho = ratio.clamp(max=rho_bar)
    c = lam * ratio.clamp(max=c_bar)
    # delta_t = rho_t (r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t))
    delta = rho * (reward + gamma * alive * next_value - value)
    # v_t - V(s_t) = delta_t + gamma c_t (v_{t+1} - V(s_{t+1}))
    correction = linear_recurrence(delta, gamma * c * going)
    target = value + correction
    # advantage_t = rho_t (r_t + gamma v_{t+1} - V(s_t)), with V(s'_t) for v_{t+1} where it is cut
    next_target = torch.cat([target[1:], next_value[-1:]])
    next_target = torch.where(going > 0, next_target, next_value)
    advantage = rho * (reward + gamma * alive * next_target - value)
    return target, advantage


def _check_segment(reward: Any, *others: Any) -> None:
    """Raise unless all arrays of a segment share one shape (broadcasting would hide a mistake)."""
    for array in others:
        if array is not None and array.shape != reward.shape:
            raise ValueError(
                f"reward has shape {tuple(reward.shape)}, but another array of the segment has "
                f"{tuple(array.shape)}; expected the same [T, N] for all."
            )
