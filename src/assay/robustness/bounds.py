"""What no attack within a budget can do to a policy: bounds that hold for every observation.

A box of observations is sent through the network layer by layer, in two ways:

* interval bound propagation (arXiv:1810.12715): each number by its smallest and largest value;
* the mean-value form: f(x) lies within f(c) +- sum_j sup|df/dx_j| r_j, with derivatives bounded
  over the box (local Lipschitz constants, arXiv:1804.09699). It is the tighter one of small boxes.

Each layer takes what is tighter, number by number. Of choices, the last layer is merged with the
differences z_{a*} - z_a, so that what all values have in common cancels out. A lower bound of the
gap above 0 certifies that the choice is the same everywhere in the box.

Bounds are of real numbers; rounding to float32 is beyond them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.core.types import Tree, action_mask
from assay.networks.encoders import Encoder
from assay.networks.heads import AtomHead, AtomMean, DuelingHead, GaussianHead, SquashedGaussianHead
from assay.networks.mlp import Tanh
from assay.networks.noisy import NoisyLinear
from assay.policies.heads import SquashedHead, StochasticHead
from assay.robustness.gradients import GradientPath, ranges

# Where SiLU and GELU (tanh form) are smallest, and bounds of their slopes, rounded outwards.
_SILU = (-1.2784646, (-0.0999, 1.0999))
_GELU = (-0.7524614, (-0.1297, 1.1297))


@dataclass(frozen=True, slots=True, eq=False)
class Enclosure:
    """What a box of inputs becomes.

    Attributes:
        low: Smallest values [B, m].
        high: Largest values [B, m].
        at: Values [B, m] at the middle of the box.
        slope_low: Smallest derivatives [B, m, n] by the inputs.
        slope_high: Largest derivatives.
        radius: Half the width of the box [B, n].
    """

    low: Tensor
    high: Tensor
    at: Tensor
    slope_low: Tensor
    slope_high: Tensor
    radius: Tensor

    @classmethod
    def of_box(cls, low: Tensor, high: Tensor) -> Enclosure:
        """Return a box [B, n] itself."""
        one = torch.eye(low.shape[1]).expand(len(low), -1, -1)
        return cls(low, high, (low + high) / 2, one, one, (high - low) / 2)

    def tightened(self) -> Enclosure:
        """Return the same, with the mean-value form where it is tighter."""
        reach = torch.maximum(self.slope_low.abs(), self.slope_high.abs())
        away = (reach @ self.radius.unsqueeze(-1)).squeeze(-1)
        low = torch.maximum(self.low, self.at - away)
        high = torch.minimum(self.high, self.at + away)
        return Enclosure(low, high, self.at, self.slope_low, self.slope_high, self.radius)


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """W x + b; W is [m, n], or [B, m, n] with one for each row."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Enclosure) -> Enclosure:
        """Return what it makes of a box."""
        w, b = self.weight, self.bias
        middle, half = (x.low + x.high) / 2, (x.high - x.low) / 2
        at, centre = (_apply(w, value) + b for value in (x.at, middle))
        spread = _apply(w.abs(), half)
        plus, minus = w.clamp(min=0), w.clamp(max=0)
        low = plus @ x.slope_low + minus @ x.slope_high
        high = plus @ x.slope_high + minus @ x.slope_low
        made = Enclosure(centre - spread, centre + spread, at, low, high, x.radius)
        return made.tightened()


@dataclass(frozen=True, slots=True, eq=False)
class Bend:
    """A function of each number by itself.

    Attributes:
        value: The function.
        slope: Its derivatives' bounds over intervals: (low, high) -> (smallest, largest).
        lowest: Where it is smallest; None where it never falls.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    lowest: float | None = None

    def __call__(self, x: Enclosure) -> Enclosure:
        """Return what it makes of a box."""
        ends = self.value(x.low), self.value(x.high)
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        if self.lowest is not None:
            inside = (x.low < self.lowest) & (self.lowest < x.high)
            low = torch.where(inside, self.value(torch.tensor(self.lowest)), low)
        smallest, largest = (d.unsqueeze(-1) for d in self.slope(x.low, x.high))
        corners = torch.stack(
            [d * s for d in (smallest, largest) for s in (x.slope_low, x.slope_high)]
        )
        slopes = corners.amin(0), corners.amax(0)
        return Enclosure(low, high, self.value(x.at), *slopes, x.radius).tightened()


Layer = Affine | Bend


class Certifier:
    """Bounds of a policy over boxes of observations.

    Args:
        path: The policy, with what of its observations can be moved.

    Raises:
        ConfigError: There is no bound for a part of it, which is named.
    """

    def __init__(self, path: GradientPath) -> None:
        self.path, self.space = path, path.policy.spaces.action
        if path.module.remembers:
            raise _no_bound("a memory")
        if not isinstance(self.space, gym.spaces.Discrete | gym.spaces.Box):
            raise _no_bound(f"actions of {self.space}")
        encoder, *rest = _flat(path.module.network)
        if not isinstance(encoder, Encoder) or len(encoder.cnns):
            raise _no_bound(f"the encoder {type(encoder).__name__} of images or of your own")
        self.encoder = encoder
        self.layers = unroll([*_flat(encoder.trunk), *rest])
        if isinstance(path.policy.head, SquashedHead):
            self.layers.append(_BENDS[nn.Tanh])

    def figures(
        self, obs: Tree, budget: float, before: NDArray[Any], after: NDArray[Any]
    ) -> dict[str, float]:
        """Return what is certified, beside what an attack did to the same observations.

        Args:
            obs: Observations [N, ...].
            budget: The largest move of a number.
            before: What the policy does.
            after: What it does under the attack.
        """
        bound = self.bound(obs, budget)
        if isinstance(self.space, gym.spaces.Discrete):
            return {
                "certified_share": float((bound > 0).mean()),
                "mean_gap_bound": float(bound.mean()),
                "attacked_share": float((before != after).mean()),
            }
        half_width = ranges(self.space)[1].numpy()
        moved = np.abs(after - before).reshape(len(before), -1) / half_width
        return {
            "largest_move_bound": float(bound.mean()),
            "attacked_move": float(moved.max(1).mean()),
        }

    def bound(self, obs: Tree, budget: float) -> NDArray[Any]:
        """Return a bound [N] for each of a batch of observations, over all within the budget.

        Of choices it is the lower bound of z_{a*} - z_a over all valid a. Of Box actions it is how
        far the farthest action can move, in units of half its range.
        """
        path, room = self.path, self.path.room
        with torch.no_grad():
            fixed = path.tensors(obs)
            ends = []
            for sign in (-1, 1):
                parts = room.parts(obs)
                moved = {k: part + sign * room.radius(k, budget) for k, part in parts.items()}
                seen = path.tensors(room.put(obs, moved))
                normalizer = path.module.normalizer
                if normalizer is not None:  # it rises, so that ends stay ends
                    seen = normalizer.normalize_torch(seen)
                ends.append(self.encoder.flat(seen))
            box = Enclosure.of_box(*ends)
            best = path.best(path.numbers(fixed, None), fixed)
            if isinstance(self.space, gym.spaces.Discrete):
                return self._gap(box, best, action_mask(fixed)).numpy()
            return self._reach(box, best).numpy()

    def _gap(self, box: Enclosure, best: Tensor, mask: Tensor | None) -> Tensor:
        *inner, last = self.layers
        assert isinstance(last, Affine)
        for layer in inner:
            box = layer(box)
        # rows z_{a*} - z_a; that of a* itself is 0
        chosen = best.long()
        weight = last.weight[chosen].unsqueeze(1) - last.weight
        bias = last.bias[chosen].unsqueeze(1) - last.bias
        gaps = Affine(weight, bias)(box).low
        others = torch.ones_like(gaps, dtype=torch.bool).scatter(1, chosen.unsqueeze(1), False)
        if mask is not None:
            others &= (mask != 0) | ~(mask != 0).any(1, keepdim=True)
        return torch.where(others, gaps, torch.inf).min(1).values

    def _reach(self, box: Enclosure, best: Tensor) -> Tensor:
        for layer in self.layers:
            box = layer(box)
        assert isinstance(self.space, gym.spaces.Box)
        centre, half_width = ranges(self.space)
        unit = (best.reshape(len(best), -1) - centre) / half_width
        low, high = box.low, box.high
        if isinstance(self.path.policy.head, StochasticHead):  # in the units of the environment
            low, high = (low - centre) / half_width, (high - centre) / half_width
        if self.space.is_bounded():
            low, high = low.clamp(-1, 1), high.clamp(-1, 1)
        return torch.maximum(high - unit, unit - low).amax(1).clamp(min=0)


def unroll(modules: Sequence[nn.Module]) -> list[Layer]:
    """Return modules that follow each other as layers that take boxes.

    What all action values have in common is left out, since only their differences count.

    Raises:
        ConfigError: A module has no bound.
    """
    layers: list[Layer] = []
    for module in modules:
        if isinstance(module, nn.Linear | NoisyLinear):
            bias = module.bias
            layers.append(Affine(module.weight, torch.zeros(1) if bias is None else bias))
        elif type(module) in _BENDS:
            layers.append(_BENDS[type(module)])
        elif isinstance(module, GaussianHead):
            mean: Any = module.mean
            scale, centre = torch.ones(1), torch.zeros(1)
            if module.scaled:
                scale, centre = module.half_width, module.center
            layers.append(Affine(mean.weight * scale.unsqueeze(-1), mean.bias * scale + centre))
        elif isinstance(module, SquashedGaussianHead):
            linear, size = module.linear, module.size
            layers.append(Affine(linear.weight[:size], linear.bias[:size]))
        elif isinstance(module, DuelingHead | AtomHead):
            layers += unroll(_flat(module.advantage))
        elif isinstance(module, AtomMean):
            atoms, last = modules[-2], layers[-1]
            assert isinstance(atoms, AtomHead) and isinstance(last, Affine)
            form = (atoms.actions, atoms.atoms)
            layers[-1] = Affine(
                last.weight.unflatten(0, form).mean(1), last.bias.unflatten(0, form).mean(1)
            )
        else:
            raise _no_bound(f"a layer of the kind {type(module).__name__}")
    return layers


def _flat(module: nn.Module) -> list[nn.Module]:
    """Return a chain of modules, without chains in it and without what does nothing."""
    if isinstance(module, nn.Sequential):
        return [part for child in module for part in _flat(child)]
    return [] if isinstance(module, nn.Identity) else [module]


def _apply(weight: Tensor, x: Tensor) -> Tensor:
    return (weight @ x.unsqueeze(-1)).squeeze(-1)


def _tanh_slope(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    ends = [1 - end.tanh().square() for end in (low, high)]
    steepest = torch.where((low < 0) & (high > 0), 1.0, torch.maximum(*ends))
    return torch.minimum(*ends), steepest


def _relu_slope(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    return (low > 0).float(), (high > 0).float()


def _elu_slope(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    return low.clamp(max=0).exp(), high.clamp(max=0).exp()


def _between(bounds: tuple[float, float]) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def slope(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(low, bounds[0]), torch.full_like(low, bounds[1])

    return slope


_BENDS: dict[type[nn.Module], Bend] = {
    Tanh: Bend(torch.tanh, _tanh_slope),
    nn.Tanh: Bend(torch.tanh, _tanh_slope),
    nn.ReLU: Bend(torch.relu, _relu_slope),
    nn.ELU: Bend(F.elu, _elu_slope),
    nn.SiLU: Bend(F.silu, _between(_SILU[1]), _SILU[0]),
    nn.GELU: Bend(partial(F.gelu, approximate="tanh"), _between(_GELU[1]), _GELU[0]),
}


def _no_bound(what: str) -> ConfigError:
    return ConfigError(f"There is no certified bound for {what}.")
