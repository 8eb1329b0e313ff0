"""How the numbers of a policy head, its noise and its action mask are laid out for a space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from assay.core.errors import AssayError, SpaceError

if TYPE_CHECKING:
    import gymnasium as gym

Family = Literal["categorical", "multi_categorical", "bernoulli", "diag_gaussian", "tanh_gaussian"]
NoiseKind = Literal["gumbel", "uniform", "normal"]

# What a masked logit is set to: far below any real one, yet finite, so that 0 * logit is no NaN.
MASKED_LOGIT = -1e8


@dataclass(frozen=True, slots=True)
class ActionLayout:
    """The shapes that a policy distribution reads and writes, without batch axes.

    Attributes:
        family: Which distribution it is.
        param_size: Width of the policy head's output.
        action_shape: Shape of one action; () for Discrete.
        action_dtype: Type of the actions that leave `sample` and `mode`.
        noise_shape: Shape of one draw of noise.
        noise_kind: Distribution of the noise.
        mask_size: Width of an action mask; 0 where there is none.
        sizes: Number of choices of each sub-action.
    """

    family: Family
    param_size: int
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]
    noise_shape: tuple[int, ...]
    noise_kind: NoiseKind
    mask_size: int
    sizes: tuple[int, ...] = ()


def action_layout(space: gym.Space[Any], *, squash: bool = False) -> ActionLayout:
    """Return the layout of the policy over an action space.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary or Box of floats.
        squash: For a Box: squash the Gaussian with tanh into (-1, 1).

    Raises:
        SpaceError: The space is of another kind.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        n = int(space.n)
        return ActionLayout("categorical", n, (), np.dtype(np.int64), (n,), "gumbel", n, (n,))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.ravel())
        return ActionLayout(
            "multi_categorical",
            sum(sizes),
            space.nvec.shape,
            np.dtype(np.int64),
            (len(sizes), max(sizes)),
            "gumbel",
            sum(sizes),
            sizes,
        )
    if isinstance(space, spaces.MultiBinary):
        n = int(np.prod(space.shape))
        return ActionLayout("bernoulli", n, space.shape, np.dtype(np.int8), (n,), "uniform", n)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        n = int(np.prod(space.shape))
        return ActionLayout(
            "tanh_gaussian" if squash else "diag_gaussian",
            2 * n,
            space.shape,
            np.dtype(np.float32),
            (n,),
            "normal",
            0,
        )
    raise SpaceError(
        f"No policy distribution for the action space {space}; "
        "expected Discrete, MultiDiscrete, MultiBinary or a Box of floats.",
        "Wrap the environment so that its actions are of one of these spaces.",
    )


def box_scale(space: gym.spaces.Box) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return centre and half-width of a bounded Box, as float32.

    Raises:
        SpaceError: A bound is infinite or the box has no width.
    """
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (high > low).all()):
        raise SpaceError(
            f"The action space {space} has an infinite or empty range; expected finite bounds with "
            "low < high.",
            "Wrap the environment in gymnasium.wrappers.RescaleAction or ClipAction with bounds.",
        )
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
