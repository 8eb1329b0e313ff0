"""Transitions that a model of the environment made up, to sample batches from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.buffers.allocation import Spec, allocate, require_memory, space_spec, stacked, tree_bytes
from assay.buffers.storage import HEAD, Ring, Sectioned, Sections, same_settings, section
from assay.core.errors import AssayError
from assay.core.seeding import rng_state, set_rng_state
from assay.core.types import Batch, Spaces, State, tree_map

_FLOAT = np.dtype(np.float32)


class ImaginedReplay(Sectioned):
    """The newest transitions that were imagined, on the device that imagines them.

    They come in any number at a time, have no environment and no order that matters.

    Args:
        spaces: What is stored; observations are one array.
        capacity: Transitions in all.
        gamma: The discount that batches state.
        device: Where all of it is.
        rng: Source of all draws.

    Attributes:
        keep: How many of the newest are drawn from.

    Raises:
        ConfigError: The memory does not suffice.
    """

    def __init__(
        self,
        spaces: Spaces,
        capacity: int,
        *,
        gamma: float,
        device: torch.device | str = "cpu",
        rng: np.random.Generator,
    ) -> None:
        obs, number = space_spec(spaces.observation), Spec((), _FLOAT)
        one = {"obs": obs, "action": space_spec(spaces.action), "next_obs": obs}
        self._plan: dict[str, Any] = stacked(
            one | {"reward": number, "terminated": number}, capacity
        )
        if torch.device(device).type == "cpu":
            what = f"A replay of {capacity:,} imagined transitions"
            require_memory(tree_bytes(self._plan), what, capacity=capacity)
        self.capacity = self.keep = capacity
        self.gamma, self.device = gamma, torch.device(device)
        self._rng = rng
        self._columns: dict[str, Tensor] = {}  # made when the first are added
        self._written = 0

    def __len__(self) -> int:
        """Return the number of transitions that can be drawn."""
        return min(self._written, self.keep, self.capacity)

    def add(self, **columns: Tensor) -> None:
        """Record transitions, of more than fit the last ones.

        Args:
            **columns: `obs`, `action`, `reward`, `next_obs` and `terminated`, [K, ...] each.
        """
        if not self._columns:
            self._columns = self._allocated()
        skipped = max(0, len(columns["reward"]) - self.capacity)
        count = len(columns["reward"]) - skipped
        start = (self._written + skipped) % self.capacity
        first = min(count, self.capacity - start)  # the rest goes to the beginning of the ring
        for name, column in self._columns.items():
            rows = columns[name][skipped:]
            column[start : start + first] = rows[:first]
            column[: count - first] = rows[first:]
        self._written += skipped + count

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions, with replacement, as tensors [B, ...] on the device."""
        if not len(self):
            raise AssayError("Cannot sample before anything was imagined.")
        back = 1 + self._rng.integers(len(self), size=batch_size)
        index = torch.from_numpy((self._written - back) % self.capacity).to(self.device)
        drawn: dict[str, Any] = {
            name: column.index_select(0, index) for name, column in self._columns.items()
        }
        return Batch(
            **drawn,
            truncated=torch.zeros_like(drawn["reward"]),
            discount=torch.full_like(drawn["reward"], self.gamma),
        )

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        head = section(state, HEAD)
        same_settings(head["settings"], {"capacity": self.capacity}, "imagined replay")
        set_rng_state(self._rng, head["rng"])
        self._written, self.keep = int(head["written"]), int(head["keep"])
        self._columns = {}
        if self._written:
            arrays = allocate(self._plan)
            self._ring(arrays).load(state)
            self._columns = tree_map(self._tensor, arrays)

    def _sections(self) -> Sections:
        head: State = {
            "settings": {"capacity": self.capacity},
            "rng": rng_state(self._rng),
            "written": self._written,
            "keep": self.keep,
        }
        found: Sections = {HEAD: (head, None)}
        if self._columns:
            arrays = tree_map(lambda column: column.cpu().numpy(), self._columns)
            found |= self._ring(arrays).sections(lambda part: part["reward"])
        return found

    def _ring(self, arrays: dict[str, np.ndarray]) -> Ring:
        return Ring("", arrays, self.capacity, np.array([self._written]), 1)

    def _allocated(self) -> dict[str, Tensor]:
        made: dict[str, Tensor] = tree_map(self._tensor, allocate(self._plan))
        return made

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)
