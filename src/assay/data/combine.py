"""Put datasets together, and divide them, without reading more than a few episodes at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError, DataError
from assay.core.wording import counted
from assay.data.dataset import Dataset
from assay.data.files import load
from assay.data.schema import Columns, spaces_state


def merge(sources: Sequence[str | Path | Dataset]) -> Dataset:
    """Return the episodes of several datasets, one dataset after the other.

    Raises:
        ConfigError: There are none.
        DataError: Their spaces or extras differ.
    """
    if not sources:
        raise ConfigError("No datasets are given.", "Give at least one.")
    sets = [load(source) for source in sources]
    first = sets[0]
    for other in sets[1:]:
        _require_alike(first, other)
    lengths = np.concatenate([one.lengths for one in sets])
    owner = np.repeat(np.arange(len(sets)), [one.num_episodes for one in sets])
    number = np.concatenate([np.arange(one.num_episodes) for one in sets])
    metadata = {"merged": [{"name": one.name, **one.metadata} for one in sets]}
    source = _Picked(sets, owner, number)
    return Dataset(first.schema, lengths, source, metadata=metadata, name="the merged dataset")


def split(
    source: str | Path | Dataset, fraction: float, *, seed: int = 0
) -> tuple[Dataset, Dataset]:
    """Divide a dataset by whole episodes, drawn at random, each part in the original order.

    Args:
        source: What `load` takes.
        fraction: Share of the episodes that the first part gets, between 0 and 1.
        seed: Fixes the draw.

    Raises:
        ConfigError: The fraction is out of range, or would leave a part without episodes.
    """
    dataset = load(source)
    count = round(fraction * dataset.num_episodes) if 0 < fraction < 1 else 0
    if not 0 < count < dataset.num_episodes:
        raise ConfigError(
            f"fraction={fraction:g} of {counted(dataset.num_episodes, 'episode')}: expected a "
            "share that leaves episodes in both parts.",
            "Give a fraction between 0 and 1, such as 0.9.",
        )
    order = np.random.default_rng(seed).permutation(dataset.num_episodes)
    parts = np.sort(order[:count]), np.sort(order[count:])
    return _select(dataset, parts[0]), _select(dataset, parts[1])


def first(source: str | Path | Dataset, episodes: int) -> Dataset:
    """Return the first episodes of a dataset: so many, or all if there are fewer."""
    dataset = load(source)
    return _select(dataset, np.arange(min(episodes, dataset.num_episodes)))


def _select(dataset: Dataset, numbers: NDArray[np.int64]) -> Dataset:
    source = _Picked([dataset], np.zeros(len(numbers), np.int64), numbers)
    lengths = dataset.lengths[numbers]
    metadata = {**dataset.metadata, "part_of": dataset.name}
    return Dataset(dataset.schema, lengths, source, metadata=metadata, name=dataset.name)


def _require_alike(one: Dataset, other: Dataset) -> None:
    if spaces_state(one.schema) != spaces_state(other.schema):
        raise DataError(
            f"The spaces of {one.name} and {other.name} differ: {one.schema.observation} and "
            f"{one.schema.action}, against {other.schema.observation} and {other.schema.action}.",
            "Merge data of one environment.",
        )
    if one.schema.fields != other.schema.fields:
        extras = " and ".join(", ".join(s.schema.extras) or "none" for s in (one, other))
        raise DataError(
            f"The extras of {one.name} and {other.name} differ: {extras}.",
            "Merge sets that were recorded alike.",
        )


class _Picked:
    """Episodes of several datasets, in any order."""

    def __init__(
        self, sets: Sequence[Dataset], owner: NDArray[np.int64], number: NDArray[np.int64]
    ) -> None:
        self._sets, self._owner, self._number = sets, owner, number

    def block(self, first: int, last: int, names: Iterable[str]) -> Columns:
        """Read each of the episodes."""
        wanted = list(names)
        parts = [
            self._sets[owner].block(number, number + 1, wanted).columns
            for owner, number in zip(
                self._owner[first:last].tolist(), self._number[first:last].tolist(), strict=True
            )
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in wanted}

    def columns(self) -> None:
        """Return nothing: the rows lie apart."""
        return None
