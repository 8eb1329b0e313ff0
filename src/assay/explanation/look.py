"""All maps of some states, what they say about each number, and whether they can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from assay.core.types import ACTION_MASK
from assay.explanation import sanity
from assay.explanation.functions import Function, Inputs, inputs_of
from assay.explanation.maps import (
    COMPLETE,
    Maps,
    grad_cam,
    gradients,
    integrated_gradients,
    last_feature_maps,
    occlusion,
    patches_of,
    smooth_gradients,
)
from assay.explanation.pictures import Frame, draw, image_axes, overlay, plane
from assay.explanation.sanity import DEPENDS, Check
from assay.explanation.states import Visited, entries
from assay.networks.encoders import Encoder

Baseline = Literal["mean", "zero"]
METHODS = ("gradient", "smoothgrad", "integrated", "occlusion")

_NOISE = 0.15  # of the deviation of each number, for SmoothGrad
_DRAWS = 16
_SANE = 16  # states that the checks with random weights look at
_SANE_STEPS = 32
_SQUARES = 12  # of an image that are hidden, along its longer side
_PARTS = 6  # numbers that are named for a state


@dataclass(frozen=True, slots=True)
class Feature:
    """A number of the observation, or a whole image, and how much counts on it.

    Attributes:
        name: `obs[2]`, or the entry of an image.
        share: Method -> its share of the whole map, over all states; None where a method has none.
    """

    name: str
    share: dict[str, float | None]


class Look:
    """The maps of telling states and of others, spread evenly over all that were visited.

    Args:
        function: What is explained.
        visited: Where the agent was.
        telling: Rows of the telling states.
        count: How many others.
        baseline: "mean" of all that was seen, or "zero".
        names: Of the numbers of an observation that is one array; empty for `obs[0]` and so on.
        seed: Of noise and random weights.

    Attributes:
        scores: [S, K] what is explained.
        maps: Method -> map, of the telling states first. Gradients are those of one standard
            deviation of each number.
        cams: Entry -> element-wise Grad-CAM [S, height, width] of images; `plain_cams` those of the
            first paper.
    """

    def __init__(
        self,
        function: Function,
        visited: Visited,
        telling: list[int],
        count: int,
        baseline: Baseline,
        names: tuple[str, ...],
        seed: int,
    ) -> None:
        total = len(visited.states)
        evenly = np.unique(np.linspace(0, total - 1, min(count, total)).astype(int))
        self.function, self.names, self.seed = function, names, seed
        self.keys, self.first, self.count = function.smooth, len(telling), len(evenly)
        self.spaces = _parts(function.space)
        self.axes = {key: image_axes(self.spaces[key]) for key in self.spaces}
        self.states = visited.states.take(np.concatenate([np.array(telling, int), evenly]))
        self.x = inputs_of(function, self.states)
        self.base, self.spread = self._references(entries(visited.states.obs), baseline)
        scores = function.on(self.states)
        with torch.no_grad():
            out = scores(self.x)
        self.scores = out.numpy().astype(np.float64)
        # Of one output, what speaks for it; of several, what makes them what they are here.
        self.direction = torch.ones_like(out) if out.shape[1] == 1 else (out - out.mean(0)).sign()
        self.rng = np.random.default_rng(seed)
        noise = {key: _NOISE * spread for key, spread in self.spread.items()}
        smooth = smooth_gradients(scores, self.x, noise, self.keys, draws=_DRAWS, rng=self.rng)
        self.integrated = integrated_gradients(scores, self.x, self.base, self.keys)
        patches = {key: self._patches(key) for key in self.x}
        self.maps: dict[str, Maps] = {
            "gradient": self._scaled(gradients(scores, self.x, self.keys)),
            "smoothgrad": self._scaled(smooth),
            "integrated": self.integrated.maps,
            "occlusion": occlusion(scores, self.x, self.base, patches),
        }
        self.cams = self._cams(function.network, True)
        self.plain_cams = self._cams(function.network, False)

    def _references(
        self, seen: dict[str, NDArray[Any]], baseline: Baseline
    ) -> tuple[Inputs, Inputs]:
        """Return what numbers are compared with, and how far they usually are from it."""
        base, spread = {}, {}
        for key, x in self.x.items():
            if key not in self.keys:
                base[key] = x.roll(1, 0)  # a choice has no mean: that of another state
                continue
            rows = seen[key].astype(np.float32)
            base[key] = torch.from_numpy(rows.mean(0, keepdims=True) * (baseline == "mean"))
            # Pixels share one scale; a pixel that never changes may still matter.
            deviation = rows.std(0, keepdims=True) if self.axes[key] is None else rows.std()
            spread[key] = torch.as_tensor(deviation, dtype=torch.float32)
        return base, spread

    def _patches(self, key: str) -> list[Any]:
        shape, axes = tuple(self.x[key].shape[1:]), self.axes[key]
        if axes is None:
            return patches_of(shape, None, 1) if shape else [()]
        side = max(1, -(-max(shape[axes[0]], shape[axes[1]]) // _SQUARES))
        return patches_of(shape, axes, side)

    def _scaled(self, maps: Maps) -> Maps:
        return {key: found * self.spread[key].unsqueeze(0) for key, found in maps.items()}

    def _cams(self, network: nn.Module, elementwise: bool, rows: slice = slice(None)) -> Maps:
        states = self.states.take(rows)
        scores = self.function.with_network(network).on(states)
        x = {key: value[rows] for key, value in self.x.items()}
        found = {}
        for key, layer in self._layers(network).items():
            axes = self.axes[key]
            assert axes is not None
            shape = self.x[key].shape[1:]
            size = shape[axes[0]], shape[axes[1]]
            found[key] = grad_cam(
                scores, x, layer, size, self.direction[rows], elementwise=elementwise
            )
        return found

    def _layers(self, network: nn.Module) -> dict[str, nn.Module]:
        """Return the layer with the last feature maps of each image."""
        images = [key for key, axes in self.axes.items() if axes is not None]
        for part in network.modules():
            if isinstance(part, Encoder) and part.image_keys:
                pairs = zip(part.image_keys, part.cnns, strict=True)
                return {key or "": last_feature_maps(cnn)[-1] for key, cnn in pairs}
        layers = last_feature_maps(network)
        return {images[0]: layers[-1]} if len(images) == 1 and layers else {}

    # What they say

    def features(self) -> tuple[Feature, ...]:
        """Return every number, and every image as one, the most important first."""
        table: dict[str, dict[str, float | None]] = {}
        for method, maps in self.maps.items():
            for key in self.x:
                if key not in maps:
                    continue
                size = maps[key][self.first :].abs().sum(1).mean(0).numpy()
                for name, whole in self._named(key, size):
                    table.setdefault(name, dict.fromkeys(METHODS))[method] = whole
        for method in METHODS:
            total = sum(share[method] or 0.0 for share in table.values()) or 1.0
            for share in table.values():
                part = share[method]
                share[method] = None if part is None else part / total
        found = [Feature(name, share) for name, share in table.items()]
        return tuple(sorted(found, key=_importance, reverse=True))

    def parts(self, place: int) -> list[tuple[str, float, float]]:
        """Return the numbers that count most in a state: name, value, integrated gradient.

        Of several outputs the sizes are added up.
        """
        found = []
        for key, maps in self.maps["integrated"].items():
            if self.axes[key] is not None:
                continue
            total = maps[place, 0] if maps.shape[1] == 1 else maps[place].abs().sum(0)
            values = dict(self._named(key, self.x[key][place].numpy()))
            found += [
                (name, float(values[name]), float(part))
                for name, part in self._named(key, total.numpy())
            ]
        return sorted(found, key=lambda one: -abs(one[2]))[:_PARTS]

    def pictures(self, place: int) -> dict[str, Frame]:
        """Return the images of a state, with the maps over them."""
        found = {}
        for key, axes in self.axes.items():
            if axes is None:
                continue
            label = f"{key}: " if key else ""
            seen = draw(self.x[key][place].numpy(), self.spaces[key], axes)
            found[f"{label}seen"] = seen
            heats = {
                name: plane(self.maps[name][key][place].sum(0).numpy(), axes)
                for name in ("integrated", "occlusion")
            }
            if key in self.cams:
                heats["Grad-CAM, element-wise"] = self.cams[key][place].numpy()
                heats["Grad-CAM"] = self.plain_cams[key][place].numpy()
            found |= {f"{label}{name}": overlay(seen, heat) for name, heat in heats.items()}
        return found

    def _named(self, key: str, values: NDArray[Any]) -> list[tuple[str, float]]:
        """Return the numbers of an entry with their names; of an image the sum."""
        if self.axes[key] is not None:
            return [(key or "image", float(values.sum()))]
        flat = np.ravel(values)
        if not key and self.names:
            return list(zip(self.names, flat.tolist(), strict=True))
        label = key or "obs"
        if flat.size == 1:
            return [(label, float(flat[0]))]
        return [(f"{label}[{i}]", float(x)) for i, x in enumerate(flat)]

    # Whether they can be believed

    def checks(self) -> tuple[Check, ...]:
        """Return whether the maps are complete, depend on the weights, and find what counts."""
        error = self.integrated.error
        worst = float(error.max())
        found = [
            Check(
                "completeness",
                worst <= COMPLETE,
                f"integrated gradients miss at most {worst:.2%} of the difference to the baseline, "
                f"{float(error.median()):.2%} in the median ({self.integrated.steps} points)",
            )
        ]
        rows = slice(self.first, self.first + _SANE)
        for name, make in self._makers(rows).items():
            trained = make(self.function.network)
            mean = sanity.weights_matter(self.function.network, make, trained, self.rng)
            detail = f"its correlation with the maps of random weights is {mean:.2f}"
            found.append(Check(f"random weights: {name}", mean < DEPENDS, detail))
        scores = self.function.on(self.states)
        top, chance = sanity.deletion(scores, self.x, self.base, self.maps["integrated"], self.rng)
        detail = (
            f"without the fifth of the numbers that the map ranks first the output moves by "
            f"{top:.3g}, without a random fifth by {chance:.3g}"
        )
        found.append(Check("deletion", top >= chance, detail))
        return tuple(found)

    def cascade(self) -> tuple[tuple[str, float], ...]:
        """Return each layer, and the correlation after it and all later ones became random."""
        rows = slice(self.first, self.first + _SANE)
        make = self._makers(rows)["gradient"]
        network = self.function.network
        return tuple(sanity.cascade(network, make, make(network), np.random.default_rng(self.seed)))

    def _makers(self, rows: slice) -> dict[str, Any]:
        """Return what makes the maps of some states for another network."""
        states = self.states.take(rows)
        x = {key: value[rows] for key, value in self.x.items()}

        def gradient(network: nn.Module) -> Maps:
            return gradients(self.function.with_network(network).on(states), x, self.keys)

        def integrated(network: nn.Module) -> Maps:
            scores = self.function.with_network(network).on(states)
            return integrated_gradients(
                scores, x, self.base, self.keys, most_steps=_SANE_STEPS
            ).maps

        def cam(network: nn.Module) -> Maps:
            return self._cams(network, True, rows)

        makers: dict[str, Any] = {"gradient": gradient, "integrated": integrated}
        return makers | ({"grad-cam": cam} if self.cams else {})


def _importance(feature: Feature) -> float:
    share = feature.share["integrated"]
    return (feature.share["occlusion"] or 0.0) if share is None else share


def _parts(space: gym.Space[Any]) -> dict[str, gym.Space[Any]]:
    if not isinstance(space, gym.spaces.Dict):
        return {"": space}
    return {key: part for key, part in space.items() if key != ACTION_MASK}
