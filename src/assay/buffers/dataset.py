"""Recorded transitions to learn from: read once from a file, checked, and drawn uniformly.

The file is an NPZ (`numpy.savez`) with an array for each field and a row for each transition, in
the environment's own units:

| field                     | a row of it                                             |
|---------------------------|---------------------------------------------------------|
| `obs`, `next_obs`         | the observation before and after the action             |
| `action`                  | what was done, within the action space                  |
| `reward`                  | a number                                                |
| `terminated`, `truncated` | true or false: whether and how the episode ended        |

At the end of an episode `next_obs` is its last observation. An observation of several parts has a
field for each: `obs/camera`, `obs/arm/joints`, `obs/action_mask`. Other arrays are not read, and
Python objects are refused: nothing is ever unpickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from assay.buffers.allocation import require_memory
from assay.core.errors import AssayError, DataError
from assay.core.seeding import rng_state, set_rng_state
from assay.core.types import Batch, State, Tree, tree_map

if TYPE_CHECKING:
    from assay.envs.spaces import ActionMap, Leaf, ObservationMap

Array = np.ndarray[Any, Any]

_SCALARS = ("reward", "terminated", "truncated")
_ROUNDING = 1e-5  # by which an action may lie beyond a bound, relative to the bound
_AGAIN = "Write it again with numpy.savez; it may have been cut off when it was copied."


class Dataset:
    """Transitions that do not change, to draw batches from.

    Args:
        obs: [T, ...] or a flat dict of such, canonical.
        action: [T, ...], canonical.
        reward: [T].
        next_obs: As `obs`.
        terminated: [T] of 0 and 1.
        truncated: [T] of 0 and 1.
        gamma: The discount that batches state.
        device: Where batches go.
        rng: Source of all draws.
    """

    def __init__(
        self,
        obs: Tree,
        action: Array,
        reward: Array,
        next_obs: Tree,
        terminated: Array,
        truncated: Array,
        *,
        gamma: float,
        device: torch.device | str = "cpu",
        rng: np.random.Generator,
    ) -> None:
        self.obs, self.action, self.next_obs = obs, action, next_obs
        self.reward, self.terminated, self.truncated = (
            column.astype(np.float32) for column in (reward, terminated, truncated)
        )
        self.gamma, self.device = gamma, torch.device(device)
        self._rng = rng

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self.reward)

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions, with replacement, as tensors [B, ...] on the device."""
        index = self._rng.integers(len(self), size=batch_size)

        def rows(array: Array) -> torch.Tensor:
            return torch.from_numpy(array[index]).to(self.device)

        return Batch(
            obs=tree_map(rows, self.obs),
            action=rows(self.action),
            reward=rows(self.reward),
            next_obs=tree_map(rows, self.next_obs),
            terminated=rows(self.terminated),
            truncated=rows(self.truncated),
            discount=torch.full((batch_size,), self.gamma, device=self.device),
        )

    def state(self) -> State:
        """Return what later draws depend on; the transitions are in their file."""
        return {"rng": rng_state(self._rng)}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        set_rng_state(self._rng, state["rng"])


def load_dataset(
    path: Path,
    observations: ObservationMap,
    actions: ActionMap,
    *,
    gamma: float,
    device: torch.device | str = "cpu",
    rng: np.random.Generator,
) -> Dataset:
    """Read the transitions of a file, and check that an environment could have given them.

    Raises:
        DataError: The file is missing, torn, empty or not an NPZ of plain arrays; or a field is
            missing, has another shape, a value out of range or one that is not finite.
        ConfigError: The arrays do not fit into the memory.
    """
    parts = {prefix: observations.fields(prefix) for prefix in ("obs", "next_obs")}
    file = _File(path, [*parts["obs"], *parts["next_obs"], "action", *_SCALARS])
    trees: dict[str, Tree] = {}
    for prefix, leaves in parts.items():
        found = {leaf.key: file.observation(name, leaf) for name, leaf in leaves.items()}
        trees[prefix] = found[""] if observations.bare else found
    action = file.take("action", actions.source.shape or (), actions.source.dtype)
    file.check_bounds("action", action, actions.source)
    reward, terminated, truncated = (file.take(name, (), np.float64) for name in _SCALARS)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        file.check(name, flag, (flag == 0) | (flag == 1), "true or false")
    return Dataset(
        trees["obs"],
        actions.from_env(action),
        reward,
        trees["next_obs"],
        terminated,
        truncated,
        gamma=gamma,
        device=device,
        rng=rng,
    )


class _File:
    """The arrays of a file, checked as they are taken."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path = path
        self.arrays = self._read(names)
        rows = {name: array.shape[:1] for name, array in self.arrays.items()}
        if len(set(rows.values())) > 1 or () in rows.values():
            listed = ", ".join(
                f"{name} {count[0] if count else 'none'}" for name, count in rows.items()
            )
            raise DataError(
                f"The fields of '{path}' have different numbers of rows: {listed}.",
                "Write one row for each transition into every field.",
            )
        if not rows["reward"][0]:
            raise DataError(f"'{path}' holds no transitions.", "Record some and write it again.")

    def _read(self, names: list[str]) -> dict[str, Array]:
        path = self.path
        try:
            with np.load(path, allow_pickle=False) as file:
                missing = [name for name in names if name not in file.files]
                if missing:
                    raise DataError(
                        f"'{path}' lacks {', '.join(missing)}; it holds "
                        f"{', '.join(file.files) or 'nothing'}.",
                        f"Write these arrays with numpy.savez: {', '.join(names)}.",
                    )
                sizes = {info.filename: info.file_size for info in file.zip.infolist()}
                needed = sum(sizes.get(f"{name}.npy", 0) for name in names)
                require_memory(needed, f"The data in '{path}'")
                return {name: file[name] for name in names}
        except AssayError:
            raise
        except FileNotFoundError:
            raise DataError(f"There is no file '{path}'.", "Set data=FILE.npz.") from None
        except EOFError:
            raise DataError(f"'{path}' is empty or cut short.", _AGAIN) from None
        except OSError as error:
            raise DataError(f"Cannot read '{path}': {error.strerror or error}.", _AGAIN) from None
        except Exception as error:  # a damaged file may fail in any way
            reason = str(error).partition("\n")[0].rstrip(".")
            raise DataError(
                f"'{path}' is not a whole NPZ file of plain arrays: {reason}.", _AGAIN
            ) from None

    def take(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a field whose rows have this shape, and finite numbers of this kind."""
        array = self.arrays[name]
        if array.shape[1:] != shape:
            raise DataError(
                f"A row of '{name}' in '{self.path}' has the shape {array.shape[1:]}; expected "
                f"{shape}.",
                "Give data of the environment that the agent is to act in.",
            )
        if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise DataError(
                f"'{name}' in '{self.path}' is of type {array.dtype}; expected {np.dtype(dtype)}.",
                "Write it as the environment gives it.",
            )
        self.check(name, array, np.isfinite(array), "a finite number")
        return array

    def observation(self, name: str, leaf: Leaf) -> Array:
        """Return one part of the observations, canonical."""
        array = self.take(name, leaf.source.shape or (), leaf.source.dtype)
        if not isinstance(leaf.source, gym.spaces.Box):  # few environments keep to those bounds
            self.check_bounds(name, array, leaf.source)
        return leaf.batch(array)

    def check_bounds(self, name: str, array: Array, space: gym.Space[Any]) -> None:
        """Require values to lie in their space."""
        low, high = _bounds(space)
        room_low, room_high = (_ROUNDING * np.maximum(1.0, np.abs(x)) for x in (low, high))
        inside = (array >= low - room_low) & (array <= high + room_high)
        self.check(name, array, inside, f"a value of {space}")

    def check(self, name: str, array: Array, good: Array, expected: str) -> None:
        """Refuse a field with a bad value, and say where the first one is."""
        if good.all():
            return
        place = tuple(np.argwhere(~good)[0].tolist())
        raise DataError(
            f"Row {place[0]} of '{name}' in '{self.path}' has the value {array[place]}; expected "
            f"{expected}.",
            "Leave such transitions out, or give data of the environment that the agent is to "
            "act in.",
        )


def _bounds(space: gym.Space[Any]) -> tuple[Array, Array]:
    """Return the least and the greatest value of each component."""
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    if isinstance(space, gym.spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return np.asarray(0), np.asarray(1)  # MultiBinary
