"""The shield: what leaves the client is within bounds, masks and rate limits, whoever chose it."""

from __future__ import annotations

import enum
from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.errors import ConfigError

Array = np.ndarray[Any, Any]

_ROUNDING = 1e-5  # of a bound's range: what float32 may be off without meaning anything


class Flag(enum.IntFlag):
    """Why a step is not a sample of the current policy; such steps stay out of its gradient."""

    BOUNDS = 1  # the action was moved into its bounds
    MASK = 2  # the action was not valid, and was replaced
    RATE = 4  # the action was held back by a rate limit
    FALLBACK = 8  # it was not the current model that chose
    HEURISTIC = 16  # shadow or apprentice mode: the heuristic acted


class Shield:
    """Keeps canonical actions [n] within what is allowed.

    Args:
        space: The canonical action space, as narrow as the system needs it.
        max_change: For a Box: how far each number may move from one action to the next.
        hold_steps: For choices: how many steps an action stays before it may change.

    Raises:
        ConfigError: A limit does not belong to this kind of action, or is not a positive number.
    """

    def __init__(
        self, space: gym.Space[Any], max_change: float | None = None, hold_steps: int = 0
    ) -> None:
        self._box = isinstance(space, gym.spaces.Box)
        if max_change is not None and not (self._box and max_change > 0):
            raise ConfigError(
                f"max_change={max_change}: expected a positive number, with Box actions.",
                "Use hold_steps for choices.",
            )
        if hold_steps < 0 or (hold_steps and self._box):
            raise ConfigError(
                f"hold_steps={hold_steps}: expected 0 or more, with actions that are choices.",
                "Use max_change for Box actions.",
            )
        self._max_change, self._hold_steps = max_change, hold_steps
        self._limited = max_change is not None or hold_steps > 0
        self._sizes: tuple[int, ...] = ()
        if isinstance(space, gym.spaces.Box):
            self._low, self._high = space.low.reshape(-1), space.high.reshape(-1)
            width = np.where(np.isfinite(self._high - self._low), self._high - self._low, 1.0)
            self._slack = (width * _ROUNDING).astype(np.float32)
            self._finite = np.ones(self._low.shape, bool)
            self._all_finite = self._finite.tobytes()
        elif isinstance(space, gym.spaces.Discrete):
            self._sizes = (int(space.n),)
        elif isinstance(space, gym.spaces.MultiDiscrete):
            self._sizes = tuple(int(n) for n in space.nvec)
        else:
            self._sizes = (2,) * int(np.prod(space.shape or ()))
        self._bits = isinstance(space, gym.spaces.MultiBinary)
        self._last: Array | None = None
        self._held = 0

    def apply(self, action: Array, mask: Any = None) -> tuple[Array, int]:
        """Return the flat canonical action that may leave, and flags of what was changed.

        Raises:
            ValueError: It is not an action at all: of another size, or not finite.
        """
        if self._box:
            action, flags = self._apply_box(action)
        else:
            action, flags = self._apply_choices(action, mask)
        if self._limited:
            if self._last is None or not np.array_equal(action, self._last):
                self._held = 0
                self._last = action
            self._held += 1
        return action, flags

    def _apply_box(self, action: Array) -> tuple[Array, int]:
        # Comparing bytes is the fastest way to see that all is as it should be, as mostly it is.
        if (
            action.shape != self._low.shape
            or np.isfinite(action, out=self._finite).tobytes() != self._all_finite
        ):
            raise ValueError("The action is of another size, or not finite.")
        flags = 0
        inside = np.minimum(np.maximum(action, self._low), self._high)
        if inside.tobytes() != action.tobytes() and (np.abs(inside - action) > self._slack).any():
            flags |= Flag.BOUNDS
        if self._max_change is not None and self._last is not None:
            step = np.float32(self._max_change)
            near = np.minimum(np.maximum(inside, self._last - step), self._last + step)
            if (np.abs(near - inside) > self._slack).any():
                flags |= Flag.RATE
            inside = near
        return inside, int(flags)

    def _apply_choices(self, action: Array, mask: Any) -> tuple[Array, int]:
        values = action.tolist()
        if len(values) != len(self._sizes):
            raise ValueError("The action is of another size.")
        flags, begin = 0, 0
        held = self._last.tolist() if self._last is not None else None
        waits = held is not None and self._held < self._hold_steps
        for i, size in enumerate(self._sizes):
            choice = values[i]
            if not 0 <= choice < size:
                choice = min(max(choice, 0), size - 1)
                flags |= Flag.BOUNDS
            if waits and held is not None and choice != held[i]:
                choice = held[i]
                flags |= Flag.RATE
            if mask is not None:
                allowed = self._valid(mask, i, begin, size)
                if allowed is not None and not allowed[choice]:
                    choice = allowed.index(True)  # the first valid one: never a random one
                    flags |= Flag.MASK
            values[i] = choice
            begin += size
        return np.array(values, action.dtype), int(flags)

    def _valid(self, mask: Any, i: int, begin: int, size: int) -> list[bool] | None:
        """Return which choices of one part are valid, or None if the mask does not matter."""
        if self._bits:  # one flag per bit; a masked bit stays 0
            return [True, bool(mask[i])]
        allowed = [bool(flag) for flag in mask[begin : begin + size]]
        return allowed if any(allowed) else None
