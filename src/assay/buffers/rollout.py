"""On-policy data: T steps of N environments, or ragged segments padded to that shape.

Every array is [T, N, ...] with a validity mask. What a truncated transition bootstraps from, its
true final observation, is rare and therefore kept aside in `finals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from assay.buffers.allocation import Spec, allocate, require_memory, space_spec, tree_bytes
from assay.buffers.storage import copy_state
from assay.core.types import Array, Spaces, State, Tree, tree_leaves, tree_map


@dataclass(slots=True)
class Finals:
    """True final observations of K truncated transitions.

    Attributes:
        step: [K] their step in the rollout.
        env: [K] their environment.
        obs: [K, ...] the observation from before the reset.
        carry: [K, ...] the carry from before the reset, or None.
    """

    step: np.ndarray
    env: np.ndarray
    obs: Tree
    carry: Tree = None


@dataclass(slots=True)
class Starts:
    """Carries of K steps that do not follow the steps before them.

    Attributes:
        step: [K] their step in the rollout.
        env: [K] their environment.
        carry: [K, ...] the carry before them.
    """

    step: np.ndarray
    env: np.ndarray
    carry: Tree

    def replace(self, t: int, carry: Tree) -> Tree:
        """Return the carry [N, ...] before step t, given what the steps before it left."""
        these = np.flatnonzero(self.step == t)
        if not len(these):
            return carry

        def put(left: np.ndarray, given: np.ndarray) -> np.ndarray:
            out = left.copy()
            out[self.env[these]] = given[these]
            return out

        return tree_map(put, carry, self.carry)


@dataclass(slots=True)
class Segment:
    """A piece of one episode, L steps, as a remote client sends it.

    It may start mid-episode. Its last step alone may be terminated or truncated; if it is not
    terminated, `last_obs` is what followed it.

    Attributes:
        obs: [L, ...].
        action: [L, ...].
        reward: [L].
        terminated: Whether the last step ended the episode in a terminal state.
        truncated: Whether the last step's episode was cut short.
        extras: [L, ...] each.
        initial_carry: The carry before the first step, without a batch axis, or None.
        last_obs: What followed the last step, without a batch axis; None if terminated.
        last_carry: The carry after the last step, without a batch axis, or None.
    """

    obs: Tree
    action: Array
    reward: Array
    terminated: bool
    truncated: bool
    extras: dict[str, Array] = field(default_factory=dict)
    initial_carry: Tree = None
    last_obs: Tree = None
    last_carry: Tree = None


class Rollout:
    """T steps of N environments, written in place and read as tensors without copying.

    The arrays are public: a collector may also fill `obs[t]` itself.

    Args:
        spaces: What is stored.
        length: T.
        num_envs: N.

    Attributes:
        spaces: What is stored.
        length: T.
        num_envs: N.
        obs: [T, N, ...] or a flat dict of such.
        action: [T, N, ...].
        reward: [T, N] float32.
        terminated: [T, N] bool.
        truncated: [T, N] bool.
        valid: [T, N] bool; False where there is no transition.
        extras: [T, N, ...] by name, known from the first `write`.
        initial_carry: The carry before step 0, leading axis N, or None.
        last_obs: The observation after step T - 1, leading axis N.
        last_carry: The carry after step T - 1, leading axis N, or None.
        starts: Carries that steps begin with, whatever came before them, or None.
    """

    def __init__(self, spaces: Spaces, length: int, num_envs: int) -> None:
        def full(spec: Spec) -> Spec:
            return Spec((length, num_envs, *spec.shape), spec.dtype)

        flag = Spec((length, num_envs), np.dtype(bool))
        plan = {
            "obs": tree_map(full, space_spec(spaces.observation)),
            "action": full(space_spec(spaces.action)),
            "reward": Spec((length, num_envs), np.dtype(np.float32)),
            "terminated": flag,
            "truncated": flag,
            "valid": flag,
        }
        what = f"A rollout of {length:,} steps of {num_envs:,} environments"
        require_memory(tree_bytes(plan), what)
        self.spaces, self.length, self.num_envs = spaces, length, num_envs
        self._arrays: dict[str, Any] = allocate(plan)
        self.obs: Tree = self._arrays["obs"]
        self.action: np.ndarray = self._arrays["action"]
        self.reward: np.ndarray = self._arrays["reward"]
        self.terminated: np.ndarray = self._arrays["terminated"]
        self.truncated: np.ndarray = self._arrays["truncated"]
        self.valid: np.ndarray = self._arrays["valid"]
        self.extras: dict[str, np.ndarray] = {}
        self.initial_carry: Tree = None
        self.last_obs: Tree = None
        self.last_carry: Tree = None
        self.starts: Starts | None = None
        self._keys = list(self.obs) if isinstance(self.obs, dict) else None
        self._finals: list[Finals] = []
        self._views: dict[str, Any] = tree_map(torch.from_numpy, self._arrays)

    @property
    def env_steps(self) -> int:
        """Return the number of real transitions."""
        return int(np.count_nonzero(self.valid))

    @property
    def finals(self) -> Finals | None:
        """Return the final observations of all truncated transitions; None if there are none."""
        parts = self._finals
        if not parts:
            return None
        if len(parts) > 1:

            def join(*arrays: np.ndarray) -> np.ndarray:
                return np.concatenate(arrays)

            merged = Finals(
                join(*(part.step for part in parts)),
                join(*(part.env for part in parts)),
                tree_map(join, *(part.obs for part in parts)),
                tree_map(join, *(part.carry for part in parts)),
            )
            self._finals = [merged]
        return self._finals[0]

    def reset(self) -> None:
        """Begin a new rollout; steps that are not written again are invalid."""
        self.valid.fill(False)
        self._finals.clear()
        self.initial_carry = self.last_obs = self.last_carry = self.starts = None

    def write(
        self,
        t: int,
        obs: Tree,
        action: Array,
        reward: Array,
        terminated: Array,
        truncated: Array,
        valid: Array | bool = True,
        extras: dict[str, Array] | None = None,
    ) -> None:
        """Write step t of all environments; every array has the leading axis N.

        Args:
            t: Step in the rollout.
            obs: What was acted on.
            action: As executed.
            reward: Of this step.
            terminated: The episode ended in a terminal state with this step.
            truncated: The episode was cut short with this step; `add_final` takes what followed.
            valid: False for rows that are no transition.
            extras: What the update needs again, the same names for every step.
        """
        if self._keys is None:
            self.obs[t] = obs
        else:
            for key in self._keys:
                self.obs[key][t] = obs[key]
        self.action[t] = action
        self.reward[t] = reward
        self.terminated[t] = terminated
        self.truncated[t] = truncated
        self.valid[t] = valid
        if extras or self.extras:
            extras = extras or {}
            if extras.keys() != self.extras.keys():
                self._allocate_extras(extras)
            for name, value in extras.items():
                self.extras[name][t] = value

    def add_final(self, t: int, env: Array | int, obs: Tree, carry: Tree = None) -> None:
        """Record what followed truncated transitions of step t, from before the reset.

        Args:
            t: Step in the rollout.
            env: Index of an environment, or [K] of several.
            obs: That environment's final observation, or [K, ...] of several.
            carry: The carry after the step, alike.
        """
        if np.ndim(env) == 0:
            obs, carry = (tree_map(lambda x: np.asarray(x)[None], tree) for tree in (obs, carry))
        envs = np.array(env, np.int64, ndmin=1)
        self._finals.append(Finals(np.full_like(envs, t), envs, _copied(obs), _copied(carry)))

    def rearrange(self, order: Array, uncut: Array) -> None:
        """Put the steps of a single environment into another order.

        Args:
            order: [T] the row that comes first, second, ...
            uncut: [K] rows, in the new order, that are no longer truncated: the next row follows.
        """
        arrays = (*tree_leaves(self._arrays), *self.extras.values())
        for array in arrays:
            array[:] = array[order]
        self.truncated[uncut, 0] = False
        finals = self.finals
        if finals is None:
            return
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        step = place[finals.step]
        kept = np.argsort(step)
        kept = kept[~np.isin(step[kept], uncut)]
        self._finals = []
        if len(kept):
            obs, carry = (
                tree_map(lambda array: array[kept], tree) for tree in (finals.obs, finals.carry)
            )
            self._finals.append(Finals(step[kept], finals.env[kept], obs, carry))

    def spread(self, begins: Sequence[int], multiple: int) -> Rollout:
        """Return the steps of a single environment with gaps, so that some begin at a multiple.

        Rows in between are not valid. What lies before a gap must end an episode, or be truncated.

        Args:
            begins: The rows that are moved, ascending from 0.
            multiple: Where they may lie; the length is one as well.
        """
        counts = np.diff([*begins, self.length])
        rounded = -(-counts // multiple) * multiple
        wide = Rollout(self.spaces, int(rounded.sum()), 1)
        # A row moves by all the padding before it.
        moved = np.arange(self.length) + np.repeat(
            np.cumsum(rounded - counts) - (rounded - counts), counts
        )
        if self.extras:
            wide._allocate_extras({name: array[0] for name, array in self.extras.items()})

        def put(to: np.ndarray, array: np.ndarray) -> None:
            to[moved] = array

        tree_map(put, wide._arrays, self._arrays)
        tree_map(put, wide.extras, self.extras)
        finals = self.finals
        if finals is not None:
            obs, carry = _copied(finals.obs), _copied(finals.carry)
            wide._finals.append(Finals(moved[finals.step], finals.env.copy(), obs, carry))
        wide.last_obs = _copied(self.last_obs)
        return wide

    def tensors(self, device: torch.device | str = "cpu") -> dict[str, Any]:
        """Return all fields and extras as tensors [T, N, ...] by name.

        On a CPU they share memory with the rollout; elsewhere they are copies.
        """
        if torch.device(device).type == "cpu":
            return dict(self._views)
        return tree_map(lambda view: view.to(device), self._views)

    def state(self) -> State:
        """Return everything as a state that shares no memory with the rollout."""
        finals, starts = self.finals, self.starts
        state = {
            "arrays": self._arrays,
            "extras": self.extras,
            "initial_carry": self.initial_carry,
            "last_obs": self.last_obs,
            "last_carry": self.last_carry,
            "finals": None
            if finals is None
            else {"step": finals.step, "env": finals.env, "obs": finals.obs, "carry": finals.carry},
            "starts": None
            if starts is None
            else {"step": starts.step, "env": starts.env, "carry": starts.carry},
        }
        return copy_state(state)

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        extras = state.get("extras") or {}
        if extras and not self.extras:
            self._allocate_extras({name: value[0] for name, value in extras.items()})
        for store, saved in ((self._arrays, state["arrays"]), (self.extras, extras)):
            tree_map(lambda array, value: np.copyto(array, value), store, saved)
        for name in ("initial_carry", "last_obs", "last_carry"):
            setattr(self, name, _copied(state.get(name)))
        finals = state.get("finals")
        self._finals = []
        if finals is not None:
            self._finals.append(
                Finals(finals["step"], finals["env"], finals["obs"], finals.get("carry"))
            )
        starts = state.get("starts")
        self.starts = None if starts is None else Starts(**starts)

    @classmethod
    def segments(cls, spaces: Spaces, segments: Sequence[Segment]) -> Rollout:
        """Lay ragged segments side by side, padded at the end to the longest.

        Segment n becomes column n. One that does not end its episode is marked as truncated at its
        last step, with what followed as its final observation: to the learner, being cut by the
        batch or by a time limit is the same.

        Args:
            spaces: What is stored.
            segments: At least one, each of at least one step.

        Raises:
            ValueError: There are none, one is empty, or one lacks its `last_obs`.
        """
        lengths = [len(segment.reward) for segment in segments]
        if not lengths or min(lengths) == 0:
            raise ValueError(f"expected segments of at least one step; found lengths {lengths}")
        rollout = cls(spaces, max(lengths), len(segments))
        for n, (segment, length) in enumerate(zip(segments, lengths, strict=True)):

            def put(store: np.ndarray, values: Array, n: int = n, length: int = length) -> None:
                if len(values) != length:
                    raise ValueError(f"segment {n} has {length} rewards but {len(values)} rows")
                store[:length, n] = values

            if segment.extras.keys() != rollout.extras.keys():
                row = {name: np.asarray(value)[:1] for name, value in segment.extras.items()}
                rollout._allocate_extras(tree_map(lambda x: np.repeat(x, len(segments), 0), row))
            tree_map(put, rollout.obs, segment.obs)
            tree_map(put, rollout.extras, segment.extras)
            put(rollout.action, segment.action)
            put(rollout.reward, segment.reward)
            rollout.valid[:length, n] = True
            rollout.terminated[length - 1, n] = segment.terminated
            if not segment.terminated:
                if segment.last_obs is None:
                    raise ValueError(f"segment {n} is not terminated and has no last_obs")
                rollout.truncated[length - 1, n] = True
                rollout.add_final(length - 1, n, segment.last_obs, segment.last_carry)
        first = segments[0].initial_carry
        rollout.initial_carry = tree_map(
            lambda *rows: np.stack(rows), first, *(s.initial_carry for s in segments[1:])
        )
        # Every column ends with an episode's end or a final, so nothing bootstraps from this.
        rollout.last_obs = tree_map(lambda array: np.zeros_like(array[0]), rollout.obs)
        return rollout

    def _allocate_extras(self, extras: dict[str, Array]) -> None:
        if self.extras:
            raise ValueError(f"extras {sorted(extras)} were given; expected {sorted(self.extras)}")
        for name, value in extras.items():
            row = np.asarray(value)
            if name in self._arrays:
                raise ValueError(f"extra '{name}' has the name of a field of the rollout")
            if row.shape[:1] != (self.num_envs,):
                raise ValueError(
                    f"extra '{name}' has shape {list(row.shape)}; expected [{self.num_envs}, ...]"
                )
            dtype = np.dtype(np.float32) if row.dtype == np.float64 else row.dtype
            self.extras[name] = np.zeros((self.length, *row.shape), dtype)
            self._views[name] = torch.from_numpy(self.extras[name])


def _copied(tree: Tree) -> Tree:
    return tree_map(lambda array: np.array(array), tree)
