"""How the numbers of a policy head, its noise and its action mask are laid out for a space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from assay.core.errors import AssayError, SpaceError

if TYPE_CHECKING:
    import gymnasium as gym

# What a masked logit is set to: far below any real one, yet finite, so that 0 * logit is no NaN.
MASKED_LOGIT = -1e8


@dataclass(eq=False)
class ActionLayout:
    """The shapes that a policy distribution reads and writes, without batch axes.

    Attributes:
        param_size: Width of the policy head's output, and of an action mask where there is one.
        action_shape: Shape of one action; () for Discrete.
        noise_shape: Shape of one draw of noise.
        sizes: Number of choices of each sub-action; empty where actions are not choices.
    """

    param_size: int
    action_shape: tuple[int, ...]
    noise_shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()

    @classmethod
    def of_box(cls, space: gym.Space[Any]) -> Self:
        """Return what has a mean and a log-std for each number of a Box of floats."""
        from gymnasium import spaces

        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise _no_distribution(space)
        n = int(np.prod(space.shape))
        return cls(2 * n, space.shape, (n,))


LayoutT = TypeVar("LayoutT", bound=ActionLayout)


def make_distribution(space: gym.Space[Any], families: Mapping[str, type[LayoutT]]) -> LayoutT:
    """Return the distribution in `families` over an action space; a SpaceError if there is none."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        n = int(space.n)
        return families["categorical"](n, (), (n,), (n,))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.ravel())
        return families["multi_categorical"](
            sum(sizes), space.shape, (len(sizes), max(sizes)), sizes
        )
    if isinstance(space, spaces.MultiBinary):
        n = int(np.prod(space.shape))
        return families["bernoulli"](n, space.shape, (n,))
    return families["diag_gaussian"].of_box(space)


def box_scale(space: gym.spaces.Box) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return centre and half-width of a Box, as float32; a SpaceError if it is not bounded."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (high > low).all()):
        raise _no_range(space)
    return ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


def gaussian_scale(
    space: gym.spaces.Box,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Return centre and half-width [n] of a Box, 0 and 1 where it has no finite range.

    None stands for a Box that needs no scaling: each of its ranges is [-1, 1] or infinite.
    """
    low, high = (bound.reshape(-1).astype(np.float64) for bound in (space.low, space.high))
    finite = np.isfinite(low) & np.isfinite(high) & (high > low)
    low, high = np.where(finite, low, -1.0), np.where(finite, high, 1.0)
    center, half_width = ((high + sign * low) / 2 for sign in (1, -1))
    center, half_width = center.astype(np.float32), half_width.astype(np.float32)
    return None if (center == 0).all() and (half_width == 1).all() else (center, half_width)


def no_entropy() -> AssayError:
    """Return the error for asking a squashed Gaussian for its entropy."""
    return AssayError(
        "The entropy of a tanh-squashed Gaussian has no closed form.",
        "Estimate it by -log_prob of a sample (see sample_log_prob).",
    )


def _no_distribution(space: gym.Space[Any]) -> SpaceError:
    return SpaceError(
        f"No policy distribution for the action space {space}; "
        "expected Discrete, MultiDiscrete, MultiBinary or a Box of floats.",
        "Wrap the environment so that its actions are of one of these spaces.",
    )


def _no_range(space: gym.Space[Any]) -> SpaceError:
    return SpaceError(
        f"The action space {space} has an infinite or empty range; expected finite bounds with "
        "low < high.",
        "Give action_space the bounds that make sense, of recorded data with `assay data build "
        "--actions=LOW:HIGH`; in an environment ppo and a2c need none.",
    )
