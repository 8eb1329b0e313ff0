"""Policy distributions on NumPy arrays: the twins of `assay.functional.distributions`.

They have the same attributes and methods and give the same numbers. Every array
they return is fresh. Noise is an input: draw it for a whole rollout at once with `draw_noise`.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.functional.layout import MASKED_LOGIT, ActionLayout, box_scale, make_distribution

if TYPE_CHECKING:
    import gymnasium as gym

Array = np.ndarray[Any, Any]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(ActionLayout):
    """Base of the policy distributions: facts about shapes, and noise of the right kind.

    `params` are [..., param_size], `action` is [..., *action_shape] in the environment's units,
    `noise` is [..., *noise_shape] and `mask` (True: allowed) is [..., param_size] or None.
    """

    def draw_noise(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Array:
        """Return noise [*leading, *noise_shape] for `sample`, as float32: standard normal."""
        return rng.standard_normal((*leading, *self.noise_shape), dtype=np.float32)

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        """Return the log-probability (density) [...] of `action`."""
        raise NotImplementedError

    def sample(self, params: Array, noise: Array, mask: Array | None = None) -> Array:
        """Return the action [..., *action_shape] that `noise` selects."""
        raise NotImplementedError

    def sample_log_prob(
        self, params: Array, noise: Array, mask: Array | None = None
    ) -> tuple[Array, Array]:
        """Return a sample and its log-probability."""
        action = self.sample(params, noise, mask)
        return action, self.log_prob(params, action, mask)

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """Return the most likely action."""
        raise NotImplementedError


class _Choices(Distribution):
    def draw_noise(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Array:
        """Return Gumbel noise: -log of a standard exponential variable."""
        noise = rng.standard_exponential((*leading, *self.noise_shape), dtype=np.float32)
        np.maximum(noise, np.float32(1e-30), out=noise)
        np.log(noise, out=noise)
        return np.negative(noise, out=noise)


class Categorical(_Choices):
    """One choice among n: the policy over a Discrete space."""

    _rows: Array = np.arange(0)  # 0, 1, ... of the latest batch size

    def log_probs(self, params: Array, mask: Array | None = None) -> Array:
        """Return the log-probability of every action [..., n]."""
        return log_softmax(mask_logits(params, mask))

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        """Return log p(action) [...]."""
        return _pick(self.log_probs(params, mask), action)

    def sample(self, params: Array, noise: Array, mask: Array | None = None) -> Array:
        """Return argmax(logits + Gumbel noise) [...]."""
        return (mask_logits(params, mask) + noise).argmax(-1)

    def sample_log_prob(
        self, params: Array, noise: Array, mask: Array | None = None
    ) -> tuple[Array, Array]:
        """Return a sample and its log-probability in one go."""
        logits = mask_logits(params, mask)
        index = (logits + noise).argmax(-1)
        if logits.ndim != 2:
            return index, _pick(log_softmax(logits), index)
        if len(self._rows) != len(logits):
            self._rows = np.arange(len(logits))
        # Reductions over the few actions are fast along the first axis, slow along the last.
        table = logits.T.copy()
        table -= np.maximum.reduce(table, 0)
        log_prob = table[index, self._rows]
        np.exp(table, table)
        total = np.add.reduce(table, 0)
        log_prob -= np.log(total, total)
        return index, log_prob

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """Return the most likely action [...]."""
        return mask_logits(params, mask).argmax(-1)


class MultiCategorical(_Choices):
    """Independent choices: the policy over a MultiDiscrete space.

    Unequal numbers of choices are padded to the largest with masked logits, so that all
    sub-actions are handled at once.
    """

    @cached_property
    def _slot(self) -> Array:
        # Where the logits of each sub-action land in the padded [k, width] table.
        width = max(self.sizes)
        return np.concatenate([np.arange(n) + i * width for i, n in enumerate(self.sizes)])

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        """Return log p(action) [...], summed over sub-actions."""
        index = action.reshape(*params.shape[:-1], -1)
        log_probs = log_softmax(self._logits(params, mask))
        return _pick(log_probs, index).sum(-1)

    def sample(self, params: Array, noise: Array, mask: Array | None = None) -> Array:
        """Return argmax(logits + Gumbel noise) of every sub-action."""
        return self._action((self._logits(params, mask) + noise).argmax(-1))

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """Return the most likely choice of every sub-action."""
        return self._action(self._logits(params, mask).argmax(-1))

    def _logits(self, params: Array, mask: Array | None) -> Array:
        padded = self._pad(params, MASKED_LOGIT)
        return padded if mask is None else mask_logits(padded, self._pad(mask, 0))

    def _pad(self, flat: Array, value: float) -> Array:
        table = np.full((*flat.shape[:-1], math.prod(self.noise_shape)), value, dtype=flat.dtype)
        table[..., self._slot] = flat
        return table.reshape(*flat.shape[:-1], *self.noise_shape)

    def _action(self, index: Array) -> Array:
        return index.reshape(*index.shape[:-1], *self.action_shape)


class Bernoulli(Distribution):
    """Independent bits: the policy over a MultiBinary space; a masked bit stays 0."""

    def draw_noise(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Array:
        """Return noise that is uniform on [0, 1)."""
        return rng.random((*leading, *self.noise_shape), dtype=np.float32)

    def log_prob(self, params: Array, action: Array, mask: Array | None = None) -> Array:
        """Return log p(action) [...], summed over bits."""
        logits = _mask_bits(params, mask)
        bits = action.reshape(params.shape).astype(params.dtype)
        return (bits * logits - softplus(logits)).sum(-1)

    def sample(self, params: Array, noise: Array, mask: Array | None = None) -> Array:
        """Return the bits for which uniform noise lies below p."""
        return self._action(noise < sigmoid(_mask_bits(params, mask)))

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """Return the bits with p > 1/2."""
        return self._action(_mask_bits(params, mask) > 0)

    def _action(self, bits: Array) -> Array:
        return bits.astype(np.int8).reshape(*bits.shape[:-1], *self.action_shape)


class DiagGaussian(Distribution):
    """Independent Gaussians: the policy over a Box; params are (mean, log_std).

    Samples are not clipped: log-probabilities are those of the unclipped action, and clipping for
    the environment is the caller's.
    """

    def sample(self, params: Array, noise: Array, mask: Array | None = None) -> Array:
        """Return mean + std * noise."""
        _no_mask(mask)
        mean, log_std = _split(params)
        return self._action(mean + np.exp(log_std) * noise)

    def sample_log_prob(
        self, params: Array, noise: Array, mask: Array | None = None
    ) -> tuple[Array, Array]:
        """Return a sample and its log-probability, from the noise itself."""
        return self.sample(params, noise, mask), _gaussian_log_prob(noise, _split(params)[1])

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """Return the mean."""
        _no_mask(mask)
        return self._action(_split(params)[0].copy())

    def _action(self, flat: Array) -> Array:
        return flat.reshape(*flat.shape[:-1], *self.action_shape)


class TanhGaussian(DiagGaussian):
    """Gaussians squashed by tanh: actions in the unit box (-1, 1), see `ActionScale`.

    The log-probability is that of the unit action: the Jacobian of the scaling to the
    environment's bounds is not in it, so a target entropy of -dim(A) belongs to the unit box.
    """

    def sample(self, params: Array, noise: Array, mask: Array | None = None) -> Array:
        """Return tanh(mean + std * noise)."""
        return np.tanh(super().sample(params, noise, mask))

    def sample_log_prob(
        self, params: Array, noise: Array, mask: Array | None = None
    ) -> tuple[Array, Array]:
        """Return a sample and its log-probability, without inverting tanh."""
        _no_mask(mask)
        mean, log_std = _split(params)
        u = mean + np.exp(log_std) * noise
        log_prob = _gaussian_log_prob(noise, log_std) - _log_tanh_slope(u)
        return self._action(np.tanh(u)), log_prob

    def mode(self, params: Array, mask: Array | None = None) -> Array:
        """Return tanh(mean)."""
        return np.tanh(super().mode(params, mask))


class ActionScale:
    """The affine map between the unit box [-1, 1] and a bounded Box.

    Raises:
        SpaceError: A bound is infinite.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        self.center, self.half_width = box_scale(space)
        self._low, self._high = space.low.astype(np.float32), space.high.astype(np.float32)

    def to_env(self, unit: Array) -> Array:
        """Return a unit action in the environment's units, inside its bounds."""
        action = unit * self.half_width + self.center
        # An edge may be missed by what float32 rounds off, and the environment would refuse it.
        return np.minimum(np.maximum(action, self._low), self._high)


_FAMILIES: dict[str, type[Distribution]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "bernoulli": Bernoulli,
    "diag_gaussian": DiagGaussian,
}


def policy_distribution(space: gym.Space[Any], *, squash: bool = False) -> Distribution:
    """Return the NumPy policy over an action space; `squash` is for a Box: tanh into (-1, 1)."""
    return TanhGaussian.of_box(space) if squash else make_distribution(space, _FAMILIES)


def mask_logits(logits: Array, mask: Array | None) -> Array:
    """Return logits with masked entries far below all others; an all-masked row is left alone."""
    if mask is None:
        return logits
    allowed = mask.astype(bool)
    allowed |= ~allowed.any(-1, keepdims=True)
    return np.where(allowed, logits, np.float32(MASKED_LOGIT))


def log_softmax(logits: Array) -> Array:
    """Return logits - log sum exp(logits) along the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    total = np.exp(shifted).sum(-1, keepdims=True)
    np.log(total, out=total)
    shifted -= total
    return shifted


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x)) without overflow."""
    return np.logaddexp(np.zeros((), x.dtype), x)


def _pick(table: Array, index: Array) -> Array:
    return np.take_along_axis(table, index[..., None], -1)[..., 0]


def _mask_bits(logits: Array, mask: Array | None) -> Array:
    return logits if mask is None else np.where(mask.astype(bool), logits, np.float32(MASKED_LOGIT))


def _no_mask(mask: Array | None) -> None:
    if mask is not None:
        raise ValueError("A Gaussian policy has no action mask; expected mask=None.")


def _split(params: Array) -> tuple[Array, Array]:
    half = params.shape[-1] // 2
    return params[..., :half], params[..., half:]


def _gaussian_log_prob(z: Array, log_std: Array) -> Array:
    # log N = -z^2 / 2 - log sigma - log(2 pi) / 2
    return -(0.5 * z * z + log_std + _HALF_LOG_2PI).sum(-1)


def _log_tanh_slope(u: Array) -> Array:
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))
    return (2.0 * (math.log(2.0) - u - softplus(-2.0 * u))).sum(-1)
