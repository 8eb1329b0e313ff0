"""How a gradient moves parameters: Adam, AdamW, RMSprop and LaProp.

A rule is a frozen record of its settings. `init` makes the tensors that it remembers, `moved` is
its arithmetic, and `move` does the same in place. So the eager step, the compiled one and the CUDA
graph follow one definition, and a new rule is one class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Rate = Tensor | float
AGC_FLOOR = 1e-3  # the least norm that a parameter counts as having: zeros must be able to move


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """What all rules share: clipping of the gradient and warm-up of the learning rate.

    Attributes:
        max_grad_norm: Clip the global norm of the gradient to this, if given.
        agc: Adaptive gradient clipping, if given: after `max_grad_norm`, the gradient of each
            parameter tensor is clipped to this share of the norm of the tensor. DreamerV3 has 0.3.
        warmup: Updates in which the learning rate rises to its full value: update k has k / warmup
            of it.
    """

    max_grad_norm: float | None = None
    agc: float | None = None
    warmup: int = 0

    @abstractmethod
    def init(self, flat: Tensor) -> dict[str, Tensor]:
        """Return what the rule remembers of each number in `flat`, by name."""

    @abstractmethod
    def moved(
        self, p: Tensor, g: Tensor, moments: Mapping[str, Tensor], rate: Rate, count: Tensor
    ) -> Tensor:
        """Return a moved parameter, and write what is remembered into `moments`.

        The gradient `g` is clipped, and `count` is the number of this update, from 1.
        """

    def move(
        self, p: Tensor, g: Tensor, moments: Mapping[str, Tensor], rate: Rate, count: Tensor
    ) -> None:
        """Do what `moved` does in place."""
        p.copy_(self.moved(p, g, moments, rate, count))

    def clip(
        self, gradients: Sequence[Tensor], parameters: Sequence[Tensor], norm: Tensor
    ) -> list[Tensor]:
        """Return the gradients of `parameters`, of the global norm `norm`, within their bounds."""
        clipped = list(gradients)
        if self.max_grad_norm is not None:
            scale = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            clipped = [g * scale for g in clipped]
        if self.agc is not None:
            clipped = [_bounded(g, p, self.agc) for g, p in zip(clipped, parameters, strict=True)]
        return clipped

    def rate(self, lr: Rate, count: Tensor) -> Rate:
        """Return the learning rate of update number `count`."""
        if not self.warmup:
            return lr
        share = (count / self.warmup).clamp(max=1.0)
        return share * (lr.to(share.dtype) if isinstance(lr, Tensor) else lr)  # rounded alike


def _bounded(gradient: Tensor, parameter: Tensor, share: float) -> Tensor:
    # |g| <= share * max(floor, |p|), over a whole tensor (the paper, arXiv:2102.06171: per unit)
    bound = share * torch.linalg.vector_norm(parameter).clamp(min=AGC_FLOOR)
    return gradient / (torch.linalg.vector_norm(gradient) / bound).clamp(min=1.0)


@dataclass(frozen=True, kw_only=True)
class _TwoMoments(Rule):
    betas: tuple[float, float] = (0.9, 0.999)

    def init(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the mean of gradients and of their squares: zeros, corrected for in `moved`."""
        return {"first": torch.zeros_like(flat), "second": torch.zeros_like(flat)}


@dataclass(frozen=True, kw_only=True)
class Adam(_TwoMoments):
    """Adam (arXiv:1412.6980).

    Attributes:
        eps: Added to the root of the mean square.
        betas: Decay of the mean gradient and of the mean square.
    """

    eps: float = 1e-8

    def moved(
        self, p: Tensor, g: Tensor, moments: Mapping[str, Tensor], rate: Rate, count: Tensor
    ) -> Tensor:
        """Move against the mean gradient over the root of the mean square."""
        beta1, beta2 = self.betas
        bias1, bias2 = 1 - torch.pow(beta1, count), 1 - torch.pow(beta2, count)
        m, v = moments["first"], moments["second"]
        first = m + (g - m) * (1 - beta1)
        second = v * beta2 + g * g * (1 - beta2)
        change = first / (second.sqrt() / bias2.sqrt() + self.eps) / bias1
        m.copy_(first)
        v.copy_(second)
        return p - rate * change

    def move(
        self, p: Tensor, g: Tensor, moments: Mapping[str, Tensor], rate: Rate, count: Tensor
    ) -> None:
        """Do what `moved` does with the one kernel that torch has for it."""
        torch._fused_adam_(
            [p], [g], [moments["first"]], [moments["second"]], [], [count], lr=rate,
            beta1=self.betas[0], beta2=self.betas[1], weight_decay=0.0, eps=self.eps,
            amsgrad=False, maximize=False,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv:1711.05101).

    Attributes:
        weight_decay: Every update takes this share, times the learning rate, off all parameters.
    """

    weight_decay: float = 0.01

    def moved(
        self, p: Tensor, g: Tensor, moments: Mapping[str, Tensor], rate: Rate, count: Tensor
    ) -> Tensor:
        """Decay the parameters, then move them as Adam does."""
        return super().moved(p * (1 - rate * self.weight_decay), g, moments, rate, count)

    def move(
        self, p: Tensor, g: Tensor, moments: Mapping[str, Tensor], rate: Rate, count: Tensor
    ) -> None:
        """Do what `moved` does in place."""
        super().move(p.mul_(1 - rate * self.weight_decay), g, moments, rate, count)


@dataclass(frozen=True, kw_only=True)
class RMSprop(Rule):
    """RMSprop as A2C was tuned with it: epsilon inside the root, mean square starting at one.

    Attributes:
        eps: Added to the mean square.
        decay: Of the mean square.
    """

    eps: float = 1e-5
    decay: float = 0.99

    def init(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the mean square."""
        return {"second": torch.ones_like(flat)}

    def moved(
        self, p: Tensor, g: Tensor, moments: Mapping[str, Tensor], rate: Rate, count: Tensor
    ) -> Tensor:
        """Move against the gradient over the root of the mean square."""
        second = moments["second"] * self.decay + g * g * (1 - self.decay)
        moments["second"].copy_(second)
        return p - rate * (g / (second + self.eps).sqrt())

    def move(
        self, p: Tensor, g: Tensor, moments: Mapping[str, Tensor], rate: Rate, count: Tensor
    ) -> None:
        """Do what `moved` does with two fused operations."""
        second = moments["second"]
        second.mul_(self.decay).addcmul_(g, g, value=1 - self.decay)
        p.addcdiv_(g * -rate, (second + self.eps).sqrt())


@dataclass(frozen=True, kw_only=True)
class LaProp(_TwoMoments):
    """LaProp (arXiv:2002.04839): RMSprop first, momentum of its result after, as in DreamerV3.

    A gradient is divided by its size before it enters the mean, so one of another size does not
    outweigh those that came before it.

    Attributes:
        eps: Added to the root of the mean square.
        betas: Decay of the mean scaled gradient and of the mean square.
    """

    eps: float = 1e-20

    def moved(
        self, p: Tensor, g: Tensor, moments: Mapping[str, Tensor], rate: Rate, count: Tensor
    ) -> Tensor:
        """Move against the mean of gradients, each over the root of its mean square."""
        beta1, beta2 = self.betas
        bias1, bias2 = 1 - torch.pow(beta1, count), 1 - torch.pow(beta2, count)
        m, v = moments["first"], moments["second"]
        second = v * beta2 + g * g * (1 - beta2)
        scaled = g / ((second / bias2).sqrt() + self.eps)
        first = m * beta1 + scaled * (1 - beta1)
        m.copy_(first)
        v.copy_(second)
        return p - rate * (first / bias1)
