"""Policy distributions from raw operations, with one interface for all action spaces.

`policy_distribution(space)` returns an object that turns the output of a policy head (`params`,
[..., param_size]) into log-probabilities, entropies and actions. It holds no tensors and draws no
random numbers: noise is an argument, so that everything can be traced and replayed. The twins in
`assay.policies.distributions` give the same numbers on NumPy arrays.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.functional.layout import MASKED_LOGIT, ActionLayout, make_distribution, no_entropy

if TYPE_CHECKING:
    import gymnasium as gym

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LARGEST_UNIT = 1.0 - 1e-6


class Distribution(ActionLayout):
    """Base of the policy distributions.

    `params` are [..., param_size], `action` is [..., *action_shape] in the environment's units,
    `noise` is [..., *noise_shape] and `mask` (True: allowed) is [..., param_size] or None.
    """

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the log-probability (density) [...] of `action`."""
        raise NotImplementedError

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the entropy [...]."""
        raise NotImplementedError

    def log_prob_entropy(
        self, params: Tensor, action: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what `log_prob` and `entropy` do, sharing what they have in common."""
        return self.log_prob(params, action, mask), self.entropy(params, mask)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the action [..., *action_shape] that `noise` selects."""
        raise NotImplementedError

    def sample_log_prob(
        self, params: Tensor, noise: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a sample and its log-probability (with gradients through both for Gaussians)."""
        action = self.sample(params, noise, mask)
        return action, self.log_prob(params, action, mask)

    def mode(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the most likely action."""
        raise NotImplementedError


class Categorical(Distribution):
    """One choice among n: the policy over a Discrete space."""

    def log_probs(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the log-probability of every action [..., n]."""
        self._check(params)
        return F.log_softmax(mask_logits(params, mask), dim=-1)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return log p(action) [...]."""
        return _pick(self.log_probs(params, mask), action.long())

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the entropy [...] over the valid actions."""
        return _entropy(self.log_probs(params, mask))

    def log_prob_entropy(
        self, params: Tensor, action: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return log p(action) and the entropy, of one softmax."""
        log_probs = self.log_probs(params, mask)
        return _pick(log_probs, action.long()), _entropy(log_probs)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return argmax(logits + Gumbel noise) [...]."""
        self._check(params)
        return (mask_logits(params, mask) + noise).argmax(-1)

    def mode(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the most likely action [...]."""
        self._check(params)
        return mask_logits(params, mask).argmax(-1)

    def _check(self, params: Tensor) -> None:
        _check_width(params, self.param_size)


class MultiCategorical(Distribution):
    """Independent choices: the policy over a MultiDiscrete space.

    Unequal numbers of choices are padded to the largest with masked logits, so that all
    sub-actions are handled at once.
    """

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return log p(action) [...], summed over sub-actions."""
        choice = action.reshape(*params.shape[:-1], len(self.sizes)).long()
        return _pick(self._log_probs(params, mask), choice).sum(-1)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the entropy [...] over the valid actions, summed over sub-actions."""
        log_probs = self._log_probs(params, mask)
        return -(log_probs.exp() * log_probs).sum((-2, -1))

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return argmax(logits + Gumbel noise) of every sub-action."""
        return self._action((self._logits(params, mask) + noise).argmax(-1))

    def mode(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the most likely choice of every sub-action."""
        return self._action(self._logits(params, mask).argmax(-1))

    def _log_probs(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return F.log_softmax(self._logits(params, mask), dim=-1)

    def _logits(self, params: Tensor, mask: Tensor | None) -> Tensor:
        _check_width(params, self.param_size)
        padded = self._pad(params, MASKED_LOGIT)
        return padded if mask is None else mask_logits(padded, self._pad(mask, 0))

    def _pad(self, flat: Tensor, value: float) -> Tensor:
        # [..., sum of sizes] -> [..., k, largest size]
        sizes, width = self.sizes, max(self.sizes)
        if min(sizes) == width:
            return flat.reshape(*flat.shape[:-1], len(sizes), width)
        parts = flat.split(list(sizes), dim=-1)
        return torch.stack([F.pad(p, (0, width - p.shape[-1]), value=value) for p in parts], -2)

    def _action(self, choice: Tensor) -> Tensor:
        return choice.reshape(*choice.shape[:-1], *self.action_shape)


class Bernoulli(Distribution):
    """Independent bits: the policy over a MultiBinary space; a masked bit stays 0."""

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return log p(action) [...], summed over bits."""
        # log p = a l - softplus(l)
        logits = self._logits(params, mask)
        bits = action.reshape(params.shape).to(params.dtype)
        return (bits * logits - F.softplus(logits)).sum(-1)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the entropy [...], summed over bits."""
        # H = softplus(l) - sigmoid(l) l
        logits = self._logits(params, mask)
        return (F.softplus(logits) - logits.sigmoid() * logits).sum(-1)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the bits for which uniform noise lies below p."""
        return self._action(noise < self._logits(params, mask).sigmoid())

    def mode(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the bits with p > 1/2."""
        return self._action(self._logits(params, mask) > 0)

    def _logits(self, params: Tensor, mask: Tensor | None) -> Tensor:
        _check_width(params, self.param_size)
        return params if mask is None else torch.where(mask.bool(), params, MASKED_LOGIT)

    def _action(self, bits: Tensor) -> Tensor:
        return bits.to(torch.int8).reshape(*bits.shape[:-1], *self.action_shape)


class DiagGaussian(Distribution):
    """Independent Gaussians: the policy over a Box; params are (mean, log_std).

    Samples are not clipped: log-probabilities are those of the unclipped action, and clipping for
    the environment is the caller's.
    """

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return log p(action) [...], summed over dimensions."""
        mean, log_std = self._split(params, mask)
        return _gaussian_log_prob((action.reshape(mean.shape) - mean) * (-log_std).exp(), log_std)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the entropy [...], summed over dimensions."""
        # H = sum log sigma + 1/2 + log(2 pi) / 2
        return (self._split(params, mask)[1] + (0.5 + _HALF_LOG_2PI)).sum(-1)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return mean + std * noise."""
        mean, log_std = self._split(params, mask)
        return self._action(mean + log_std.exp() * noise)

    def mode(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean."""
        return self._action(self._split(params, mask)[0])

    def _split(self, params: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        _check_width(params, self.param_size)
        if mask is not None:
            raise ValueError("A Gaussian policy has no action mask; expected mask=None.")
        half = self.param_size // 2
        return params[..., :half], params[..., half:]

    def _action(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], *self.action_shape)


class TanhGaussian(DiagGaussian):
    """Gaussians squashed by tanh: actions in the unit box (-1, 1).

    The log-probability is that of the unit action: the Jacobian of the scaling to the
    environment's bounds is not in it, so a target entropy of -dim(A) belongs to the unit box.
    """

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return log p(action) [...] of a unit action, summed over dimensions."""
        mean, log_std = self._split(params, mask)
        u = action.reshape(mean.shape).clamp(-_LARGEST_UNIT, _LARGEST_UNIT).atanh()
        return _gaussian_log_prob((u - mean) * (-log_std).exp(), log_std) - _log_tanh_slope(u)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Raise: there is no closed form."""
        raise no_entropy()

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return tanh(mean + std * noise)."""
        return super().sample(params, noise, mask).tanh()

    def sample_log_prob(
        self, params: Tensor, noise: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a sample and its log-probability, reparameterised and without inverting tanh."""
        mean, log_std = self._split(params, mask)
        u = mean + log_std.exp() * noise
        return self._action(u.tanh()), _gaussian_log_prob(noise, log_std) - _log_tanh_slope(u)

    def mode(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return tanh(mean)."""
        return super().mode(params, mask).tanh()


_FAMILIES: dict[str, type[Distribution]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "bernoulli": Bernoulli,
    "diag_gaussian": DiagGaussian,
}


def policy_distribution(space: gym.Space[Any], *, squash: bool = False) -> Distribution:
    """Return the policy over an action space; `squash` is for a Box: tanh into (-1, 1)."""
    return TanhGaussian.of_box(space) if squash else make_distribution(space, _FAMILIES)


def mask_logits(logits: Tensor, mask: Tensor | None, masked: float = MASKED_LOGIT) -> Tensor:
    """Return logits with masked entries set to `masked`; an all-masked row is left alone."""
    if mask is None:
        return logits
    if mask.shape != logits.shape:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}; expected that of the logits, "
            f"{tuple(logits.shape)}."
        )
    allowed = mask.bool()
    allowed = allowed | ~allowed.any(-1, keepdim=True)
    return torch.where(allowed, logits, masked)


def _check_width(params: Tensor, width: int) -> None:
    if params.ndim == 0 or params.shape[-1] != width:
        raise ValueError(f"params have shape {tuple(params.shape)}; expected [..., {width}].")


def _pick(table: Tensor, index: Tensor) -> Tensor:
    if index.shape != table.shape[:-1]:
        raise ValueError(
            f"action has shape {tuple(index.shape)}; expected {tuple(table.shape[:-1])}."
        )
    return table.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _entropy(log_probs: Tensor) -> Tensor:
    # H = -sum p log p; a masked action has p = 0 and a finite log p
    return -(log_probs.exp() * log_probs).sum(-1)


def _gaussian_log_prob(z: Tensor, log_std: Tensor) -> Tensor:
    # log N = -z^2 / 2 - log sigma - log(2 pi) / 2
    return -(0.5 * z.square() + log_std + _HALF_LOG_2PI).sum(-1)


def _log_tanh_slope(u: Tensor) -> Tensor:
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))
    return (2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))).sum(-1)
