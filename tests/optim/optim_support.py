"""Small networks, data and losses for tests of optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from assay.optim.compiled_step import CompiledStep
from assay.optim.noise import NoiseSpec
from assay.optim.update import Objective, Step

Batch = dict[str, Tensor]
NOISE = {"eps": NoiseSpec((4, 3)), "u": NoiseSpec((2,), "uniform")}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def data(seed: int = 0, size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(size, 3, generator=generator),
        "y": torch.randn(size, 1, generator=generator),
    }


def squared(module: nn.Module) -> Callable[[Batch], tuple[Tensor, Batch]]:
    return lambda batch: ((module(batch["x"]) - batch["y"]).square().mean(), {})


class Scalar(nn.Module):
    """One number, as a network."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value]))


def slope(module: Scalar, gradient: float) -> Callable[[Batch], tuple[Tensor, Batch]]:
    return lambda batch: (gradient * module.w.sum(), {})


def noisy_step(mode: Any = "eager", seed: int = 1, module: nn.Module | None = None) -> CompiledStep:
    """Return a step whose loss sees four rows, with noise."""
    module = net() if module is None else module

    def loss(batch: Batch) -> tuple[Tensor, Batch]:
        error = module(batch["x"] + batch["eps"]) - batch["y"]
        return error.square().mean() * batch["u"].mean(), {"eps": batch["eps"], "u": batch["u"]}

    objectives = [Objective("fit", module, loss)]
    return CompiledStep(objectives, mode=mode, key="noise", noise=NOISE, seed=seed)


def assert_same_steps(one: Step, two: Step, **tolerance: float) -> None:
    """Require the same parameters and the same optimizer state."""
    for a, b in zip(one.flats.values(), two.flats.values(), strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    for name, moments in one.moments.items():
        assert moments.keys() == two.moments[name].keys()
        for key, tensor in moments.items():
            torch.testing.assert_close(tensor, two.moments[name][key], **tolerance)
        assert one.counts[name] == two.counts[name]
