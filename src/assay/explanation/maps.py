"""Maps of what a decision depends on, as pure functions of a scores function.

Every map is {entry: [S, K, ...]}: for S states and K outputs, one number for each number of the
observation. Gradients: the slope. SmoothGrad (arXiv:1706.03825): its mean around the observation.
Integrated gradients (arXiv:1703.01365): the slope along the way from a baseline, times the way;
they add up to the difference of the outputs. Occlusion: what the output loses if a part is replaced
by the baseline. Grad-CAM (arXiv:1610.02391) and its element-wise form HiResCAM (arXiv:2011.08891):
where in an image the last convolution found what speaks for the action.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.explanation.functions import Inputs, Scores

Maps = dict[str, Tensor]
COMPLETE = 0.01  # of the difference that integrated gradients must add up to
_MOST_STEPS = 1024


def gradients(scores: Scores, x: Inputs, keys: tuple[str, ...]) -> Maps:
    """Return d score_k / d x.

    Raises:
        ConfigError: There is no gradient.
    """
    leaves = [x[key].detach().requires_grad_() for key in keys]
    out = scores({**x, **dict(zip(keys, leaves, strict=True))})
    if not out.requires_grad:
        raise ConfigError(
            "The network passes no gradient to what it sees.",
            "Do not detach or round observations in a network of your own.",
        )
    rows = []
    for k in range(out.shape[1]):
        # Rows do not meet in the network, so that the gradient of the sum is that of each.
        found = torch.autograd.grad(
            out[:, k].sum(), leaves, retain_graph=k + 1 < out.shape[1], allow_unused=True
        )
        pairs = zip(found, leaves, strict=True)
        rows.append([torch.zeros_like(leaf) if one is None else one for one, leaf in pairs])
    return {key: torch.stack([row[i] for row in rows], dim=1) for i, key in enumerate(keys)}


def smooth_gradients(
    scores: Scores,
    x: Inputs,
    spread: Inputs,
    keys: tuple[str, ...],
    *,
    draws: int,
    rng: np.random.Generator,
) -> Maps:
    """Return the mean gradient around x; `spread` is the standard deviation of the noise."""
    total: Maps = {}
    for _ in range(draws):
        moved = dict(x)
        for key in keys:
            noise = rng.standard_normal(x[key].shape, dtype=np.float32)
            moved[key] = x[key] + torch.from_numpy(noise) * spread[key]
        for key, found in gradients(scores, moved, keys).items():
            total[key] = found / draws + total.get(key, 0.0)
    return total


@dataclass(frozen=True, slots=True)
class Integrated:
    """Integrated gradients, and how complete they are.

    Attributes:
        maps: The attributions.
        error: [S, K] what they miss of the difference to the baseline, as a share of it; of the
            mean difference where that is larger.
        steps: Points on the way.
    """

    maps: Maps
    error: Tensor
    steps: int


def integrated_gradients(
    scores: Scores,
    x: Inputs,
    baseline: Inputs,
    keys: tuple[str, ...],
    *,
    complete: float = COMPLETE,
    most_steps: int = _MOST_STEPS,
) -> Integrated:
    """Return (x - x') * integral of the gradient at x' + a (x - x'), a from 0 to 1.

    By Gauss-Legendre points, doubled until the attributions add up to the difference of the outputs
    in every state, or there are `most_steps`.
    """
    start = {key: baseline[key].expand_as(x[key]) for key in keys}
    with torch.no_grad():
        gain = scores(x) - scores({**x, **start})  # [S, K]
    # A state in which nothing changes has no share of its own to miss.
    unit = gain.abs().maximum(gain.abs().mean(0)).clamp(min=1e-8)
    steps = 32
    while True:
        maps = _integrate(scores, x, start, keys, steps)
        total = sum(found.flatten(2).sum(2) for found in maps.values())
        error = (total - gain).abs() / unit
        if float(error.max()) <= complete or steps >= most_steps:
            return Integrated(maps, error, steps)
        steps *= 2


def _integrate(scores: Scores, x: Inputs, start: Inputs, keys: tuple[str, ...], steps: int) -> Maps:
    points, weights = np.polynomial.legendre.leggauss(steps)
    total: Maps = {}
    for point, weight in zip((points + 1.0) / 2.0, weights / 2.0, strict=True):
        between = {key: start[key] + float(point) * (x[key] - start[key]) for key in keys}
        for key, slope in gradients(scores, {**x, **between}, keys).items():
            total[key] = float(weight) * slope + total.get(key, 0.0)
    return {key: total[key] * (x[key] - start[key]).unsqueeze(1) for key in keys}


@torch.no_grad()
def occlusion(scores: Scores, x: Inputs, baseline: Inputs, patches: dict[str, list[Any]]) -> Maps:
    """Return what the outputs lose if a patch is replaced by the baseline.

    `patches` are indices into the axes of an entry behind the first. What a patch costs is shared
    by its numbers alike.
    """
    before = scores(x)
    found: Maps = {}
    for key, places in patches.items():
        shape = (len(before), before.shape[1], *x[key].shape[1:])
        found[key] = torch.zeros(shape)
        for place in places:
            hidden = x[key].clone()
            hidden[(slice(None), *place)] = baseline[key].expand_as(hidden)[(slice(None), *place)]
            lost = before - scores({**x, key: hidden})  # [S, K]
            part = found[key][(slice(None), slice(None), *place)]
            size = max(1, part[0, 0].numel())
            part += lost.view(*lost.shape, *[1] * (part.ndim - 2)) / size
    return found


def patches_of(shape: tuple[int, ...], image: tuple[int, int] | None, side: int) -> list[Any]:
    """Return what is hidden at once: each number, or squares of an image.

    Args:
        shape: Of the entry, without the axis of states.
        image: Which axes are height and width, or None.
        side: Of the squares, in pixels.
    """
    if image is None:
        return [tuple(slice(i, i + 1) for i in index) for index in np.ndindex(*shape)]
    places = []
    for top in range(0, shape[image[0]], side):
        for left in range(0, shape[image[1]], side):
            place: list[slice] = [slice(None)] * len(shape)
            place[image[0]], place[image[1]] = slice(top, top + side), slice(left, left + side)
            places.append(tuple(place))
    return places


# Images


def last_feature_maps(network: nn.Module) -> list[nn.Module]:
    """Return the modules that give the last feature maps: what is flattened, or convolutions."""
    before_flat = [
        children[i - 1]
        for part in network.modules()
        if isinstance(part, nn.Sequential)
        for children in [list(part)]
        for i, child in enumerate(children)
        if i and isinstance(child, nn.Flatten)
    ]
    convolutions: list[nn.Module] = [
        part for part in network.modules() if isinstance(part, nn.Conv2d)
    ]
    return before_flat or convolutions[-1:]


def grad_cam(
    scores: Scores,
    x: Inputs,
    layer: nn.Module,
    size: tuple[int, int],
    direction: Tensor,
    *,
    elementwise: bool = False,
) -> Tensor:
    """Return where an image speaks for what is done, [S, height, width], at least 0.

    Grad-CAM weighs each feature map by the mean of its gradient.

    Args:
        scores: Runs `layer`.
        x: Where.
        layer: Gives the feature maps [S, C, h, w].
        size: Height and width of the image.
        direction: [S, K] the weight of each output.
        elementwise: Weigh each place of a feature map by its own gradient (HiResCAM), which is
            right for a network that does not pool: there the same feature may count in one place
            and not in another.
    """
    with _kept(layer) as seen:
        out = scores(x)
        (maps,) = seen  # [S, C, h, w]
        (slope,) = torch.autograd.grad((out * direction).sum(), [maps])
    # a_k = mean_ij dy / dA_kij,  L = relu(sum_k a_k A_k)
    weight = slope if elementwise else slope.mean((2, 3), keepdim=True)
    heat = F.relu((weight * maps.detach()).sum(1, keepdim=True))
    return F.interpolate(heat, size=size, mode="bilinear", align_corners=False)[:, 0]


@contextmanager
def _kept(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Keep what a layer returns, as leaves that gradients can be taken by."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        # A network that does not learn has no graph here: it begins with this layer.
        leaf = out.detach().requires_grad_()
        seen.append(leaf)
        return leaf

    handle: Any = layer.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()
