"""Which segments are compared: by chance, where models disagree, or spread over what was done."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from assay.buffers.dataset import DatasetBuffer
from assay.core.errors import ConfigError, DataError
from assay.core.types import Spaces, tree_leaves
from assay.data.dataset import Dataset
from assay.envs.spaces import ActionMap, ObservationMap
from assay.experts.reward_model import RewardModel

By = Literal["chance", "disagreement", "coverage"]
_ROWS = 1 << 15  # transitions that are looked at together
_CANDIDATES = 10  # pairs that are drawn for each that is chosen


class Places(NamedTuple):
    """Segments: the episode and the first step of each, [..., S]."""

    episode: NDArray[np.int64]
    start: NDArray[np.int64]

    def take(self, index: NDArray[np.int64]) -> Places:
        """Return some of them."""
        return Places(self.episode[index], self.start[index])


def make_buffer(dataset: Dataset) -> DatasetBuffer:
    """Return a dataset as batches of canonical steps."""
    return DatasetBuffer(dataset, *_maps(dataset), gamma=1.0, rng=np.random.default_rng(0))


def _maps(dataset: Dataset) -> tuple[ObservationMap, ActionMap]:
    return ObservationMap(dataset.schema.observation), ActionMap(dataset.schema.action)


def choose_pairs(
    dataset: Dataset,
    length: int,
    count: int,
    rng: np.random.Generator,
    *,
    by: By = "chance",
    model: RewardModel | None = None,
    episodes: NDArray[np.int64] | None = None,
) -> Places:
    """Return pairs of segments, [count, 2].

    Args:
        dataset: The episodes.
        length: Steps of a segment.
        count: How many pairs.
        rng: Source of the draws.
        by: "chance": uniformly. "disagreement": of ten times as many, those on which the members of
            the model disagree most. "coverage": of ten times as many, those that are farthest from
            each other.
        model: Whose members disagree.
        episodes: Those that segments may be of; all by default.

    Raises:
        ConfigError: Disagreement needs a model.
        DataError: No episode is long enough for two different segments.
    """
    if (by == "disagreement") != (model is not None):
        raise ConfigError(
            f"--by {by} {'needs' if model is None else 'does not use'} a reward model.",
            "Give --by disagreement and --model MODEL together.",
        )
    if model is not None:
        observations, actions = _maps(dataset)
        model.require(Spaces(observations.space, actions.space))
    found = _draw(dataset, length, count * (1 if by == "chance" else _CANDIDATES), rng, episodes)
    if by == "chance":
        return found
    buffer = make_buffer(dataset)
    if model is not None:
        sums = segment_sums(model, buffer, found, length)  # [M, K, 2]
        chance = expit(sums[..., 0] - sums[..., 1])
        return found.take(np.argsort(-chance.std(0), kind="stable")[:count])
    shape = found.episode.shape
    described = _features(buffer, found, length).reshape(*shape, -1)
    return found.take(_spread(described.reshape(shape[0], -1), count, rng))


def _draw(
    dataset: Dataset,
    length: int,
    count: int,
    rng: np.random.Generator,
    episodes: NDArray[np.int64] | None,
) -> Places:
    """Return pairs of two different segments, each segment as likely as any other."""
    allowed = np.arange(dataset.num_episodes) if episodes is None else episodes
    room = np.maximum(dataset.lengths[allowed] - length + 1, 0)  # segments in each episode
    total = int(room.sum())
    if total < 2:
        longest = int(dataset.lengths[allowed].max(initial=0))
        raise DataError(
            f"No two segments of {length} steps are in the episodes of {dataset.name}: the longest "
            f"of {len(allowed)} has {longest}.",
            "Use a smaller --length, or more and longer episodes.",
        )
    first = rng.integers(total, size=count)
    second = (first + rng.integers(1, total, size=count)) % total  # another one
    drawn = np.stack([first, second], 1)
    ends = np.cumsum(room)
    which = np.searchsorted(ends, drawn, side="right")
    return Places(allowed[which], drawn - (ends - room)[which])


def segment_steps(dataset: Dataset, places: Places, length: int) -> NDArray[np.int64]:
    """Return the numbers [..., L] of the transitions of segments."""
    starts = np.concatenate([[0], np.cumsum(dataset.lengths)])[:-1]
    found: NDArray[np.int64] = (starts[places.episode] + places.start)[..., None]
    return found + np.arange(length)


@torch.no_grad()
def segment_sums(
    model: RewardModel, buffer: DatasetBuffer, places: Places, length: int
) -> NDArray[np.float64]:
    """Return the sum of rewards of each segment by each member, [M, ...]."""
    steps = segment_steps(buffer.dataset, places, length).reshape(-1, length)
    parts = []
    for rows in _chunks(steps, length):
        batch = buffer.batch(rows.reshape(-1))
        said = model.ensemble.every(model.inputs(batch.obs), batch.action)
        parts.append(said.reshape(len(said), -1, length).sum(2).numpy())
    joined = np.concatenate(parts, 1).astype(np.float64)
    return joined.reshape(len(joined), *places.episode.shape)


def _features(buffer: DatasetBuffer, places: Places, length: int) -> NDArray[np.float64]:
    """Return what each segment is like [S, F]: means and spreads of what was seen and done."""
    steps = segment_steps(buffer.dataset, places, length).reshape(-1, length)
    parts = []
    for rows in _chunks(steps, length):
        batch = buffer.batch(rows.reshape(-1))
        flat = [
            leaf.numpy().reshape(len(rows), length, -1)
            for leaf in (*tree_leaves(batch.obs), batch.action)
        ]
        numbers = np.concatenate(flat, 2).astype(np.float64)
        parts.append(np.concatenate([numbers.mean(1), numbers.std(1)], 1))
    found = np.concatenate(parts)
    scale = found.std(0)
    return (found - found.mean(0)) / np.where(scale > 0, scale, 1.0)


def _spread(points: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return points [K, F] that are far from each other, each the farthest from those before it."""
    chosen = [int(rng.integers(len(points)))]
    nearest = np.full(len(points), np.inf)
    while len(chosen) < count:
        apart = np.square(points - points[chosen[-1]]).sum(1)
        nearest = np.minimum(nearest, apart)
        chosen.append(int(nearest.argmax()))
    return np.array(chosen)


def _chunks(steps: NDArray[np.int64], length: int) -> list[NDArray[np.int64]]:
    size = max(1, _ROWS // length)
    return [steps[first : first + size] for first in range(0, len(steps), size)]
