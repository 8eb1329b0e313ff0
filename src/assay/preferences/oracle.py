"""A scripted annotator: it answers by the environment's own rewards, with mistakes."""

from __future__ import annotations

import numpy as np

from assay.core.errors import ConfigError
from assay.core.seeding import derive_rng
from assay.preferences.files import Choice, Pair, PreferenceSet

ORACLE = "oracle"


def true_returns(found: PreferenceSet, pair: Pair) -> tuple[float, float]:
    """Return the sums of the environment's rewards over the two segments."""
    batch = next(one for one in found.batches if one.number == pair.left.batch)
    sums = []
    for segment in (pair.left, pair.right):
        reward = batch.dataset.episode(segment.episode).reward
        sums.append(float(reward[segment.start : segment.start + found.length].sum()))
    return sums[0], sums[1]


def ask_oracle(
    found: PreferenceSet,
    *,
    noise: float = 0.0,
    equal: float = 0.0,
    seed: int = 0,
    annotator: str = ORACLE,
) -> int:
    """Let the oracle answer what it has not answered yet, and return how many pairs that were.

    An answer depends on the pair and the seed alone: stopped and asked again, it says the same.

    Args:
        found: The pairs.
        noise: Share of answers that name the wrong segment (arXiv:2111.03026).
        equal: Returns that differ by this much or less are equal to it.
        seed: Fixes the mistakes.
        annotator: Its name.

    Raises:
        ConfigError: A number is out of range.
    """
    if not 0 <= noise <= 1 or equal < 0:
        raise ConfigError(
            f"noise={noise:g}, equal={equal:g}: expected a share from 0 to 1, and at least 0."
        )
    answers = []
    for pair in found.unlabelled(annotator):
        left, right = true_returns(found, pair)
        wrong = bool(derive_rng(seed, "oracle", pair.id).random() < noise)
        choice: Choice = "left" if (left > right) != wrong else "right"
        if np.isclose(left, right, rtol=0.0, atol=equal):
            choice = "equal"
        answers.append((pair.id, choice, annotator))
    return found.add_labels(answers) if answers else 0
