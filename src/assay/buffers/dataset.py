"""Draw batches from a dataset: a buffer without a collector.

The dataset (`assay.data`) holds rows in the environment's own units, in memory or mapped from a
file; they become canonical when they are drawn.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from assay.core.errors import DataError
from assay.core.seeding import rng_state, set_rng_state
from assay.core.types import Batch, SequenceBatch, State, Tree, tree_map

if TYPE_CHECKING:
    from assay.data.dataset import Dataset
    from assay.envs.spaces import ActionMap, ObservationMap


PREFERRED = "preferred"  # extra of steps of segments that were compared: how good theirs was
_AHEAD = 8  # batches that the system is asked for before they are drawn


class DatasetBuffer:
    """Transitions that do not change, to draw batches and sequences from.

    Args:
        dataset: Has the rows, and fits the spaces (`assay.data.findings.require_valid`).
        observations: Makes observations canonical.
        actions: Makes actions canonical.
        gamma: The discount that batches state.
        next_action: Whether `sample` gives the extras `next_action` and `has_next`.
        pairs: Whether it holds pairs of segments, for `sample_pairs`.
        device: Where batches go.
        rng: Source of all draws.

    Raises:
        DataError: It does not hold pairs.
    """

    def __init__(
        self,
        dataset: Dataset,
        observations: ObservationMap,
        actions: ActionMap,
        *,
        gamma: float,
        next_action: bool = False,
        pairs: bool = False,
        device: torch.device | str = "cpu",
        rng: np.random.Generator,
    ) -> None:
        self.dataset = dataset
        self.observations, self.actions = observations, actions
        self.gamma, self.device = gamma, torch.device(device)
        self.next_action = next_action
        self._rng = rng
        # Draws what `rng` will draw, some batches earlier.
        self._scout: np.random.Generator | None = None
        self._leaves = {leaf.key: leaf for leaf in observations.fields("").values()}
        self.pair_steps = _pair_steps(dataset) if pairs else 0

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self.dataset)

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions, with replacement, as tensors [B, ...] on the device."""
        return self.batch(self._draw(batch_size))

    def batch(self, index: NDArray[np.int64]) -> Batch:
        """Return transitions by their numbers in the dataset."""
        rows = self.dataset.transitions(index)
        extras = {name: self._tensor(extra) for name, extra in rows["extras"].items()}
        if self.next_action:
            action, known = self.dataset.next_actions(index)
            extras["next_action"] = self._tensor(self._canonical_actions(action, known))
            extras["has_next"] = self._float(known)
        return Batch(
            obs=self._tensors(self.canonical(rows["obs"])),
            action=self._tensor(self.actions.from_env(rows["action"])),
            reward=self._float(rows["reward"]),
            next_obs=self._tensors(self.canonical(rows["next_obs"])),
            terminated=self._float(rows["terminated"]),
            truncated=self._float(rows["truncated"]),
            discount=torch.full((len(index),), self.gamma, device=self.device),
            extras=extras,
        )

    def sample_sequences(
        self, batch_size: int, length: int, *, returns_to_go: bool = False
    ) -> SequenceBatch:
        """Draw sequences of `length` steps [B, length, ...] that end anywhere in an episode.

        Where an episode has fewer steps up to there, the sequence begins with padding, whose rows
        are zeros and not `valid`. `extras` has `timestep`, the number of a step in its episode, and
        if asked for `return_to_go`, the sum of rewards from a step to the end of its episode.
        """
        index = self._draw(batch_size, length)
        rows = self.dataset.sequences(index, length)
        valid = rows["valid"]
        extras = {**rows["extras"], "timestep": rows["timestep"]}
        if returns_to_go:
            steps = index[:, None] + np.arange(1 - length, 1)
            to_go = self.dataset.returns_to_go[np.maximum(steps, 0)]
            extras["return_to_go"] = np.where(valid, to_go, 0.0).astype(np.float32)
        first = (rows["timestep"] == 0) & valid
        return SequenceBatch(
            obs=self._tensors(self._canonical_steps(rows["obs"], length + 1)),
            action=self._tensor(self._canonical_actions(rows["action"], valid)),
            reward=self._float(rows["reward"]),
            terminated=self._float(rows["terminated"]),
            truncated=self._float(rows["truncated"]),
            is_first=self._float(first),
            valid=self._float(valid),
            extras={name: self._tensor(extra) for name, extra in extras.items()},
        )

    def sample_pairs(self, count: int) -> Batch:
        """Draw pairs of segments, with replacement, as transitions [count * 2 * L, ...].

        They are in order: pair by pair, the left segment before the right one, step by step. The
        extra `preferred` says of every step how good its segment is.
        """
        drawn = self._rng.integers(len(self) // self.pair_steps, size=count)
        steps = drawn[:, None] * self.pair_steps + np.arange(self.pair_steps)
        return self.batch(steps.reshape(-1))

    def canonical(self, obs: Tree) -> Tree:
        """Return raw observations [B, ...] as algorithms see them."""
        if self.observations.bare:
            return self._leaves[""].batch(obs)
        return {key: leaf.batch(obs[key]) for key, leaf in self._leaves.items()}

    def _canonical_steps(self, obs: Tree, length: int) -> Tree:
        flat = tree_map(lambda part: part.reshape(-1, *part.shape[2:]), obs)
        made = self.canonical(flat)
        return tree_map(lambda part: part.reshape(-1, length, *part.shape[1:]), made)

    def _canonical_actions(self, actions: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[Any]:
        made = self.actions.from_env(actions.reshape(-1, *actions.shape[valid.ndim :]))
        made = made.reshape(*valid.shape, *made.shape[1:])
        made[~valid] = 0  # padding, also where the space starts elsewhere
        return made

    def _draw(self, batch_size: int, length: int = 1) -> NDArray[np.int64]:
        batches = 1
        if self._scout is None:
            self._scout, batches = copy.deepcopy(self._rng), 1 + _AHEAD
        for _ in range(batches):
            later = self._scout.integers(len(self), size=batch_size)
            self.dataset.will_need(later, length)
        return self._rng.integers(len(self), size=batch_size)

    def _tensors(self, tree: Tree) -> Tree:
        return tree_map(self._tensor, tree)

    def _tensor(self, rows: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(rows).to(self.device)

    def _float(self, rows: NDArray[Any]) -> torch.Tensor:
        return self._tensor(rows.astype(np.float32))

    def state(self) -> State:
        """Return what later draws depend on; the transitions are in their file."""
        return {"rng": rng_state(self._rng)}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        set_rng_state(self._rng, state["rng"])
        self._scout = None


def _pair_steps(dataset: Dataset) -> int:
    """Return the steps of a pair: two episodes of one length, one after the other."""
    lengths = set(dataset.lengths.tolist())
    extras = {name.rpartition("/")[2] for name in dataset.schema.extras}
    if PREFERRED not in extras or len(lengths) > 1 or dataset.num_episodes % 2:
        raise DataError(
            f"{dataset.name} does not hold pairs of segments that were compared.",
            "Make it with assay prefer export SET --out FILE.npz.",
        )
    return 2 * int(lengths.pop())
