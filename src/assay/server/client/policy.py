"""Act with a model file, one observation at a time, without torch.

The network is built by `assay.policies.numpy_network`, as in the collector. What comes behind it
decides about a single row: there Python's own floats are several times faster than NumPy calls on a
handful of numbers.

Noise is an input (`decide`), so that the same numbers give the same action here and in C++:

| head                        | noise                                                            |
|-----------------------------|------------------------------------------------------------------|
| categorical                 | one uniform number u in [0, 1): the first choice whose           |
|                             | cumulative probability exceeds u                                 |
| multi_categorical           | one such number per choice                                       |
| bernoulli                   | one per bit: 1 where u < p                                       |
| gaussian, squashed_gaussian | one standard normal number per dimension                         |
| deterministic               | the same; it is multiplied by the head's `noise`                 |
| q                           | two uniform numbers: explore if the first is below epsilon; the  |
|                             | second chooses evenly among the valid actions                    |

Log-probabilities are those of what the policy did: of the choice after exploration; for Box actions
the density before the action is clipped (gaussian), or in the unit box (squashed_gaussian,
deterministic). Without noise the policy is deterministic, and its log-probability is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from assay.core.wording import counted
from assay.policies import description as arch
from assay.policies.layers import Chain, Flatten
from assay.policies.model_file import Snapshot
from assay.policies.numpy_network import build_stages
from assay.policies.parts import Array
from assay.policies.recurrent import Carry, Recurrent

Decision = tuple[Any, float]  # an action and the log-probability of taking it
Mask = Sequence[Any] | Array | None
Noise = Sequence[float]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_SMALL = 32  # choices up to which a list is faster than an array


class PolicyError(ValueError):
    """An observation or a mask does not fit the model, or its numbers are not finite."""


class Policy:
    """A model, ready to act. For one thread at a time.

    Attributes:
        architecture: What the model says about itself.
        version: Its version.
        raw: The latest action before it was clipped to its bounds, which is what the
            log-probability of a Gaussian belongs to; equal to the action elsewhere.
        mask_size: Length of an action mask; 0 where there is none.
        noise_kind: "uniform" or "normal".
        noise_size: How many numbers `decide` takes.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        architecture = snapshot.architecture
        self.architecture = architecture
        self.version = architecture.version
        self.mask_size = architecture.head.mask_size
        self._network = _Network(snapshot)
        self._head = _make_head(architecture.head, snapshot.arrays)
        self.noise_kind, self.noise_size = self._head.noise_kind, self._head.noise_size
        self._finite = np.ones((1, architecture.head.params), bool)
        self._all_finite = self._finite.tobytes()
        self.raw: Any = None

    def act(self, obs: Any, mask: Mask = None, rng: np.random.Generator | None = None) -> Decision:
        """Return an action and its log-probability.

        Args:
            obs: One observation: an array, or a dict of arrays by the keys of the inputs.
            mask: Which choices are valid; one that allows nothing counts as none.
            rng: Explore with it; None takes the best action.

        Raises:
            PolicyError: The observation or the mask does not fit, or a number is not finite.
        """
        return self.decide(obs, mask, None if rng is None else self.draw(rng))

    def decide(self, obs: Any, mask: Mask = None, noise: Noise | None = None) -> Decision:
        """Return the action that `noise` selects (the best one without), and its log-probability.

        Raises:
            PolicyError: As for `act`.
        """
        params = self._network(obs)
        # Comparing bytes is the fastest way to ask whether all flags are set.
        if np.isfinite(params, out=self._finite).tobytes() != self._all_finite:
            raise PolicyError("The network's output is not finite.")
        head = self._head
        action, log_prob = head(params[0], self._allowed(mask), noise)
        self.raw = head.raw if head.raw is not None else action
        return action, log_prob

    def params(self, obs: Any) -> Array:
        """Return what the network tells the head about an observation; a memory moves on."""
        params: Array = self._network(obs)[0].copy()
        return params

    def draw(self, rng: np.random.Generator) -> Noise:
        """Return fresh noise for `decide`."""
        if self.noise_size == 1 and self.noise_kind == "uniform":
            return (rng.random(),)
        draw = rng.random if self.noise_kind == "uniform" else rng.standard_normal
        noise: list[float] = draw(self.noise_size).tolist()
        return noise

    def reset(self) -> None:
        """Forget what was remembered: a new episode begins."""
        self._network.reset()

    def memory(self) -> dict[str, Array]:
        """Return a copy of what is remembered, such as `0/h`; nothing for a policy without."""
        return {
            f"{place}/{name}": array.copy()
            for place, carry in enumerate(self._network.carries)
            for name, array in carry.items()
        }

    def remember(self, memory: Mapping[str, Array]) -> None:
        """Go on from what `memory` returned; from nothing, with a fresh memory.

        Raises:
            PolicyError: It does not fit the model, or a number is not finite.
        """
        self.reset()
        if not memory:
            return
        expected = self.memory()
        if memory.keys() != expected.keys():
            raise PolicyError(
                f"The memory has the parts {', '.join(sorted(memory))}; expected "
                f"{', '.join(sorted(expected)) or 'none'}."
            )
        for name, blank in expected.items():
            given = np.asarray(memory[name])
            if given.shape != blank.shape or given.dtype != blank.dtype:
                raise PolicyError(
                    f"The memory '{name}' is {given.dtype}{list(given.shape)}; expected "
                    f"{blank.dtype}{list(blank.shape)}."
                )
            if not np.isfinite(given).all():
                raise PolicyError(f"The memory '{name}' holds a number that is not finite.")
        for place, carry in enumerate(self._network.carries):
            for name in carry:
                carry[name] = np.array(memory[f"{place}/{name}"])

    def _allowed(self, mask: Mask) -> list[bool] | None:
        """Return the mask as plain flags, or None where everything is allowed."""
        if mask is None:
            return None
        flags = [bool(flag) for flag in (mask.tolist() if isinstance(mask, np.ndarray) else mask)]
        if len(flags) != self.mask_size:
            raise PolicyError(f"The mask has {len(flags)} flags; expected {self.mask_size}.")
        return None if all(flags) else flags


class _Network:
    """From an observation to the parameters of the head, [1, n]."""

    def __init__(self, snapshot: Snapshot) -> None:
        architecture, arrays = snapshot.architecture, snapshot.arrays
        self._inputs = architecture.inputs
        width = architecture.width
        self._x = np.zeros((1, width), np.float32)
        self._row = self._x[0]
        self._finite = np.ones((1, width), bool)
        self._all_finite = self._finite.tobytes()
        first = self._inputs[0]
        self._plain = len(self._inputs) == 1 and not first.sizes and first.scale == 1.0
        self._key = first.key
        self._flatten = Flatten(self._inputs)
        names = architecture.normalization
        self._normal: tuple[Array, ...] | None = None
        if names is not None:
            limit = arrays[names.limit]
            moments = arrays[names.mean], arrays[names.inverse_std]
            self._normal = tuple(part[None] for part in (*moments, -limit, limit))
        stages = build_stages(architecture.layers, arrays)
        self._stages = [(Chain(parts), cell) for parts, cell in stages]
        self._memories = [layer for layer in architecture.layers if isinstance(layer, Recurrent)]
        self._chain = self._stages[0][0] if len(self._stages) == 1 else None
        self.carries: list[Carry] = []
        self.reset()

    def __call__(self, obs: Any) -> Array:
        x = self._read(obs)
        if self._normal is not None:
            mean, inverse_std, low, high = self._normal
            np.subtract(x, mean, out=x)
            x *= inverse_std
            np.maximum(x, low, out=x)
            np.minimum(x, high, out=x)
        if self._chain is not None:
            return self._chain(x)
        carries = []
        for i, (chain, cell) in enumerate(self._stages):
            x = chain(x)
            if cell is not None:
                x, carry = cell(x, self.carries[i])
                carries.append(carry)
        self.carries = carries
        return x

    def reset(self) -> None:
        self.carries = [memory.initial(1) for memory in self._memories]

    def _read(self, obs: Any) -> Array:
        x = self._x
        try:
            if self._plain:
                if self._key is not None and isinstance(obs, Mapping):
                    obs = obs[self._key]
                array = obs if isinstance(obs, np.ndarray) else np.asarray(obs, np.float32)
                if array.size != len(self._row):
                    raise PolicyError(
                        f"The observation has {counted(array.size, 'number')}; expected "
                        f"{len(self._row)}."
                    )
                self._row[:] = array if array.ndim == 1 else array.reshape(-1)
            else:
                self._x[:] = self._flatten(self._entries(obs))
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"The observation does not fit the model: {error}.") from None
        if np.isfinite(x, out=self._finite).tobytes() != self._all_finite:
            raise PolicyError("The observation holds a number that is not finite.")
        return x

    def _entries(self, obs: Any) -> Any:
        """Return the entries of an observation with a leading axis of 1, of the right widths."""
        rows: dict[str, Array] = {}
        for entry in self._inputs:
            value = obs if entry.key is None else obs[entry.key]
            row = np.asarray(value).reshape(1, -1)
            if row.shape[1] != entry.raw_width:
                raise PolicyError(
                    f"Entry {entry.key!r} of the observation has "
                    f"{counted(row.shape[1], 'number')}; expected "
                    f"{entry.raw_width}."
                )
            if entry.sizes:
                lowest = np.asarray(entry.starts)
                if (row < lowest).any() or (row >= lowest + np.asarray(entry.sizes)).any():
                    raise PolicyError(f"Entry {entry.key!r} of the observation is out of range.")
            rows[entry.key or ""] = row
        return rows[""] if self._inputs[0].key is None else rows


class _Head:
    """Decides about one row of parameters."""

    noise_kind = "uniform"
    noise_size = 1
    raw: Array | None = None

    def __call__(self, params: Array, allowed: list[bool] | None, noise: Noise | None) -> Decision:
        raise NotImplementedError


class _Categorical(_Head):
    def __init__(self, head: arch.Categorical) -> None:
        self.start = head.start

    def __call__(self, params: Array, allowed: list[bool] | None, noise: Noise | None) -> Decision:
        index, log_prob = choose(params, allowed, None if noise is None else noise[0])
        return index + self.start, log_prob


class _MultiCategorical(_Head):
    def __init__(self, head: arch.MultiCategorical) -> None:
        self.noise_size = len(head.sizes)
        ends = np.cumsum(head.sizes).tolist()
        begins = [end - size for end, size in zip(ends, head.sizes, strict=True)]
        self.parts = list(zip(begins, ends, head.starts, strict=True))

    def __call__(self, params: Array, allowed: list[bool] | None, noise: Noise | None) -> Decision:
        action, total = [], 0.0
        for i, (begin, end, start) in enumerate(self.parts):
            valid = None if allowed is None else allowed[begin:end]
            u = None if noise is None else noise[i]
            index, log_prob = choose(params[begin:end], valid, u)
            action.append(index + start)
            total += log_prob
        return np.array(action, np.int64), total


class _Bernoulli(_Head):
    def __init__(self, head: arch.Bernoulli) -> None:
        self.noise_size = head.n

    def __call__(self, params: Array, allowed: list[bool] | None, noise: Noise | None) -> Decision:
        bits, total = [], 0.0
        for i, logit in enumerate(params.tolist()):
            if allowed is not None and not allowed[i]:
                bits.append(0)
            elif noise is None:
                bits.append(int(logit > 0.0))
            else:
                bit = noise[i] < 0.5 + 0.5 * math.tanh(0.5 * logit)
                bits.append(int(bit))
                total += (logit if bit else 0.0) - _softplus(logit)
        return np.array(bits, np.int8), total


class _Box(_Head):
    """What Box actions share: their bounds, and float32 arrays that leave."""

    noise_kind = "normal"

    def __init__(self, head: arch.Gaussian | arch.SquashedGaussian | arch.Deterministic) -> None:
        self.noise_size = len(head.low)
        self.low = [-math.inf if v is None else v for v in head.low]
        self.high = [math.inf if v is None else v for v in head.high]
        bounds = zip(head.low, head.high, strict=True)
        # In the float32 of `assay.policies.distributions.box_scale`.
        self.scales = [
            (_float32((high + low) / 2), _float32((high - low) / 2))
            if low is not None and high is not None
            else (0.0, 1.0)
            for low, high in bounds
        ]

    def scaled(self, unit: list[float]) -> Array:
        pairs = zip(unit, self.scales, strict=True)
        return self.clipped([u * half + center for u, (center, half) in pairs])

    def clipped(self, action: list[float]) -> Array:
        bounds = zip(action, self.low, self.high, strict=True)
        return np.array([min(max(a, low), high) for a, low, high in bounds], np.float32)


class _Gaussian(_Box):
    def __init__(self, head: arch.Gaussian, log_std: Array) -> None:
        super().__init__(head)
        self.log_std = log_std.tolist()
        self.std = [math.exp(v) for v in self.log_std]
        self.constant = sum(v + _HALF_LOG_2PI for v in self.log_std)

    def __call__(self, params: Array, allowed: list[bool] | None, noise: Noise | None) -> Decision:
        mean, log_prob = params.tolist(), 0.0
        if noise is not None:
            # a = mu + sigma z,  log N = -z^2 / 2 - log sigma - log(2 pi) / 2
            mean = [m + s * z for m, s, z in zip(mean, self.std, noise, strict=True)]
            log_prob = -0.5 * sum(z * z for z in noise) - self.constant
        self.raw = np.array(mean, np.float32)
        return self.clipped(mean), log_prob


class _SquashedGaussian(_Box):
    def __init__(self, head: arch.SquashedGaussian) -> None:
        super().__init__(head)
        self.least, self.most = head.log_std_low, head.log_std_high

    def __call__(self, params: Array, allowed: list[bool] | None, noise: Noise | None) -> Decision:
        values, n = params.tolist(), self.noise_size
        u, log_prob = values[:n], 0.0
        if noise is not None:
            for i, z in enumerate(noise):
                log_std = values[n + i]
                if not self.least <= log_std <= self.most:
                    log_std = min(max(log_std, self.least), self.most)
                u[i] += math.exp(log_std) * z
                # log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2|u|)))
                far = abs(u[i])
                slope = 2.0 * (_LOG_2 - far - math.log1p(math.exp(-2.0 * far)))
                log_prob -= 0.5 * z * z + log_std + _HALF_LOG_2PI + slope
        return self.scaled([math.tanh(v) for v in u]), log_prob


class _Deterministic(_Box):
    def __init__(self, head: arch.Deterministic) -> None:
        super().__init__(head)
        self.sigma = head.noise
        self.constant = 0.0
        if self.sigma > 0:
            self.constant = self.noise_size * (math.log(self.sigma) + _HALF_LOG_2PI)

    def __call__(self, params: Array, allowed: list[bool] | None, noise: Noise | None) -> Decision:
        unit, log_prob = params.tolist(), 0.0
        if noise is not None and self.sigma > 0:
            pairs = zip(unit, noise, strict=True)
            unit = [min(max(m + self.sigma * z, -1.0), 1.0) for m, z in pairs]
            log_prob = -0.5 * sum(z * z for z in noise) - self.constant
        return self.scaled(unit), log_prob


class _ActionValues(_Head):
    noise_size = 2

    def __init__(self, head: arch.ActionValues) -> None:
        self.start, self.n, self.epsilon = head.start, head.n, head.epsilon

    def __call__(self, params: Array, allowed: list[bool] | None, noise: Noise | None) -> Decision:
        if allowed is None or not any(allowed):
            best = index = int(params.argmax())
            valid: Sequence[int] = range(self.n)
        else:
            valid = [i for i, flag in enumerate(allowed) if flag]
            values = params.tolist()
            best = index = max(valid, key=values.__getitem__)
        if noise is None:
            return best + self.start, 0.0
        if noise[0] < self.epsilon:
            index = valid[min(int(noise[1] * len(valid)), len(valid) - 1)]
        # p(a) = epsilon / |A(s)| + (1 - epsilon) [a is the best]
        share = self.epsilon / len(valid) + (1.0 - self.epsilon if index == best else 0.0)
        return index + self.start, math.log(share)


def choose(logits: Array, allowed: Sequence[bool] | None, u: float | None) -> tuple[int, float]:
    """Return the choice among softmax(logits) that `u` selects, and its log-probability.

    Args:
        logits: One row.
        allowed: Which choices are valid; None, or none of them, for all.
        u: In [0, 1); None takes the most likely choice, with log-probability 0.
    """
    if allowed is not None and not any(allowed):
        allowed = None
    if u is None:
        if allowed is None:
            return int(logits.argmax()), 0.0
        return int(np.where(allowed, logits, -np.inf).argmax()), 0.0
    if len(logits) > _SMALL:
        return _choose_array(logits, allowed, u)
    values = logits.tolist()
    if allowed is not None:
        values = [v if flag else -math.inf for v, flag in zip(values, allowed, strict=True)]
    top = max(values)
    weights = [math.exp(v - top) for v in values]
    total = sum(weights)
    point, index, last = u * total, -1, 0
    for i, weight in enumerate(weights):
        if weight > 0.0:
            last = i  # rounding may leave `point` beyond the end: then the last possible choice
            point -= weight
            if point < 0.0:
                index = i
                break
    index = last if index < 0 else index
    return index, values[index] - top - math.log(total)


def _choose_array(logits: Array, allowed: Sequence[bool] | None, u: float) -> tuple[int, float]:
    """Do the same for many choices, where arrays are faster."""
    values = logits.astype(np.float64)
    if allowed is not None:
        values[~np.asarray(allowed, bool)] = -np.inf
    values -= values.max()
    weights = np.exp(values)
    ends = np.cumsum(weights)
    total = float(ends[-1])
    index = int(ends.searchsorted(u * total, side="right"))
    last = int(np.flatnonzero(weights)[-1])
    index = min(index, last)
    return index, float(values[index]) - math.log(total)


_HEADS: dict[str, Callable[..., _Head]] = {
    "categorical": _Categorical,
    "multi_categorical": _MultiCategorical,
    "bernoulli": _Bernoulli,
    "squashed_gaussian": _SquashedGaussian,
    "deterministic": _Deterministic,
    "q": _ActionValues,
}


def _make_head(head: arch.Head, arrays: Mapping[str, Array]) -> _Head:
    if isinstance(head, arch.Gaussian):
        return _Gaussian(head, arrays[head.log_std])
    return _HEADS[head.kind](head)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _float32(x: float) -> float:
    return float(np.float32(x))
