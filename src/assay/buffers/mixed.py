"""Recorded transitions beside a replay: every batch is drawn from both (arXiv:2302.02948)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from assay.buffers.dataset import DatasetBuffer
from assay.buffers.replay_protocol import Replay
from assay.buffers.storage import Sections
from assay.core.types import Array, Batch, State, Transition, Tree, tree_map

_DATASET = "dataset"


class MixedReplay:
    """A replay that fills, and data that does not change, as one replay.

    While the replay holds fewer transitions than it has to give, it gives as many as it holds, and
    the data the rest. Extras are those of the data; where the replay has none, they are zeros.

    Args:
        dataset: What was recorded.
        replay: What is collected, drawn uniformly.
        share: Of every batch, that comes from the data, below 1.
    """

    def __init__(self, dataset: DatasetBuffer, replay: Replay[Batch], share: float) -> None:
        self.dataset, self.replay, self.share = dataset, replay, share

    def __len__(self) -> int:
        """Return how many transitions can be drawn."""
        return len(self.dataset) + len(self.replay)

    def add(self, step: Transition) -> None:
        """Record one step of every environment."""
        self.replay.add(step)

    def sample(self, batch_size: int, beta: float = 1.0) -> Batch:
        """Draw transitions of both, with replacement; those of the data come first."""
        asked = max(1, batch_size - round(batch_size * self.share))
        fresh = min(asked, len(self.replay))
        if not fresh:
            return self.dataset.sample(batch_size)
        # Draws of one size share their memory, so the batch is cut rather than drawn smaller.
        new = self.replay.sample(asked)
        return joined(self.dataset.sample(batch_size - fresh), new, fresh)

    def update(self, index: Array, **columns: Tree) -> None:
        """Refuse: a batch of both has no index."""
        raise NotImplementedError("A batch of recorded and collected transitions is not updated.")

    def cut_episodes(self) -> None:
        """End the episodes under way as truncated."""
        self.replay.cut_episodes()

    def sections(self, prefix: str = "replay") -> Sections:
        """Return the replay in sections, and where the draws of the data are."""
        return {**self.replay.sections(prefix), _DATASET: (self.dataset.state(), None)}

    def load_sections(self, sections: Mapping[str, State], prefix: str = "replay") -> None:
        """Restore what `sections` returned."""
        self.replay.load_sections(sections, prefix)
        self.dataset.load_state(sections[_DATASET])


def joined(old: Batch, new: Batch, count: int) -> Batch:
    """Return a batch, and behind it the first `count` transitions of another."""

    def join(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return torch.cat([one, two[:count]])

    extras = {
        name: join(rows, new.extras.get(name, rows.new_zeros(count, *rows.shape[1:])))
        for name, rows in old.extras.items()
    }
    return Batch(
        obs=tree_map(join, old.obs, new.obs),
        action=join(old.action, new.action),
        reward=join(old.reward, new.reward),
        next_obs=tree_map(join, old.next_obs, new.next_obs),
        terminated=join(old.terminated, new.terminated),
        truncated=join(old.truncated, new.truncated),
        discount=join(old.discount, new.discount),
        extras=extras,
    )
