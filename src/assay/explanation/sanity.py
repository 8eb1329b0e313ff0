"""Whether maps can be believed: they depend on the weights, and on what the output depends on."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.explanation.functions import Inputs, Scores
from assay.explanation.maps import Maps

DEPENDS = 0.5  # the correlation with the map of random weights that a map must stay below
_DRAWS = 10


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the maps.

    Attributes:
        name: What was checked.
        passed: Whether it held.
        detail: The figures.
    """

    name: str
    passed: bool
    detail: str


def randomised(
    network: nn.Module, rng: np.random.Generator, layers: int | None = None
) -> nn.Module:
    """Return a network with random weights of the same size: all, or those of the last `layers`.

    Each tensor is drawn from a normal distribution with its own root mean square.
    """
    found = copy.deepcopy(network)
    parts = parts_with_weights(found)
    with torch.no_grad():
        for _, part in parts if layers is None else parts[-layers:]:
            for tensor in part.parameters(recurse=False):
                size = float(tensor.square().mean().sqrt())
                drawn = rng.standard_normal(tuple(tensor.shape), dtype=np.float32)
                tensor.copy_(torch.from_numpy(np.asarray(size * drawn, np.float32)))
    return found


def parts_with_weights(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules that own parameters, with their names, from the input to the output."""
    return [
        (name, part)
        for name, part in network.named_modules()
        if any(True for _ in part.parameters(recurse=False))
    ]


def similarity(one: Maps | Tensor, other: Maps | Tensor) -> float:
    """Return the rank correlation of two maps over all states, outputs and numbers; NaN if flat."""
    return rank_correlation(_flat(one), _flat(other))


def rank_correlation(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Return Spearman's correlation; NaN if one of both is constant."""
    stats = importlib.import_module("scipy.stats")
    ranks = [stats.rankdata(x) for x in (one, other)]
    if any(rank.std() == 0 for rank in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def weights_matter(
    network: nn.Module,
    make: Callable[[nn.Module], Maps | Tensor],
    trained: Maps | Tensor,
    rng: np.random.Generator,
    draws: int = _DRAWS,
) -> float:
    """Return the mean correlation of a map with those of random weights (arXiv:1810.03292).

    Args:
        network: Trained.
        make: Makes the map for a network.
        trained: That of the trained one.
        rng: Draws the weights.
        draws: How many networks.
    """
    found = [similarity(trained, make(randomised(network, rng))) for _ in range(draws)]
    return float(np.mean(np.nan_to_num(found)))


def cascade(
    network: nn.Module, make: Callable[[nn.Module], Maps], trained: Maps, rng: np.random.Generator
) -> list[tuple[str, float]]:
    """Return each layer, and the correlation after it and all later ones were made random.

    From the output down to the input.
    """
    names = [name for name, _ in parts_with_weights(network)]
    return [
        (name, similarity(trained, make(randomised(network, rng, layers))))
        for layers, name in enumerate(reversed(names), start=1)
    ]


@torch.no_grad()
def deletion(
    scores: Scores,
    x: Inputs,
    baseline: Inputs,
    maps: Maps,
    rng: np.random.Generator,
    share: float = 0.2,
) -> tuple[float, float]:
    """Return how much the outputs change if the numbers that a map ranks first become the baseline.

    The second is the change if as many are drawn at random. Both are means over states.
    """
    keys = list(maps)
    size = [maps[key].abs().sum(1).flatten(1) for key in keys]  # [S, n] of each entry
    rank = torch.cat(size, dim=1)
    count = max(1, round(share * rank.shape[1]))
    chance = torch.from_numpy(rng.random(tuple(rank.shape), dtype=np.float32))
    before = scores(x)
    changes = []
    for order in (rank, chance):
        hidden = torch.zeros_like(order, dtype=torch.bool).scatter_(
            1, order.topk(count).indices, True
        )
        parts = hidden.split([one.shape[1] for one in size], dim=1)
        moved = dict(x)
        for key, part in zip(keys, parts, strict=True):
            away = part.view(x[key].shape)
            moved[key] = torch.where(away, baseline[key].expand_as(x[key]), x[key])
        changes.append(float((scores(moved) - before).abs().sum(1).mean()))
    return changes[0], changes[1]


def _flat(maps: Maps | Tensor) -> NDArray[np.floating]:
    parts = [maps] if isinstance(maps, Tensor) else [maps[key] for key in sorted(maps)]
    return torch.cat([part.detach().reshape(-1) for part in parts]).numpy()
