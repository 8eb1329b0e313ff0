"""Running statistics of observations and returns, kept by the agent.

Statistics are float64 and merged batch by batch (Chan et al., 1979). They change only in `update`:
acting, evaluating and learning leave them alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from assay.core.errors import CheckpointError
from assay.core.images import is_image
from assay.core.types import State, Tree
from assay.functional.returns import linear_recurrence_numpy

if TYPE_CHECKING:
    import gymnasium as gym

Array = np.ndarray[Any, Any]

# Deviations up to these are rounding, not a scale. Of the mean: two steps of float32, in which
# observations come. Of nothing: the residue of a simulation where a number should be 0.
_ROUNDING = 2.0 * float(np.finfo(np.float32).eps)
_RESIDUE = 1e-8


class RunningMoments:
    """Mean and variance of all rows seen, merged in batches.

    Attributes:
        mean: Of the given shape, float64.
        var: Population variance, float64; 1 before the first update.
        count: Rows seen.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean: Array = np.zeros(shape)
        self.var: Array = np.ones(shape)
        self.count = 0

    def update(self, rows: Array) -> None:
        """Take in rows [B, *shape]."""
        n = len(rows)
        if n == 0:
            return
        rows = rows.astype(np.float64)
        mean, var = rows.mean(0), rows.var(0)
        total = self.count + n
        # M2 = M2_a + M2_b + delta^2 n_a n_b / n
        delta = mean - self.mean
        m2 = self.var * self.count + var * n + np.square(delta) * (self.count * n / total)
        self.mean = self.mean + delta * (n / total)
        self.var = m2 / total
        self.count = total

    @property
    def scale(self) -> Array:
        """Return what to divide by: the standard deviation, or 1 where rows do not really differ.

        A number that is constant but for rounding then stays small instead of becoming noise of
        deviation 1. There is no other floor: numbers of any scale come out alike.
        """
        std = np.sqrt(self.var)
        constant = std <= np.maximum(_RESIDUE, _ROUNDING * np.abs(self.mean))
        return np.where(constant, 1.0, std)

    def state(self) -> State:
        """Return what a checkpoint needs."""
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": self.count}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        mean, var = (np.asarray(state[k], dtype=np.float64) for k in ("mean", "var"))
        if mean.shape != self.mean.shape or var.shape != self.var.shape:
            raise CheckpointError(
                f"Normaliser statistics have shape {mean.shape}; expected {self.mean.shape}.",
                "Load a checkpoint of an agent with the same observation space.",
            )
        self.mean, self.var, self.count = mean.copy(), var.copy(), int(state["count"])


class _Entry:
    """Moments of one array of numbers, and the float32 numbers that are applied."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.moments = RunningMoments(shape)
        self.tensors: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self.refresh()

    def refresh(self) -> None:
        self.mean = self.moments.mean.astype(np.float32)
        self.inverse_std = (1.0 / self.moments.scale).astype(np.float32)
        self.tensors.clear()

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self.tensors:
            mean, scale = torch.from_numpy(self.mean), torch.from_numpy(self.inverse_std)
            self.tensors[device] = (mean.to(device), scale.to(device))
        return self.tensors[device]


def normalizable(space: gym.Space[Any], *, images: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what can be normalised, by key; "" where the observation is an array."""
    from gymnasium import spaces

    items = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    return {
        key: part.shape
        for key, part in sorted(items.items())
        if isinstance(part, spaces.Box)
        and (images if is_image(part) else np.issubdtype(part.dtype, np.floating))
    }


class RunningNormalizer:
    """Bring the float numbers of an observation to mean 0 and variance 1 each, clipped.

    They may have any number of axes ([agents, features], say). Images, integers and bytes pass
    untouched. Before the first update it only clips.

    Args:
        space: Observation space, one or a flat Dict.
        clip: Bound of the normalised values.
        images: Normalise images as well, pixel by pixel.
    """

    def __init__(self, space: gym.Space[Any], clip: float = 10.0, *, images: bool = False) -> None:
        from gymnasium import spaces

        self.clip = clip
        self._low, self._high = np.float32(-clip), np.float32(clip)
        self._single = not isinstance(space, spaces.Dict)
        shapes = normalizable(space, images=images)
        self._entries = {key: _Entry(shape) for key, shape in shapes.items()}

    def update(self, obs: Tree, valid: Array | None = None) -> None:
        """Take in observations with any leading axes, those that are `valid` if that is given."""
        for key, entry in self._entries.items():
            x = obs if self._single else obs[key]
            rows = x.reshape(-1, *entry.shape)
            entry.moments.update(rows if valid is None else rows[valid.reshape(-1).astype(bool)])
            entry.refresh()

    def normalize(self, obs: Tree) -> Tree:
        """Return a normalised NumPy observation; entries that it leaves alone are shared."""
        return self._mapped(obs, self._apply)

    def normalize_torch(self, obs: Tree) -> Tree:
        """Return a normalised observation of tensors, on their device."""
        return self._mapped(obs, self._apply_torch)

    def _mapped(self, obs: Tree, apply: Callable[[Any, _Entry], Any]) -> Tree:
        if self._single:
            entry = self._entries.get("")
            return obs if entry is None else apply(obs, entry)
        known = self._entries
        return {k: apply(x, known[k]) if k in known else x for k, x in obs.items()}

    def applied(self, key: str) -> tuple[Array, Array] | None:
        """Return the mean that is subtracted from an entry and the factor, None for neither.

        Args:
            key: Of a Dict; "" where the observation is one array.
        """
        entry = self._entries.get(key)
        return None if entry is None else (entry.mean, entry.inverse_std)

    def assume(self, key: str, mean: Array, inverse_std: Array, count: int) -> None:
        """Go on from what `applied` returned after `count` observations."""
        entry = self._entries.get(key)
        if entry is not None:
            var = 1.0 / np.square(inverse_std.astype(np.float64))
            moments = {"mean": mean.reshape(entry.shape), "var": var.reshape(entry.shape)}
            entry.moments.load_state(moments | {"count": max(count, 1)})
            entry.refresh()

    def state(self) -> State:
        """Return what a checkpoint needs."""
        return {key: entry.moments.state() for key, entry in self._entries.items()}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned.

        Raises:
            CheckpointError: The statistics belong to another observation space.
        """
        if sorted(state) != sorted(self._entries):
            raise CheckpointError(
                f"Normaliser statistics are of entries {sorted(state)}; "
                f"expected {sorted(self._entries)}.",
                "Load a checkpoint of an agent with the same observation space.",
            )
        for key, entry in self._entries.items():
            entry.moments.load_state(state[key])
            entry.refresh()

    def _apply(self, x: Array, entry: _Entry) -> Array:
        out = np.subtract(x, entry.mean, dtype=np.float32)
        out *= entry.inverse_std
        np.maximum(out, self._low, out=out)
        return np.minimum(out, self._high, out=out)

    def _apply_torch(self, x: Tensor, entry: _Entry) -> Tensor:
        mean, inverse_std = entry.on(x.device)
        return ((x.to(torch.float32) - mean) * inverse_std).clamp(-self.clip, self.clip)


class RewardScaler:
    """Divide rewards by the running standard deviation of the discounted return.

    The mean is not subtracted: that would change which policy is best.
    """

    def __init__(self, num_envs: int, gamma: float, clip: float = 10.0) -> None:
        self.num_envs = num_envs
        self.gamma = gamma
        self.clip = clip
        self.moments = RunningMoments(())
        # gamma * return so far of each running episode; 0 where one has just begun.
        self._carry: Array = np.zeros(num_envs)

    def update(self, reward: Array, done: Array, valid: Array | None = None) -> None:
        """Take in rewards in the order of time.

        Args:
            reward: [N] or [T, N].
            done: Of the same shape: terminated or truncated.
            valid: Of the same shape; rows that are False are skipped as if they had not been.
        """
        reward, done = (np.atleast_2d(x).astype(np.float64) for x in (reward, done))
        if reward.shape != done.shape or reward.shape[1] != self.num_envs:
            raise ValueError(
                f"reward has shape {reward.shape} and done {done.shape}; "
                f"expected [T, {self.num_envs}] or [{self.num_envs}] for both."
            )
        factor = self.gamma * (1.0 - done)
        if valid is not None:
            skipped = np.logical_not(np.atleast_2d(valid))
            reward, factor = np.where(skipped, 0.0, reward), np.where(skipped, 1.0, factor)
        # R_t = r_t + factor_{t-1} R_{t-1}: a recurrence forward in time, solved on reversed views
        coefficient = np.concatenate([np.zeros((1, self.num_envs)), factor[:-1]])
        first = reward.copy()
        first[0] += self._carry
        returns = linear_recurrence_numpy(first[::-1], coefficient[::-1])[::-1]
        self._carry = factor[-1] * returns[-1]
        self.moments.update(returns.reshape(-1) if valid is None else returns[~skipped])

    def restart(self) -> None:
        """Forget the returns of episodes that will not be finished."""
        self._carry = np.zeros(self.num_envs)

    def scale(self, reward: Array) -> Array:
        """Return scaled, clipped rewards as float32."""
        scaled = reward / self.moments.scale
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)

    def scale_torch(self, reward: Tensor, steps: Tensor | float = 1.0) -> Tensor:
        """Return scaled, clipped rewards of tensors, on their device.

        Args:
            reward: Rewards, or n-step sums of them.
            steps: How many rewards each one stands for (their discounted count): a sum may be as
                large as that many clipped rewards.
        """
        bound: Any = self.clip * steps
        return (reward / float(self.moments.scale)).clamp(-bound, bound)

    def state(self) -> State:
        """Return what a checkpoint needs."""
        return {"moments": self.moments.state(), "carry": self._carry.copy()}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned.

        Raises:
            CheckpointError: The state belongs to another number of environments.
        """
        carry = np.asarray(state["carry"], dtype=np.float64)
        if carry.shape != self._carry.shape:
            raise CheckpointError(
                f"The reward scaler's state is of {carry.size} environments; "
                f"expected {self.num_envs}.",
                "Resume with the number of environments that the run was started with.",
            )
        self.moments.load_state(state["moments"])
        self._carry = carry.copy()
