"""Observation columns of a replay: stored as given, or as stacks of frames stored once.

A stack of k frames shares k - 1 of them with the next observation. `FrameColumn` keeps a pool of
frames per environment and, for every transition, the places of the k frames of both observations.
It compares bytes instead of trusting the environment: an observation that goes on from the one
before costs one new frame, anything else (a reset, padded or repeated, or a stack that is none)
costs the frames that are new. What comes out is therefore always, byte for byte, what went in.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from assay.buffers.allocation import Spec, allocate, space_spec
from assay.core.errors import ConfigError
from assay.core.images import is_image
from assay.core.types import State


class PlainColumn:
    """Observations and next observations, each stored in full: [slots, num_envs, ...]."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns = columns
        self._obs, self._next = columns["obs"], columns["next_obs"]
        self.spec = Spec(self._obs.shape[2:], self._obs.dtype)
        self._flat_obs = self._obs.reshape(-1, *self.spec.shape)
        self._flat_next = self._next.reshape(-1, *self.spec.shape)

    def write_row(self, row: int, obs: np.ndarray, next_obs: np.ndarray) -> None:
        """Write one transition of every environment to one row."""
        self._obs[row] = obs
        self._next[row] = next_obs

    def write_at(
        self, flat: np.ndarray, envs: np.ndarray, obs: np.ndarray, next_obs: np.ndarray
    ) -> None:
        """Write one transition of each of `envs` to the places `flat`."""
        self._flat_obs[flat] = obs
        self._flat_next[flat] = next_obs

    def gather(
        self, first: np.ndarray, last: np.ndarray, obs: np.ndarray, next_obs: np.ndarray
    ) -> None:
        """Gather observations of `first` and next observations of `last` into the arrays given."""
        self._flat_obs.take(first, axis=0, out=obs, mode="clip")
        self._flat_next.take(last, axis=0, out=next_obs, mode="clip")


class FrameColumn:
    """Stacks of frames, newest last along the first axis, each frame stored once.

    The pool has a sixteenth more frames than there are slots, for the frames that episode ends
    and starts add. Where episodes are so short that this runs out, the oldest transitions are
    given up a little earlier (`gone` names the frames that no longer exist).

    Args:
        arrays: `pool` [rows, num_envs, channels, height, width], and [slots, num_envs, ...] the
            places `obs` and `next_obs` of k frames, and the number of the `oldest` of them.
    """

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.pool = arrays.pop("pool")
        self.columns = arrays
        self.rows, self.num_envs, *frame = self.pool.shape
        self.stack = stack = arrays["obs"].shape[2]
        self.spec = Spec((stack * frame[0], *frame[1:]), self.pool.dtype)
        self._frame = tuple(frame)
        self._flat_pool = self.pool.reshape(-1, *frame)
        self._flat_obs = arrays["obs"].reshape(-1, stack)
        self._flat_next = arrays["next_obs"].reshape(-1, stack)
        self._flat_oldest = arrays["oldest"].reshape(-1)
        # Frames are numbered per environment as they are written; number % rows is the row.
        self.written = np.zeros(self.num_envs, np.int64)
        self._last = np.zeros((self.num_envs, stack, *frame), self.pool.dtype)
        self._last_ids = np.full((self.num_envs, stack), -1, np.int64)
        self._envs = np.arange(self.num_envs)

    def write_row(self, row: int, obs: np.ndarray, next_obs: np.ndarray) -> None:
        """Write one transition of every environment to one row."""
        self.write_at(row * self.num_envs + self._envs, self._envs, obs, next_obs)

    def write_at(
        self, flat: np.ndarray, envs: np.ndarray, obs: np.ndarray, next_obs: np.ndarray
    ) -> None:
        """Write one transition of each of `envs` to the places `flat`."""
        now = obs.reshape(len(envs), self.stack, *self._frame)
        then = next_obs.reshape(now.shape)
        ids = self._last_ids[envs]
        goes_on = _equal(now, self._last[envs]) & (ids[:, 0] >= 0)
        for i in np.flatnonzero(~goes_on):
            ids[i] = self._store(envs[i], now[i], now[i, :0], ids[i, :0])
        next_ids = np.empty_like(ids)
        shifts = _equal(then[:, :-1], now[:, 1:])
        usual = np.flatnonzero(shifts)
        new = self.written[envs[usual]]
        self._flat_pool[self._place(new, envs[usual])] = then[usual, -1]
        self.written[envs[usual]] += 1
        next_ids[usual, :-1] = ids[usual, 1:]
        next_ids[usual, -1] = new
        for i in np.flatnonzero(~shifts):
            next_ids[i] = self._store(envs[i], then[i], now[i, 1:], ids[i, 1:])
        self._flat_obs[flat] = self._place(ids, envs[:, None])
        self._flat_next[flat] = self._place(next_ids, envs[:, None])
        self._flat_oldest[flat] = ids[:, 0]
        self._last[envs] = then
        self._last_ids[envs] = next_ids

    def gather(
        self, first: np.ndarray, last: np.ndarray, obs: np.ndarray, next_obs: np.ndarray
    ) -> None:
        """Gather observations of `first` and next observations of `last` into the arrays given."""
        for column, index, out in (
            (self._flat_obs, first, obs),
            (self._flat_next, last, next_obs),
        ):
            places = column.take(index, axis=0).reshape(-1)
            frames = out.reshape(-1, *self._frame)
            self._flat_pool.take(places, axis=0, out=frames, mode="clip")

    def gone(self, flat: np.ndarray) -> np.ndarray:
        """Return [N] whether the transition at `flat[e]` of environment e has lost a frame."""
        return self._flat_oldest[flat] < self.written - self.rows

    def state(self) -> State:
        """Return what is neither in the columns nor in the pool."""
        return {"written": self.written, "last": self._last, "last_ids": self._last_ids}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        self.written[:] = state["written"]
        self._last[:] = state["last"]
        self._last_ids[:] = state["last_ids"]

    def _place(self, ids: np.ndarray, envs: np.ndarray | int) -> np.ndarray:
        return ids % self.rows * self.num_envs + envs

    def _store(
        self, env: int, stack: np.ndarray, known: np.ndarray, known_ids: np.ndarray
    ) -> np.ndarray:
        """Store a stack, sharing its leading frames with `known` and repeated ones with each other.

        Ids never decrease along a stack, so its first frame is always the first to be lost.
        """
        ids = np.empty(self.stack, np.int64)
        sharing = True
        for j, frame in enumerate(stack):
            sharing = sharing and j < len(known) and np.array_equal(frame, known[j])
            if sharing:
                ids[j] = known_ids[j]
            elif j > 0 and np.array_equal(frame, stack[j - 1]):
                ids[j] = ids[j - 1]
            else:
                ids[j] = self.written[env]
                self._flat_pool[self._place(ids[j], env)] = frame
                self.written[env] += 1
        return ids


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return [n] whether rows of two [n, ...] arrays are equal."""
    return (a == b).reshape(len(a), -1).all(axis=1)


def has_byte_images(space: gym.Space[Any]) -> bool:
    """Return whether a part of an observation is an image of bytes, which can be stored once."""
    return any(_is_byte_image(part) for part in _parts(space))


def make_column(plan: dict[str, Spec]) -> PlainColumn | FrameColumn:
    """Allocate the column of one part of what `observation_plan` returned."""
    return (FrameColumn if "pool" in plan else PlainColumn)(allocate(plan))


def observation_plan(
    space: gym.Space[Any], slots: int, num_envs: int, frame_stack: int | None
) -> dict[str, dict[str, Spec]]:
    """Return the specs of the arrays for each part of an observation, by its number."""
    if frame_stack is not None:
        _require_frames(space, frame_stack)
    plans = {}
    for i, part in enumerate(_parts(space)):
        shape, dtype = space_spec(part)
        if frame_stack is not None and _holds(part, frame_stack):
            plans[str(i)] = _frame_plan(shape, dtype, slots, num_envs, frame_stack)
        else:
            full = Spec((slots, num_envs, *shape), dtype)
            plans[str(i)] = {"obs": full, "next_obs": full}
    return plans


def _frame_plan(
    shape: tuple[int, ...], dtype: np.dtype[Any], slots: int, num_envs: int, stack: int
) -> dict[str, Spec]:
    frame = (shape[0] // stack, *shape[1:])
    rows = slots + slots // 16 + 2 * stack
    places = Spec((slots, num_envs, stack), np.dtype(np.int32))
    return {
        "pool": Spec((rows, num_envs, *frame), dtype),
        "obs": places,
        "next_obs": places,
        "oldest": Spec((slots, num_envs), np.dtype(np.int64)),
    }


def _require_frames(space: gym.Space[Any], frame_stack: int) -> None:
    """Raise a ConfigError if no part of an observation is an image of so many frames."""
    if frame_stack < 1:
        raise ConfigError(f"frame_stack={frame_stack}; expected at least 1.")
    if not any(_holds(part, frame_stack) for part in _parts(space)):
        specs = [space_spec(part) for part in _parts(space)]
        shapes = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in specs)
        raise ConfigError(
            f"frame_stack={frame_stack} needs uint8 images [{frame_stack} * channels, height, "
            f"width]; the observations are {shapes}.",
            "Leave frame_stack out, or stack that many frames in the environment.",
        )


def _parts(space: gym.Space[Any]) -> list[gym.Space[Any]]:
    return list(space.values()) if isinstance(space, gym.spaces.Dict) else [space]


def _is_byte_image(space: gym.Space[Any]) -> bool:
    return is_image(space) and space.dtype == np.uint8


def _holds(space: gym.Space[Any], frames: int) -> bool:
    """Return whether a space is an image whose first axis can be that many frames."""
    shape = space.shape or ()
    divisible = frames == 1 or (len(shape) > 2 and shape[0] % frames == 0)
    return _is_byte_image(space) and divisible
