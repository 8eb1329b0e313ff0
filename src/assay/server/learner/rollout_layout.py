"""Moving the rows of a rollout of one column, which holds steps of many clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.buffers.allocation import Spec
from assay.buffers.rollout import Finals, Rollout, Runs
from assay.core.types import tree_leaves, tree_map

Array = np.ndarray[Any, Any]


def reorder(rollout: Rollout, order: Array, uncut: Array) -> None:
    """Put the steps of a rollout of one column into another order.

    Args:
        rollout: What is changed in place.
        order: [T] the row that comes first, second, ...
        uncut: [K] rows, in the new order, that are no longer truncated: the next row follows.
    """
    for array in tree_leaves(rollout.columns):
        array[:] = array[order]
    rollout.truncated[uncut, 0] = False
    finals = rollout.finals
    if finals is None:
        return
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    step = place[finals.step]
    kept = np.argsort(step)
    kept = kept[~np.isin(step[kept], uncut)]
    rollout.finals = None
    if len(kept):
        obs, carry = (
            tree_map(lambda array: array[kept], tree) for tree in (finals.obs, finals.carry)
        )
        rollout.finals = Finals(step[kept], finals.env[kept], obs, carry)


def pad_runs_to_multiple(rollout: Rollout, begins: Sequence[int], multiple: int) -> Rollout:
    """Return a copy of a rollout of one column in which every run begins at a multiple.

    Rows in between are not valid. What lies before them must end an episode, or be truncated.

    Args:
        rollout: What is copied.
        begins: The first row of every run, ascending from 0.
        multiple: Where runs may begin; the length of the result is a multiple as well.
    """
    counts = np.diff([*begins, rollout.length])
    rounded = -(-counts // multiple) * multiple
    # A row moves by all the padding before it.
    padding = np.cumsum(rounded - counts) - (rounded - counts)
    moved = np.arange(rollout.length) + np.repeat(padding, counts)
    extras = {k: Spec(array.shape[2:], array.dtype) for k, array in rollout.extras.items()}
    wide = Rollout(rollout.spaces, int(rounded.sum()), 1, extras)

    def put(to: Array, array: Array) -> None:
        to[moved] = array

    tree_map(put, wide.columns, rollout.columns)
    wide.runs = Runs(moved[list(begins)], np.zeros_like(counts), counts)
    finals = rollout.finals
    if finals is not None:
        obs, carry = (tree_map(np.copy, tree) for tree in (finals.obs, finals.carry))
        wide.finals = Finals(moved[finals.step], finals.env.copy(), obs, carry)
    wide.last_obs = tree_map(np.copy, rollout.last_obs)
    return wide
