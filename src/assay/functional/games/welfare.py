"""How much everybody gets together, and how evenly."""

from __future__ import annotations

import numpy as np

from assay.functional.games.tree import Floats


def jain_index(returns: Floats) -> float | None:
    """Return (sum x)^2 / (n sum x^2): 1 if all get the same, 1 / n if one gets everything.

    None where somebody gets less than nothing, or nobody gets anything: it is not defined there.
    """
    squares = float((returns**2).sum())
    if returns.min() < 0 or squares == 0.0:
        return None
    return float(returns.sum()) ** 2 / (len(returns) * squares)


def gini(returns: Floats) -> float | None:
    """Return the mean difference of two players over twice the mean; 0 if all get the same.

    None where it is not defined, as for `jain_index`.
    """
    total = float(returns.sum())
    if returns.min() < 0 or total == 0.0:
        return None
    differences = np.abs(returns[:, None] - returns[None, :]).sum()
    return float(differences) / (2 * len(returns) * total)


def welfare(returns: Floats) -> dict[str, float | None]:
    """Return the figures of what players get on average [P], by name.

    `social_welfare` is the sum, `worst_off` the least, which max-min fairness maximises, and
    `nash_welfare` the geometric mean, where nobody gets less than nothing.
    """
    product = None if returns.min() < 0 else float(np.prod(returns)) ** (1 / len(returns))
    return {
        "social_welfare": float(returns.sum()),
        "mean": float(returns.mean()),
        "worst_off": float(returns.min()),
        "best_off": float(returns.max()),
        "nash_welfare": product,
        "jain_index": jain_index(returns),
        "gini": gini(returns),
    }
