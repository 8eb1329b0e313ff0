"""Comparisons as a dataset, for policies that learn from them without a reward model.

Each comparison is two episodes, one after the other: the left segment and the right one. The extra
`preferred` of their steps is 1 in the segment that was chosen, 0 in the other one, and 0.5 in both
where they are equally good.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from assay.buffers.dataset import PREFERRED
from assay.core.types import tree_map
from assay.data.collect import from_episodes
from assay.data.dataset import Dataset, Episode
from assay.data.files import save
from assay.preferences.files import PreferenceSet
from assay.preferences.fit import read_comparisons


def export(found: PreferenceSet, out: Path | str, *, without: Sequence[str] = ()) -> Dataset:
    """Write the comparisons that models are fitted to, and return them.

    What is held out is left out: a policy that learned from it could not be measured by it.

    Args:
        found: The comparisons.
        out: The file, of any format that datasets have.
        without: Annotators whose answers do not count.

    Raises:
        DataError: There is nothing to learn from.
    """
    buffer, learned, _ = read_comparisons(found, without)
    source, places = buffer.dataset, learned.places
    episodes = []
    for pair, target in enumerate(learned.target):
        for side, worth in enumerate((target, 1.0 - target)):
            whole = source.episode(int(places.episode[pair, side]))
            episodes.append(_cut(whole, int(places.start[pair, side]), found.length, float(worth)))
    schema = source.schema
    metadata = {"env": found.facts["env"], "preferences": found.digest()}
    made = from_episodes(episodes, schema.observation, schema.action, metadata=metadata)
    save(made, Path(out))
    return made


def _cut(whole: Episode, start: int, length: int, worth: float) -> Episode:
    """Return a segment as an episode, which is truncated where it did not end by itself."""
    steps = slice(start, start + length)
    terminated = whole.terminated[steps]
    truncated = np.zeros(length, bool)
    truncated[-1] = not terminated[-1]
    return Episode(
        obs=tree_map(lambda part: part[start : start + length + 1], whole.obs),
        action=whole.action[steps],
        reward=whole.reward[steps],
        terminated=terminated,
        truncated=truncated,
        extras={PREFERRED: np.full(length, worth, np.float32)},
    )
