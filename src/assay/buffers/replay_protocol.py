"""What a replay is to the loops that fill it and to the algorithms that sample from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from assay.buffers.storage import Sections
from assay.core.types import Array, State, Transition, Tree

BatchT = TypeVar("BatchT", covariant=True)


class Replay(Protocol[BatchT]):
    """Past experience to sample from: `Replay[Batch]`, or `Replay[SequenceBatch]`."""

    def __len__(self) -> int:
        """Return how many transitions or sequences can be drawn."""

    def add(self, step: Transition) -> None:
        """Record one step of every environment."""

    def sample(self, batch_size: int, beta: float = 1.0) -> BatchT:
        """Draw a batch; `beta` is the exponent of the importance weights of prioritised replay."""

    def update(self, index: Array, **columns: Tree) -> None:
        """Write to what was sampled; what has been overwritten since is left out.

        Args:
            index: [B] of the batch.
            **columns: [B, ...] each: `priority` (a TD error of any sign), or what was recorded.
        """

    def cut_episodes(self) -> None:
        """End the episodes under way as truncated, for a loop that resets mid-episode."""

    def sections(self, prefix: str = "replay") -> Sections:
        """Return the state in sections for a checkpoint."""

    def load_sections(self, sections: Mapping[str, State], prefix: str = "replay") -> None:
        """Restore what `sections` returned."""
