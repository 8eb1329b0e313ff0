"""A probabilistic ensemble that models an environment (arXiv:1805.12114, arXiv:1906.08253).

Every member is a Gaussian over the reward and the change of the observation, given observation and
action, and says how likely the episode is over after that. All members are computed together: one
batched product per layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BOUND = 0.01  # weight of the bounds of the log-variance, which are learned
_FIRST_BOUNDS = (-10.0, 0.5)
_ROUNDING = 2.0**-22  # share of a number's size below which a deviation is that of its last digits
_LAST_DECAY = 1e-4


class Prediction(NamedTuple):
    """What the members say: the shapes begin with [E, B], or with [B] where one answered each row.

    Attributes:
        mean: [..., 1 + obs]: the reward, then the change of the observation.
        log_var: [..., 1 + obs].
        end: [...] the logit of the episode being over.
    """

    mean: Tensor
    log_var: Tensor
    end: Tensor


def layer_decays(layers: int) -> list[float]:
    """Return the weight decay of every layer: small where the inputs come in.

    They are those of MBPO's authors for five layers.

    Example:
        >>> [f"{decay:g}" for decay in layer_decays(5)]
        ['2.5e-05', '5e-05', '7.5e-05', '7.5e-05', '0.0001']
    """
    shares = [0.25, 0.5, *[0.75] * layers][: layers - 1]
    return [share * _LAST_DECAY for share in [*shares, 1.0]]


class DynamicsEnsemble(nn.Module):
    """E models of (observation, action) -> (reward, change of the observation, end).

    Layers are swish. What never changed in the data is predicted to stay. Inputs and targets are
    standardised by statistics of the data (`standardise`), so that what is learned does not depend
    on the units of observations and rewards; `forward` and the losses are in standardised units,
    `dealt` and `all_members` in those of the environment.

    Args:
        obs_size: Width of the observation.
        action_size: Width of the action, in the unit box.
        members: E.
        elites: Members that predict, the best on held-out data.
        hidden: Widths of the hidden layers.
        beta: Weight the likelihood of each number by sigma^(2 beta), without gradient
            (arXiv:2203.09168): 0 is the plain likelihood, which soon learns nothing but what it is
            sure of; with 1 the means are learned as by squared errors.
    """

    input_mean: Tensor
    input_std: Tensor
    target_mean: Tensor
    target_std: Tensor
    elites: Tensor

    def __init__(
        self,
        obs_size: int,
        action_size: int,
        *,
        members: int = 7,
        elites: int = 5,
        hidden: Sequence[int] = (200, 200, 200, 200),
        beta: float = 0.0,
    ) -> None:
        super().__init__()
        self.members, self.outputs, self.beta = members, 1 + obs_size, beta
        sizes = (obs_size + action_size, *hidden, 2 * self.outputs + 1)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n_in, n_out in itertools.pairwise(sizes):
            weight = torch.empty(members, n_in, n_out)
            std = 0.5 / n_in**0.5
            self.weights.append(nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std))
            self.biases.append(torch.zeros(members, 1, n_out))
        low, high = _FIRST_BOUNDS
        self.min_log_var = nn.Parameter(torch.full((self.outputs,), low))
        self.max_log_var = nn.Parameter(torch.full((self.outputs,), high))
        self.register_buffer("input_mean", torch.zeros(sizes[0]))
        self.register_buffer("input_std", torch.ones(sizes[0]))
        self.register_buffer("target_mean", torch.zeros(self.outputs))
        self.register_buffer("target_std", torch.ones(self.outputs))
        self.register_buffer("elites", torch.arange(elites))

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> Prediction:
        """Return what members say of inputs [E, B, in]; of `members` [E] only, if given."""
        x = (inputs - self.input_mean) / self.input_std
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if members is not None:
                weight, bias = weight.index_select(0, members), bias.index_select(0, members)
            x = torch.baddbmm(bias, x, weight)
            if i < last:
                x = F.silu(x)
        mean, log_var, end = x.split([self.outputs, self.outputs, 1], dim=-1)
        log_var = self.max_log_var - F.softplus(self.max_log_var - log_var)
        log_var = self.min_log_var + F.softplus(log_var - self.min_log_var)
        return Prediction(mean, log_var, end.squeeze(-1))

    def all_members(self, inputs: Tensor) -> Prediction:
        """Return what every member says of the same inputs [B, in]."""
        return self._in_units(self(inputs.expand(self.members, -1, -1)))

    def dealt(self, inputs: Tensor, order: Tensor, members: Tensor) -> Prediction:
        """Return what one of `members` says of each input [B, in].

        The rows are dealt out evenly in the order of `order` [B], a permutation of them, so that
        no member computes what another one answers.
        """
        count, rows = len(members), len(order)
        dealt = torch.arange(rows + -rows % count, device=order.device) % rows
        found = self(inputs[order[dealt]].unflatten(0, (count, -1)), members)
        back = order.argsort()
        return self._in_units(Prediction(*(part.flatten(0, 1)[back] for part in found)))

    def loss(
        self, inputs: Tensor, targets: Tensor, ended: Tensor, end_weight: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of all members, each on its own inputs [E, B, in].

        Args:
            inputs: Observations and unit actions.
            targets: [E, B, 1 + obs] rewards and changes.
            ended: [E, B] whether the episode was over.
            end_weight: Weight of learning that, 0 where it is known.
        """
        found = self(inputs)
        error = self._squares(found, targets)  # [E, B, 1 + obs]
        # L = sum_e mean(w ((mu - y)^2 / sigma^2 + log sigma^2)), the Gaussian's likelihood
        density = error * torch.exp(-found.log_var) + found.log_var * (self.target_std > 0)
        weight = torch.exp(self.beta * found.log_var).detach()
        likelihood = (weight * density).mean((1, 2)).sum()
        ends = F.binary_cross_entropy_with_logits(found.end, ended, reduction="none").mean(1).sum()
        bounds = _BOUND * (self.max_log_var.sum() - self.min_log_var.sum())
        pairs = zip(layer_decays(len(self.weights)), self.weights, strict=True)
        decay = sum(share * 0.5 * weight.square().sum() for share, weight in pairs)
        loss = likelihood + end_weight * ends + bounds + decay
        return loss, {"model_mse": error.mean()}

    @torch.no_grad()
    def errors(self, inputs: Tensor, targets: Tensor, ended: Tensor, end_weight: Tensor) -> Tensor:
        """Return the error [E] of every member on the same held-out inputs [B, in]."""
        found = self(inputs.expand(self.members, -1, -1))
        ends = F.binary_cross_entropy_with_logits(
            found.end, ended.expand_as(found.end), reduction="none"
        )
        return self._squares(found, targets).mean((1, 2)) + end_weight * ends.mean(1)

    @torch.no_grad()
    def standardise(self, inputs: Tensor, targets: Tensor, *, keep: bool) -> None:
        """Take means and standard deviations of inputs [N, in] and targets [N, 1 + obs].

        With `keep`, the layers are changed so that all predictions stay what they were.
        """
        size, obs = inputs.abs().amax(0), self.outputs - 1
        mean, std = _statistics(inputs, size)
        std = _or_one(std)
        if keep:
            # (x - m) / s = (x - m') / s' * s' / s + (m' - m) / s
            first = self.weights[0]
            self.biases[0].add_(((mean - self.input_mean) / self.input_std)[None] @ first)
            first.mul_((std / self.input_std)[:, None])
        self.input_mean.copy_(mean)
        self.input_std.copy_(std)
        # The change of a number is rounded as the number is.
        size = torch.cat([targets[:, :1].abs().amax(0), size[:obs]])
        mean, std = _statistics(targets, size)
        if keep:
            # y' = y * t / t' + (n - n') / t', and its log-variance, with its bounds, + 2 log t / t'
            both = (std > 0) & (self.target_std > 0)
            ratio, n = torch.where(both, self.target_std / _or_one(std), 1.0), self.outputs
            shift = torch.where(both, (self.target_mean - mean) / _or_one(std), 0.0)
            self.weights[-1][..., :n].mul_(ratio)
            self.biases[-1][..., :n].mul_(ratio).add_(shift)
            for part in (self.biases[-1][..., n : 2 * n], self.min_log_var, self.max_log_var):
                part.add_(2 * ratio.log())
        self.target_mean.copy_(mean)
        self.target_std.copy_(std)

    def _squares(self, found: Prediction, targets: Tensor) -> Tensor:
        """Return the squared errors in standardised units, 0 where a target does not vary."""
        wanted = (targets - self.target_mean) / _or_one(self.target_std)
        return (found.mean - wanted).square() * (self.target_std > 0)

    def _in_units(self, found: Prediction) -> Prediction:
        mean = found.mean * self.target_std + self.target_mean
        return Prediction(mean, found.log_var + 2 * self.target_std.log(), found.end)

    @torch.no_grad()
    def copy_members(self, source: DynamicsEnsemble, which: Tensor) -> None:
        """Take the layers of the members [E] of `source` that `which` is true for."""
        own, others = [*self.weights, *self.biases], [*source.weights, *source.biases]
        for mine, theirs in zip(own, others, strict=True):
            mine.copy_(torch.where(which[:, None, None], theirs, mine))


def _statistics(rows: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each column, 0 where it does not vary.

    `size` is the largest number that was rounded, of each column.
    """
    std = rows.std(0, correction=0)
    return rows.mean(0), torch.where(std < _ROUNDING * size, 0.0, std)


def _or_one(std: Tensor) -> Tensor:
    return torch.where(std > 0, std, 1.0)
