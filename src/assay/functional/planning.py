"""Planning by sampling: how the best of many plans make the next distribution to draw from."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from assay.functional.checks import check_rank


class Refit(NamedTuple):
    """What an iteration leaves.

    Attributes:
        mean: [N, H, A] of the next draw.
        std: [N, H, A] of the next draw.
        elites: [N, K, H, A], the best plans, best first.
        score: [N, K], their weights, which sum to 1.
    """

    mean: Tensor
    std: Tensor
    elites: Tensor
    score: Tensor


def path_integral(
    plans: Tensor,
    values: Tensor,
    *,
    elites: int,
    temperature: float,
    min_std: float,
    max_std: float,
) -> Refit:
    """Fit a Gaussian to the best plans, weighted by their values (MPPI, arXiv:1509.01149).

    The elites alone count, with weights exp(temperature (value - best value)), as in TD-MPC2
    (arXiv:2310.16828).

    Args:
        plans: [N, S, H, A], S plans of H actions for each of N states.
        values: [N, S].
        elites: K, of S.
        temperature: 0 weighs all elites alike.
        min_std: Least standard deviation.
        max_std: Largest.
    """
    check_rank(4, plans=plans)
    check_rank(2, values=values)
    best, index = values.topk(elites, dim=1)
    chosen = plans.gather(1, index[..., None, None].expand(-1, -1, *plans.shape[2:]))
    score = (temperature * best).softmax(dim=1)
    weight = score[..., None, None]
    mean = (weight * chosen).sum(dim=1)
    # sigma^2 = sum_k w_k (a_k - mean)^2
    std = (weight * (chosen - mean.unsqueeze(1)).square()).sum(dim=1).sqrt()
    return Refit(mean, std.clamp(min_std, max_std), chosen, score)
