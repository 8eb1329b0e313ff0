"""The splits of both tasks: traces to train on, and traces to test on.

A trace is drawn from a seed. Those of training come from seeds below 10,000, and so do the ones
that baselines are tuned on; those of the test from seeds from 1,000,000 on. No test trace was used
while the tasks, the baselines and the presets were made.
"""

from __future__ import annotations

from typing import Literal, get_args

from assay.core.errors import EnvError

Split = Literal["train", "test"]
TRACE_SEEDS: dict[Split, range] = {"train": range(10_000), "test": range(1_000_000, 2_000_000)}


def known(split: Split) -> Split:
    """Return the split.

    Raises:
        EnvError: It is not one.
    """
    if split not in get_args(Split):
        raise EnvError(f"split is {split!r}; 'train' or 'test' was expected.")
    return split
