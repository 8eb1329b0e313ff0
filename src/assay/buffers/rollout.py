"""On-policy data: T steps of N environments.

Every array is [T, N, ...] with a validity mask. What a truncated transition bootstraps from, its
true final observation, is rare and therefore kept aside in `finals`. The carry of a policy with
memory is kept where a run of consecutive steps begins (`runs`); the rest follows from the steps.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.buffers.allocation import Spec, allocate, require_memory, space_spec, tree_bytes
from assay.buffers.dataset import DatasetBuffer
from assay.core.types import Array, Spaces, State, Tree, tree_map

_COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "valid", "policy_weight")


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
class Runs:
    """K runs of consecutive steps, and the carry that each begins with.

    A collector fills every column with one run. A column may as well hold several, one below the
    other; rows between them, which belong to none, are padding and never valid.

    Attributes:
        step: [K] their first step in the rollout.
        env: [K] their environment.
        length: [K] how many rows they have.
        carry: [K, ...] the carry before their first step, or None.
    """

    step: np.ndarray
    env: np.ndarray
    length: np.ndarray
    carry: Tree = None

    def beginning_at(self, t: int) -> tuple[np.ndarray, Tree] | None:
        """Return the environments [k] and carries [k, ...] of the runs whose first step is t."""
        these = np.flatnonzero(self.step == t)
        if not len(these):
            return None
        return self.env[these], tree_map(lambda array: array[these], self.carry)


class Rollout:
    """T steps of N environments, written in place.

    The arrays are public: a collector may also fill `obs[t]` itself.

    Args:
        spaces: What is stored.
        length: T.
        num_envs: N.
        extras: What one row of every extra looks like; without it, the first `write` tells.
        whole: Whether every row will be a transition of the policy's own.

    Attributes:
        spaces: What is stored.
        length: T.
        num_envs: N.
        whole: Whether `valid` and `policy_weight` are 1 everywhere, in this and in every rollout.
        obs: [T, N, ...] or a flat dict of such.
        action: [T, N, ...].
        reward: [T, N] float32.
        terminated: [T, N] bool.
        truncated: [T, N] bool.
        valid: [T, N] bool; False where there is no transition.
        policy_weight: [T, N] float32; 1 where the policy chose the action, which is the default, 0
            where something else did: such a step counts in returns and values, but neither in the
            policy gradient nor in the entropy.
        extras: [T, N, ...] by name.
        runs: The runs of consecutive steps: by default one for each environment.
        last_obs: The observation after step T - 1, leading axis N.
        last_carry: The carry after step T - 1, leading axis N, or None.
        expert: What the policy is to imitate, to draw batches from; None if there is nothing.
        advantage: [T, N], if an algorithm has left it here for a curriculum.
    """

    obs: Tree
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    policy_weight: np.ndarray
    extras: dict[str, np.ndarray]
    runs: Runs
    last_obs: Tree
    last_carry: Tree

    def __init__(
        self,
        spaces: Spaces,
        length: int,
        num_envs: int,
        extras: Mapping[str, Spec] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        def full(spec: Spec) -> Spec:
            return Spec((length, num_envs, *spec.shape), spec.dtype)

        flag, number = (Spec((), np.dtype(kind)) for kind in (bool, np.float32))
        row: dict[str, Tree] = {
            "obs": space_spec(spaces.observation),
            "action": space_spec(spaces.action),
            "reward": number,
            "terminated": flag,
            "truncated": flag,
            "valid": flag,
            "policy_weight": number,
            "extras": dict(extras or {}),
        }
        plan = tree_map(full, row)
        what = f"A rollout of {length:,} steps of {num_envs:,} environments"
        require_memory(tree_bytes(plan), what)
        self.spaces, self.length, self.num_envs = spaces, length, num_envs
        self.whole = whole
        self.expert: DatasetBuffer | None = None
        self.advantage: np.ndarray | None = None
        self._arrays: dict[str, Any] = allocate(plan)
        self.obs = self._arrays["obs"]
        self.action = self._arrays["action"]
        self.reward = self._arrays["reward"]
        self.terminated = self._arrays["terminated"]
        self.truncated = self._arrays["truncated"]
        self.valid = self._arrays["valid"]
        self.policy_weight = self._arrays["policy_weight"]
        self.extras = self._arrays["extras"]
        self._keys = list(self.obs) if isinstance(self.obs, dict) else None
        self._finals: list[Finals] = []
        self._whole = (np.zeros(num_envs, int), np.arange(num_envs), np.full(num_envs, length))
        self.reset()

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

    @finals.setter
    def finals(self, finals: Finals | None) -> None:
        self._finals = [] if finals is None else [finals]

    @property
    def columns(self) -> Tree:
        """Return all arrays [T, N, ...] by name, the extras under `extras`."""
        return self._arrays

    def reset(self, carry: Tree = None) -> None:
        """Begin a new rollout from `carry`; steps that are not written again are invalid."""
        self.valid.fill(False)
        self.advantage = None
        self.policy_weight.fill(1.0)
        self._finals.clear()
        self.runs = Runs(*self._whole, carry)
        self.last_obs = self.last_carry = None

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

        `add_final` takes what followed a truncation. `extras` are what the update needs again, the
        same names for every step.
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

    def cut(self, t: int, obs: Tree, carry: Tree = None) -> None:
        """Truncate after step t what goes on there, because all environments are reset.

        Args:
            t: The last step that was written.
            obs: What followed it, leading axis N.
            carry: The carry after it, alike.
        """
        rows = np.flatnonzero(self.valid[t] & ~self.terminated[t] & ~self.truncated[t])
        self.truncated[t, rows] = True
        if len(rows):
            self.add_final(t, rows, *(tree_map(lambda x: x[rows], x) for x in (obs, carry)))

    def state(self, filled: int) -> State:
        """Return a rollout of which the first `filled` steps are written."""
        finals = self.finals
        return {
            "columns": tree_map(lambda x: x[:filled], self._arrays),
            "carry": self.runs.carry,
            "finals": None
            if finals is None
            else {
                "step": finals.step, "env": finals.env, "obs": finals.obs, "carry": finals.carry
            },
        }  # fmt: skip

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        self.reset(state["carry"])
        columns = state["columns"]
        if columns["extras"] and not self.extras:
            self._allocate_extras({name: x[0] for name, x in columns["extras"].items()})

        def fill(array: np.ndarray, saved: np.ndarray) -> None:
            array[: len(saved)] = saved

        tree_map(fill, self._arrays, columns)
        self.finals = None if state["finals"] is None else Finals(**state["finals"])

    def of_envs(self, first: int, last: int) -> Rollout:
        """Return the columns of the environments from `first` to before `last`, as views."""
        part = copy.copy(self)
        part.num_envs = last - first
        part._arrays = tree_map(lambda x: x[:, first:last], self._arrays)
        for name in (*_COLUMNS, "extras"):
            setattr(part, name, part._arrays[name])
        part._whole = tuple(x[: last - first] for x in self._whole)  # type: ignore[assignment]
        part.last_obs, part.last_carry = (
            tree_map(lambda x: x[first:last], tree) for tree in (self.last_obs, self.last_carry)
        )
        finals = self.finals
        if finals is not None:
            mine = (first <= finals.env) & (finals.env < last)
            obs, carry = (tree_map(lambda x: x[mine], x) for x in (finals.obs, finals.carry))
            kept = Finals(finals.step[mine], finals.env[mine] - first, obs, carry)
            part.finals = kept if mine.any() else None
        these = (first <= self.runs.env) & (self.runs.env < last)
        carry = tree_map(lambda x: x[these], self.runs.carry)
        step, env, length = (x[these] for x in (self.runs.step, self.runs.env, self.runs.length))
        part.runs = Runs(step, env - first, length, carry)
        return part

    def restarts(self) -> np.ndarray:
        """Return [T, N] float32, 1 where a memory restarts because an episode begins.

        An episode begins after an end, and after a row that is not a transition. Where a run begins
        its own carry says so.
        """
        first = np.zeros((self.length, self.num_envs), np.float32)
        first[1:] = (self.terminated | self.truncated | ~self.valid)[:-1]
        first[self.runs.step, self.runs.env] = 0.0
        return first

    def in_runs(self) -> np.ndarray:
        """Return [T, N] int64, 1 for rows of a run and 0 for padding."""
        runs = self.runs
        change = np.zeros((self.length + 1, self.num_envs), np.int64)
        np.add.at(change, (runs.step, runs.env), 1)
        np.add.at(change, (runs.step + runs.length, runs.env), -1)
        return change.cumsum(0)[:-1]

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


def _copied(tree: Tree) -> Tree:
    return tree_map(lambda array: np.array(array), tree)
