"""What one optimizer step does: losses over modules, the rules that move them, targets that follow.

`assay.optim.update.Step` executes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.optim.rules import Adam, Rule

Loss = Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True, slots=True)
class Objective:
    """One gradient step on the parameters of one module.

    Attributes:
        name: Prefix of its gradient-norm metric and of its optimizer state.
        module: Whose parameters move.
        loss: `batch -> (scalar loss, {metric name: scalar tensor})`.
        rule: How the gradient moves them; clipping and warm-up are settings of it.
        shares: Children of the module, by name, that move by a share of each step.
    """

    name: str
    module: nn.Module
    loss: Loss
    rule: Rule = field(default_factory=Adam)
    shares: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Polyak:
    """`target <- (1 - tau) target + tau source`, after all objectives."""

    target: nn.Module
    source: nn.Module
    tau: float


def require_loss(name: str, found: object) -> None:
    """Refuse what a loss function returned, if it is not a loss and its metrics.

    Raises:
        ConfigError: It is something else.
    """
    match found:
        case (Tensor(ndim=0, requires_grad=True), dict(metrics)):
            if all(isinstance(value, Tensor) for value in metrics.values()):
                return
    raise _no_loss(name, found)


def gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of each parameter; zeros where the loss does not depend on it."""
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(grads, parameters, strict=True)
    return [torch.zeros_like(p) if g is None else g for g, p in pairs]


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one vector, as a flat buffer holds them."""
    return torch.cat([t.reshape(-1) for t in tensors])


def gathered(batch: Mapping[str, Tensor], index: Tensor | None) -> dict[str, Tensor]:
    """Return the rows `index` of a batch, or all of it; scalars stay as they are."""
    if index is None:
        return dict(batch)
    return {k: v.index_select(0, index) if v.ndim else v for k, v in batch.items()}


def _no_loss(name: str, found: object) -> ConfigError:
    loss, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(loss, Tensor) or loss.ndim or not isinstance(metrics, dict):
        shape = f" of shape {list(loss.shape)}" if isinstance(loss, Tensor) else ""
        return ConfigError(
            f"The loss of the objective '{name}' returned a {type(loss).__name__}{shape} and "
            f"metrics of type {type(metrics).__name__}; expected a scalar tensor and a dict.",
            "Return (loss, {name: tensor}), such as (error.mean(), {}).",
        )
    if not loss.requires_grad:
        return ConfigError(
            f"The loss of the objective '{name}' does not depend on any parameter.",
            "Compute it from the module of the objective, without detach or no_grad.",
        )
    key = next(key for key, value in metrics.items() if not isinstance(value, Tensor))
    return ConfigError(
        f"The metric '{key}' of the objective '{name}' is a {type(metrics[key]).__name__}; "
        "expected a tensor.",
        "Leave out float() and .item().",
    )
