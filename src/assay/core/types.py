"""The few containers that every layer passes around.

Arrays are NumPy arrays or torch tensors; this module imports neither torch nor gymnasium at run
time. An observation is one array or a flat `dict[str, array]` (nested Dict and Tuple spaces are
flattened by `assay.envs`), always with a leading batch axis. Where an environment offers action
masks, they are the entry `ACTION_MASK` of the observation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Array = Any  # np.ndarray or torch.Tensor
Tree = Any  # an Array, or a (nested) dict of Arrays; None where there is nothing
Metrics = dict[str, float]
State = dict[str, Any]  # nested dict of np.ndarray and JSON-able values: what a checkpoint holds

ACTION_MASK = "action_mask"


@dataclass(frozen=True, slots=True)
class Spaces:
    """What one agent sees and does: two Gymnasium spaces, without the batch axis."""

    observation: Any
    action: Any


@dataclass(slots=True)
class Action:
    """What `Algorithm.act` returns for a batch of N observations.

    Attributes:
        action: [N, ...] in the environment's own units.
        carry: Recurrent or latent state after this step (leading axis N), or None.
        extras: What the update will need again: `log_prob` [N], `value` [N], ...
    """

    action: Array
    carry: Tree = None
    extras: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class Batch:
    """Transitions with a leading axis B (replay) or [B, L] (sequences).

    `terminated` and `truncated` are never merged. With n-step returns, `reward` is the discounted
    sum and `discount` is gamma^k of the steps really taken, so that a target is
    `reward + discount * (1 - terminated) * V(next_obs)` in every case.
    """

    obs: Tree
    action: Array
    reward: Array
    next_obs: Tree
    terminated: Array
    truncated: Array
    discount: Array
    extras: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class Clock:
    """Where a run is: counts, never wall time.

    Attributes:
        env_steps: Real environment transitions so far.
        total_env_steps: The run's budget.
        updates: Optimizer steps so far.
        episodes: Finished episodes so far.
    """

    total_env_steps: int
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0

    @property
    def progress(self) -> float:
        """Return the finished share of the budget, in [0, 1]."""
        return min(1.0, self.env_steps / self.total_env_steps)


def tree_map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply `fn` to every array of a tree (and to its counterparts in `rest`)."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {k: tree_map(fn, v, *(r[k] for r in rest)) for k, v in tree.items()}
    return fn(tree, *rest)


def tree_leaves(tree: Tree) -> list[Array]:
    """Return the arrays of a tree in a fixed order."""
    if tree is None:
        return []
    if isinstance(tree, Mapping):
        return [leaf for key in sorted(tree) for leaf in tree_leaves(tree[key])]
    return [tree]


def pack(prefix: str, tree: Tree) -> dict[str, Array]:
    """Name the arrays of an observation for a flat batch; `unpack` is the way back.

    Example:
        >>> pack("obs", {"image": 1, "goal": 2})
        {'obs/image': 1, 'obs/goal': 2}
    """
    if isinstance(tree, Mapping):
        return {f"{prefix}/{k}": v for k, v in tree.items()}
    return {prefix: tree}


def unpack(prefix: str, batch: Mapping[str, Array]) -> Tree:
    """Return the observation that `pack` put into a batch."""
    if prefix in batch:
        return batch[prefix]
    start = prefix + "/"
    return {k.removeprefix(start): v for k, v in batch.items() if k.startswith(start)}


def action_mask(obs: Tree) -> Array | None:
    """Return the action mask that comes with an observation, if any."""
    return obs.get(ACTION_MASK) if isinstance(obs, Mapping) else None
